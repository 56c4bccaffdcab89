//! A program's own strategy: what it may change, and what it may not.

use super::*;
use crate::strategy::{FailoverStrategy, OwnStrategy, StrategyJob, StrategyVerdict, StrategyWorker};

struct Rule<F>(F);

impl<F> FailoverStrategy for Rule<F>
where
    F: Fn(&StrategyJob<'_>, &StrategyWorker<'_>) -> StrategyVerdict + Send + Sync,
{
    fn judge(&self, job: &StrategyJob<'_>, worker: &StrategyWorker<'_>) -> StrategyVerdict {
        (self.0)(job, worker)
    }
}

fn story(
    rule: impl Fn(&StrategyJob<'_>, &StrategyWorker<'_>) -> StrategyVerdict + Send + Sync + 'static,
) -> Story {
    Story::with(Settings { strategy: OwnStrategy::new(Arc::new(Rule(rule))), ..Settings::default() })
}

/// Lower numbers at the end of the name come first.
fn by_number(_: &StrategyJob<'_>, worker: &StrategyWorker<'_>) -> StrategyVerdict {
    StrategyVerdict::Rank(worker.worker.as_str().trim_start_matches(char::is_alphabetic).parse().unwrap_or(0))
}

#[test]
fn rank_of_a_strategy_comes_before_warmth_and_load() {
    let mut story = story(by_number);
    story.join("a3");
    let warm = story.submit("s");
    story.complete("a3", warm);
    story.join("b1");
    story.join("c2");
    for worker in ["b1", "c2", "a3"] {
        let job = story.submit("s");
        story.is(job, &format!("running on {worker}, attempt 1"));
    }
}

/// Also when waiting jobs are handed out to several free workers at once.
#[test]
fn rank_decides_for_jobs_that_waited() {
    let mut story = story(by_number);
    let mut excluded = Affinity { excluded: ["a3", "b1", "c2"].map(id).into(), ..Affinity::default() };
    story.step(PlaneEvent::SetAffinity { shape: shape("s"), affinity: excluded.clone() }).unwrap();
    ["a3", "b1", "c2"].iter().for_each(|worker| story.join(worker));
    let job = story.submit("s");
    story.is(job, "queued");
    excluded.excluded.clear();
    story.step(PlaneEvent::SetAffinity { shape: shape("s"), affinity: excluded }).unwrap();
    story.is(job, "running on b1, attempt 1");
}

#[test]
fn veto_keeps_a_job_waiting_and_says_why() {
    let mut story = story(|_, worker| match worker.worker.as_str() {
        "a" => StrategyVerdict::Veto,
        _ => StrategyVerdict::NEUTRAL,
    });
    story.join("a");
    let job = story.submit("s");
    story.is(job, "queued");
    let reason = story.why(job);
    assert!(reason.contains("1 is refused by the program's own strategy"), "{reason}");
    story.join("b");
    story.is(job, "running on b, attempt 1");
}

/// Every rule of the core is asked first.
#[test]
fn strategy_is_shown_only_workers_that_may_take_the_job() {
    let mut story = story(|job, worker| {
        assert!(worker.worker.as_str() != "excluded" && worker.worker.as_str() != "draining", "{worker:?}");
        match job.attempts > 0 && worker.has_failed_job {
            true => StrategyVerdict::Veto,
            false => StrategyVerdict::Rank(-1),
        }
    });
    let affinity = Affinity { excluded: [id("excluded")].into(), ..Affinity::default() };
    story.step(PlaneEvent::SetAffinity { shape: shape("s"), affinity }).unwrap();
    ["excluded", "draining"].iter().for_each(|worker| story.join(worker));
    story.drain("draining").unwrap();
    let job = story.submit("s");
    story.is(job, "queued");
    story.join("a");
    story.is(job, "running on a, attempt 1");
}
