//! Keys of a fleet, as they stand under `[[fleet]]`.

use super::super::fleet::{Fleet, ProviderKind};
use super::super::key::{Key, fleet_slot};
use super::super::value::Kind::{
    self, Choice, Environment, File, FleetName, List, MaybeDuration, Money, Names, Pairs, Switch, Text, Url,
};
use super::{DAY, HOUR, SECOND, TICK, YEARS, duration, number};

/// Keys that mean something to some providers.
pub(crate) struct Group {
    #[cfg_attr(not(test), expect(dead_code, reason = "only the document has headings"))]
    pub(crate) title: &'static str,
    pub(crate) of: &'static [ProviderKind],
    pub(crate) keys: &'static [Key<Fleet>],
}

use ProviderKind::{Fixed, Process, Runpod};

const ALL: &[ProviderKind] = &[Fixed, Process, Runpod];
const RENTING: &[ProviderKind] = &[Process, Runpod];

pub(crate) const GROUPS: &[Group] = &[
    Group { title: "Every fleet", of: ALL, keys: EVERY },
    Group { title: "`fixed`: the machines there are", of: &[Fixed], keys: FIXED },
    Group { title: "`process` and `runpod`: how many machines", of: RENTING, keys: SCALED },
    Group { title: "`process` and `runpod`: how long a machine may take", of: RENTING, keys: RENTED },
    Group { title: "`process` and `runpod`: what a machine is told", of: RENTING, keys: TOLD },
    Group { title: "`process`: workers on this machine", of: &[Process], keys: PROCESS },
    Group { title: "`runpod`: pods", of: &[Runpod], keys: RUNPOD },
    Group { title: "`runpod`: bringing up the worker", of: &[Runpod], keys: SSH },
];

/// Keys whose default is another key's value.
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

const EVERY: &[Key<Fleet>] = &[
    Key::new("name", fleet_slot!(settings.id), FleetName, "What it is called; needed."),
    Key::new(
        "provider",
        fleet_slot!(source.provider),
        Choice(&["fixed", "process", "runpod"]),
        "Where its machines come from; needed.",
    ),
    Key::new(
        "services",
        fleet_slot!(settings.services),
        Names,
        "What its workers do; without any, whatever is asked for.",
    ),
    Key::new(
        "labels",
        fleet_slot!(settings.labels),
        Pairs,
        "Given to its workers; jobs that ask for others are not its business.",
    ),
    Key::new(
        "stale_after",
        fleet_slot!(settings.stale_after),
        MaybeDuration { min: TICK, max: DAY },
        "In place of `beat.stale_after`, for its workers.",
    ),
];

const FIXED: &[Key<Fleet>] = &[Key::new(
    "machines",
    fleet_slot!(source.machines),
    Names,
    "The machines there are; their workers are started by hand.",
)];

const SCALED: &[Key<Fleet>] = &[
    Key::new(
        "machines_min",
        fleet_slot!(settings.scaling.machines_min),
        MACHINES,
        "Machines kept even when nothing waits.",
    ),
    Key::new(
        "machines_max",
        fleet_slot!(settings.scaling.machines_max),
        MACHINES,
        "Never more machines than this.",
    ),
    Key::new(
        "jobs_per_worker",
        fleet_slot!(settings.scaling.jobs_per_worker),
        number(1, 1_000_000),
        "More machines are rented when more jobs than this wait for each worker.",
    ),
    Key::new(
        "policy",
        fleet_slot!(policy),
        Choice(&["queue", "latency"]),
        "How many machines are wanted: by what waits, or so that nobody waits longer than `wait_max`.",
    ),
    Key::new(
        "wait_max",
        fleet_slot!(wait_max),
        duration(SECOND, DAY),
        "How long a job may wait, by the run times measured so far; for `latency`.",
    ),
    Key::new(
        "reversal_cooldown",
        fleet_slot!(settings.scaling.reversal_cooldown),
        duration(TICK, DAY),
        "It turns from growing to shrinking, or back, at most once in this time.",
    ),
    Key::new(
        "uptime_min",
        fleet_slot!(settings.scaling.uptime_min),
        duration(TICK, DAY),
        "A worker is not returned before it was active for this long.",
    ),
    Key::new("price_max", fleet_slot!(settings.price_max), Money, "What an hour of one machine may cost."),
    Key::new(
        "budget_hourly",
        fleet_slot!(settings.hour_max),
        Money,
        "What all its machines together may cost in an hour.",
    ),
    Key::new(
        "budget_daily",
        fleet_slot!(settings.day_max),
        Money,
        "What all its machines together may cost in a day of the calendar (UTC).",
    ),
];

const RENTED: &[Key<Fleet>] = &[
    Key::new(
        "spawning_timeout",
        fleet_slot!(settings.scaling.spawning_timeout),
        duration(TICK, DAY),
        "From the moment the provider says that it runs until its worker registers.",
    ),
    Key::new(
        "drain_timeout",
        fleet_slot!(settings.scaling.drain_timeout),
        duration(TICK, YEARS),
        "How long a draining worker may finish what it holds.",
    ),
    Key::new(
        "idle_timeout",
        fleet_slot!(settings.scaling.idle_timeout),
        duration(TICK, YEARS),
        "A beat older than this fails a worker, but only when work waits.",
    ),
    Key::new(
        "vram_stale_after",
        fleet_slot!(settings.scaling.vram_stale_after),
        duration(TICK, DAY),
        "VRAM readings older than this are warned about and nothing more.",
    ),
    Key::new(
        "list_every",
        fleet_slot!(settings.limits.list_every),
        duration(TICK, HOUR),
        "How often the provider is asked what there is.",
    ),
    Key::new(
        "list_lag_max",
        fleet_slot!(settings.limits.list_lag_max),
        duration(TICK, HOUR),
        "How long a machine may be missing from lists before that means anything.",
    ),
    Key::new(
        "lost_create_timeout",
        fleet_slot!(settings.limits.lost_create_timeout),
        duration(TICK, DAY),
        "How long a creation whose answer was lost is looked for before another takes its place.",
    ),
    Key::new(
        "image_pull_timeout",
        fleet_slot!(settings.limits.image_pull_timeout),
        duration(TICK, DAY),
        "From its creation until it runs: the pull of the image and the boot.",
    ),
    Key::new(
        "readiness_timeout",
        fleet_slot!(settings.limits.readiness_timeout),
        duration(TICK, DAY),
        "From the registration of its worker until it may work: the start check and the loading of models.",
    ),
    Key::new(
        "orphan_grace",
        fleet_slot!(settings.limits.orphan_grace),
        duration(TICK, DAY),
        "A machine with our tag that we know nothing of is left alone for this long.",
    ),
    Key::new(
        "return_timeout",
        fleet_slot!(settings.limits.return_timeout),
        duration(TICK, DAY),
        "A return that takes longer is an alarm.",
    ),
    Key::new(
        "offer_cooldown",
        fleet_slot!(settings.limits.offer_cooldown),
        duration(TICK, DAY),
        "How long an offer that gave a bad machine, or had none, is passed over.",
    ),
];

const TOLD: &[Key<Fleet>] = &[
    Key::new(
        "command",
        fleet_slot!(source.command),
        Text,
        "What is started, by `sh -c`, such as `remuda worker --exec ./render.sh`; `process` needs it, and with \
         `start = \"ssh\"` it is `remuda worker`.",
    ),
    Key::new(
        "url",
        fleet_slot!(source.url),
        Url,
        "Where its machines reach the plane; `runpod` needs it, for `process` it is where the plane listens.",
    ),
    Key::new("env", fleet_slot!(source.env), Environment, "More of the environment of what runs on them."),
    Key::new(
        "contact_timeout",
        fleet_slot!(source.contact_timeout),
        duration(SECOND, DAY),
        "A machine that has not reached the plane for this long stops itself.",
    ),
    Key::new(
        "contact_timeout_command",
        fleet_slot!(source.contact_timeout_command),
        Text,
        "What it runs to do so; without one its worker ends.",
    ),
];

const PROCESS: &[Key<Fleet>] = &[
    Key::new(
        "price",
        fleet_slot!(source.price),
        Money,
        "What an hour of one is said to cost, to rehearse budgets.",
    ),
    Key::new(
        "stop_grace",
        fleet_slot!(source.stop_grace),
        duration(TICK, HOUR),
        "How long one may take to end by itself when it is given back, before it is killed.",
    ),
];

const RUNPOD: &[Key<Fleet>] = &[
    Key::new("image", fleet_slot!(source.runpod.image), Text, "What runs on it, with its tag; needed."),
    Key::new(
        "gpus",
        fleet_slot!(source.runpod.gpus),
        List,
        "GPUs by RunPod's names, the one to try first in front; needed.",
    ),
    Key::new("gpu_count", fleet_slot!(source.runpod.gpu_count), number(1, 64), "GPUs of one machine."),
    Key::new(
        "data_centers",
        fleet_slot!(source.runpod.data_centers),
        List,
        "Where it may be; without any, anywhere.",
    ),
    Key::new(
        "clouds",
        fleet_slot!(source.runpod.clouds),
        List,
        "`secure`, `community` or both, in the order to try.",
    ),
    Key::new(
        "disk_gb",
        fleet_slot!(source.runpod.disk_gb),
        number(1, 10_000),
        "Its container's disk, in GB.",
    ),
    Key::new(
        "network_volume",
        fleet_slot!(source.runpod.network_volume),
        Text,
        "Id of a volume to mount; it pins the data centre.",
    ),
    Key::new("mount_path", fleet_slot!(source.runpod.mount_path), Text, "Where that is mounted."),
    Key::new("ports", fleet_slot!(source.runpod.ports), List, "Ports to open, such as `22/tcp`."),
    Key::new(
        "min_cuda",
        fleet_slot!(source.runpod.min_cuda),
        Text,
        "The oldest CUDA its host may have, such as `12.8`.",
    ),
    Key::new(
        "registry",
        fleet_slot!(source.runpod.registry),
        Text,
        "Id of the credentials for a private image.",
    ),
    Key::new(
        "api_key_file",
        fleet_slot!(source.runpod.api_key_file),
        File,
        "File with the key to RunPod's API in it, in place of `RUNPOD_API_KEY`; a key in here is refused.",
    ),
    Key::new(
        "base_url",
        fleet_slot!(source.runpod.base_url),
        Url,
        "Where RunPod's API is, if not at RunPod's.",
    ),
];

const SSH: &[Key<Fleet>] = &[
    Key::new(
        "start",
        fleet_slot!(source.start),
        Choice(&["image", "ssh"]),
        "Who starts the worker: the image itself, or the plane over SSH, unless `scaling.start_worker` is off.",
    ),
    Key::new(
        "ssh_user",
        fleet_slot!(source.ssh.user),
        Text,
        "Who to log in as; without it whom the provider names.",
    ),
    Key::new(
        "upload",
        fleet_slot!(source.ssh.upload),
        Switch,
        "Bring this very program along, as `remuda`, where another one or none is there.",
    ),
    Key::new(
        "setup",
        fleet_slot!(source.ssh.setup),
        Text,
        "A shell command that installs what is missing; it runs at every visit.",
    ),
    Key::new(
        "gpu_check",
        fleet_slot!(source.ssh.gpu_check),
        Text,
        "`built-in`: a small computation on every GPU; `none`; or a shell command that succeeds on a good machine.",
    ),
];
