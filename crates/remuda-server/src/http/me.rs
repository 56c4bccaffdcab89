//! Who the caller is: a page shows and offers only what its token may do.

use axum::Json;
use axum::extract::State;
use serde_json::{Value, json};

use super::{Caller, Context};

pub(super) async fn me(State(context): State<Context>, caller: Caller) -> Json<Value> {
    Json(json!({
        "name": caller.name(),
        "role": caller.role(),
        "tenant": caller.only(),
        "needs_token": !context.access.is_open(),
    }))
}
