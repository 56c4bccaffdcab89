//! Workers and shapes kept apart. Each pair has a circuit breaker (`supervise`): after enough failures it is blocked for a
//! cooldown, then one trial decides whether it is open again or blocked for twice as long.
//!
//! ```text
//!  counting ──failures reach the limit──▶ blocked until T ──T──▶ half open, one trial ──success──▶ forgotten
//!                                             ▲                    │
//!                                             └── failed: wait ×2 ─┘
//! ```
//!
//! Reading a block changes nothing. Its end is an event of its own, because clients subscribe to it: until the plane has
//! processed that event the pair stays blocked, even if the time has passed.
//!
//! The rule also holds for a fleet's only worker: the retry runs when its block ends, unless `exempt_sole_worker` is set.
//! Failures that were not the workflow's fault do not count there, because the service has been repaired by then and no
//! other worker could take the job.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::id::{JobId, Shape, WorkerId, WorkflowHash};
use crate::record::BlockRow;
use crate::settings::Settings;
use crate::supervise::{Backoff, Breaker, BreakerLimits, BreakerState};
use crate::time::Timestamp;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    /// How long the last block lasted; zero before the first.
    pub cooldown: Duration,
    pub reason: String,
    /// The exact hash of the workflow that failed last.
    pub workflow_hash: Option<WorkflowHash>,
    first_failed_at: Timestamp,
    breaker: Breaker<JobId>,
    /// The plane has processed the end of the block.
    has_ended: bool,
}

/// Whether this worker may run this shape now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockState {
    Free,
    Blocked {
        until: Timestamp,
    },
    /// Another job is the trial.
    TrialUnderWay {
        job: JobId,
    },
}

#[derive(Clone, Debug, Default)]
pub struct Blocks(BTreeMap<WorkerId, BTreeMap<Shape, Block>>);

impl Blocks {
    pub fn state(&self, worker: &WorkerId, shape: &Shape) -> BlockState {
        match self.get(worker, shape).map(Block::state) {
            None | Some(BreakerState::Closed | BreakerState::HalfOpen) => BlockState::Free,
            Some(BreakerState::Open { until }) => BlockState::Blocked { until },
            Some(BreakerState::Trial(job)) => BlockState::TrialUnderWay { job },
        }
    }

    pub fn get(&self, worker: &WorkerId, shape: &Shape) -> Option<&Block> {
        self.0.get(worker)?.get(shape)
    }

    /// An attempt starts. True if it is the trial this pair was waiting for.
    pub fn started(&mut self, worker: &WorkerId, shape: &Shape, job: JobId) -> bool {
        self.get_mut(worker, shape).is_some_and(|block| {
            let moment = block.moment();
            block.breaker.start(moment, job)
        })
    }

    /// An attempt ended without evidence about the pair.
    pub fn abandon_trial(&mut self, worker: &WorkerId, shape: &Shape, job: JobId) {
        if let Some(block) = self.get_mut(worker, shape) {
            block.breaker.release(job);
        }
    }

    /// Counts a failure and returns the entry.
    pub fn failed(
        &mut self,
        now: Timestamp,
        worker: &WorkerId,
        shape: &Shape,
        job: (JobId, WorkflowHash),
        reason: &str,
        settings: &Settings,
    ) -> &Block {
        let (job, workflow_hash) = job;
        let block = self.0.entry(worker.clone()).or_default().entry(*shape).or_insert_with(|| Block {
            cooldown: Duration::ZERO,
            reason: String::new(),
            workflow_hash: None,
            first_failed_at: now,
            breaker: Breaker::default(),
            has_ended: false,
        });
        reason.clone_into(&mut block.reason);
        block.workflow_hash = Some(workflow_hash);
        block.fail(now, job, &limits(settings));
        block
    }

    /// Ends a block whose time is over: one trial may start. False if it is not over, or not blocked.
    pub fn expire(&mut self, now: Timestamp, worker: &WorkerId, shape: &Shape) -> bool {
        let Some(block) = self.get_mut(worker, shape) else { return false };
        let is_over = matches!(block.state(), BreakerState::Open { until } if until <= now);
        block.has_ended |= is_over;
        is_over
    }

    pub fn lift(&mut self, worker: &WorkerId, shape: &Shape) -> Option<Block> {
        let shapes = self.0.get_mut(worker)?;
        let block = shapes.remove(shape);
        if shapes.is_empty() {
            self.0.remove(worker);
        }
        block
    }

    /// All workers with an entry for this shape.
    pub fn workers_of(&self, shape: &Shape) -> Vec<WorkerId> {
        self.0
            .iter()
            .filter(|(_, shapes)| shapes.contains_key(shape))
            .map(|(worker, _)| worker.clone())
            .collect()
    }

    pub fn len(&self) -> usize {
        self.0.values().map(BTreeMap::len).sum()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The entry to drop first: the one whose block ends first.
    pub fn first_to_end(&self) -> Option<(WorkerId, Shape)> {
        self.iter()
            .min_by_key(|(_, _, block)| block.until())
            .map(|(worker, shape, _)| (worker.clone(), *shape))
    }

    pub fn iter(&self) -> impl Iterator<Item = (&WorkerId, &Shape, &Block)> {
        self.0
            .iter()
            .flat_map(|(worker, shapes)| shapes.iter().map(move |(shape, block)| (worker, shape, block)))
    }

    /// A block whose time passed while no plane ran is still blocked: its end has yet to be published.
    pub fn restore(&mut self, row: BlockRow, settings: &Settings) {
        let BlockRow { worker, shape, failures, until, cooldown_millis, has_ended, reason, workflow_hash } =
            row;
        let cooldown = Duration::from_millis(cooldown_millis);
        let breaker = if failures < settings.max_failures_before_block {
            Breaker::counting(failures)
        } else {
            let doublings = limits(settings).cooldown.doublings_for(cooldown);
            Breaker::opened(failures, doublings + 1, until)
        };
        let block = Block { cooldown, reason, workflow_hash, first_failed_at: until, breaker, has_ended };
        self.0.entry(worker).or_default().insert(shape, block);
    }

    fn get_mut(&mut self, worker: &WorkerId, shape: &Shape) -> Option<&mut Block> {
        self.0.get_mut(worker)?.get_mut(shape)
    }
}

fn limits(settings: &Settings) -> BreakerLimits {
    BreakerLimits {
        failures_max: settings.max_failures_before_block,
        cooldown: Backoff::new(settings.block_cooldown, settings.block_cooldown_max),
    }
}

impl Block {
    fn fail(&mut self, now: Timestamp, job: JobId, limits: &BreakerLimits) {
        let opens = match self.state() {
            BreakerState::Closed => self.breaker.fail(now, limits),
            // It was in flight when the block began.
            BreakerState::Open { .. } => {
                self.breaker.count_failure();
                false
            }
            BreakerState::Trial(trial) if trial == job => {
                self.breaker.count_failure();
                self.breaker.trip(now, limits.cooldown);
                true
            }
            // A failure other than the trial's: blocked again, for as long as last time.
            BreakerState::HalfOpen | BreakerState::Trial(_) => {
                self.breaker.count_failure();
                self.breaker.reopen(now, limits.cooldown);
                true
            }
        };
        if opens {
            self.has_ended = false;
            self.cooldown = limits.cooldown.delay(self.breaker.trips().saturating_sub(1));
        }
    }

    fn state(&self) -> BreakerState<JobId> {
        self.breaker.state(self.moment())
    }

    /// The time to ask the breaker about. Before the end was processed the breaker must look blocked, afterwards half
    /// open, whatever the clock says: clients hear of the end by an event, and no trial may start before that event.
    fn moment(&self) -> Timestamp {
        if self.has_ended { Timestamp::NEVER } else { Timestamp::ZERO }
    }

    pub fn failures(&self) -> u32 {
        self.breaker.failures()
    }

    /// When the block ends or ended; before the first block, when counting began.
    pub fn until(&self) -> Timestamp {
        self.breaker.until().unwrap_or(self.first_failed_at)
    }

    pub fn is_blocked(&self) -> bool {
        matches!(self.state(), BreakerState::Open { .. })
    }

    /// Whether the pair was blocked, and not merely counted.
    pub fn is_or_was_blocked(&self) -> bool {
        self.state() != BreakerState::Closed
    }

    pub fn row(&self, worker: &WorkerId, shape: &Shape) -> BlockRow {
        BlockRow {
            worker: worker.clone(),
            shape: *shape,
            failures: self.failures(),
            until: self.until(),
            cooldown_millis: u64::try_from(self.cooldown.as_millis()).unwrap_or(u64::MAX),
            has_ended: self.has_ended,
            reason: self.reason.clone(),
            workflow_hash: self.workflow_hash,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Timestamp {
        Timestamp::from_millis(seconds * 1000)
    }

    enum Do {
        Fail,
        Start,
        Succeed,
        Release,
        Expire,
    }
    use Do::{Expire, Fail, Release, Start, Succeed};

    /// Applies a story to one pair and compares its state afterwards.
    fn check(failures_before_block: u32, story: &[(u64, Do)], expected: BlockState) {
        let settings = Settings { max_failures_before_block: failures_before_block, ..Settings::default() };
        let (worker, shape, job) = ("a".parse().unwrap(), Shape::digest(b"s"), JobId::from_u128(1));
        let mut blocks = Blocks::default();
        for (second, what) in story {
            match what {
                Fail => {
                    drop(
                        blocks.failed(at(*second), &worker, &shape, (job, shape), "boom", &settings).clone(),
                    );
                }
                Start => drop(blocks.started(&worker, &shape, job)),
                Succeed => drop(blocks.lift(&worker, &shape)),
                Release => blocks.abandon_trial(&worker, &shape, job),
                Expire => drop(blocks.expire(at(*second), &worker, &shape)),
            }
        }
        assert_eq!(blocks.state(&worker, &shape), expected);
        assert_eq!(blocks.state(&"b".parse().unwrap(), &shape), BlockState::Free, "never another pair");
    }

    #[test]
    fn a_block_ends_by_event_and_one_trial_decides() {
        let blocked = |until| BlockState::Blocked { until: at(until) };
        let job = JobId::from_u128(1);
        check(1, &[(0, Fail)], blocked(60));
        check(1, &[(0, Fail), (59, Expire)], blocked(60));
        check(1, &[(0, Fail), (60, Expire)], BlockState::Free);
        check(1, &[(0, Fail), (60, Expire), (61, Start)], BlockState::TrialUnderWay { job });
        check(1, &[(0, Fail), (60, Expire), (61, Start), (70, Fail)], blocked(190));
        check(1, &[(0, Fail), (60, Expire), (61, Start), (70, Succeed)], BlockState::Free);
        check(1, &[(0, Fail), (60, Expire), (61, Start), (62, Release)], BlockState::Free);
    }

    #[test]
    fn the_wait_doubles_up_to_its_limit() {
        let mut story = vec![(0, Fail)];
        for round in 1..=8 {
            story.extend([(round * 1000, Expire), (round * 1000, Start), (round * 1000, Fail)]);
        }
        check(1, &story, BlockState::Blocked { until: at(8600) });
    }

    #[test]
    fn failures_below_the_limit_are_counted_and_not_forgotten_by_asking() {
        check(3, &[(0, Fail), (1, Fail)], BlockState::Free);
        check(3, &[(0, Fail), (1, Fail), (2, Fail)], BlockState::Blocked { until: at(62) });
    }

    #[test]
    fn attempts_under_way_when_the_block_began_do_not_lengthen_it() {
        check(1, &[(0, Fail), (1, Fail), (2, Fail)], BlockState::Blocked { until: at(60) });
    }
}
