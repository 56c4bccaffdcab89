//! Where the stand-in knowingly differs from what was recorded, and from the real server in general. The list in
//! `src/fake/README.md` is written from this one.

use std::fmt::Write as _;
use std::path::PathBuf;

/// What the replay does with a recorded line that differs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Treatment {
    /// Something comes, and is not compared.
    NotCompared,
    /// Nothing of the kind comes.
    NotAwaited,
    /// The client does not do it either.
    NotDone,
}

/// A line of a recording that the stand-in does not repeat.
#[derive(Debug)]
pub(crate) struct Difference {
    pub(crate) recording: &'static str,
    /// Words of the line, enough to find it.
    pub(crate) words: &'static str,
    pub(crate) treatment: Treatment,
    /// Whose reason it is, in `REASONS`.
    reason: usize,
}

const REASONS: [&str; 5] = [
    "Request bodies that are compressed with gzip are not understood: they are answered as what cannot be read.",
    "`RemudaSleep` sends its previews as JPEG, never as PNG; the picture in them is always the same grey square.",
    "`/node_replacements` is an empty object.",
    "`/extensions`, `/users`, `/settings`, `/userdata` and their like are stubs: enough for the stock frontend to load.",
    "`/system_stats` tells of one imagined CUDA device and 64 GiB of memory; the recorded servers ran on a CPU.",
];

use Treatment::{NotAwaited, NotCompared, NotDone};

const LINES: &[(&str, &str, Treatment, usize)] = &[
    ("http-origin-host-users", "\"Content-Encoding\": \"gzip\"", NotDone, 0),
    ("http-origin-host-users", "\"prompt_id\": \"4e3dd53b", NotAwaited, 0),
    ("http-origin-host-users", "{\"queue_remaining\": 1}}, \"sid\": \"wsx\"}", NotCompared, 0),
    ("http-origin-host-users", "{\"queue_remaining\": 0}}}}}", NotAwaited, 0),
    ("ws-binary-frames", "0000000100000002", NotCompared, 1),
    ("v0.30.0-differences", "\"path\": \"/node_replacements\", \"status\"", NotCompared, 2),
    ("http-origin-host-users", "\"path\": \"/settings\", \"status\"", NotCompared, 3),
    ("v0.30.0-differences", "\"path\": \"/system_stats\", \"status\"", NotCompared, 4),
];

/// What no recording shows.
const GENERAL: &[&str] = &[
    "Pictures have one colour; samplers, blurs and decoders compute nothing and only take their time.",
    "Files are kept in memory, 100,000 at most, and are gone when the program ends.",
    "Only the node classes that `/object_info` lists are there: 14 of the original's own, and the test nodes.",
    "WebSocket compression is not negotiated.",
    "A server that was poisoned by a `client_id` that is a list dies after 50 ms; requests do not hang meanwhile.",
    "`/view` has no `Last-Modified`; `preview=` answers with a picture that is always the same, `channel=` with the whole one.",
    "Where the original walks through a set, in an order that is an accident, the order of the graph is taken.",
    "A value that the original converts (`\"64\"` for a number) stays in history as it was written.",
    "The outbox holds 200,000 messages; beyond that, messages are dropped. The original's has no bound.",
    "There are no `--multi-user`, CORS or compression flags, no `/internal`, no static files and no logs.",
    "`RemudaBlocker` with an empty message blocks in silence.",
];

/// What is special about this line, if anything.
pub(crate) fn of(recording: &str, text: &str) -> Option<Difference> {
    let found = LINES.iter().find(|(name, words, ..)| *name == recording && text.contains(words))?;
    let (recording, words, treatment, reason) = *found;
    Some(Difference { recording, words, treatment, reason })
}

/// That every difference is still one of a line that exists.
pub(crate) fn check_words(recording: &str, lines: &[crate::recording::Line]) {
    for (_, words, ..) in LINES.iter().filter(|(name, ..)| *name == recording) {
        assert!(lines.iter().any(|line| line.text.contains(words)), "no line of {recording} has {words}");
    }
}

const BEGIN: &str = "<!-- Written by tests/transcripts; edit tests/transcripts/differences.rs instead. -->\n";

/// Writes the list into the README, and fails where it was not there yet.
pub(crate) fn check_readme() {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("src/fake/README.md");
    let readme = std::fs::read_to_string(&path).unwrap();
    let (before, _) = readme.split_once(BEGIN).expect("the README has a place for the list");
    let mut wanted = format!("{before}{BEGIN}\n");
    for (at, reason) in REASONS.iter().enumerate() {
        let mut recordings: Vec<&str> = LINES.iter().filter(|line| line.3 == at).map(|line| line.0).collect();
        recordings.dedup();
        assert!(!recordings.is_empty(), "no line differs for this reason: {reason}");
        writeln!(wanted, "- {reason} (left out of `{}`)", recordings.join("`, `")).unwrap();
    }
    for difference in GENERAL {
        writeln!(wanted, "- {difference}").unwrap();
    }
    if readme != wanted {
        std::fs::write(&path, wanted).unwrap();
        panic!("regenerated src/fake/README.md, commit it");
    }
}

impl Difference {
    /// For a failure to say which difference was meant.
    pub(crate) fn why(&self) -> String {
        format!("{} ({}: {})", REASONS[self.reason], self.recording, self.words)
    }
}
