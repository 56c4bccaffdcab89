//! Workers and workflows kept apart. Each pair has a circuit breaker (`supervise`): after enough failures it is blocked for
//! a cooldown, then one trial decides whether the pair is free again or blocked for twice as long.
//!
//! ```text
//!  counting ──failures reach the limit──▶ blocked until T ──T──▶ half open, one trial ──success──▶ forgotten
//!                                             ▲                    │
//!                                             └── failed: wait ×2 ─┘
//! ```
//!
//! A failure blocks the worker for the exact workflow. The block widens on evidence (`Blocks::scope_of`): to the
//! tenant's jobs of that shape, and to everyone's only if two tenants failed there.
//!
//! Reading a block changes nothing. Its end is an event of its own, because clients subscribe to it: until the plane has
//! processed that event the pair stays blocked, even if the time has passed.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::cause::Cause;
use crate::id::{JobId, Shape, Tenant, WorkerId, WorkflowHash};
use crate::job::Job;
use crate::record::BlockRow;
use crate::scope::{BlockScope, TenantShape};
use crate::settings::{BlockOn, Settings};
use crate::supervise::{Backoff, Breaker, BreakerLimits, BreakerState};
use crate::time::Timestamp;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    /// How long the last block lasted; zero before the first.
    pub cooldown: Duration,
    pub reason: String,
    /// The cause of the last failure.
    pub cause: Cause,
    /// Shape and exact hash of the workflow that failed last, and who submitted it.
    pub shape: Shape,
    pub workflow_hash: WorkflowHash,
    pub tenant: Tenant,
    first_failed_at: Timestamp,
    breaker: Breaker<JobId>,
    /// The plane has processed the end of the block.
    has_ended: bool,
}

/// How much a failure says about the worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailureReach {
    /// It may be the workflow's own fault.
    Workflow,
    /// The worker is too small for what this tenant asks of the shape.
    Tenant,
    /// The worker lacks something that the workflow needs: the whole shape, as far as one tenant's jobs can tell.
    Lacking,
}

/// A failure as evidence about a worker.
#[derive(Clone, Copy, Debug)]
pub struct BlockEvidence<'a> {
    pub job: &'a Job,
    pub cause: Cause,
    pub reason: &'a str,
    pub reach: FailureReach,
    /// Another worker completed a job of the shape.
    pub completed_elsewhere: bool,
}

/// Whether this worker may run this job now.
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
pub struct Blocks(BTreeMap<WorkerId, BTreeMap<BlockScope, Block>>);

impl Blocks {
    /// Whether the worker may run this job.
    pub fn state(&self, worker: &WorkerId, job: &Job) -> BlockState {
        let Some(blocks) = self.0.get(worker) else { return BlockState::Free };
        obstacle(job.scopes().iter().filter_map(|scope| blocks.get(scope)))
    }

    /// Whether the worker may run jobs of this shape and tenant, whatever their exact workflow.
    pub fn shape_state(&self, worker: &WorkerId, tenant: &Tenant, shape: &Shape) -> BlockState {
        let Some(blocks) = self.0.get(worker) else { return BlockState::Free };
        let those = TenantShape { shape: *shape, tenant: tenant.clone() };
        let scopes = [BlockScope::Tenant(those), BlockScope::Shape(*shape)];
        obstacle(scopes.iter().filter_map(|scope| blocks.get(scope)))
    }

    pub fn get(&self, worker: &WorkerId, scope: &BlockScope) -> Option<&Block> {
        self.0.get(worker)?.get(scope)
    }

    /// An attempt starts. True if it is the trial that a block was waiting for.
    pub fn started(&mut self, worker: &WorkerId, job: &Job) -> bool {
        let mut is_trial = false;
        for block in self.concerning(worker, job) {
            let moment = block.moment();
            is_trial |= block.breaker.start(moment, job.id);
        }
        is_trial
    }

    /// An attempt ended without evidence about the worker.
    pub fn abandon_trial(&mut self, worker: &WorkerId, job: &Job) {
        self.concerning(worker, job).for_each(|block| block.breaker.release(job.id));
    }

    fn concerning(&mut self, worker: &WorkerId, job: &Job) -> impl Iterator<Item = &mut Block> {
        let scopes = job.scopes();
        let blocks = self.0.get_mut(worker).into_iter().flatten();
        blocks.filter(move |(scope, _)| scopes.contains(scope)).map(|(_, block)| block)
    }

    /// Counts a failure; returns the scope of the entry that counts it.
    pub fn failed(
        &mut self,
        now: Timestamp,
        worker: &WorkerId,
        evidence: &BlockEvidence<'_>,
        settings: &Settings,
    ) -> BlockScope {
        let BlockEvidence { job, cause, reason, .. } = *evidence;
        let scope = self.scope_of(worker, evidence, settings);
        // Wider and narrower entries may have had this attempt as their trial.
        self.abandon_other_trials(worker, job, &scope);
        let entry = self.0.entry(worker.clone()).or_default().entry(scope.clone());
        let block = entry.or_insert_with(|| Block {
            cooldown: Duration::ZERO,
            reason: String::new(),
            cause,
            shape: *job.kind.shape,
            workflow_hash: job.workflow_hash,
            tenant: job.tenant.clone(),
            first_failed_at: now,
            breaker: Breaker::default(),
            has_ended: false,
        });
        reason.clone_into(&mut block.reason);
        (block.cause, block.workflow_hash, block.tenant) = (cause, job.workflow_hash, job.tenant.clone());
        block.fail(now, job.id, &limits(settings));
        scope
    }

    fn abandon_other_trials(&mut self, worker: &WorkerId, job: &Job, scope: &BlockScope) {
        for other in job.scopes().iter().filter(|other| *other != scope) {
            if let Some(block) = self.get_mut(worker, other) {
                block.breaker.release(job.id);
            }
        }
    }

    /// What a failure blocks. Two workflows of one tenant, or two tenants, that fail here while the shape completes
    /// elsewhere speak against this worker; one of them does not.
    fn scope_of(&self, worker: &WorkerId, evidence: &BlockEvidence<'_>, settings: &Settings) -> BlockScope {
        let job = evidence.job;
        let (workflow, shape) = (BlockScope::Workflow(job.workflow_hash), *job.kind.shape);
        let tenant = || BlockScope::Tenant(TenantShape { shape, tenant: job.tenant.clone() });
        let known = || {
            let blocks = self.0.get(worker).into_iter().flat_map(BTreeMap::values);
            blocks.filter(move |block| block.shape == shape)
        };
        match evidence.reach {
            _ if settings.block_on == BlockOn::Exact => workflow,
            FailureReach::Tenant => tenant(),
            FailureReach::Lacking => {
                let is_lacking = |block: &Block| block.tenant != job.tenant && block.cause == evidence.cause;
                if known().any(is_lacking) { BlockScope::Shape(shape) } else { tenant() }
            }
            FailureReach::Workflow if !evidence.completed_elsewhere => workflow,
            FailureReach::Workflow if known().any(|block| block.tenant != job.tenant) => {
                BlockScope::Shape(shape)
            }
            FailureReach::Workflow if known().any(|block| block.workflow_hash != job.workflow_hash) => {
                tenant()
            }
            FailureReach::Workflow => workflow,
        }
    }

    /// Ends a block whose time is over: one trial may start. False if it is not over, or not blocked.
    pub fn expire(&mut self, now: Timestamp, worker: &WorkerId, scope: &BlockScope) -> bool {
        let Some(block) = self.get_mut(worker, scope) else { return false };
        let is_over = matches!(block.state(), BreakerState::Open { until } if until <= now);
        block.has_ended |= is_over;
        is_over
    }

    pub fn lift(&mut self, worker: &WorkerId, scope: &BlockScope) -> Option<Block> {
        let blocks = self.0.get_mut(worker)?;
        let block = blocks.remove(scope);
        if blocks.is_empty() {
            self.0.remove(worker);
        }
        block
    }

    /// The entries of one worker for which `is_meant` holds.
    pub fn find_on(
        &self,
        worker: &WorkerId,
        is_meant: impl Fn(&Block) -> bool,
    ) -> Vec<(WorkerId, BlockScope)> {
        let meant = self.0.get(worker).into_iter().flatten().filter(|(_, block)| is_meant(block));
        meant.map(|(scope, _)| (worker.clone(), scope.clone())).collect()
    }

    /// The entries for which `is_meant` holds.
    pub fn find(
        &self,
        is_meant: impl Fn(&WorkerId, &BlockScope, &Block) -> bool,
    ) -> Vec<(WorkerId, BlockScope)> {
        let meant = self.iter().filter(|(worker, scope, block)| is_meant(worker, scope, block));
        meant.map(|(worker, scope, _)| (worker.clone(), scope.clone())).collect()
    }

    pub fn len(&self) -> usize {
        self.0.values().map(BTreeMap::len).sum()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The entry to drop first: the one whose block ends first.
    pub fn first_to_end(&self) -> Option<(WorkerId, BlockScope)> {
        self.iter()
            .min_by_key(|(_, _, block)| block.until())
            .map(|(worker, scope, _)| (worker.clone(), scope.clone()))
    }

    pub fn iter(&self) -> impl Iterator<Item = (&WorkerId, &BlockScope, &Block)> {
        self.0
            .iter()
            .flat_map(|(worker, blocks)| blocks.iter().map(move |(scope, block)| (worker, scope, block)))
    }

    /// A block whose time passed while no plane ran is still blocked: its end has yet to be published.
    pub fn restore(&mut self, row: BlockRow, settings: &Settings) {
        let BlockRow { worker, scope, failures, until, cooldown_millis, has_ended, reason, .. } = row;
        let BlockRow { cause, shape, workflow_hash, tenant, .. } = row;
        let cooldown = Duration::from_millis(cooldown_millis);
        let breaker = if failures < settings.max_failures_before_block {
            Breaker::counting(failures)
        } else {
            let doublings = limits(settings).cooldown.doublings_for(cooldown);
            Breaker::opened(failures, doublings + 1, until)
        };
        let first_failed_at = until;
        let block = Block {
            cooldown,
            reason,
            cause,
            shape,
            workflow_hash,
            tenant,
            first_failed_at,
            breaker,
            has_ended,
        };
        self.0.entry(worker).or_default().insert(scope, block);
    }

    fn get_mut(&mut self, worker: &WorkerId, scope: &BlockScope) -> Option<&mut Block> {
        self.0.get_mut(worker)?.get_mut(scope)
    }
}

/// The block that stands in the way longest, if any does.
fn obstacle<'a>(blocks: impl Iterator<Item = &'a Block>) -> BlockState {
    blocks.fold(BlockState::Free, |found, block| match (found, block.state()) {
        (BlockState::Blocked { until }, BreakerState::Open { until: other }) => {
            BlockState::Blocked { until: until.max(other) }
        }
        (_, BreakerState::Open { until }) => BlockState::Blocked { until },
        (BlockState::Free, BreakerState::Trial(job)) => BlockState::TrialUnderWay { job },
        (found, BreakerState::Closed | BreakerState::HalfOpen | BreakerState::Trial(_)) => found,
    })
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

    /// The job that is the trial, while one is.
    pub fn trial(&self) -> Option<JobId> {
        match self.state() {
            BreakerState::Trial(job) => Some(job),
            BreakerState::Closed | BreakerState::Open { .. } | BreakerState::HalfOpen => None,
        }
    }

    pub fn is_blocked(&self) -> bool {
        matches!(self.state(), BreakerState::Open { .. })
    }

    /// Whether the pair was blocked, and not merely counted.
    pub fn is_or_was_blocked(&self) -> bool {
        self.state() != BreakerState::Closed
    }

    pub fn row(&self, worker: &WorkerId, scope: &BlockScope) -> BlockRow {
        BlockRow {
            worker: worker.clone(),
            scope: scope.clone(),
            shape: self.shape,
            failures: self.failures(),
            until: self.until(),
            cooldown_millis: u64::try_from(self.cooldown.as_millis()).unwrap_or(u64::MAX),
            has_ended: self.has_ended,
            reason: self.reason.clone(),
            cause: self.cause,
            workflow_hash: self.workflow_hash,
            tenant: self.tenant.clone(),
        }
    }
}

#[cfg(test)]
mod tests;
