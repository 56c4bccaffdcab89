//! Every number that the rules use, with its default and the reason for it. The program fills them in from `remuda.toml`,
//! the environment and flags; the core only reads them.

pub mod fleet;
pub mod quota;

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use self::fleet::FleetSettings;
use self::quota::TenantQuota;
use crate::id::{FleetId, Tenant};
use crate::strategy::OwnStrategy;
use crate::tenant_rules::TenantRules;

/// The plane's settings.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// How often an idle worker beats.
    pub beat_idle: Duration,
    /// How often a worker beats while it holds an attempt.
    pub beat_busy: Duration,
    /// An idle worker is offline after this: three beats of 30 s, one may be lost and one late.
    pub stale_after: Duration,
    /// A worker or machine that goes stale this often within an hour raises an alert: three times is a bad machine.
    pub flaps_before_alert: u32,
    /// No new work for a busy worker after three missed beats of 5 s.
    pub suspect_after: Duration,
    /// How long a worker that holds attempts may be silent before it loses them.
    pub lease: Duration,
    /// How long an order may be on its way before its attempt counts as lost.
    pub order_grace: Duration,
    /// An attempt that does not advance for this long is stuck.
    pub stuck_after: Duration,
    /// `progress`: stuck means no progress for `stuck_after`; `age`: it means older than that, as the predecessor programs had it.
    pub stuck_policy: StuckPolicy,
    /// Failures of class *job* before the job has failed.
    pub attempts_max: u8,
    /// Failures of every other class before the job fails.
    pub infra_failures_max: u8,
    /// A job that took down this many distinct workers is poison.
    pub poison_after: u8,
    /// A shape that failed on this many distinct workers without a success is suspect.
    pub suspect_shape_after: u8,
    /// How long a suspect shape waits after a trial that took its worker down; doubles with each.
    pub quarantine_cooldown: Duration,
    /// The first wait before a retry; doubles, with full jitter, up to `retry_max`.
    pub retry_base: Duration,
    pub retry_max: Duration,
    /// Failures of a shape on a worker before the pair is blocked.
    pub max_failures_before_block: u32,
    /// The first block's duration; doubles with each failed trial.
    pub block_cooldown: Duration,
    /// The longest block.
    pub block_cooldown_max: Duration,
    /// A worker that is all there is gets no blocks: they would only make everyone wait.
    pub exempt_sole_worker: bool,
    /// `shape`: a block of a workflow widens to its shape on evidence; `exact`: it never does.
    pub block_on: BlockOn,
    /// Failures in a row, over different shapes, that put a worker on probation.
    pub probation_after: u32,
    /// How many waiting kinds of work a free worker may look past to find one it has warm.
    pub look_ahead: usize,
    /// A job that has waited this long is not passed over for a warm one any more.
    pub warm_wait_max: Duration,
    /// A waiting job counts as one priority higher for each of these; zero: priorities do not age. With five minutes a job of
    /// the lowest priority overtakes new ones of the highest, 255 steps above, within a day.
    pub priority_ageing: Duration,
    /// Share of the machines (in percent, and at least three) whose loss within one lease is a mass loss: no job is to blame
    /// for it.
    pub mass_loss_percent: u8,
    /// The plane was not running for this long (paused, slow store): no worker is blamed for it.
    pub plane_stall_max: Duration,
    /// The machine's clock is right, however far it is from the stored times.
    pub trust_clock: bool,
    /// Unfinished jobs the plane will hold; more are refused with a hint to come back.
    pub open_jobs_max: usize,
    /// What each tenant may have and do, besides those in `tenant_quotas`.
    pub quota: TenantQuota,
    pub tenant_quotas: BTreeMap<Tenant, TenantQuota>,
    /// Blocks kept at most; the one that ends first makes room.
    pub blocks_max: usize,
    /// A worker that has been offline for this long is forgotten, or names would pile up for ever.
    pub forget_workers_after: Duration,
    /// How often the control cycle runs, besides at every change.
    pub cycle_every: Duration,
    /// For workers without a fleet, and for fleets without their own.
    pub scaling: Scaling,
    /// In the order in which they take what waits: what is too much for one goes to the next that could run it.
    pub fleets: Vec<FleetSettings>,
    /// What each tenant may use.
    pub tenants: TenantRules,
    /// A program's own rule which worker takes a job; only a program that contains the plane can have one.
    #[serde(skip)]
    pub strategy: OwnStrategy,
}

impl Settings {
    pub fn fleet(&self, id: &FleetId) -> Option<&FleetSettings> {
        self.fleets.iter().find(|fleet| fleet.id == *id)
    }

    pub fn quota_of(&self, tenant: &Tenant) -> &TenantQuota {
        self.tenant_quotas.get(tenant).unwrap_or(&self.quota)
    }
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            beat_idle: Duration::from_secs(30),
            beat_busy: Duration::from_secs(5),
            stale_after: Duration::from_secs(90),
            flaps_before_alert: 3,
            suspect_after: Duration::from_secs(15),
            lease: Duration::from_secs(30),
            order_grace: Duration::from_secs(5),
            stuck_after: Duration::from_secs(300),
            stuck_policy: StuckPolicy::Progress,
            attempts_max: 3,
            infra_failures_max: 5,
            poison_after: 2,
            suspect_shape_after: 3,
            quarantine_cooldown: Duration::from_secs(60),
            retry_base: Duration::from_secs(1),
            retry_max: Duration::from_secs(30),
            max_failures_before_block: 1,
            block_cooldown: Duration::from_secs(60),
            block_cooldown_max: Duration::from_secs(600),
            exempt_sole_worker: false,
            block_on: BlockOn::Shape,
            probation_after: 3,
            look_ahead: 32,
            warm_wait_max: Duration::from_secs(60),
            priority_ageing: Duration::from_secs(300),
            mass_loss_percent: 50,
            plane_stall_max: Duration::from_secs(3),
            trust_clock: false,
            open_jobs_max: 2_000_000,
            quota: TenantQuota::default(),
            tenant_quotas: BTreeMap::new(),
            blocks_max: 10_000,
            forget_workers_after: Duration::from_secs(24 * 3600),
            cycle_every: Duration::from_secs(30),
            scaling: Scaling::default(),
            fleets: Vec::new(),
            tenants: TenantRules::default(),
            strategy: OwnStrategy::default(),
        }
    }
}

/// The scaling numbers of the predecessor programs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Scaling {
    pub machines_min: u32,
    /// A hard ceiling against runaway cost.
    pub machines_max: u32,
    /// Rent more when more jobs than this wait for each worker.
    pub jobs_per_worker: u32,
    /// A beat older than this fails a worker, but only when work waits.
    pub idle_timeout: Duration,
    /// Counted from the moment the provider says running.
    pub spawning_timeout: Duration,
    /// How long a draining worker may finish what it holds.
    pub drain_timeout: Duration,
    /// VRAM readings older than this are warned about and nothing more.
    pub vram_stale_after: Duration,
    /// A fleet turns from growing to shrinking, or back, at most once in this time. A machine takes about as long to
    /// come up cold, so turning faster pays for machines that never work.
    pub reversal_cooldown: Duration,
    /// A worker is not returned before it was active for this long: what it took to bring it up is paid for already.
    pub uptime_min: Duration,
}

impl Default for Scaling {
    fn default() -> Self {
        Scaling {
            machines_min: 2,
            machines_max: 10,
            jobs_per_worker: 3,
            idle_timeout: Duration::from_secs(300),
            spawning_timeout: Duration::from_secs(300),
            drain_timeout: Duration::from_secs(600),
            vram_stale_after: Duration::from_secs(120),
            reversal_cooldown: Duration::from_secs(600),
            uptime_min: Duration::from_secs(600),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StuckPolicy {
    Progress,
    Age,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BlockOn {
    Shape,
    Exact,
}
