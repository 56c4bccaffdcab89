//! What a restored store has lost: it is answered with 410 and the reason, so that its owner knows that it must be made again
//! and was not merely mistyped. Known is what has the time of its creation in its id:
//!
//! | what | where its time is |
//! |---|---|
//! | jobs of every API, prompts without an id of the client's | UUID version 7 |
//! | assets of Comfy API v2, and outputs | UUID version 7, and 8 |
//! | tokens, and credentials of workers that joined with one | first digits of the token's id |
//!
//! Not known are prompt ids that a client chose, contents by their hash, files by their name (`ComfyUI_00001_.png`) and
//! idempotency keys: those are answered as if they had never been. Calls to `/v1` have no id that a client could ask for.

use axum::http::StatusCode;
use remuda_core::id::JobId;
use remuda_core::time::Timestamp;

use super::{ApiError, Context};

/// The answer for a job that is not there.
pub(super) fn job(context: &Context, id: JobId) -> Option<ApiError> {
    let what = format!("job {id}");
    lost(context, &what, uuid_made_at(id.as_u128())?, "submit it again")
}

/// The answer for an asset or output that is not there.
pub(super) fn asset(context: &Context, id: uuid::Uuid) -> Option<ApiError> {
    lost(context, &format!("asset {id}"), uuid_made_at(id.as_u128())?, "upload it again")
}

/// The answer for a token or credential that is unknown.
pub(super) fn token(context: &Context, made_at: Timestamp) -> Option<ApiError> {
    lost(context, "this token", made_at, "`remuda token create` makes a new one")
}

fn lost(context: &Context, what: &str, made_at: Timestamp, remedy: &str) -> Option<ApiError> {
    let generation = context.history.lost_time(made_at)?;
    let kept_until = generation.kept_until;
    let message = format!(
        "{what} is lost: it was made at {made_at}, and the store was restored as of {kept_until}; {remedy}"
    );
    Some(ApiError::new(StatusCode::GONE, "lost_in_restore", message))
}

/// Versions 7 and 8, as we draw and derive them, begin with the milliseconds.
fn uuid_made_at(id: u128) -> Option<Timestamp> {
    let is_timed = matches!(id >> 76 & 0xf, 7 | 8);
    is_timed.then(|| Timestamp::from_millis(u64::try_from(id >> 80).unwrap_or(0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_ids_with_a_time_tell_when_they_were_made() {
        let made_at = |text: &str| uuid_made_at(text.parse::<JobId>().unwrap().as_u128());
        let expected = Some(Timestamp::from_millis(0x0193_e7a0_5b1c));
        assert_eq!(made_at("0193e7a0-5b1c-7d52-9c7e-0a4b6f0e2d11"), expected);
        assert_eq!(made_at("0193e7a0-5b1c-8d52-9c7e-0a4b6f0e2d11"), expected);
        assert_eq!(made_at("0193e7a0-5b1c-4d52-9c7e-0a4b6f0e2d11"), None, "a client's own");
    }
}
