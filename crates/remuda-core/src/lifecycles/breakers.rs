//! The tables of what is kept apart: a worker and a workflow, and a shape from everyone.

use super::{Done, cross};
use crate::block::{self, BlockEvidence, Blocks, FailureReach};
use crate::cause::Cause;
use crate::id::{JobId, Shape};
use crate::job::Job;
use crate::plane::tests::id;
use crate::quarantine::{self, Quarantine, QuarantineEvidence};
use crate::queue::JobKind;
use crate::refusal::Refusal;
use crate::scope::{BlockScope, TenantShape};
use crate::settings::Settings;
use crate::time::Timestamp;

fn at(seconds: u64) -> Timestamp {
    Timestamp::from_millis(seconds * 1000)
}

/// One worker, one shape, one job, and a clock.
struct Pair {
    blocks: Blocks,
    settings: Settings,
    now: u64,
}

const JOB: JobId = JobId::from_u128(1);

fn shape() -> Shape {
    Shape::digest(b"s")
}

fn job(id: JobId) -> Job {
    Job::new(id, at(0), "t".parse().unwrap(), 0, JobKind::for_tests(shape()))
}

fn scope() -> BlockScope {
    BlockScope::Workflow(shape())
}

fn those() -> TenantShape {
    TenantShape { shape: shape(), tenant: "t".parse().unwrap() }
}

impl Pair {
    fn after(story: &[fn(&mut Pair) -> Done]) -> Pair {
        let settings = Settings { max_failures_before_block: 2, ..Settings::default() };
        let mut pair = Pair { blocks: Blocks::default(), settings, now: 0 };
        story.iter().for_each(|happens| happens(&mut pair).unwrap());
        pair
    }

    fn starts(&mut self) -> Done {
        self.blocks.started(&id("a"), &job(JOB));
        Ok(())
    }

    fn fails(&mut self) -> Done {
        self.fails_with(JOB);
        Ok(())
    }

    fn another_fails(&mut self) -> Done {
        self.fails_with(JobId::from_u128(2));
        Ok(())
    }

    fn fails_with(&mut self, id_of_job: JobId) {
        let (job, reach) = (job(id_of_job), FailureReach::Workflow);
        let evidence =
            BlockEvidence { job: &job, cause: Cause::Job, reason: "boom", reach, completed_elsewhere: false };
        self.blocks.failed(at(self.now), &id("a"), &evidence, &self.settings);
    }

    fn succeeds(&mut self) -> Done {
        self.blocks.lift(&id("a"), &scope());
        Ok(())
    }

    fn ends_without_evidence(&mut self) -> Done {
        self.blocks.abandon_trial(&id("a"), &job(JOB));
        Ok(())
    }

    fn waits(&mut self) -> Done {
        self.now += 60;
        self.blocks.expire(at(self.now), &id("a"), &scope());
        Ok(())
    }

    fn is_lifted(&mut self) -> Done {
        let was_there = self.blocks.lift(&id("a"), &scope());
        was_there.map(drop).ok_or(Refusal::NothingToRemove { what: "block".to_owned() })
    }

    fn shown(&self) -> String {
        let (worker, job) = (id("a"), job(JOB));
        if self.blocks.get(&worker, &scope()).is_none() {
            return "free".to_owned();
        }
        match self.blocks.state(&worker, &job) {
            block::BlockState::Blocked { until } => {
                format!("blocked for {} s", until.since(at(self.now)).as_secs())
            }
            block::BlockState::TrialUnderWay { .. } => "trial under way".to_owned(),
            block::BlockState::Free if self.blocks.clone().started(&worker, &job) => {
                "trial allowed".to_owned()
            }
            block::BlockState::Free => "counting".to_owned(),
        }
    }
}

pub(super) fn blocks() -> String {
    cross(
        &[
            ("free", || Pair::after(&[])),
            ("counting", || Pair::after(&[Pair::fails])),
            ("blocked for 60 s", || Pair::after(&[Pair::fails, Pair::fails])),
            ("trial allowed", || Pair::after(&[Pair::fails, Pair::fails, Pair::waits])),
            ("trial under way", || Pair::after(&[Pair::fails, Pair::fails, Pair::waits, Pair::starts])),
        ],
        &[
            ("an attempt starts", Pair::starts),
            ("the attempt fails", Pair::fails),
            ("another one fails", Pair::another_fails),
            ("it succeeds", Pair::succeeds),
            ("it ends without evidence (cancelled, lost)", Pair::ends_without_evidence),
            ("60 s pass", Pair::waits),
            ("lifted by an operator", Pair::is_lifted),
        ],
        Pair::shown,
    )
}

/// One shape, and a clock.
struct Suspect {
    quarantine: Quarantine,
    now: u64,
}

impl Suspect {
    fn after(workers: &[&str], is_under_way: bool) -> Suspect {
        let mut it = Suspect { quarantine: Quarantine::default(), now: 0 };
        workers.iter().for_each(|worker| it.raises_on(worker).unwrap());
        if is_under_way {
            it.starts().unwrap();
        }
        it
    }

    fn starts(&mut self) -> Done {
        self.quarantine.started(&those(), JOB);
        Ok(())
    }

    fn raises_on(&mut self, worker: &str) -> Done {
        self.fails_on(worker, false)
    }

    fn fails_on(&mut self, worker: &str, took_worker_down: bool) -> Done {
        let worker = id(worker);
        let evidence = QuarantineEvidence { worker: &worker, job: JOB, reason: "boom", took_worker_down };
        self.quarantine.failed(at(self.now), &those(), evidence, &Settings::default());
        Ok(())
    }

    fn is_cleared(&mut self) -> Done {
        let cleared = self.quarantine.clear(&shape());
        match cleared.is_empty() {
            true => Err(Refusal::NothingToRemove { what: "quarantine".to_owned() }),
            false => Ok(()),
        }
    }

    fn ends_without_evidence(&mut self) -> Done {
        self.quarantine.abandon_trial(&those(), JOB);
        Ok(())
    }

    fn waits(&mut self) -> Done {
        self.now += 120;
        Ok(())
    }

    fn shown(&self) -> String {
        let Some(entry) = self.quarantine.get(&those()) else { return "clear".to_owned() };
        match self.quarantine.state(at(self.now), &those()) {
            quarantine::QuarantineState::Free if entry.is_quarantined() => "trial allowed".to_owned(),
            quarantine::QuarantineState::Free => format!("failed on {}", entry.failed_on.len()),
            quarantine::QuarantineState::Quarantined { trial_at } => {
                format!("quarantined for {} s", trial_at.since(at(self.now)).as_secs())
            }
            quarantine::QuarantineState::TrialUnderWay { .. } => "trial under way".to_owned(),
        }
    }
}

pub(super) fn quarantine() -> String {
    cross(
        &[
            ("clear", || Suspect::after(&[], false)),
            ("failed on 2", || Suspect::after(&["a", "b"], false)),
            ("trial allowed", || Suspect::after(&["a", "b", "c"], false)),
            ("trial under way", || Suspect::after(&["a", "b", "c"], true)),
            ("quarantined for 120 s", || {
                let mut it = Suspect::after(&["a", "b", "c"], true);
                it.fails_on("a", true).unwrap();
                it
            }),
        ],
        &[
            ("an attempt starts", Suspect::starts),
            ("the attempt fails", |it| it.raises_on("a")),
            ("it takes its worker down", |it| it.fails_on("a", true)),
            ("it fails on a new worker", |it| it.raises_on("d")),
            ("it succeeds, or is released", Suspect::is_cleared),
            ("it ends without evidence (cancelled, lost)", Suspect::ends_without_evidence),
            ("120 s pass", Suspect::waits),
        ],
        Suspect::shown,
    )
}
