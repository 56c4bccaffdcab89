//! The newest lines of the audit log, for readers who do not check its chain.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;

use super::Line;

/// How far back it reads: about a thousand lines.
const TAIL_BYTES_MAX: u64 = 256 << 10;

/// Newest first, at most `limit`.
pub(super) fn newest(path: &Path, limit: usize) -> io::Result<Vec<Line>> {
    let mut file = File::open(path)?;
    let length = file.seek(SeekFrom::End(0))?;
    file.seek(SeekFrom::Start(length.saturating_sub(TAIL_BYTES_MAX)))?;
    let mut tail = Vec::new();
    file.take(TAIL_BYTES_MAX).read_to_end(&mut tail)?;
    // A line that is cut, by the limit or by a crash, cannot be read and is left out.
    let lines = tail.split(|byte| *byte == b'\n').rev().filter_map(|line| serde_json::from_slice(line).ok());
    Ok(lines.take(limit).collect())
}
