//! Costs over HTTP: now and within a window, by fleet, tenant, job or hour.

use std::time::Duration;

use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use remuda_core::cost::{Bill, CostWindow};
use remuda_core::id::JobId;
use remuda_core::money::Money;
use remuda_core::plane::Plane;
use remuda_core::time::Timestamp;
use remuda_store::JobFilter;
use serde::Deserialize;
use serde_json::{Value, json};

use super::super::{ApiError, Context};
use super::dollars;

/// Jobs read for one answer, newest first; `is_cut` says that there were more.
const JOBS_MAX: usize = 100_000;
const PAGE: usize = 5000;
/// Jobs accepted this long before the window may have run in it.
const WAITED_MAX: Duration = Duration::from_secs(86_400);
/// The default window.
const DEFAULT_WINDOW: Duration = Duration::from_secs(86_400);
/// As far back as spending is stored.
const BACK_MAX: Duration = Duration::from_secs(40 * 86_400);
/// The longest window by hour.
const HOURS_MAX: Duration = Duration::from_secs(72 * 3600);

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::http) struct CostQuery {
    /// Milliseconds since 1970.
    from: Option<u64>,
    until: Option<u64>,
    #[serde(default)]
    by: GroupBy,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum GroupBy {
    #[default]
    Fleet,
    Tenant,
    Job,
    Hour,
}

impl CostQuery {
    fn window(&self, now: Timestamp) -> Result<CostWindow, ApiError> {
        let until = self.until.map_or(now, |millis| Timestamp::from_millis(millis).min(now));
        let from = self.from.map(Timestamp::from_millis);
        if from.is_some_and(|from| from >= until) {
            return Err(ApiError::bad_request(
                "the window ends before it begins: from= and until= are milliseconds since 1970",
            ));
        }
        // A window before anything was stored is empty.
        let from = from.unwrap_or(until.minus(DEFAULT_WINDOW)).max(now.minus(BACK_MAX)).min(until);
        if self.by == GroupBy::Hour && until.since(from) > HOURS_MAX {
            return Err(ApiError::bad_request(
                "by hour, the window is three days at most: choose a shorter one, or by fleet",
            ));
        }
        Ok(CostWindow { from, until })
    }
}

pub(in crate::http) async fn cost(
    State(context): State<Context>,
    asked: Result<Query<CostQuery>, QueryRejection>,
) -> Result<Json<Value>, ApiError> {
    let Query(asked) = asked?;
    let window = asked.window(context.plane.clock.now())?;
    let (mut answer, spent) = context.plane.read(move |plane, now| totals(plane, window, now)).await?;
    match asked.by {
        GroupBy::Fleet => {}
        GroupBy::Hour => {
            let hours = context.plane.read(move |plane, now| plane.spent_by_hour(window, now)).await?;
            let shown = |(from, spent): (Timestamp, Money)| json!({ "from": from.to_string(), "spent_dollars": dollars(spent) });
            answer["hours"] = hours.into_iter().map(shown).collect();
        }
        GroupBy::Tenant | GroupBy::Job => {
            let (bill, is_cut) = bill(&context, window).await?;
            answer["jobs_dollars"] = dollars(bill.sum).into();
            answer["unattributed_dollars"] = dollars(spent.minus(bill.sum)).into();
            answer["is_cut"] = is_cut.into();
            let (name, rows) =
                if asked.by == GroupBy::Tenant { ("tenants", tenants(&bill)) } else { ("jobs", jobs(&bill)) };
            answer[name] = rows.into();
        }
    }
    Ok(Json(answer))
}

/// All fleets, and their total spending.
fn totals(plane: &Plane, window: CostWindow, now: Timestamp) -> (Value, Money) {
    let mut sum = (Money::ZERO, Money::ZERO);
    let mut fleets = Vec::new();
    for id in plane.known_fleets() {
        let (per_hour, spent) = (plane.fleet_hourly_price(&id), plane.spent(&id, window, now));
        sum = (sum.0.plus(per_hour), sum.1.plus(spent));
        let settings = plane.settings().fleets.iter().find(|fleet| fleet.id == id);
        fleets.push(json!({
            "fleet": id,
            "machines": plane.rentals().filter(|rental| rental.fleet == id).count(),
            "per_hour_dollars": dollars(per_hour),
            "hour_max_dollars": settings.and_then(|fleet| fleet.hour_max).map(dollars),
            "day_max_dollars": settings.and_then(|fleet| fleet.day_max).map(dollars),
            "spent_dollars": dollars(spent),
        }));
    }
    let answer = json!({
        "from": window.from.to_string(),
        "until": window.until.to_string(),
        "per_hour_dollars": dollars(sum.0),
        "spent_dollars": dollars(sum.1),
        "fleets": fleets,
    });
    (answer, sum.1)
}

/// The cost of jobs, and whether there were too many to read.
async fn bill(context: &Context, window: CostWindow) -> Result<(Bill, bool), ApiError> {
    let oldest = window.from.minus(WAITED_MAX);
    // Jobs open for longer than that; all others are read from the store.
    let old = move |plane: &Plane, now: Timestamp| {
        let mut bill = Bill::default();
        for job in plane.jobs().filter(|job| job.accepted_at < oldest) {
            bill.add(job.id, &job.tenant, window.cost_of(&job.status(now).attempts, now));
        }
        bill
    };
    let mut bill = context.plane.read(old).await?;
    let now = context.plane.clock.now();
    let mut before: Option<JobId> = None;
    for _ in 0..JOBS_MAX / PAGE {
        let jobs = context.store.jobs(JobFilter::default(), before, PAGE).await?;
        let recent = jobs.iter().take_while(|(accepted, _)| accepted.accepted_at >= oldest);
        for (accepted, life) in recent.clone() {
            bill.add(accepted.id, &accepted.tenant, window.cost_of(&life.attempts, now));
        }
        if recent.count() < PAGE {
            return Ok((bill, false));
        }
        before = jobs.last().map(|(accepted, _)| accepted.id);
    }
    Ok((bill, true))
}

fn tenants(bill: &Bill) -> Vec<Value> {
    let shown = bill.tenants.iter().map(|(tenant, share)| {
        json!({ "tenant": tenant, "jobs": share.jobs, "cost_dollars": dollars(share.cost) })
    });
    shown.collect()
}

fn jobs(bill: &Bill) -> Vec<Value> {
    let shown = bill
        .jobs
        .iter()
        .map(|(job, tenant, cost)| json!({ "job": job, "tenant": tenant, "cost_dollars": dollars(*cost) }));
    shown.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn window_before_anything_was_stored_is_empty_and_a_reversed_one_is_refused() {
        let now = Timestamp::from_millis(100 * 86_400_000);
        let window = |from, until| CostQuery { from, until, by: GroupBy::Fleet }.window(now);
        let whole = window(None, None).unwrap();
        assert_eq!((whole.from, whole.until), (now.minus(DEFAULT_WINDOW), now));
        for (from, until) in [(None, Some(0)), (Some(1), Some(2))] {
            let window = window(from, until).unwrap();
            assert_eq!(window.from, window.until, "{from:?} {until:?}");
        }
        for (from, until) in [(Some(2), Some(1)), (Some(u64::MAX), None)] {
            assert_eq!(window(from, until).unwrap_err().status, 400, "{from:?} {until:?}");
        }
    }
}
