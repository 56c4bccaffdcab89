//! The audit log: who did what to the fleet, from where, and what came of it. One line of JSON each, only ever appended;
//! every line has the hash of the one before, so that a line that was changed, put in or taken out is found.
//!
//! ```text
//!  {"seq":1,…,"before":"0000…"}     a line that was torn by a crash is closed off by one
//!  {"seq":2,…,"before":"a3f1…"}     that says so and has its hash, and the chain goes on
//! ```

mod verify;

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use remuda_core::id::Hash;
use remuda_core::time::Timestamp;
use serde::{Deserialize, Serialize};
use tracing::error;

pub use self::verify::{Found, read};

/// In the data folder.
pub const FILE_NAME: &str = "audit.jsonl";
/// What the first line has before it.
const BEGINNING: Hash = Hash::from_bytes([0; 32]);
const TORN: &str = "audit.torn";
/// No text in a line is longer.
const TEXT_CHARS_MAX: usize = 500;
/// The longest line by far: looked back by to find the last one.
const LINE_BYTES_MAX: u64 = 64 << 10;
/// Refusals noted within `REFUSALS_WITHIN`; whoever is refused more often than that fills no disk.
const REFUSALS_MAX: u32 = 60;
const REFUSALS_WITHIN: Duration = Duration::from_secs(60);

/// What is noted.
#[derive(Clone, Debug)]
pub struct Note {
    pub at: Timestamp,
    pub who: String,
    pub from: String,
    pub what: &'static str,
    pub on: String,
    pub outcome: String,
}

/// What is written.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Line {
    pub seq: u64,
    pub at: String,
    pub who: String,
    pub from: String,
    pub what: String,
    pub on: String,
    pub outcome: String,
    /// The hash of the line before.
    pub before: Hash,
}

/// Clones write to the same file.
#[derive(Clone, Debug)]
pub struct Audit(Arc<Mutex<Writer>>);

#[derive(Debug)]
struct Writer {
    path: PathBuf,
    file: File,
    seq: u64,
    before: Hash,
    refusals: Refusals,
}

#[derive(Debug, Default)]
struct Refusals {
    since: Timestamp,
    noted: u32,
    left_out: u64,
}

impl Audit {
    /// Goes on where the last plane stopped. Nobody else may write to it: whoever has the store's folder has this too.
    pub fn open(data: &Path, now: Timestamp) -> io::Result<Audit> {
        let path = data.join(FILE_NAME);
        let mut file = OpenOptions::new().read(true).append(true).create(true).mode(0o600).open(&path)?;
        let end = end_of(&mut file)?;
        let mut writer =
            Writer { path, file, seq: end.seq, before: end.before, refusals: Refusals::default() };
        if end.is_torn {
            writer.file.write_all(b"\n")?;
            let on = "the line before was cut short when the plane ended".to_owned();
            let (who, from) = ("remuda".to_owned(), String::new());
            writer.write(Note { at: now, who, from, what: TORN, on, outcome: "closed".to_owned() })?;
        }
        Ok(Audit(Arc::new(Mutex::new(writer))))
    }

    /// Writes a line. That it cannot be written is told, and stops nobody.
    pub async fn note(&self, note: Note) {
        self.with(move |writer| writer.write(note)).await;
    }

    /// As `note`, for those who were refused: so many and no more, and how many were left out.
    pub async fn refused(&self, note: Note) {
        self.with(move |writer| writer.refused(note)).await;
    }

    async fn with(&self, write: impl FnOnce(&mut Writer) -> io::Result<()> + Send + 'static) {
        let writer = self.0.clone();
        let written = tokio::task::spawn_blocking(move || {
            let mut writer = writer.lock().unwrap_or_else(PoisonError::into_inner);
            let path = writer.path.clone();
            write(&mut writer).map_err(|cause| (path, cause))
        });
        if let Ok(Err((path, cause))) = written.await {
            error!(path = %path.display(), %cause, "the audit log could not be written");
        }
    }
}

impl Writer {
    fn write(&mut self, note: Note) -> io::Result<()> {
        let line = Line {
            seq: self.seq + 1,
            at: note.at.to_string(),
            who: short(&note.who),
            from: note.from,
            what: note.what.to_owned(),
            on: short(&note.on),
            outcome: short(&note.outcome),
            before: self.before,
        };
        let text = plain(&serde_json::to_string(&line)?);
        // In one piece: a crash tears it at the end or not at all.
        self.file.write_all(format!("{text}\n").as_bytes())?;
        if note.what.starts_with("token.") {
            self.file.sync_data()?;
        }
        (self.seq, self.before) = (line.seq, Hash::digest(text.as_bytes()));
        Ok(())
    }

    fn refused(&mut self, mut note: Note) -> io::Result<()> {
        let refusals = &mut self.refusals;
        if note.at.since(refusals.since) >= REFUSALS_WITHIN {
            if refusals.left_out > 0 {
                note.outcome = format!("{} (and {} more before)", note.outcome, refusals.left_out);
            }
            *refusals = Refusals { since: note.at, ..Refusals::default() };
        }
        if refusals.noted >= REFUSALS_MAX {
            refusals.left_out += 1;
            return Ok(());
        }
        refusals.noted += 1;
        self.write(note)
    }
}

/// How a file ends.
struct End {
    seq: u64,
    before: Hash,
    is_torn: bool,
}

fn end_of(file: &mut File) -> io::Result<End> {
    let length = file.seek(SeekFrom::End(0))?;
    if length == 0 {
        return Ok(End { seq: 0, before: BEGINNING, is_torn: false });
    }
    file.seek(SeekFrom::Start(length.saturating_sub(2 * LINE_BYTES_MAX)))?;
    let mut tail = Vec::new();
    file.read_to_end(&mut tail)?;
    let is_torn = tail.last() != Some(&b'\n');
    let mut lines = tail.split(|byte| *byte == b'\n').rev().skip(usize::from(!is_torn));
    let last = lines.next().unwrap_or_default();
    let before = Hash::digest(last);
    // The number goes on from the last line that has one.
    let seq = std::iter::once(last)
        .chain(lines)
        .find_map(|line| Some(serde_json::from_slice::<Line>(line).ok()?.seq));
    // A whole line that lacks only its end is as good as any, and is closed off all the same.
    Ok(End { seq: seq.unwrap_or(0), before, is_torn })
}

fn short(text: &str) -> String {
    text.chars().take(TEXT_CHARS_MAX).collect()
}

/// JSON in which nothing moves a cursor: what `serde_json` leaves as it is although a terminal would not.
fn plain(json: &str) -> String {
    let is_odd = |c: char| {
        c.is_control()
            || matches!(c, '\u{200e}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    let escaped = |c: char| {
        if is_odd(c) { format!("\\u{:04x}", u32::from(c)) } else { c.to_string() }
    };
    json.chars().map(escaped).collect()
}

#[cfg(test)]
mod tests;
