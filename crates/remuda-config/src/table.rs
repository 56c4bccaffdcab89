//! The table of all settings. One entry here is enough: the setting can then be written in `remuda.toml`, set in the
//! environment and given as a flag, and it is checked, shown and documented.

mod access;
pub(super) mod fleets;
pub(super) mod models;
pub(super) mod tenants;

use std::time::Duration;

use remuda_core::reliability;

use super::key::{Key, slot};
use super::value::Kind::{Address, Bytes, Choice, Folder, List, OptionalBytes, Store, Switch, Targets};
use super::value::{Kind, Unit};

/// Settings that share a section of `docs/configuration.md`.
pub(super) struct Group {
    #[cfg_attr(not(test), expect(dead_code, reason = "only the document has headings"))]
    pub(super) title: &'static str,
    pub(super) keys: &'static [Key],
}

pub(super) const GROUPS: &[Group] = &[
    Group { title: "The plane", keys: PLANE },
    Group { title: "Beats and leases", keys: BEATS },
    Group { title: "Attempts and retries", keys: ATTEMPTS },
    Group { title: "Blocks, quarantine, probation", keys: TRUST },
    Group { title: "Routing", keys: ROUTING },
    Group { title: "Limits", keys: LIMITS },
    Group { title: "Quotas of each tenant", keys: tenants::QUOTAS },
    Group { title: "Access", keys: access::ACCESS },
    Group { title: "Blobs", keys: BLOBS },
    Group { title: "Webhooks", keys: WEBHOOKS },
    Group { title: "ComfyUI API", keys: COMFYUI },
    Group { title: "Scaling", keys: SCALING },
    Group { title: "The agent", keys: AGENT },
    Group { title: "Models", keys: MODELS },
];

/// All settings except those of fleets and models.
pub(super) fn all() -> impl Iterator<Item = &'static Key> {
    GROUPS.iter().flat_map(|group| group.keys)
}

/// The setting with this name.
pub(super) fn find(name: &str) -> Option<&'static Key> {
    all().find(|key| key.name == name)
}

const MILLISECOND: Duration = Duration::from_millis(1);
/// The shortest interval of anything periodic: a shorter one would only keep a core busy.
const TICK: Duration = Duration::from_millis(10);
const SECOND: Duration = Duration::from_secs(1);
/// An idle plane runs once a second. That must not count as a stall, or no worker would ever be found silent.
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
    Key::new("data", slot!(serve.data), Folder, "Folder for the store, blobs and logs."),
    Key::new("listen", slot!(serve.listen), Address, "Address and port that the plane listens on."),
    Key::new("store", slot!(serve.store), Store, "Where the plane stores jobs, workers and events."),
    Key::new("insecure", slot!(serve.insecure), Switch, "Allow addresses other than loopback without TLS."),
    Key::new(
        "retention",
        slot!(serve.retention),
        duration(SECOND, YEARS),
        "Keep finished jobs and their results for this long.",
    ),
    Key::new("log_json", slot!(serve.log_json), Switch, "Write logs as JSON, one object per line."),
    Key::new(
        "cycle_every",
        slot!(settings.cycle_every),
        duration(TICK, HOUR),
        "Run the control cycle at least this often; it also runs after every change.",
    )
    .seed("ORCHESTRATOR_POLL_SEC", Unit::Seconds),
    Key::new(
        "forget_workers_after",
        slot!(settings.forget_workers_after),
        duration(SECOND, YEARS),
        "Delete a worker that has been offline for this long.",
    ),
    Key::new(
        "plane_stall_max",
        slot!(settings.plane_stall_max),
        duration(PLANE_STALL_MIN, HOUR),
        "If the plane itself stalled for at least this long, do not count that time as silence of its workers.",
    ),
    Key::new(
        "mass_loss_percent",
        slot!(settings.mass_loss_percent),
        number(1, 100),
        "If at least this share of all machines is lost within one lease, call it a mass loss.",
    ),
];

const BEATS: &[Key] = &[
    Key::new(
        "beat.idle",
        slot!(settings.beat_idle),
        duration(TICK, HOUR),
        "Interval between the beats of an idle worker.",
    ),
    Key::new(
        "beat.busy",
        slot!(settings.beat_busy),
        duration(TICK, HOUR),
        "Interval between the beats of a worker that holds an attempt.",
    ),
    Key::new(
        "beat.stale_after",
        slot!(settings.stale_after),
        duration(TICK, DAY),
        "Treat an idle worker as offline after this much silence.",
    ),
    Key::new(
        "beat.flaps_before_alert",
        slot!(settings.flaps_before_alert),
        number(1, reliability::STALE_TIMES_MAX as u64),
        "Emit an alert when a worker or machine goes stale this many times in an hour.",
    ),
    Key::new(
        "beat.suspect_after",
        slot!(settings.suspect_after),
        duration(TICK, HOUR),
        "Assign no new work to a busy worker after this much silence.",
    ),
    Key::new(
        "lease",
        slot!(settings.lease),
        duration(TICK, DAY),
        "Give up an attempt that no beat has named for this long.",
    ),
    Key::new(
        "order_grace",
        slot!(settings.order_grace),
        duration(TICK, HOUR),
        "Treat an order as lost if its worker does not report the attempt within this time.",
    ),
];

const ATTEMPTS: &[Key] = &[
    Key::new(
        "stuck_after",
        slot!(settings.stuck_after),
        duration(TICK, YEARS),
        "Treat an attempt as stuck after this long without progress.",
    )
    .seed("TASK_STUCK_TIMEOUT_SEC", Unit::Seconds),
    Key::new(
        "stuck_policy",
        slot!(settings.stuck_policy),
        Choice(&["progress", "age"]),
        "Measure `stuck_after` from the last progress or from the start of the attempt.",
    ),
    Key::new(
        "attempts_max",
        slot!(settings.attempts_max),
        number(1, 100),
        "Fail a job after this many failures that it caused itself.",
    ),
    Key::new(
        "infra_failures_max",
        slot!(settings.infra_failures_max),
        number(1, 100),
        "Quarantine a job after this many failures of any other class.",
    ),
    Key::new(
        "poison_after",
        slot!(settings.poison_after),
        number(1, 100),
        "Treat a job as poison once it has crashed this many distinct workers.",
    ),
    Key::new(
        "retry.base",
        slot!(settings.retry_base),
        duration(MILLISECOND, HOUR),
        "Delay before the first retry; it doubles with each further one, with jitter.",
    ),
    Key::new(
        "retry.max",
        slot!(settings.retry_max),
        duration(MILLISECOND, DAY),
        "Longest delay before a retry.",
    ),
];

const TRUST: &[Key] = &[
    Key::new(
        "max_failures_before_block",
        slot!(settings.max_failures_before_block),
        number(1, 1000),
        "Block a workflow on a worker after this many failures there.",
    ),
    Key::new(
        "block_on",
        slot!(settings.block_on),
        Choice(&["shape", "exact"]),
        "Apply a block to all jobs of the shape, or only to exactly the same workflow.",
    ),
    Key::new(
        "block.cooldown",
        slot!(settings.block_cooldown),
        duration(TICK, DAY),
        "Duration of the first block; it doubles with each failed trial.",
    ),
    Key::new(
        "block.cooldown_max",
        slot!(settings.block_cooldown_max),
        duration(TICK, YEARS),
        "Longest duration of a block.",
    ),
    Key::new(
        "block.exempt_sole_worker",
        slot!(settings.exempt_sole_worker),
        Switch,
        "Never block the only worker; retry at once.",
    ),
    Key::new(
        "suspect_shape_after",
        slot!(settings.suspect_shape_after),
        number(1, 100),
        "Quarantine a shape that has failed on this many distinct workers without a success.",
    ),
    Key::new(
        "quarantine.cooldown",
        slot!(settings.quarantine_cooldown),
        duration(TICK, DAY),
        "Delay of the next trial of a quarantined shape after one that took its worker down; it doubles with each.",
    ),
    Key::new(
        "probation_after",
        slot!(settings.probation_after),
        number(1, 1000),
        "Put a worker on probation after this many consecutive failures with different shapes.",
    ),
];

const ROUTING: &[Key] = &[
    Key::new(
        "look_ahead",
        slot!(settings.look_ahead),
        number(0, 10_000),
        "Search up to this many waiting job kinds for one whose models the worker has already loaded.",
    ),
    Key::new(
        "warm_wait_max",
        slot!(settings.warm_wait_max),
        duration(Duration::ZERO, DAY),
        "Do not skip a job for one with loaded models once it has waited this long.",
    ),
    Key::new(
        "queue.priority_ageing",
        slot!(settings.priority_ageing),
        duration(Duration::ZERO, DAY),
        "A waiting job counts as one priority higher for each of these, so that low priority is never starved for ever; jobs that overtake others by their age get at most every other slot. `0s` switches it off.",
    ),
];

const LIMITS: &[Key] = &[
    Key::new(
        "limits.open_jobs_max",
        slot!(settings.open_jobs_max),
        number(1, 100_000_000),
        "Unfinished jobs that the plane holds; further ones are refused with `Retry-After`.",
    ),
    Key::new(
        "limits.blocks_max",
        slot!(settings.blocks_max),
        number(1, 10_000_000),
        "Blocks held at once; the one that ends first is dropped for a new one.",
    ),
    Key::new(
        "limits.body_bytes_max",
        slot!(serve.body_bytes_max),
        Bytes { min: 1 << 10, max: 1 << 30 },
        "Largest request body.",
    ),
    Key::new(
        "limits.depth_max",
        slot!(serve.depth_max),
        // serde_json refuses 128.
        number(4, 127),
        "Deepest nesting of JSON.",
    ),
    Key::new("limits.nodes_max", slot!(serve.nodes_max), number(1, 1_000_000), "Nodes in one workflow."),
    Key::new(
        "limits.connections_max",
        slot!(serve.connections_max),
        number(1, 1_000_000),
        "Connections of clients open at once; further ones get 503. Workers and admins have their own.",
    ),
    Key::new(
        "limits.worker_connections_max",
        slot!(serve.worker_connections_max),
        number(1, 1_000_000),
        "Connections of workers open at once; a worker needs about two.",
    ),
    Key::new(
        "limits.streams_max",
        slot!(serve.streams_max),
        number(1, 1_000_000),
        "Event streams open at once.",
    ),
];

const BLOBS: &[Key] = &[
    Key::new(
        "blobs.bytes_max",
        slot!(serve.blob_bytes_max),
        Bytes { min: 1 << 10, max: 1 << 40 },
        "Largest blob: a file that a job reads or writes.",
    ),
    Key::new(
        "blobs.upload_idle_timeout",
        slot!(serve.blob_upload_idle_timeout),
        duration(SECOND, HOUR),
        "Abort an upload if its next 256 KiB take longer than this; the whole upload has no time limit.",
    ),
];

const WEBHOOKS: &[Key] = &[Key::new(
    "webhooks.private_targets",
    slot!(serve.webhooks_private_targets),
    Targets,
    "Loopback and private addresses that webhooks may go to, with or without a port; none by default, wherever the plane listens.",
)];

const COMFYUI: &[Key] = &[Key::new(
    "comfyui.one_running",
    slot!(serve.comfyui_one_running),
    Switch,
    "List one running prompt in `/queue`, and the others first among the pending ones: for clients that fail if two run at once.",
)];

const SCALING: &[Key] = &[
    Key::new(
        "scaling.machines_min",
        slot!(settings.scaling.machines_min),
        number(0, 10_000),
        "Keep at least this many machines, even without jobs.",
    )
    .seed("MIN_ACTIVE_GPUS", Unit::Required),
    Key::new(
        "scaling.machines_max",
        slot!(settings.scaling.machines_max),
        number(0, 10_000),
        "Never rent more machines than this.",
    )
    .seed("MAX_ACTIVE_GPUS", Unit::Required),
    Key::new(
        "scaling.jobs_per_worker",
        slot!(settings.scaling.jobs_per_worker),
        number(1, 1_000_000),
        "Rent more machines when more than this many jobs wait per worker.",
    )
    .seed("TASKS_PER_GPU_THRESHOLD", Unit::Required),
    Key::new(
        "scaling.idle_timeout",
        slot!(settings.scaling.idle_timeout),
        duration(TICK, YEARS),
        "Fail a worker whose last beat is older than this, but only while jobs wait.",
    )
    .seed("GPU_IDLE_TIMEOUT_SEC", Unit::Seconds),
    Key::new(
        "scaling.spawning_timeout",
        slot!(settings.scaling.spawning_timeout),
        duration(TICK, DAY),
        "Longest time from the provider reporting a machine as running until its worker registers.",
    )
    .seed("SPAWNING_TIMEOUT_SEC", Unit::Seconds),
    Key::new(
        "scaling.drain_timeout",
        slot!(settings.scaling.drain_timeout),
        duration(TICK, YEARS),
        "Longest time for a draining worker to finish its attempts.",
    )
    .seed("GRACEFUL_SHUTDOWN_TIMEOUT_SEC", Unit::Seconds),
    Key::new(
        "scaling.vram_stale_after",
        slot!(settings.scaling.vram_stale_after),
        duration(TICK, DAY),
        "Warn about VRAM readings older than this; nothing else follows from them.",
    )
    .seed("GPU_HEALTH_CHECK_TIMEOUT_SEC", Unit::Seconds),
    Key::new(
        "scaling.reversal_cooldown",
        slot!(settings.scaling.reversal_cooldown),
        duration(TICK, DAY),
        "Shortest time between growing and shrinking a fleet, in either order.",
    ),
    Key::new(
        "scaling.uptime_min",
        slot!(settings.scaling.uptime_min),
        duration(TICK, DAY),
        "Do not return a machine before its worker has been active for this long.",
    ),
    Key::new(
        "scaling.start_worker",
        slot!(serve.start_worker),
        Switch,
        "Start the worker over SSH on machines of fleets with `start = \"ssh\"`. Turn it off if something else starts it.",
    )
    .seed("AUTO_START_WORKER_PROCESS", Unit::Required),
];

const AGENT: &[Key] = &[
    Key::new(
        "agent.given_up_recheck",
        slot!(agent.given_up_recheck),
        duration(TICK, HOUR),
        "Interval between health checks of a service that was given up.",
    )
    .seed("WORKER_HEALTH_CHECK_INTERVAL_MS", Unit::Milliseconds),
    Key::new(
        "agent.inactivity",
        slot!(agent.inactivity),
        duration(TICK, DAY),
        "Query the service about a running attempt after this long without a message about it.",
    )
    .seed("WORKER_WEBSOCKET_INACTIVITY_TIMEOUT_MS", Unit::Milliseconds),
    Key::new(
        "agent.unknown_recheck",
        slot!(agent.unknown_recheck),
        duration(TICK, HOUR),
        "Ask again after this long when a service does not know an attempt; the second answer decides.",
    ),
    Key::new(
        "agent.cancel_timeout",
        slot!(agent.cancel_timeout),
        duration(TICK, HOUR),
        "Treat a service as sick if it still runs a cancelled attempt after this long.",
    ),
    Key::new(
        "agent.queue_stall_max",
        slot!(agent.queue_stall_max),
        duration(TICK, DAY),
        "Treat a ComfyUI server as sick if one prompt runs for this long while our job waits behind it.",
    ),
    Key::new(
        "agent.self_test_timeout",
        slot!(agent.self_test_timeout),
        duration(SECOND, HOUR),
        "Longest time for a service to run the minimal workflow of its self-test.",
    ),
    Key::new(
        "agent.keep_server_copies",
        slot!(agent.keep_server_copies),
        Switch,
        "Keep the output files on a ComfyUI server on the worker's own machine; otherwise they are removed once they are stored.",
    ),
    Key::new(
        "agent.pass_environment",
        slot!(agent.pass_environment),
        List,
        "Environment variables that commands, ComfyUI servers and model copies get besides `PATH`, `HOME`, `CUDA_*` and the like; `NAME*` is a prefix.",
    ),
];

const MODELS: &[Key] = &[
    Key::new(
        "models.memory",
        slot!(models.memory_bytes),
        OptionalBytes { min: 1 << 20, max: 1 << 50 },
        "Memory for all copies of all models on this machine; by default three quarters of its memory.",
    ),
    Key::new(
        "models.request_timeout",
        slot!(models.request_timeout),
        duration(SECOND, DAY),
        "Longest time for a call under `/v1`; a caller may ask for less.",
    ),
];
