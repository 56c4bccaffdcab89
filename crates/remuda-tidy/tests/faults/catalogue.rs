//! The rows of the fault catalogue, in short: what goes wrong, and whether the part that it concerns exists.

/// One kind of fault.
#[derive(Debug)]
pub(super) struct FaultRow {
    pub(super) id: &'static str,
    pub(super) what: &'static str,
    pub(super) status: RowStatus,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RowStatus {
    /// The part exists: some test must cause this fault.
    Built,
    /// The part is not built yet.
    Later(&'static str),
}

const fn built(id: &'static str, what: &'static str) -> FaultRow {
    FaultRow { id, what, status: RowStatus::Built }
}

const fn later(id: &'static str, what: &'static str, part: &'static str) -> FaultRow {
    FaultRow { id, what, status: RowStatus::Later(part) }
}

pub(super) const SECTIONS: &[(&str, &[FaultRow])] = &[
    ("A copy of a model in the process", COPY),
    ("The service: ComfyUI", SERVICE),
    ("The socket to the service", SOCKET),
    ("The worker's process", WORKER),
    ("Machine and pod", MACHINE),
    ("Network", NETWORK),
    ("The provider's API", PROVIDER),
    ("Store", STORE),
    ("Plane", PLANE),
    ("Clock", CLOCK),
    ("Clients and bad input", INPUT),
    ("Malice", MALICE),
    ("Wrong verdicts", VERDICTS),
];

const COPY: &[FaultRow] = &[
    built("T1", "panics or exits in the middle of an answer"),
    built("T2", "fails to load"),
    built("T3", "is busy for minutes"),
    built("T4", "hangs"),
    built("T5", "answers an earlier request, or another caller's"),
    built("T6", "fails so fast that it looks idle"),
    built("T7", "looks busy for ever after its caller left"),
    built("T8", "runs out of memory while loading or computing"),
    built("T9", "its engine or device is broken, and it answers nonsense"),
    built("T10", "was the last copy"),
    built("T11", "is computing when the pool closes"),
    built("T12", "reports success without an answer"),
];

const SERVICE: &[FaultRow] = &[
    built("V1", "completes at once from its cache, before the agent listens"),
    built("V2", "the agent dies between submitting a prompt and recording that"),
    built("V3", "a submission gets no answer: accepted or not?"),
    built("V4", "the same id is queued twice"),
    built("V5", "history is empty while a prompt waits or runs"),
    built("V6", "a prompt completes between the look at the queue and the look at history"),
    built("V7", "reports completion before history is written"),
    built("V8", "restarts and has lost everything"),
    built("V9", "another user clears its history or queue"),
    built("V10", "a node fails: graph, memory, disk or an unknown cause"),
    built("V11", "answers, but runs nothing any more"),
    built("V12", "another user interrupts our prompt"),
    built("V13", "prompts of other users come first"),
    built("V14", "does not answer in time"),
    built("V15", "is ten times slower than the others"),
    built("V16", "its disk is full"),
    built("V17", "a model, node or file is missing on one server"),
    built("V18", "an older or newer version, or not ComfyUI at all"),
    built("V19", "an output is listed but missing, truncated or changed"),
    built("V20", "two runs write files of the same name"),
    built("V21", "a cancel hits another job"),
    built("V22", "a prompt crashes every server that runs it"),
    built("V23", "a graph of which only half is valid is accepted"),
    built("V24", "a cached result whose file is gone"),
    built("V25", "an answer that is not JSON"),
    built("V26", "an old result under an id that is used again"),
    built("V27", "temporary files vanish at a restart"),
];

const SOCKET: &[FaultRow] = &[
    built("W1", "closes in the middle of a run"),
    built("W2", "half open: silent, but not closed"),
    built("W3", "the completion message is lost"),
    built("W4", "a node sends nothing for long"),
    built("W5", "messages are repeated, late or out of order"),
    built("W6", "messages about prompts of other users"),
    built("W7", "connected, but no message arrives"),
    built("W8", "one slow client delays every client's messages"),
    built("W9", "huge or endless previews"),
    built("W10", "malformed frames"),
];

const WORKER: &[FaultRow] = &[
    built("A1", "is killed and restarted while its work still runs"),
    built("A2", "is killed for good"),
    built("A3", "is paused past its lease, then resumes"),
    built("A4", "completes a job that was completed elsewhere meanwhile"),
    built("A5", "never receives what it was assigned, and keeps beating"),
    built("A6", "reports a completion again because the answer was lost"),
    built("A7", "completes a job at the moment it is cancelled"),
    built("A8", "two workers have one name"),
    built("A9", "beats while its work stands still"),
    built("A10", "beats late because its machine is busy"),
    built("A11", "a poisonous job takes down every worker it touches"),
    built("A12", "joins, dies, joins, dies"),
    built("A13", "has to leave within seconds"),
    built("A14", "cannot store its outputs when it has completed"),
    built("A15", "comes back after a long time with finished work"),
    built("A16", "claims more slots than it has"),
    built("A17", "fails everything at once and so attracts all work"),
];

const MACHINE: &[FaultRow] = &[
    built("M1", "loses power or is preempted without notice"),
    built("M2", "a pod never leaves *starting*"),
    built("M3", "a pod runs, but no agent registers"),
    built("M4", "registers after it was given up"),
    built("M5", "has a wrong or faulty GPU"),
    built("M6", "downloads its models slowly"),
    built("M7", "its address is reused by another machine"),
];

const NETWORK: &[FaultRow] = &[
    built("N1", "cut for less than a lease"),
    built("N2", "cut for more than a lease"),
    built("N3", "cut in one direction only"),
    built("N4", "a message arrives minutes late, twice or out of order"),
    built("N5", "most workers vanish together: our own link is broken"),
    built("N6", "all workers come back at once"),
    built("N7", "loses a third of all messages and delays the rest"),
    built("N8", "a name cannot be resolved"),
    built("N9", "a certificate expires or is replaced"),
    built("N10", "a device in between drops idle connections"),
];

const PROVIDER: &[FaultRow] = &[
    built("P1", "a pod is created, but the answer is lost or a 5xx"),
    built("P2", "the list lags behind a creation"),
    built("P3", "the list is empty or truncated, with status 200"),
    built("P4", "a termination is acknowledged, but the pod lives on"),
    built("P5", "a pod to terminate is gone already"),
    built("P6", "rate limit or quota"),
    built("P7", "no capacity"),
    built("P8", "an outage of hours"),
    built("P9", "the key is revoked"),
    built("P10", "a tagged pod without a record (restored store)"),
    built("P11", "two deployments share the account"),
    built("P12", "the plane is gone for good while pods bill"),
    built("P13", "the provider's own time limit is not honoured"),
    built("P14", "the load swings around a threshold"),
    built("P15", "every new pod fails"),
    built("P16", "the minimum is zero and the queue is not empty"),
    built("P17", "scale-down picks a worker that just received work"),
    built("P18", "the price or type differs from the order"),
];

const STORE: &[FaultRow] = &[
    built("D1", "SQLite is busy"),
    built("D2", "the disk is full"),
    built("D3", "a sync fails"),
    built("D4", "killed in the middle of a transaction"),
    built("D5", "power is lost right after an acknowledgement"),
    later("D6", "the connection is lost during a commit", "PostgreSQL"),
    built("D7", "the file is corrupt, or its log was removed"),
    built("D8", "a write takes seconds"),
    later("D9", "PostgreSQL fails over and loses the last commits", "PostgreSQL"),
    later("D10", "all connections are in use", "PostgreSQL"),
    later("D11", "a pooler breaks session locks and notifications", "PostgreSQL"),
    later("D12", "Redis may evict keys", "Redis"),
    later("D13", "Redis restarts without its last second", "Redis"),
    later("D14", "Redis fails over and has two primaries", "Redis"),
    built("D15", "a migration is interrupted, or a newer program wrote the file"),
    built("D16", "the store was restored from a backup"),
    built("D17", "the store is unreachable for minutes"),
    built("D18", "ten million jobs have ended"),
];

const PLANE: &[FaultRow] = &[
    built("C1", "killed at any instant"),
    later("C2", "the leader is paused past its lease, then resumes", "a second plane in reserve"),
    later("C3", "the cluster is partitioned", "a second plane in reserve"),
    later("C4", "the leader is lost under load", "a second plane in reserve"),
    built("C5", "two versions talk to each other during an upgrade"),
    built("C6", "one of its tasks panics or stalls"),
    built("C7", "more work than fits"),
    built("C8", "retries keep the load up after their cause is gone"),
    built("C9", "an event reader is slow"),
    built("C10", "an event reader reconnects"),
    built("C11", "a webhook target is down or slow"),
    built("C12", "a bad workflow blocks every worker"),
    built("C13", "every job has a workflow hash of its own"),
    built("C14", "all waiting jobs rush in when a block ends"),
    built("C15", "blocks are lost at a restart"),
    built("C16", "a job is cancelled whose worker cannot be reached"),
    built("C17", "a submission is sent again because the answer was lost"),
    built("C18", "one client floods the queue"),
    built("C19", "a bad configuration is loaded while running"),
    built("C20", "file descriptors or connections run out"),
    built("C21", "the clock jumps while a job is delayed"),
    built("C22", "no worker can ever run a job"),
];

const CLOCK: &[FaultRow] = &[
    built("K1", "the wall clock jumps by an hour"),
    built("K2", "the host was suspended"),
    built("K3", "two clocks drift apart"),
    built("K4", "a machine was restored from a snapshot"),
    built("K5", "a worker's clock is wrong by years"),
];

const INPUT: &[FaultRow] = &[
    built("B1", "a giant body"),
    built("B2", "deep JSON"),
    built("B3", "wide JSON"),
    built("B4", "a graph with a loop, a dangling link, an unknown field"),
    built("B5", "NaN, duplicate keys, NUL, bad UTF-8"),
    built("B6", "a slow sender, an abandoned upload"),
    built("B7", "a small file that is huge once unpacked"),
    built("B8", "a result of gigabytes"),
    built("B9", "hostile file names"),
    built("B10", "a flood of submissions"),
];

const MALICE: &[FaultRow] = &[
    built("X1", "an open port without authentication"),
    built("X2", "a worker's token is stolen"),
    built("X3", "a client's token or a copy of the store is stolen"),
    built("X4", "a worker ends a job that another one runs"),
    built("X5", "an address that leads into the internal network"),
    built("X6", "an output's name that leads out of its folder"),
    later("X7", "a script in what is shown", "the dashboard and its content policy"),
    built("X8", "another site's page, or a name rebound to our address"),
    built("X9", "tokens are guessed"),
    built("X10", "a secret in an address, a log, an error or a metric"),
    later("X11", "a job reads the credentials of its worker or plane", "keys of providers"),
    built("X12", "foreign text moves the cursor or forges a log line"),
    built("X13", "a flood of connections, open or idle"),
    built("X14", "a message is replayed by another party"),
    later(
        "X15",
        "a workflow turns its worker against the fleet",
        "allow-lists of node classes, workers of one tenant",
    ),
    built("X16", "a tenant asks for another tenant's job"),
    built("X17", "an operator's call is open to everyone"),
    built("X18", "a worker lies about its work"),
    built("X19", "input that makes tables or patterns slow"),
    built("X20", "the audit log is changed"),
    later(
        "X21",
        "a dependency was replaced or has a known flaw",
        "the copy of the advisory database, which is data that comes from outside",
    ),
];

/// Section 13 of the catalogue.
const VERDICTS: &[FaultRow] = &[
    built("J1", "a busy agent ends its long poll to send the next beat"),
    built("J2", "some, most or all machines die at once"),
    built("J3", "the plane's own network is cut for two minutes"),
    built("J4", "the plane is stopped for seconds or minutes and resumed"),
    built("J5", "one machine with eight workers dies"),
    built("J6", "one tenant's workflow always fails, another's of the same shape is good"),
    built("J7", "a node raises on the only worker, on two, on three"),
    built("J8", "an operator kills the server under one job twice"),
    built("J9", "a workflow breaks the CUDA context of each server it runs on"),
    built("J10", "a job asks for more memory than any card has"),
    built("J11", "three workers are lost while running a shape that completed ten thousand times"),
    built("J12", "an agent is restarted under a run of an hour"),
    built("J13", "a server is restarted under waiting, pinned jobs"),
    built("J14", "all outputs are blocked by the workflow itself"),
    built("J15", "a limit or budget is lowered while machines are busy"),
    built("J16", "one 401 or 403 from a provider or a proxy"),
    built("J17", "orphans are found, and the plane restarts every few seconds"),
    built("J18", "a worker claims giant numbers of slots, attempts, incarnations"),
    built("J19", "a few clients cause an extreme load"),
    built("J20", "a log is truncated, a folder deleted, an old copy restored"),
];
