//! A recording: one JSON object per line, in chronological order.

use std::path::PathBuf;

use serde_json::Value;

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/transcripts/recorded")
}

/// The names of all recordings, in order.
pub(crate) fn names() -> Vec<String> {
    let files =
        std::fs::read_dir(folder()).unwrap().map(|file| file.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = files.map(|name| name.trim_end_matches(".jsonl").to_owned()).collect();
    names.sort_unstable();
    names
}

/// What a line is about.
#[derive(Clone, Debug)]
pub(crate) struct Line {
    pub(crate) number: usize,
    pub(crate) text: String,
    pub(crate) time: f64,
}

#[derive(Debug)]
pub(crate) struct Recording {
    pub(crate) name: String,
    pub(crate) lines: Vec<Line>,
}

/// Two recordings contain an unquoted NaN, as the server sends it.
pub(crate) fn parse(text: &str) -> Value {
    let value = serde_json::from_str(text);
    value.unwrap_or_else(|_| serde_json::from_str(&text.replace("[NaN]", "[\"NaN\"]")).unwrap())
}

impl Recording {
    pub(crate) fn read(name: &str) -> Recording {
        let text = std::fs::read_to_string(folder().join(format!("{name}.jsonl"))).unwrap();
        let lines = text.lines().enumerate().map(|(at, text)| {
            let time = parse(text)["t"].as_f64().unwrap();
            Line { number: at + 1, text: text.to_owned(), time }
        });
        Recording { name: name.to_owned(), lines: lines.collect() }
    }

    pub(crate) fn values(&self) -> impl DoubleEndedIterator<Item = (usize, Value)> {
        self.lines.iter().enumerate().map(|(at, line)| (at, parse(&line.text)))
    }

    /// Whether it contains messages of this kind; some were left out to keep files small. The greeting does not count.
    pub(crate) fn has(&self, kind: &str) -> bool {
        self.values().any(|(_, line)| line["json"]["type"] == kind && line["json"]["data"]["sid"].is_null())
    }

    /// Whether graphs were left out and answers shortened.
    pub(crate) fn is_abridged(&self) -> bool {
        self.lines.iter().any(|line| line.text.contains("are left out of this file"))
    }
}
