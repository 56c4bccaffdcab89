//! The proof: `PATH.proof` repeats, outside the database and its write-ahead log (WAL), what the last acknowledged commit was.
//! SQLite takes a WAL that was cut or damaged for a shorter one and says nothing; with the proof, that is noticed.
//!
//! ```text
//!  COMMIT, sync of the WAL ──▶ write of the proof ──▶ answer        (the store may be ahead of its proof, never behind)
//!                                    └── every 100 ms (on a slow disk: up to 1 s), if it changed ──▶ sync of the proof
//! ```
//!
//! What it promises. If the process dies at any point, the proof names every commit that was acknowledged. If the machine
//! loses power, the commits are there (the WAL was synced), and the proof names all but those of the last pause and of one
//! sync: damage that took nothing older than those is not noticed. Syncing the proof before each answer was rejected: a
//! second sync for each group of commits halves what a disk can do that is busy with syncs.
//!
//! The file has three slots, each a line of text in a page of its own. One slot is synced and left alone, one is being
//! synced, one is written: whatever a crash tears, one slot is whole.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use remuda_core::id::{Sequence, Term};
use remuda_core::time::Timestamp;
use rusqlite::{Connection, Error};

use super::files::{PRIVATE_FILE, sibling};
use crate::loss::CommitMark;

const SUFFIX: &str = ".proof";
/// Slots in pages of their own, because a page is what a disk may tear.
const SLOT_BYTES: usize = 4096;
const SLOTS: usize = 3;
/// A line is padded to this, so that a shorter one leaves nothing of a longer one.
const LINE_BYTES: usize = 160;
/// A pause of fifty times what a sync takes leaves a slow disk to the commits, which sync the log.
const SYNC_EVERY: Duration = Duration::from_millis(100);
const SYNC_EVERY_MAX: Duration = Duration::from_secs(1);
const PAUSE_PER_SYNC: u32 = 50;
const FORMAT: &str = "remuda-proof-1";

impl CommitMark {
    /// Of the database as it is; it must have schema 4.
    pub(super) fn read(conn: &Connection) -> Result<CommitMark, Error> {
        let sql = "SELECT (SELECT value FROM meta WHERE key = 'store'), (SELECT value FROM meta WHERE key = 'commit'),
                          (SELECT value FROM meta WHERE key = 'sequence'), (SELECT value FROM meta WHERE key = 'term'),
                          (SELECT value FROM meta WHERE key = 'latest')";
        conn.prepare_cached(sql)?.query_row([], |row| {
            Ok(CommitMark {
                store: row.get(0)?,
                commit: row.get(1)?,
                sequence: Sequence(row.get(2)?),
                term: Term(row.get(3)?),
                latest: Timestamp::from_millis(row.get(4)?),
            })
        })
    }

    /// Writes the number of the commit that is about to end.
    pub(super) fn number(self, conn: &Connection) -> Result<(), Error> {
        conn.prepare_cached("UPDATE meta SET value = ?1 WHERE key = 'commit'")?.execute([self.commit])?;
        Ok(())
    }

    fn to_line(self) -> [u8; LINE_BYTES] {
        let CommitMark { store, commit, sequence, term, latest } = self;
        let text = format!(
            "{FORMAT} store={store:016x} commit={commit} event={sequence} term={term} time={}",
            latest.as_millis()
        );
        let text = format!("{text} sum={}", checksum(&text));
        let mut line = [b' '; LINE_BYTES];
        line[..text.len()].copy_from_slice(text.as_bytes());
        line[LINE_BYTES - 1] = b'\n';
        line
    }

    fn parse(line: &[u8]) -> Option<CommitMark> {
        let (text, sum) = std::str::from_utf8(line).ok()?.trim_end().rsplit_once(" sum=")?;
        if checksum(text) != sum {
            return None;
        }
        let mut words = text.split(' ');
        if words.next() != Some(FORMAT) {
            return None;
        }
        let mut value = |name: &str| words.next()?.strip_prefix(name)?.strip_prefix('=');
        Some(CommitMark {
            store: u64::from_str_radix(value("store")?, 16).ok()?,
            commit: value("commit")?.parse().ok()?,
            sequence: Sequence(value("event")?.parse().ok()?),
            term: Term(value("term")?.parse().ok()?),
            latest: Timestamp::from_millis(value("time")?.parse().ok()?),
        })
    }
}

fn checksum(text: &str) -> String {
    blake3::hash(text.as_bytes()).to_hex()[..16].to_owned()
}

/// What is in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StoredProof {
    Missing,
    /// No slot is whole.
    Damaged,
    Mark(CommitMark),
}

impl StoredProof {
    pub(super) fn read(store: &Path) -> io::Result<StoredProof> {
        match File::open(sibling(store, SUFFIX)) {
            Ok(file) => Ok(newest(&file)?.map_or(StoredProof::Damaged, |(_, mark)| StoredProof::Mark(mark))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(StoredProof::Missing),
            Err(error) => Err(error),
        }
    }
}

/// The newest mark, and the slot that has it.
fn newest(file: &File) -> io::Result<Option<(usize, CommitMark)>> {
    let mut bytes = Vec::new();
    file.take((SLOTS * SLOT_BYTES) as u64).read_to_end(&mut bytes)?;
    let lines = bytes.chunks(SLOT_BYTES).enumerate();
    let marks = lines.filter_map(|(slot, line)| Some((slot, CommitMark::parse(line.get(..LINE_BYTES)?)?)));
    Ok(marks.max_by_key(|(_, mark)| mark.commit))
}

/// The proof of an open store, and the thread that syncs it.
#[derive(Debug)]
pub(super) struct Proof {
    shared: Arc<Shared>,
    syncer: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    file: File,
    state: Mutex<State>,
    changed: Condvar,
    closing: Condvar,
}

#[derive(Debug)]
struct State {
    /// The slot that is written next.
    slot: usize,
    has_changed: bool,
    is_closing: bool,
    /// After a failed sync the file may hold less than was written to it.
    failed: Option<Arc<io::Error>>,
}

impl Proof {
    /// Continues the proof of an open store with this mark, or makes one.
    pub(super) fn open(store: &Path, mark: CommitMark) -> io::Result<Proof> {
        let file = OpenOptions::new().read(true).write(true).open(sibling(store, SUFFIX));
        let (file, slot) = match file {
            Ok(file) => match newest(&file)? {
                // It needs no space, so that a store on a full disk can be opened.
                Some((slot, _)) => (file, (slot + 1) % SLOTS),
                None => (Proof::create(store, mark)?, 1),
            },
            Err(error) if error.kind() == io::ErrorKind::NotFound => (Proof::create(store, mark)?, 1),
            Err(error) => return Err(error),
        };
        let proof = Proof::start(file, slot)?;
        proof.shared.file.write_all_at(&mark.to_line(), (slot * SLOT_BYTES) as u64)?;
        proof.shared.state().has_changed = true;
        proof.shared.changed.notify_one();
        Ok(proof)
    }

    /// Replaces the proof of `store` by this mark, in one step, and syncs it.
    pub(super) fn create(store: &Path, mark: CommitMark) -> io::Result<File> {
        let (path, new) = (sibling(store, SUFFIX), sibling(store, ".proof-new"));
        let mut options = OpenOptions::new();
        let mut file =
            options.read(true).write(true).create(true).truncate(true).mode(PRIVATE_FILE).open(&new)?;
        // Written in full, so that later writes need no space.
        file.write_all(&[b'\n'; SLOTS * SLOT_BYTES])?;
        file.write_all_at(&mark.to_line(), 0)?;
        file.sync_all()?;
        std::fs::rename(&new, &path)?;
        if let Some(folder) = path.parent() {
            let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
            File::open(folder)?.sync_all()?;
        }
        Ok(file)
    }

    fn start(file: File, slot: usize) -> io::Result<Proof> {
        let state = State { slot, has_changed: false, is_closing: false, failed: None };
        let shared = Arc::new(Shared {
            file,
            state: Mutex::new(state),
            changed: Condvar::new(),
            closing: Condvar::new(),
        });
        let syncing = shared.clone();
        let thread = thread::Builder::new().name("store-proof".to_owned());
        let syncer = thread.spawn(move || syncing.sync_until_closed())?;
        Ok(Proof { shared, syncer: Some(syncer) })
    }

    /// Writes what was committed; the sync follows.
    pub(super) fn record(&self, mark: CommitMark) -> Result<(), Arc<io::Error>> {
        let mut state = self.shared.state();
        if let Some(error) = &state.failed {
            return Err(error.clone());
        }
        let at = (state.slot * SLOT_BYTES) as u64;
        self.shared.file.write_all_at(&mark.to_line(), at)?;
        if !std::mem::replace(&mut state.has_changed, true) {
            self.shared.changed.notify_one();
        }
        Ok(())
    }

    /// Syncs what was recorded and ends the thread.
    pub(super) fn close(&mut self) -> Result<(), Arc<io::Error>> {
        self.shared.state().is_closing = true;
        self.shared.changed.notify_one();
        self.shared.closing.notify_one();
        // A panic of the thread is logged like any other.
        self.syncer.take().map(JoinHandle::join);
        self.shared.state().failed.clone().map_or(Ok(()), Err)
    }
}

impl Drop for Proof {
    fn drop(&mut self) {
        if self.syncer.is_some() {
            self.close().ok();
        }
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn sync_until_closed(&self) {
        let mut state = self.state();
        loop {
            let is_idle = |state: &mut State| !state.has_changed && !state.is_closing;
            state = self.changed.wait_while(state, is_idle).unwrap_or_else(PoisonError::into_inner);
            if !state.has_changed {
                return;
            }
            state.has_changed = false;
            // From here on the next slot is written, while this one is synced.
            state.slot = (state.slot + 1) % SLOTS;
            drop(state);
            let began = Instant::now();
            let synced = self.file.sync_data();
            let pause = (began.elapsed() * PAUSE_PER_SYNC).clamp(SYNC_EVERY, SYNC_EVERY_MAX);
            state = self.state();
            if let Err(error) = synced {
                state.failed = Some(Arc::new(error));
                return;
            }
            let is_open = |state: &mut State| !state.is_closing;
            let waited = self.closing.wait_timeout_while(state, pause, is_open);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mark(commit: u64) -> CommitMark {
        let (sequence, term) = (Sequence(2 * commit), Term(3));
        CommitMark { store: 0xabc, commit, sequence, term, latest: Timestamp::from_millis(1_700_000_000_000) }
    }

    #[test]
    fn newest_whole_slot_counts() {
        let folder = tempfile::tempdir().unwrap();
        let store = folder.path().join("remuda.db");
        assert_eq!(StoredProof::read(&store).unwrap(), StoredProof::Missing);
        let mut proof = Proof::open(&store, mark(7)).unwrap();
        assert_eq!(StoredProof::read(&store).unwrap(), StoredProof::Mark(mark(7)));
        for commit in 8..2000 {
            proof.record(mark(commit)).unwrap();
            assert_eq!(StoredProof::read(&store).unwrap(), StoredProof::Mark(mark(commit)));
        }
        proof.close().unwrap();
        assert_eq!(StoredProof::read(&store).unwrap(), StoredProof::Mark(mark(1999)));
    }

    #[test]
    fn torn_slot_leaves_an_older_one() {
        let folder = tempfile::tempdir().unwrap();
        let store = folder.path().join("remuda.db");
        let proof = Proof::open(&store, mark(7)).unwrap();
        proof.record(mark(8)).unwrap();
        let slot = 1;
        // Any one byte of the newest slot.
        for at in 0..90 {
            let mut byte = [0];
            proof.shared.file.read_exact_at(&mut byte, slot * SLOT_BYTES as u64 + at).unwrap();
            proof.shared.file.write_all_at(&[byte[0] ^ 1], slot * SLOT_BYTES as u64 + at).unwrap();
            assert_eq!(StoredProof::read(&store).unwrap(), StoredProof::Mark(mark(7)), "byte {at}");
            proof.shared.file.write_all_at(&byte, slot * SLOT_BYTES as u64 + at).unwrap();
        }
        proof.shared.file.write_all_at(&[0; SLOTS * SLOT_BYTES], 0).unwrap();
        assert_eq!(StoredProof::read(&store).unwrap(), StoredProof::Damaged);
    }

    #[test]
    fn every_sync_moves_on_to_the_next_slot() {
        let folder = tempfile::tempdir().unwrap();
        let proof = Proof::open(&folder.path().join("remuda.db"), mark(1)).unwrap();
        let mut slots = std::collections::BTreeSet::new();
        for commit in 2.. {
            slots.insert(proof.shared.state().slot);
            proof.record(mark(commit)).unwrap();
            if slots.len() == SLOTS {
                break;
            }
        }
    }
}
