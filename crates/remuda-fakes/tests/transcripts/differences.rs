//! Where the fake knowingly differs from the recordings, and from the real server in general. The list in
//! `src/README.md` is generated from this one.

use std::fmt::Write as _;
use std::path::PathBuf;

/// How the replay treats a recorded line that differs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Treatment {
    /// Something comes, and is not compared.
    Uncompared,
    /// Nothing of the kind comes.
    Absent,
    /// The client does not do it either.
    Undone,
}

const REASONS: [&str; 8] = [
    "Request bodies that are compressed with gzip are not understood: they are answered as what cannot be read.",
    "`RemudaSleep` sends its previews as JPEG, never as PNG; the picture in them is always the same grey square.",
    "`/node_replacements` is an empty object.",
    "`/extensions`, `/users`, `/settings`, `/userdata` and their like are stubs: enough for the stock frontend to load.",
    "`/system_stats` tells of one imagined CUDA device and 64 GiB of memory; the recorded servers ran on a CPU.",
    "`/object_info` has fewer explanations: tooltips and descriptions are there only where an error shows them.",
    "There are no `/internal` paths and no `/view_metadata`.",
    "A fresh stand-in has no past; the recorded server had run 61 prompts and kept 30 files.",
];

use Treatment::{Absent, Uncompared, Undone};

/// Recording, words of the line, treatment, and index of the reason.
const LINES: &[(&str, &str, Treatment, usize)] = &[
    ("http-origin-host-users", "\"Content-Encoding\": \"gzip\"", Undone, 0),
    ("http-origin-host-users", "\"prompt_id\": \"4e3dd53b", Absent, 0),
    ("http-origin-host-users", "{\"queue_remaining\": 1}}, \"sid\": \"wsx\"}", Uncompared, 0),
    ("http-origin-host-users", "{\"queue_remaining\": 0}}}}}", Absent, 0),
    ("ws-binary-frames", "\"ws:no-feature-flags-png\", \"binary\"", Uncompared, 1),
    ("v0.30.0-differences", "\"path\": \"/node_replacements\", \"status\"", Uncompared, 2),
    ("http-origin-host-users", "\"path\": \"/settings\", \"status\"", Uncompared, 3),
    ("http-info-endpoints", "\"path\": \"/extensions\", \"status\"", Uncompared, 3),
    ("http-info-endpoints", "\"path\": \"/users\", \"status\"", Uncompared, 3),
    ("http-info-endpoints", "\"path\": \"/experiment/models\", \"status\"", Uncompared, 3),
    ("http-info-endpoints", "\"path\": \"/system_stats\", \"status\"", Uncompared, 4),
    ("http-info-endpoints", "\"path\": \"/object_info/KSampler\", \"status\"", Uncompared, 5),
    ("http-info-endpoints", "\"method\": \"GET\", \"path\": \"/internal/", Undone, 6),
    ("http-info-endpoints", "\"ch\": \"http\", \"path\": \"/internal/", Absent, 6),
    ("http-info-endpoints", "\"method\": \"GET\", \"path\": \"/view_metadata/", Undone, 6),
    ("http-info-endpoints", "\"ch\": \"http\", \"path\": \"/view_metadata/", Absent, 6),
    ("http-info-endpoints", "\"path\": \"/api/history?max_items=1\", \"status\"", Uncompared, 7),
    ("http-info-endpoints", "\"path\": \"/history?max_items=1&offset=0\", \"status\"", Uncompared, 7),
    ("v0.30.0-differences", "\"path\": \"/system_stats\", \"status\"", Uncompared, 4),
];

/// Differences that no recording shows.
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
    "There are no `--multi-user`, CORS or compression flags, no static files and no logs.",
    "Test nodes that the real server does not get: `RemudaFault`, and `RemudaFail` of the kind `huge`.",
    "`/fake/…` is there, without token or origin check: do not let it listen where others can reach it.",
];

/// The treatment of this line, if it is special.
pub(crate) fn of(recording: &str, text: &str) -> Option<Treatment> {
    let found = LINES.iter().find(|(name, words, ..)| *name == recording && text.contains(words));
    found.map(|(_, _, treatment, _)| *treatment)
}

/// Every difference still refers to an existing line.
pub(crate) fn check_words(recording: &str, lines: &[crate::recording::Line]) {
    for (_, words, ..) in LINES.iter().filter(|(name, ..)| *name == recording) {
        assert!(lines.iter().any(|line| line.text.contains(words)), "no line of {recording} has {words}");
    }
}

const BEGIN: &str = "<!-- Written by tests/transcripts; edit tests/transcripts/differences.rs instead. -->\n";

/// Fails if the list in the README is outdated. With REMUDA_WRITE_DOCS=1 it writes the list instead.
pub(crate) fn check_readme() {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("src/README.md");
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
        panic!("regenerated src/README.md, commit it");
    }
}
