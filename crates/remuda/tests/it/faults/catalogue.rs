//! The rows of the fault catalogue that concern what this workspace does, in short.

/// What can go wrong, and whether there is something it could go wrong with.
#[derive(Debug)]
pub(super) struct Row {
    pub(super) id: &'static str,
    pub(super) what: &'static str,
    pub(super) standing: Standing,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    Built,
    /// Belongs to a part that is not built yet.
    Later(&'static str),
}

const fn built(id: &'static str, what: &'static str) -> Row {
    Row { id, what, standing: Standing::Built }
}

const fn later(id: &'static str, what: &'static str, part: &'static str) -> Row {
    Row { id, what, standing: Standing::Later(part) }
}

/// Rows of the sections on machines and providers, up to the last of each: a test may try them already,
/// and nobody has to yet.
pub(super) const ROWS_OF_OTHERS: [(&str, u32); 2] = [("M", 7), ("P", 18)];

pub(super) const SECTIONS: &[(&str, &[Row])] = &[
    ("A copy of a model in the process", COPY),
    ("The service: ComfyUI", SERVICE),
    ("The socket to the service", SOCKET),
    ("The worker's process", WORKER),
    ("Network", NETWORK),
    ("Store", STORE),
    ("Plane", PLANE),
    ("Clock", CLOCK),
    ("Clients and bad input", INPUT),
    ("Malice", MALICE),
];

const COPY: &[Row] = &[
    built("T1", "panics or ends in the middle of an answer"),
    built("T2", "fails to load"),
    built("T3", "is busy for minutes"),
    built("T4", "hangs"),
    built("T5", "answers an old question, or somebody else's"),
    built("T6", "fails so fast that it looks idle"),
    built("T7", "seems busy for ever after somebody left"),
    built("T8", "runs out of memory, at load or at work"),
    built("T9", "its engine or device is broken, and it answers nonsense"),
    built("T10", "was the last one"),
    built("T11", "is at work when the pool closes"),
    built("T12", "says done, and there is nothing"),
];

const SERVICE: &[Row] = &[
    built("V1", "done at once, from its cache, before anybody listens"),
    built("V2", "the agent dies between handing in and writing that down"),
    built("V3", "no answer to a submission: taken or not?"),
    built("V4", "the same id is queued twice"),
    built("V5", "history knows nothing of what waits or runs"),
    built("V6", "done between the look at the queue and the look at history"),
    built("V7", "says done before history is written"),
    built("V8", "restarts, and has forgotten everything"),
    built("V9", "somebody clears its history or its queue"),
    built("V10", "a node fails: the graph, memory, disk, or who knows"),
    built("V11", "answers, and runs nothing any more"),
    built("V12", "somebody else interrupts our prompt"),
    built("V13", "the prompts of others come first"),
    built("V14", "does not answer in time"),
    built("V15", "ten times slower than the others"),
    built("V16", "no room on its disk"),
    built("V17", "a model, node or file is missing on one of them"),
    built("V18", "an older or newer version, or no ComfyUI at all"),
    built("V19", "an output is listed and missing, cut or changed"),
    built("V20", "two runs write files of one name"),
    built("V21", "a cancel that hits another job"),
    built("V22", "a prompt that kills whoever runs it"),
    built("V23", "a graph of which only half is valid is accepted"),
    built("V24", "a cached result whose file is gone"),
    built("V25", "an answer that is no JSON"),
    built("V26", "an old result under an id that is used again"),
    built("V27", "temporary files vanish at a restart"),
];

const SOCKET: &[Row] = &[
    built("W1", "closes in the middle of a run"),
    built("W2", "half open: silent, and not closed"),
    built("W3", "the message of the end is lost"),
    built("W4", "a node that says nothing for long"),
    built("W5", "messages doubled, late or out of order"),
    built("W6", "messages about the prompts of others"),
    built("W7", "connected and deaf"),
    built("W8", "a slow client holds up everybody's messages"),
    built("W9", "huge or endless previews"),
    built("W10", "frames that make no sense"),
];

const WORKER: &[Row] = &[
    built("A1", "killed and started anew while its work still runs"),
    built("A2", "killed for good"),
    built("A3", "paused past its lease, then it resumes"),
    built("A4", "completes a job that was completed elsewhere meanwhile"),
    built("A5", "never hears of what it was assigned, and beats on"),
    built("A6", "reports a completion again because the answer was lost"),
    built("A7", "completes a job at the moment it is cancelled"),
    built("A8", "there are two with one name"),
    built("A9", "beats, while its work stands still"),
    built("A10", "beats late because its machine is busy"),
    built("A11", "a poisonous job takes down every worker it touches"),
    built("A12", "joins, dies, joins, dies"),
    built("A13", "is asked to go within some seconds"),
    built("A14", "cannot store its outputs when it has completed"),
    built("A15", "comes back after a long time with finished work"),
    built("A16", "says it has more slots than it has"),
    built("A17", "fails everything at once and attracts all work"),
];

const NETWORK: &[Row] = &[
    built("N1", "cut for less than a lease"),
    built("N2", "cut for more than a lease"),
    built("N3", "cut in one direction only"),
    built("N4", "a message comes minutes late, twice or out of order"),
    built("N5", "most workers vanish together: it is our own link"),
    built("N6", "everyone comes back at once"),
    built("N7", "loses a third of all messages and delays the rest"),
    built("N8", "a name cannot be looked up"),
    built("N9", "a certificate expires or is replaced"),
    built("N10", "a box in between forgets idle connections"),
];

const STORE: &[Row] = &[
    built("D1", "SQLite is busy"),
    built("D2", "the disk is full"),
    built("D3", "a sync fails"),
    built("D4", "killed in the middle of a transaction"),
    built("D5", "power is lost right after an acknowledgement"),
    later("D6", "the connection is lost during a commit", "PostgreSQL"),
    built("D7", "the file is corrupt, or its log was removed"),
    built("D8", "a write takes seconds"),
    later("D9", "PostgreSQL fails over and loses the last commits", "PostgreSQL"),
    later("D10", "all connections are taken", "PostgreSQL"),
    later("D11", "a pooler breaks locks and notifications of a session", "PostgreSQL"),
    later("D12", "Redis may evict keys", "Redis"),
    later("D13", "Redis restarts without its last second", "Redis"),
    later("D14", "Redis fails over and has two primaries", "Redis"),
    built("D15", "a migration is interrupted, or a newer program wrote the file"),
    built("D16", "the store was put back from a backup"),
    built("D17", "the store is away for minutes"),
    built("D18", "ten million jobs have ended"),
];

const PLANE: &[Row] = &[
    built("C1", "killed at any instant"),
    later("C2", "the leader is paused past its lease, then it resumes", "a second plane in reserve"),
    later("C3", "the cluster is split", "a second plane in reserve"),
    later("C4", "the leader is lost under load", "a second plane in reserve"),
    built("C5", "two versions speak to each other during an upgrade"),
    built("C6", "one of its tasks panics or stands still"),
    built("C7", "more work than there is room for"),
    built("C8", "retries keep the load up after their cause is gone"),
    built("C9", "a follower of events is slow"),
    built("C10", "a follower of events comes back"),
    built("C11", "the target of a webhook is down or slow"),
    built("C12", "a bad workflow blocks every worker"),
    built("C13", "every job has a hash of its own"),
    built("C14", "all rush in when a block ends"),
    built("C15", "blocks are forgotten at a restart"),
    built("C16", "a job is cancelled whose worker cannot be reached"),
    built("C17", "a submission is sent again because the answer was lost"),
    built("C18", "one client floods the queue"),
    built("C19", "a bad configuration is loaded while running"),
    built("C20", "no file handles or connections are left"),
    built("C21", "a delayed job meets a jump of the clock"),
    built("C22", "no worker can ever run a job"),
];

const CLOCK: &[Row] = &[
    built("K1", "the wall clock jumps by an hour"),
    built("K2", "the host was suspended"),
    built("K3", "two clocks run apart"),
    built("K4", "a machine was put back from a snapshot"),
    built("K5", "a worker's clock is wrong by years"),
];

const INPUT: &[Row] = &[
    built("B1", "a giant body"),
    built("B2", "deep JSON"),
    built("B3", "wide JSON"),
    built("B4", "a graph with a loop, a dangling link, an unknown field"),
    built("B5", "NaN, doubled keys, NUL, bad UTF-8"),
    built("B6", "a slow sender, an abandoned upload"),
    built("B7", "a small file that is huge once unpacked"),
    built("B8", "a result of gigabytes"),
    built("B9", "odd file names"),
    built("B10", "a flood of submissions"),
];

const MALICE: &[Row] = &[
    built("X1", "an open port, and nobody is asked who it is"),
    built("X2", "a worker's token is stolen"),
    built("X3", "a client's token or a copy of the store is stolen"),
    built("X4", "a worker ends a job that another one runs"),
    built("X5", "an address that leads somewhere inside"),
    built("X6", "an output's name that leads out of its folder"),
    later("X7", "a script in what is shown", "the dashboard and its content policy"),
    built("X8", "a page of somebody else's, or a name turned to our address"),
    built("X9", "tokens are guessed"),
    built("X10", "a secret in an address, a log, an error or a metric"),
    later("X11", "a job reads what its worker or plane goes by", "keys of providers"),
    built("X12", "what others write moves the cursor, or makes a line of a log"),
    built("X13", "a flood of connections, open or idle"),
    built("X14", "a message is sent again by somebody else"),
    later(
        "X15",
        "a workflow turns its worker against us",
        "allow-lists of node classes, workers of one tenant",
    ),
    built("X16", "another tenant's job is asked for"),
    built("X17", "what is for operators is open to all"),
    built("X18", "a worker lies about its work"),
    built("X19", "input that makes tables or patterns slow"),
    built("X20", "the audit log is changed"),
    later(
        "X21",
        "a part of the program was replaced or may not be used",
        "a look into the list of known flaws, which needs a network; a list of parts for each release",
    ),
];
