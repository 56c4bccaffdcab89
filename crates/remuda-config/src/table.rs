//! Every key there is. A line here is all it takes: it can be written in `remuda.toml`, set in the environment and given
//! as a flag, is checked, shown and documented.

mod access;
pub(super) mod fleets;
pub(super) mod models;

use std::time::Duration;

use remuda_core::reliability;

use super::key::{Key, slot};
use super::value::Kind::{Address, Bytes, Choice, Folder, MaybeBytes, Store, Switch};
use super::value::{Kind, Unit};

/// Keys that are read about together.
pub(super) struct Group {
    #[cfg_attr(not(test), expect(dead_code, reason = "only the document has headings"))]
    pub(super) title: &'static str,
    pub(super) keys: &'static [Key],
}

pub(super) const GROUPS: &[Group] = &[
    Group { title: "The plane", keys: PLANE },
    Group { title: "Beats and leases", keys: BEATS },
    Group { title: "Attempts and retries", keys: ATTEMPTS },
    Group { title: "Suspicion: blocks, quarantine, probation", keys: SUSPICION },
    Group { title: "Routing", keys: ROUTING },
    Group { title: "Limits", keys: LIMITS },
    Group { title: "Access", keys: access::ACCESS },
    Group { title: "Blobs", keys: BLOBS },
    Group { title: "Webhooks", keys: WEBHOOKS },
    Group { title: "Scaling", keys: SCALING },
    Group { title: "The agent", keys: AGENT },
    Group { title: "Models", keys: MODELS },
];

const MILLISECOND: Duration = Duration::from_millis(1);
/// As often as anything that repeats may do so: more would only keep a core warm.
const TICK: Duration = Duration::from_millis(10);
const SECOND: Duration = Duration::from_secs(1);
/// A plane with nothing to do looks up once a second: that must not pass for an absence, or nobody is ever found silent.
const PLANE_STALL_MIN: Duration = Duration::from_millis(1500);
const HOUR: Duration = Duration::from_secs(60 * 60);
const DAY: Duration = Duration::from_secs(24 * 60 * 60);
const YEARS: Duration = Duration::from_secs(10 * 365 * 24 * 60 * 60);

const fn duration(min: Duration, max: Duration) -> Kind {
    Kind::Duration { min, max }
}

const fn number(min: u64, max: u64) -> Kind {
    Kind::Number { min, max }
}

const PLANE: &[Key] = &[
    Key::new("data", slot!(serve.data), Folder, "Folder of the store, blobs and logs."),
    Key::new("listen", slot!(serve.listen), Address, "Where the plane answers."),
    Key::new("store", slot!(serve.store), Store, "Where the plane keeps what it knows."),
    Key::new("insecure", slot!(serve.insecure), Switch, "Serve other addresses than loopback without TLS."),
    Key::new(
        "retention",
        slot!(serve.retention),
        duration(SECOND, YEARS),
        "How long finished jobs and their results are kept.",
    ),
    Key::new("log_json", slot!(serve.log_json), Switch, "Write logs as JSON, one object a line."),
    Key::new(
        "cycle_every",
        slot!(settings.cycle_every),
        duration(TICK, HOUR),
        "How often the control cycle runs, besides at every change.",
    )
    .seed("ORCHESTRATOR_POLL_SEC", Unit::Seconds),
    Key::new(
        "forget_workers_after",
        slot!(settings.forget_workers_after),
        duration(SECOND, YEARS),
        "A worker that has been offline for this long is forgotten.",
    ),
    Key::new(
        "plane_stall_max",
        slot!(settings.plane_stall_max),
        duration(PLANE_STALL_MIN, HOUR),
        "When the plane itself stood still for this long, nobody else is blamed for it.",
    ),
    Key::new(
        "mass_loss_percent",
        slot!(settings.mass_loss_percent),
        number(1, 100),
        "Share of the fleet whose loss within one lease is taken for our own fault.",
    ),
];

const BEATS: &[Key] = &[
    Key::new("beat.idle", slot!(settings.beat_idle), duration(TICK, HOUR), "How often an idle worker beats."),
    Key::new(
        "beat.busy",
        slot!(settings.beat_busy),
        duration(TICK, HOUR),
        "How often a worker beats while it holds an attempt.",
    ),
    Key::new(
        "beat.stale_after",
        slot!(settings.stale_after),
        duration(TICK, DAY),
        "An idle worker that is silent for this long is offline.",
    ),
    Key::new(
        "beat.flaps_before_alert",
        slot!(settings.flaps_before_alert),
        number(1, reliability::MOMENTS_MAX as u64),
        "A worker or machine that goes stale so often within an hour is told of.",
    ),
    Key::new(
        "beat.suspect_after",
        slot!(settings.suspect_after),
        duration(TICK, HOUR),
        "A busy worker that is silent for this long gets no new work.",
    ),
    Key::new(
        "lease",
        slot!(settings.lease),
        duration(TICK, DAY),
        "How long an attempt may go unnamed by any beat before it is given up.",
    ),
    Key::new(
        "order_grace",
        slot!(settings.order_grace),
        duration(TICK, HOUR),
        "How long an order may be on its way before its attempt counts as lost.",
    ),
];

const ATTEMPTS: &[Key] = &[
    Key::new(
        "stuck_after",
        slot!(settings.stuck_after),
        duration(TICK, YEARS),
        "An attempt that does not advance for this long is stuck.",
    )
    .seed("TASK_STUCK_TIMEOUT_SEC", Unit::Seconds),
    Key::new(
        "stuck_policy",
        slot!(settings.stuck_policy),
        Choice(&["progress", "age"]),
        "Whether `stuck_after` counts from the last progress or from the start.",
    ),
    Key::new(
        "attempts_max",
        slot!(settings.attempts_max),
        number(1, 100),
        "Failures of its own making before a job has failed.",
    ),
    Key::new(
        "infra_failures_max",
        slot!(settings.infra_failures_max),
        number(1, 100),
        "Failures of every other class before a job is quarantined.",
    ),
    Key::new(
        "poison_after",
        slot!(settings.poison_after),
        number(1, 100),
        "A job that took down this many distinct workers is poison.",
    ),
    Key::new(
        "retry.base",
        slot!(settings.retry_base),
        duration(MILLISECOND, HOUR),
        "The first wait before a retry; it doubles, with jitter.",
    ),
    Key::new(
        "retry.max",
        slot!(settings.retry_max),
        duration(MILLISECOND, DAY),
        "The longest wait before a retry.",
    ),
];

const SUSPICION: &[Key] = &[
    Key::new(
        "max_failures_before_block",
        slot!(settings.max_failures_before_block),
        number(1, 1000),
        "Failures of a worker and a shape together before they are kept apart.",
    ),
    Key::new(
        "block_on",
        slot!(settings.block_on),
        Choice(&["shape", "exact"]),
        "Whether jobs of one shape share blocks, or only the same workflow to the letter does.",
    ),
    Key::new(
        "block.cooldown",
        slot!(settings.block_cooldown),
        duration(TICK, DAY),
        "How long a worker and a shape are first kept apart; doubles with each failed trial.",
    ),
    Key::new(
        "block.cooldown_max",
        slot!(settings.block_cooldown_max),
        duration(TICK, YEARS),
        "How long they are kept apart at most.",
    ),
    Key::new(
        "block.exempt_sole_worker",
        slot!(settings.exempt_sole_worker),
        Switch,
        "Keep a worker that is all there is from nothing: a retry runs at once instead of when its block ends.",
    ),
    Key::new(
        "suspect_shape_after",
        slot!(settings.suspect_shape_after),
        number(1, 100),
        "A shape that failed on this many distinct workers without a success is quarantined.",
    ),
    Key::new(
        "quarantine.cooldown",
        slot!(settings.quarantine_cooldown),
        duration(TICK, DAY),
        "How long a quarantined shape waits for its first trial; doubles with each failed one.",
    ),
    Key::new(
        "quarantine.trials_max",
        slot!(settings.quarantine_trials_max),
        number(1, 1000),
        "Failed trials after which the waiting jobs of a quarantined shape are failed.",
    ),
    Key::new(
        "probation_after",
        slot!(settings.probation_after),
        number(1, 1000),
        "Failures in a row, over different shapes, that put a worker on probation.",
    ),
];

const ROUTING: &[Key] = &[
    Key::new(
        "look_ahead",
        slot!(settings.look_ahead),
        number(0, 10_000),
        "How many waiting kinds of work a free worker may look past to find one it has warm.",
    ),
    Key::new(
        "warm_wait_max",
        slot!(settings.warm_wait_max),
        duration(Duration::ZERO, DAY),
        "A job that has waited this long is not passed over for a warm one any more.",
    ),
];

const LIMITS: &[Key] = &[
    Key::new(
        "limits.open_jobs_max",
        slot!(settings.open_jobs_max),
        number(1, 100_000_000),
        "Unfinished jobs the plane holds; more are refused with a hint to come back.",
    ),
    Key::new(
        "limits.blocks_max",
        slot!(settings.blocks_max),
        number(1, 10_000_000),
        "Blocks kept at most; the one that ends first makes room.",
    ),
    Key::new(
        "limits.body_bytes_max",
        slot!(serve.body_bytes_max),
        Bytes { min: 1 << 10, max: 1 << 30 },
        "The largest body of a request.",
    ),
    Key::new(
        "limits.depth_max",
        slot!(serve.depth_max),
        // serde_json gives up at 128.
        number(4, 127),
        "How deep JSON may be nested.",
    ),
    Key::new(
        "limits.nodes_max",
        slot!(serve.nodes_max),
        number(1, 1_000_000),
        "How many nodes a workflow may have.",
    ),
    Key::new(
        "limits.connections_max",
        slot!(serve.connections_max),
        number(1, 1_000_000),
        "Connections open at the same time.",
    ),
    Key::new(
        "limits.streams_max",
        slot!(serve.streams_max),
        number(1, 1_000_000),
        "Event streams open at the same time.",
    ),
];

const BLOBS: &[Key] = &[
    Key::new(
        "blobs.bytes_max",
        slot!(serve.blob_bytes_max),
        Bytes { min: 1 << 10, max: 1 << 40 },
        "The largest blob: a file that a job takes or gives.",
    ),
    Key::new(
        "blobs.upload_idle_timeout",
        slot!(serve.blob_upload_idle_timeout),
        duration(SECOND, HOUR),
        "How long the next 256 KiB of a blob may take to come; the whole may take as long as it needs.",
    ),
];

const WEBHOOKS: &[Key] = &[Key::new(
    "webhooks.allow_private",
    slot!(serve.webhooks_allow_private),
    Choice(&["auto", "yes", "no"]),
    "Whether webhooks may go to loopback and private addresses; `auto`: only while the plane itself listens on loopback.",
)];

const SCALING: &[Key] = &[
    Key::new(
        "scaling.machines_min",
        slot!(settings.scaling.machines_min),
        number(0, 10_000),
        "Machines kept even when nothing waits.",
    )
    .seed("MIN_ACTIVE_GPUS", Unit::Written),
    Key::new(
        "scaling.machines_max",
        slot!(settings.scaling.machines_max),
        number(0, 10_000),
        "A hard ceiling against runaway cost.",
    )
    .seed("MAX_ACTIVE_GPUS", Unit::Written),
    Key::new(
        "scaling.jobs_per_worker",
        slot!(settings.scaling.jobs_per_worker),
        number(1, 1_000_000),
        "More machines are rented when more jobs than this wait for each worker.",
    )
    .seed("TASKS_PER_GPU_THRESHOLD", Unit::Written),
    Key::new(
        "scaling.idle_timeout",
        slot!(settings.scaling.idle_timeout),
        duration(TICK, YEARS),
        "A beat older than this fails a worker, but only when work waits.",
    )
    .seed("GPU_IDLE_TIMEOUT_SEC", Unit::Seconds),
    Key::new(
        "scaling.spawning_timeout",
        slot!(settings.scaling.spawning_timeout),
        duration(TICK, DAY),
        "How long a machine may take to come up, from the moment the provider says it runs.",
    )
    .seed("SPAWNING_TIMEOUT_SEC", Unit::Seconds),
    Key::new(
        "scaling.drain_timeout",
        slot!(settings.scaling.drain_timeout),
        duration(TICK, YEARS),
        "How long a draining worker may finish what it holds.",
    )
    .seed("GRACEFUL_SHUTDOWN_TIMEOUT_SEC", Unit::Seconds),
    Key::new(
        "scaling.vram_stale_after",
        slot!(settings.scaling.vram_stale_after),
        duration(TICK, DAY),
        "VRAM readings older than this are warned about and nothing more.",
    )
    .seed("GPU_HEALTH_CHECK_TIMEOUT_SEC", Unit::Seconds),
    Key::new(
        "scaling.reversal_cooldown",
        slot!(settings.scaling.reversal_cooldown),
        duration(TICK, DAY),
        "A fleet turns from growing to shrinking, or back, at most once in this time.",
    ),
    Key::new(
        "scaling.uptime_min",
        slot!(settings.scaling.uptime_min),
        duration(TICK, DAY),
        "A worker is not returned before it was active for this long.",
    ),
    Key::new(
        "scaling.start_worker",
        slot!(serve.start_worker),
        Switch,
        "Start the worker, over SSH, on machines of fleets with `start = \"ssh\"`; off, somebody else does.",
    )
    .seed("AUTO_START_WORKER_PROCESS", Unit::Written),
];

const AGENT: &[Key] = &[
    Key::new(
        "agent.probe_every",
        slot!(agent.probe_every),
        duration(TICK, HOUR),
        "How often a service that was given up is asked whether it works again.",
    )
    .seed("WORKER_HEALTH_CHECK_INTERVAL_MS", Unit::Milliseconds),
    Key::new(
        "agent.inactivity",
        slot!(agent.inactivity),
        duration(TICK, DAY),
        "A service that says nothing about a running attempt for this long is asked about it.",
    )
    .seed("WORKER_WEBSOCKET_INACTIVITY_TIMEOUT_MS", Unit::Milliseconds),
    Key::new(
        "agent.unknown_recheck",
        slot!(agent.unknown_recheck),
        duration(TICK, HOUR),
        "How long after a service did not know an attempt it is asked again; the second time counts.",
    ),
    Key::new(
        "agent.cancel_timeout",
        slot!(agent.cancel_timeout),
        duration(TICK, HOUR),
        "A service that goes on for this long with what it was told to stop is sick.",
    ),
    Key::new(
        "agent.queue_stall_max",
        slot!(agent.queue_stall_max),
        duration(TICK, DAY),
        "So long one thing may run at a ComfyUI server while a job of ours waits behind it, before the server counts as sick.",
    ),
    Key::new(
        "agent.self_test_timeout",
        slot!(agent.self_test_timeout),
        duration(SECOND, HOUR),
        "How long a service may take for the smallest of workflows, which shows that it works.",
    ),
];

const MODELS: &[Key] = &[
    Key::new(
        "models.memory",
        slot!(models.memory_bytes),
        MaybeBytes { min: 1 << 20, max: 1 << 50 },
        "What all copies of all models on this machine may take together; by default three quarters of its memory.",
    ),
    Key::new(
        "models.request_timeout",
        slot!(models.request_timeout),
        duration(SECOND, DAY),
        "How long a call at `/v1` may take, unless it asks for less.",
    ),
];
