//! Settings of a fleet: the keys under `[[fleet]]`.

use super::super::fleet::{FleetConfig, ProviderKind};
use super::super::key::{Key, fleet_slot};
use super::super::value::Kind::{
    self, Choice, Environment, File, FleetName, List, Money, Names, OptionalDuration, Pairs, Switch, Text,
    Url,
};
use super::{DAY, HOUR, SECOND, TICK, YEARS, duration, number};

/// Settings that apply to some providers.
pub(crate) struct Group {
    #[cfg_attr(not(test), expect(dead_code, reason = "only the document has headings"))]
    pub(crate) title: &'static str,
    pub(crate) providers: &'static [ProviderKind],
    pub(crate) keys: &'static [Key<FleetConfig>],
}

use ProviderKind::{Fixed, Process, Runpod};

const ALL: &[ProviderKind] = &[Fixed, Process, Runpod];
const RENTING: &[ProviderKind] = &[Process, Runpod];

pub(crate) const GROUPS: &[Group] = &[
    Group { title: "Every fleet", providers: ALL, keys: EVERY },
    Group { title: "`fixed`: machines that you run", providers: &[Fixed], keys: FIXED },
    Group { title: "`process` and `runpod`: number of machines", providers: RENTING, keys: SCALED },
    Group { title: "`process` and `runpod`: timeouts", providers: RENTING, keys: RENTED },
    Group {
        title: "`process` and `runpod`: command and environment",
        providers: RENTING,
        keys: MACHINE_ENVIRONMENT,
    },
    Group { title: "`process`: workers on this machine", providers: &[Process], keys: PROCESS },
    Group { title: "`runpod`: pods", providers: &[Runpod], keys: RUNPOD },
    Group { title: "`runpod`: starting the worker", providers: &[Runpod], keys: SSH },
];

/// Settings of a fleet whose default is a setting of `[scaling]`.
pub(crate) const FALLBACKS: &[(&str, &str)] = &[
    ("machines_min", "scaling.machines_min"),
    ("machines_max", "scaling.machines_max"),
    ("jobs_per_worker", "scaling.jobs_per_worker"),
    ("idle_timeout", "scaling.idle_timeout"),
    ("spawning_timeout", "scaling.spawning_timeout"),
    ("drain_timeout", "scaling.drain_timeout"),
    ("vram_stale_after", "scaling.vram_stale_after"),
    ("reversal_cooldown", "scaling.reversal_cooldown"),
    ("uptime_min", "scaling.uptime_min"),
];

const MACHINES: Kind = number(0, 10_000);

const EVERY: &[Key<FleetConfig>] = &[
    Key::new("name", fleet_slot!(settings.id), FleetName, "Name of the fleet; required."),
    Key::new(
        "provider",
        fleet_slot!(source.provider),
        Choice(&["fixed", "process", "runpod"]),
        "Where the machines come from; required.",
    ),
    Key::new(
        "services",
        fleet_slot!(settings.services),
        Names,
        "Services of its workers; without any, the fleet serves every job.",
    ),
    Key::new(
        "labels",
        fleet_slot!(settings.labels),
        Pairs,
        "Labels of its workers; jobs that ask for other labels do not run here.",
    ),
    Key::new(
        "stale_after",
        fleet_slot!(settings.stale_after),
        OptionalDuration { min: TICK, max: DAY },
        "Overrides `beat.stale_after` for its workers.",
    ),
];

const FIXED: &[Key<FleetConfig>] = &[Key::new(
    "machines",
    fleet_slot!(source.machines),
    Names,
    "Names of the machines; you start their workers yourself.",
)];

const SCALED: &[Key<FleetConfig>] = &[
    Key::new(
        "machines_min",
        fleet_slot!(settings.scaling.machines_min),
        MACHINES,
        "Keep at least this many machines, even without jobs.",
    ),
    Key::new(
        "machines_max",
        fleet_slot!(settings.scaling.machines_max),
        MACHINES,
        "Never rent more machines than this.",
    ),
    Key::new(
        "jobs_per_worker",
        fleet_slot!(settings.scaling.jobs_per_worker),
        number(1, 1_000_000),
        "Rent more machines when more than this many jobs wait per worker.",
    ),
    Key::new(
        "policy",
        fleet_slot!(policy),
        Choice(&["queue", "latency"]),
        "Scale by the number of waiting jobs, or so that no job waits longer than `wait_max`.",
    ),
    Key::new(
        "wait_max",
        fleet_slot!(wait_max),
        duration(SECOND, DAY),
        "Longest wait of a job, estimated from measured run times; only for `latency`.",
    ),
    Key::new(
        "reversal_cooldown",
        fleet_slot!(settings.scaling.reversal_cooldown),
        duration(TICK, DAY),
        "Shortest time between growing and shrinking the fleet, in either order.",
    ),
    Key::new(
        "uptime_min",
        fleet_slot!(settings.scaling.uptime_min),
        duration(TICK, DAY),
        "Do not return a machine before its worker has been active for this long.",
    ),
    Key::new("price_max", fleet_slot!(settings.price_max), Money, "Highest hourly price of one machine."),
    Key::new(
        "budget_hourly",
        fleet_slot!(settings.hour_max),
        Money,
        "Highest hourly cost of all its machines together.",
    ),
    Key::new(
        "budget_daily",
        fleet_slot!(settings.day_max),
        Money,
        "Highest cost of all its machines together per calendar day (UTC).",
    ),
];

const RENTED: &[Key<FleetConfig>] = &[
    Key::new(
        "spawning_timeout",
        fleet_slot!(settings.scaling.spawning_timeout),
        duration(TICK, DAY),
        "Longest time from the provider reporting a machine as running until its worker registers.",
    ),
    Key::new(
        "drain_timeout",
        fleet_slot!(settings.scaling.drain_timeout),
        duration(TICK, YEARS),
        "Longest time for a draining worker to finish its attempts.",
    ),
    Key::new(
        "idle_timeout",
        fleet_slot!(settings.scaling.idle_timeout),
        duration(TICK, YEARS),
        "Fail a worker whose last beat is older than this, but only while jobs wait.",
    ),
    Key::new(
        "vram_stale_after",
        fleet_slot!(settings.scaling.vram_stale_after),
        duration(TICK, DAY),
        "Warn about VRAM readings older than this; nothing else follows from them.",
    ),
    Key::new(
        "list_every",
        fleet_slot!(settings.limits.list_every),
        duration(TICK, HOUR),
        "Interval between listings of the provider's machines.",
    ),
    Key::new(
        "list_lag_max",
        fleet_slot!(settings.limits.list_lag_max),
        duration(TICK, HOUR),
        "Ignore that a machine is missing from a listing until it has been missing for this long.",
    ),
    Key::new(
        "lost_create_timeout",
        fleet_slot!(settings.limits.lost_create_timeout),
        duration(TICK, DAY),
        "Look for a machine whose creation was not answered for this long before creating another.",
    ),
    Key::new(
        "image_pull_timeout",
        fleet_slot!(settings.limits.image_pull_timeout),
        duration(TICK, DAY),
        "Longest time from creating a machine until it runs: image pull and boot.",
    ),
    Key::new(
        "readiness_timeout",
        fleet_slot!(settings.limits.readiness_timeout),
        duration(TICK, DAY),
        "Longest time from registration of the worker until it is ready: start check and loading of models.",
    ),
    Key::new(
        "orphan_grace",
        fleet_slot!(settings.limits.orphan_grace),
        duration(TICK, DAY),
        "Leave an unknown machine with our tag alone for this long before returning it.",
    ),
    Key::new(
        "return_timeout",
        fleet_slot!(settings.limits.return_timeout),
        duration(TICK, DAY),
        "Raise an alarm if a return takes longer than this.",
    ),
    Key::new(
        "offer_cooldown",
        fleet_slot!(settings.limits.offer_cooldown),
        duration(TICK, DAY),
        "Skip an offer for this long after it delivered a bad machine or none.",
    ),
];

const MACHINE_ENVIRONMENT: &[Key<FleetConfig>] = &[
    Key::new(
        "command",
        fleet_slot!(source.command),
        Text,
        "Command to start, by `sh -c`, such as `remuda worker --exec ./render.sh`; required for `process`; with \
         `start = \"ssh\"` the default is `remuda worker`.",
    ),
    Key::new(
        "url",
        fleet_slot!(source.url),
        Url,
        "URL at which the machines reach the plane; required for `runpod`; `process` uses the plane's own address.",
    ),
    Key::new(
        "env",
        fleet_slot!(source.env),
        Environment,
        "Additional environment variables on the machines.",
    ),
    Key::new(
        "contact_timeout",
        fleet_slot!(settings.limits.contact_timeout),
        duration(SECOND, DAY),
        "Stop a machine that has not reached the plane for this long; it does so itself.",
    ),
    Key::new(
        "contact_timeout_command",
        fleet_slot!(source.contact_timeout_command),
        Text,
        "Command that stops the machine; without one its worker exits.",
    ),
];

const PROCESS: &[Key<FleetConfig>] = &[
    Key::new(
        "price",
        fleet_slot!(source.price),
        Money,
        "Pretended hourly price of one process, to rehearse budgets.",
    ),
    Key::new(
        "stop_grace",
        fleet_slot!(source.stop_grace),
        duration(TICK, HOUR),
        "Time for a returned process to exit by itself before it is killed.",
    ),
];

const RUNPOD: &[Key<FleetConfig>] = &[
    Key::new("image", fleet_slot!(source.runpod.image), Text, "Container image with its tag; required."),
    Key::new(
        "gpus",
        fleet_slot!(source.runpod.gpus),
        List,
        "GPU types by RunPod's names, in order of preference; required.",
    ),
    Key::new("gpu_count", fleet_slot!(source.runpod.gpu_count), number(1, 64), "GPUs per machine."),
    Key::new(
        "data_centers",
        fleet_slot!(source.runpod.data_centers),
        List,
        "Allowed data centers; empty means any.",
    ),
    Key::new(
        "clouds",
        fleet_slot!(source.runpod.clouds),
        List,
        "`secure`, `community` or both, in order of preference.",
    ),
    Key::new("disk_gb", fleet_slot!(source.runpod.disk_gb), number(1, 10_000), "Container disk in GB."),
    Key::new(
        "network_volume",
        fleet_slot!(source.runpod.network_volume),
        Text,
        "Id of a network volume to mount; it determines the data center.",
    ),
    Key::new(
        "mount_path",
        fleet_slot!(source.runpod.mount_path),
        Text,
        "Path at which the volume is mounted.",
    ),
    Key::new("ports", fleet_slot!(source.runpod.ports), List, "Ports to open, such as `22/tcp`."),
    Key::new(
        "min_cuda",
        fleet_slot!(source.runpod.min_cuda),
        Text,
        "Oldest CUDA version of the host, such as `12.8`.",
    ),
    Key::new(
        "registry",
        fleet_slot!(source.runpod.registry),
        Text,
        "Id of the registry credentials for a private image.",
    ),
    Key::new(
        "api_key_file",
        fleet_slot!(source.runpod.api_key_file),
        File,
        "File with the RunPod API key, instead of `RUNPOD_API_KEY`; a key in this file itself is refused.",
    ),
    Key::new("base_url", fleet_slot!(source.runpod.base_url), Url, "URL of the RunPod API, for tests."),
];

const SSH: &[Key<FleetConfig>] = &[
    Key::new(
        "start",
        fleet_slot!(source.start),
        Choice(&["image", "ssh"]),
        "Let the image start the worker, or the plane over SSH unless `scaling.start_worker` is off.",
    ),
    Key::new(
        "ssh_user",
        fleet_slot!(source.ssh.user),
        Text,
        "User to log in as; by default the one that the provider reports.",
    ),
    Key::new(
        "upload",
        fleet_slot!(source.ssh.upload),
        Switch,
        "Copy this program to the machine as `remuda` if it is missing there or differs.",
    ),
    Key::new(
        "setup",
        fleet_slot!(source.ssh.setup),
        Text,
        "Shell command that installs what the worker needs; runs at every SSH bootstrap.",
    ),
    Key::new(
        "gpu_check",
        fleet_slot!(source.ssh.gpu_check),
        Text,
        "`built-in` runs a small computation on every GPU; `none` skips the check; anything else is a shell command that must succeed.",
    ),
];

/// All settings of a fleet.
pub(crate) fn keys() -> impl Iterator<Item = &'static Key<FleetConfig>> {
    GROUPS.iter().flat_map(|group| group.keys)
}

/// The settings that apply to a provider.
pub(crate) fn keys_for(kind: ProviderKind) -> impl Iterator<Item = &'static Key<FleetConfig>> {
    GROUPS.iter().filter(move |group| group.providers.contains(&kind)).flat_map(|group| group.keys)
}
