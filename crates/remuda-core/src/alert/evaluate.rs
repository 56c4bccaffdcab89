//! For which subjects a rule's condition holds now, with a sentence for people. The inputs are plain values: those of the
//! plane come from `Plane::alert_inputs`, the others from the server.

use std::time::Duration;

use super::{AlertCondition, AlertLimit, AlertRule};
use crate::id::JobId;
use crate::money::Money;
use crate::time::{Timestamp, humanize};

/// What rules look at.
#[derive(Clone, Debug, Default)]
pub struct AlertInputs {
    pub now: Timestamp,
    pub unreliable_workers: Vec<String>,
    pub unreliable_machines: Vec<String>,
    /// Shapes that fail on several workers, each with its tenant.
    pub failing_shapes: Vec<(String, String)>,
    /// The oldest waiting job, and how long it waits.
    pub oldest_waiting: Option<(JobId, Duration)>,
    pub ready_jobs: usize,
    pub ready_workers: usize,
    /// Brakes that are on: a name, and why.
    pub brakes: Vec<(String, String)>,
    pub hourly: Money,
    pub today: Money,
    /// The slowest commit of the last minute or two.
    pub slowest_commit: Duration,
    /// Why the store takes no new jobs.
    pub store_problem: Option<String>,
    pub certificate_ends_at: Option<Timestamp>,
    pub tasks_down: Vec<String>,
}

/// A condition that holds for a subject.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AlertReading {
    pub rule: String,
    /// What it is about, if there may be several: a worker, a machine, a shape, a task.
    pub subject: String,
    pub text: String,
}

/// Subjects of one rule; the others are one more subject together. An outage of a thousand workers is one story.
const SUBJECTS_MAX: usize = 20;
const OTHERS: &str = "others";

/// Every rule's condition that holds.
pub fn evaluate<'a>(
    rules: impl IntoIterator<Item = &'a AlertRule>,
    inputs: &AlertInputs,
) -> Vec<AlertReading> {
    rules.into_iter().flat_map(|rule| readings(rule, inputs)).collect()
}

fn readings(rule: &AlertRule, inputs: &AlertInputs) -> Vec<AlertReading> {
    let mut found = subjects(rule, inputs);
    found.sort();
    found.dedup_by(|one, other| one.0 == other.0);
    if found.len() > SUBJECTS_MAX {
        let others = found.split_off(SUBJECTS_MAX);
        found.push((OTHERS.to_owned(), format!("and {} more of the same kind", others.len())));
    }
    let reading = |(subject, text)| AlertReading { rule: rule.name.clone(), subject, text };
    found.into_iter().map(reading).collect()
}

/// The subjects for which the condition holds, each with a sentence.
fn subjects(rule: &AlertRule, inputs: &AlertInputs) -> Vec<(String, String)> {
    let whole = |text: Option<String>| text.map(|text| (String::new(), text)).into_iter().collect();
    let each = |names: &[String], sentence: fn(&str) -> String| {
        names.iter().map(|name| (name.clone(), sentence(name))).collect()
    };
    match rule.when {
        AlertCondition::WorkerUnreliable => each(&inputs.unreliable_workers, |name| {
            format!("worker {name} went stale too often within the last hour; `remuda workers` shows it")
        }),
        AlertCondition::MachineUnreliable => each(&inputs.unreliable_machines, |name| {
            format!("machine {name} went stale too often within the last hour; `remuda machines` shows it")
        }),
        AlertCondition::ShapeFailing => {
            let sentence = |(shape, tenant): &(String, String)| {
                let text = format!(
                    "shape {shape} of tenant {tenant} fails on several workers; `remuda quarantine` shows it"
                );
                (format!("{shape} of {tenant}"), text)
            };
            inputs.failing_shapes.iter().map(sentence).collect()
        }
        AlertCondition::OldestWaiting => whole(oldest_waiting(rule, inputs)),
        AlertCondition::NoCapacity => {
            whole((inputs.ready_jobs > 0 && inputs.ready_workers == 0).then(|| {
                format!("{} jobs wait and no worker is ready; `remuda status` shows why", inputs.ready_jobs)
            }))
        }
        AlertCondition::Brake => inputs.brakes.clone(),
        AlertCondition::SpendHourly => whole(spend(rule, inputs.hourly, "an hour")),
        AlertCondition::SpendDaily => whole(spend(rule, inputs.today, "since midnight (UTC)")),
        AlertCondition::StoreSlow => whole((inputs.slowest_commit > time_limit(rule)).then(|| {
            format!("a commit to the store took {}; is its disk slow?", humanize(inputs.slowest_commit))
        })),
        AlertCondition::StoreFull => whole(inputs.store_problem.clone()),
        AlertCondition::CertificateEnds => whole(certificate(rule, inputs)),
        AlertCondition::TaskDown => each(&inputs.tasks_down, |name| {
            format!("background task {name} is down; restart the plane, and see its log for why")
        }),
    }
}

fn time_limit(rule: &AlertRule) -> Duration {
    match rule.when.limit() {
        AlertLimit::Time(usual) => rule.time_limit.unwrap_or(usual),
        AlertLimit::None | AlertLimit::Dollars => Duration::MAX,
    }
}

fn oldest_waiting(rule: &AlertRule, inputs: &AlertInputs) -> Option<String> {
    let (job, waits) = inputs.oldest_waiting?;
    let sentence = || format!("job {job} has waited for {}; `remuda why {job}` says why", humanize(waits));
    (waits > time_limit(rule)).then(sentence)
}

fn spend(rule: &AlertRule, spent: Money, over: &str) -> Option<String> {
    let limit = rule.dollar_limit?;
    (spent > limit).then(|| format!("rented machines cost {spent} {over}, more than {limit}"))
}

fn certificate(rule: &AlertRule, inputs: &AlertInputs) -> Option<String> {
    let ends_at = inputs.certificate_ends_at?;
    let left = ends_at.since(inputs.now);
    (left < time_limit(rule)).then(|| match left.is_zero() {
        true => format!("the certificate has ended at {ends_at}: clients refuse the connection"),
        false => format!("the certificate ends at {ends_at}, in {}", humanize(left)),
    })
}
