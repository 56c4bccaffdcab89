//! Reads the audit log and follows its chain.

use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::path::Path;

use remuda_core::id::Hash;

use super::{BEGINNING, Line, TORN};

/// What was found in a log.
#[derive(Debug, Default)]
pub struct Found {
    pub lines: Vec<Line>,
    /// Lines that a crash cut short and that were closed off.
    pub torn: usize,
    /// Where the chain is broken, and how; each is a line that somebody changed, put in or took out.
    pub broken: Vec<String>,
    /// The hash of the last line: whoever writes it down elsewhere notices when the end was cut off.
    pub head: Option<Hash>,
}

/// Reads all of it; a log that is not there is an error.
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
    // A tear at the very end is what a crash leaves; the next plane closes it off.
    found.torn += usize::from(open_tear.is_some());
    Ok(found)
}
