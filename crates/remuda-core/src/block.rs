//! Blocks: a worker that failed with a shape often enough gets no job of that shape for a while; then one trial
//! decides whether the pair is open again or blocked for twice as long. Reading a block changes nothing; its end is
//! an event. Also the only worker is blocked: the retry runs when its block ends, unless `exempt_sole_worker` is set.
//! A failure that was not the workflow's fault never blocks the only worker, because the service is repaired by then
//! and no other worker could take the job.
//!
//! ```text
//!  (failures below the limit) ──limit──▶ blocked until T ──T──▶ on trial ──success──▶ forgotten
//!                                             ▲                    │
//!                                             └── failed: wait ×2 ─┘
//! ```

use std::collections::BTreeMap;
use std::time::Duration;

use crate::id::{JobId, Shape, WorkerId, WorkflowHash};
use crate::record::BlockRow;
use crate::settings::Settings;
use crate::time::Timestamp;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    pub failures: u32,
    pub until: Timestamp,
    pub cooldown: Duration,
    pub reason: String,
    /// Hash of the workflow that failed last.
    pub workflow_hash: Option<WorkflowHash>,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Below the failure limit: nothing is blocked yet.
    Counting,
    Blocked,
    /// The cooldown is over; at most one job at a time is the trial.
    Trial(Option<JobId>),
}

/// Whether this worker may run this shape now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockState {
    Open,
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
        match self.get(worker, shape).map(|block| (block.state, block.until)) {
            None | Some((State::Counting | State::Trial(None), _)) => BlockState::Open,
            Some((State::Blocked, until)) => BlockState::Blocked { until },
            Some((State::Trial(Some(job)), _)) => BlockState::TrialUnderWay { job },
        }
    }

    pub fn get(&self, worker: &WorkerId, shape: &Shape) -> Option<&Block> {
        self.0.get(worker)?.get(shape)
    }

    /// An attempt starts; returns whether it is the trial of this pair.
    pub fn started(&mut self, worker: &WorkerId, shape: &Shape, job: JobId) -> bool {
        match self.get_mut(worker, shape) {
            Some(block) if block.state == State::Trial(None) => {
                block.state = State::Trial(Some(job));
                true
            }
            Some(_) | None => false,
        }
    }

    /// An attempt ended without evidence about the pair.
    pub fn released(&mut self, worker: &WorkerId, shape: &Shape, job: JobId) {
        if let Some(block) = self.get_mut(worker, shape)
            && block.state == State::Trial(Some(job))
        {
            block.state = State::Trial(None);
        }
    }

    /// Removes the entry after a success and returns it.
    pub fn succeeded(&mut self, worker: &WorkerId, shape: &Shape) -> Option<Block> {
        self.lift(worker, shape)
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
            failures: 0,
            until: now,
            cooldown: Duration::ZERO,
            reason: String::new(),
            workflow_hash: None,
            state: State::Counting,
        });
        block.failures = block.failures.saturating_add(1);
        reason.clone_into(&mut block.reason);
        block.workflow_hash = Some(workflow_hash);
        let is_trial = block.state == State::Trial(Some(job));
        let is_due = match block.state {
            State::Counting => block.failures >= settings.max_failures_before_block.max(1),
            State::Trial(_) => true,
            // Attempts that ran when the block began are no new evidence.
            State::Blocked => false,
        };
        if is_due {
            let doubled =
                block.cooldown.saturating_mul(2).clamp(settings.block_cooldown, settings.block_cooldown_max);
            block.cooldown = if is_trial { doubled } else { block.cooldown.max(settings.block_cooldown) };
            block.until = now.plus(block.cooldown);
            block.state = State::Blocked;
        }
        block
    }

    /// Ends the cooldown: one trial from now. Returns false if it is not over or there is no block.
    pub fn expire(&mut self, now: Timestamp, worker: &WorkerId, shape: &Shape) -> bool {
        match self.get_mut(worker, shape) {
            Some(block) if block.state == State::Blocked && block.until <= now => {
                block.state = State::Trial(None);
                true
            }
            Some(_) | None => false,
        }
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
        self.iter().min_by_key(|(_, _, block)| block.until).map(|(worker, shape, _)| (worker.clone(), *shape))
    }

    pub fn iter(&self) -> impl Iterator<Item = (&WorkerId, &Shape, &Block)> {
        self.0
            .iter()
            .flat_map(|(worker, shapes)| shapes.iter().map(move |(shape, block)| (worker, shape, block)))
    }

    pub fn restore(&mut self, row: BlockRow, now: Timestamp, settings: &Settings) {
        let state = if row.failures < settings.max_failures_before_block {
            State::Counting
        } else if row.until <= now {
            State::Trial(None)
        } else {
            State::Blocked
        };
        let cooldown = Duration::from_millis(row.cooldown_millis);
        let block = Block {
            failures: row.failures,
            until: row.until,
            cooldown,
            reason: row.reason,
            workflow_hash: row.workflow_hash,
            state,
        };
        self.0.entry(row.worker).or_default().insert(row.shape, block);
    }

    fn get_mut(&mut self, worker: &WorkerId, shape: &Shape) -> Option<&mut Block> {
        self.0.get_mut(worker)?.get_mut(shape)
    }
}

impl Block {
    pub fn is_blocked(&self) -> bool {
        self.state == State::Blocked
    }

    /// Whether it is or was blocked, rather than only counting failures.
    pub fn is_or_was_blocked(&self) -> bool {
        self.state != State::Counting
    }

    pub fn row(&self, worker: &WorkerId, shape: &Shape) -> BlockRow {
        BlockRow {
            worker: worker.clone(),
            shape: *shape,
            failures: self.failures,
            until: self.until,
            cooldown_millis: u64::try_from(self.cooldown.as_millis()).unwrap_or(u64::MAX),
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
                Succeed => drop(blocks.succeeded(&worker, &shape)),
                Release => blocks.released(&worker, &shape, job),
                Expire => drop(blocks.expire(at(*second), &worker, &shape)),
            }
        }
        assert_eq!(blocks.state(&worker, &shape), expected);
        assert_eq!(blocks.state(&"b".parse().unwrap(), &shape), BlockState::Open, "never another pair");
    }

    #[test]
    fn a_block_ends_by_event_and_one_trial_decides() {
        let blocked = |until| BlockState::Blocked { until: at(until) };
        let job = JobId::from_u128(1);
        check(1, &[(0, Fail)], blocked(60));
        check(1, &[(0, Fail), (59, Expire)], blocked(60));
        check(1, &[(0, Fail), (60, Expire)], BlockState::Open);
        check(1, &[(0, Fail), (60, Expire), (61, Start)], BlockState::TrialUnderWay { job });
        check(1, &[(0, Fail), (60, Expire), (61, Start), (70, Fail)], blocked(190));
        check(1, &[(0, Fail), (60, Expire), (61, Start), (70, Succeed)], BlockState::Open);
        check(1, &[(0, Fail), (60, Expire), (61, Start), (62, Release)], BlockState::Open);
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
        check(3, &[(0, Fail), (1, Fail)], BlockState::Open);
        check(3, &[(0, Fail), (1, Fail), (2, Fail)], BlockState::Blocked { until: at(62) });
    }

    #[test]
    fn attempts_under_way_when_the_block_began_do_not_lengthen_it() {
        check(1, &[(0, Fail), (1, Fail), (2, Fail)], BlockState::Blocked { until: at(60) });
    }
}
