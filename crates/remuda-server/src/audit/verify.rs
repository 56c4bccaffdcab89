//! Reads the audit log and follows its chain.

use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::path::Path;

use remuda_core::id::Hash;

use super::{BEGINNING, Line, TORN};

/// The result of checking a log.
#[derive(Debug, Default)]
pub struct Found {
    pub lines: Vec<Line>,
    /// Lines that a crash cut short.
    pub torn: usize,
    /// Where the chain is broken, and how: lines that were changed, inserted or removed.
    pub broken: Vec<String>,
    /// The hash of the last line: store it elsewhere to detect that the end of the log was removed.
    pub head: Option<Hash>,
}

/// Reads the whole log; a missing log is an error.
pub fn read(path: &Path) -> io::Result<Found> {
    let mut found = Found::default();
    let (mut before, mut seq, mut open_tear) = (BEGINNING, 0, None);
    for (at, line) in BufReader::new(File::open(path)?).split(b'\n').enumerate() {
        let (at, line) = (at + 1, line?);
        let read = serde_json::from_slice::<Line>(&line).ok();
        match read {
            Some(line) => {
                if line.before != before {
                    found.broken.push(format!("line {at} does not follow the line before it"));
                } else if line.seq != seq + 1 {
                    found.broken.push(format!("line {at} has number {} after {seq}", line.seq));
                }
                if let Some(torn) = open_tear.take() {
                    match line.what == TORN {
                        true => found.torn += 1,
                        false => found.broken.push(format!("line {torn} cannot be read")),
                    }
                }
                seq = line.seq;
                found.lines.push(line);
            }
            None => {
                if let Some(torn) = open_tear.replace(at) {
                    found.broken.push(format!("line {torn} cannot be read"));
                }
            }
        }
        before = Hash::digest(&line);
        found.head = Some(before);
    }
    // A cut at the very end is left by a crash; the next plane marks it.
    found.torn += usize::from(open_tear.is_some());
    Ok(found)
}
