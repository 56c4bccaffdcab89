//! The audit log: who did what to the fleet, from where, and with which outcome. One JSON object a line, append-only; each
//! line has the hash of the one before, so that a changed, inserted or removed line is detected.
//!
//! ```text
//!  {"seq":1,…,"before":"0000…"}     a line cut short by a crash is followed by one
//!  {"seq":2,…,"before":"a3f1…"}     that says so and has its hash, and the chain continues
//! ```

mod tail;
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
/// The previous hash of the first line.
const BEGINNING: Hash = Hash::from_bytes([0; 32]);
const TORN: &str = "audit.torn";
/// Longer texts are cut.
const TEXT_CHARS_MAX: usize = 500;
/// Longer than any line: how far back the last one is searched for.
const LINE_BYTES_MAX: u64 = 64 << 10;
/// Refusals logged within `REFUSALS_WITHIN`; further ones are only counted, so that an attacker cannot fill the disk.
const REFUSALS_MAX: u32 = 60;
const REFUSALS_WITHIN: Duration = Duration::from_secs(60);

/// An entry before it is written.
#[derive(Clone, Debug)]
pub struct Note {
    pub at: Timestamp,
    pub who: String,
    pub from: String,
    pub what: &'static str,
    pub on: String,
    pub outcome: String,
}

/// A line of the log.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Line {
    pub seq: u64,
    pub at: String,
    pub who: String,
    pub from: String,
    pub what: String,
    pub on: String,
    pub outcome: String,
    /// The hash of the previous line.
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
    /// Continues the log of the last plane. There is one writer: the lock on the data folder covers this file.
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

    /// Appends a line. A failure is logged and never stops the request.
    pub async fn note(&self, note: Note) {
        self.with(move |writer| writer.write(note)).await;
    }

    /// As `note`, for refused requests: a bounded number, plus a count of the rest.
    pub async fn refused(&self, note: Note) {
        self.with(move |writer| writer.refused(note)).await;
    }

    /// The newest lines, newest first.
    pub async fn newest(&self, limit: usize) -> io::Result<Vec<Line>> {
        let path = self.0.lock().unwrap_or_else(PoisonError::into_inner).path.clone();
        tokio::task::spawn_blocking(move || tail::newest(&path, limit)).await.map_err(io::Error::other)?
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
        // In one write: a crash can cut its end, and nothing else.
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
    // The number continues from the last line that has one.
    let seq = std::iter::once(last)
        .chain(lines)
        .find_map(|line| Some(serde_json::from_slice::<Line>(line).ok()?.seq));
    // A complete line without its line break is valid, and is still marked as cut short.
    Ok(End { seq: seq.unwrap_or(0), before, is_torn })
}

fn short(text: &str) -> String {
    text.chars().take(TEXT_CHARS_MAX).collect()
}

/// JSON without characters that move a terminal's cursor: escapes those that `serde_json` leaves as they are.
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
