//! The tables of what is kept apart: a worker and a shape, and a shape from everyone.

use super::{Done, cross};
use crate::block::{self, Blocks};
use crate::id::{JobId, Shape};
use crate::plane::tests::id;
use crate::quarantine::{self, Quarantine, QuarantineVerdict};
use crate::refusal::Refusal;
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

impl Pair {
    fn after(story: &[fn(&mut Pair) -> Done]) -> Pair {
        let settings = Settings { max_failures_before_block: 2, ..Settings::default() };
        let mut pair = Pair { blocks: Blocks::default(), settings, now: 0 };
        story.iter().for_each(|happens| happens(&mut pair).unwrap());
        pair
    }

    fn starts(&mut self) -> Done {
        self.blocks.started(&id("a"), &shape(), JOB);
        Ok(())
    }

    fn fails(&mut self) -> Done {
        self.blocks.failed(at(self.now), &id("a"), &shape(), (JOB, shape()), "boom", &self.settings);
        Ok(())
    }

    fn another_fails(&mut self) -> Done {
        let other = JobId::from_u128(2);
        self.blocks.failed(at(self.now), &id("a"), &shape(), (other, shape()), "boom", &self.settings);
        Ok(())
    }

    fn succeeds(&mut self) -> Done {
        self.blocks.lift(&id("a"), &shape());
        Ok(())
    }

    fn ends_without_evidence(&mut self) -> Done {
        self.blocks.abandon_trial(&id("a"), &shape(), JOB);
        Ok(())
    }

    fn waits(&mut self) -> Done {
        self.now += 60;
        self.blocks.expire(at(self.now), &id("a"), &shape());
        Ok(())
    }

    fn is_lifted(&mut self) -> Done {
        let was_there = self.blocks.lift(&id("a"), &shape());
        was_there.map(drop).ok_or(Refusal::NothingToRemove { what: "block".to_owned() })
    }

    fn shown(&self) -> String {
        let (worker, shape) = (id("a"), shape());
        if self.blocks.get(&worker, &shape).is_none() {
            return "open".to_owned();
        }
        match self.blocks.state(&worker, &shape) {
            block::BlockState::Blocked { until } => {
                format!("blocked for {} s", until.since(at(self.now)).as_secs())
            }
            block::BlockState::TrialUnderWay { .. } => "trial under way".to_owned(),
            block::BlockState::Free if self.blocks.clone().started(&worker, &shape, JOB) => {
                "trial allowed".to_owned()
            }
            block::BlockState::Free => "counting".to_owned(),
        }
    }
}

pub(super) fn blocks() -> String {
    cross(
        &[
            ("open", || Pair::after(&[])),
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
    is_hopeless: bool,
}

impl Suspect {
    fn after(workers: &[&str], seconds: u64, trials: u32, is_under_way: bool) -> Suspect {
        let mut it = Suspect { quarantine: Quarantine::default(), now: 0, is_hopeless: false };
        workers.iter().for_each(|worker| it.fails_on(worker).unwrap());
        for _ in 0..trials {
            it.now += 600;
            it.starts().and_then(|()| it.fails_on("a")).unwrap();
        }
        it.now += seconds;
        if is_under_way {
            it.starts().unwrap();
        }
        it
    }

    fn starts(&mut self) -> Done {
        self.quarantine.started(&shape(), JOB);
        Ok(())
    }

    fn fails_on(&mut self, worker: &str) -> Done {
        let (worker, settings) = (id(worker), Settings::default());
        let verdict = self.quarantine.failed(at(self.now), &shape(), &worker, JOB, "boom", &settings);
        self.is_hopeless = matches!(verdict, QuarantineVerdict::Quarantined { is_hopeless: true, .. });
        Ok(())
    }

    fn is_cleared(&mut self) -> Done {
        self.quarantine
            .clear(&shape())
            .map(|_| ())
            .ok_or(Refusal::NothingToRemove { what: "quarantine".to_owned() })
    }

    fn ends_without_evidence(&mut self) -> Done {
        self.quarantine.abandon_trial(&shape(), JOB);
        Ok(())
    }

    fn waits(&mut self) -> Done {
        self.now += 60;
        Ok(())
    }

    fn shown(&self) -> String {
        let Some(entry) = self.quarantine.get(&shape()) else { return "clear".to_owned() };
        let state = match self.quarantine.state(at(self.now), &shape()) {
            quarantine::QuarantineState::Free if entry.is_quarantined() => "trial allowed".to_owned(),
            quarantine::QuarantineState::Free => format!("failed on {}", entry.failed_on.len()),
            quarantine::QuarantineState::Quarantined { trial_at } => {
                format!("quarantined for {} s", trial_at.since(at(self.now)).as_secs())
            }
            quarantine::QuarantineState::TrialUnderWay { .. } => "trial under way".to_owned(),
        };
        if self.is_hopeless { format!("{state}, waiting jobs fail") } else { state }
    }
}

pub(super) fn quarantine() -> String {
    cross(
        &[
            ("clear", || Suspect::after(&[], 0, 0, false)),
            ("failed on 2", || Suspect::after(&["a", "b"], 0, 0, false)),
            ("quarantined for 60 s", || Suspect::after(&["a", "b", "c"], 0, 0, false)),
            ("trial allowed", || Suspect::after(&["a", "b", "c"], 60, 0, false)),
            ("trial under way", || Suspect::after(&["a", "b", "c"], 60, 0, true)),
            ("trial under way, the third", || Suspect::after(&["a", "b", "c"], 600, 2, true)),
        ],
        &[
            ("an attempt starts", Suspect::starts),
            ("the attempt fails", |it| it.fails_on("a")),
            ("it fails on a new worker", |it| it.fails_on("d")),
            ("it succeeds, or is released", Suspect::is_cleared),
            ("it ends without evidence (cancelled, lost)", Suspect::ends_without_evidence),
            ("60 s pass", Suspect::waits),
        ],
        Suspect::shown,
    )
}
