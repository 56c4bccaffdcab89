//! A child process that commits and prints what was acknowledged, while the test kills it, limits its disk or traces it.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Lines};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};

use remuda_core::event_kind::EventKind;
use remuda_core::id::Sequence;
use remuda_core::record::Record;
use remuda_testkit::strace;

use super::Folder;
use crate::contract::sample::{self, accepted, body, completed, event, job, queued};
use crate::contract::{StoreFixture, TestRng};
use crate::{JobFilter, RecordBatch, Store};

const STORE: &str = "REMUDA_TEST_STORE";
/// Concurrent batches.
const FLIGHT: &str = "REMUDA_TEST_FLIGHT";
const BATCHES: &str = "REMUDA_TEST_BATCHES";
const JOBS_IN_BATCH: u64 = 7;

/// Seven jobs, an event, and the end of the first job of the previous batch.
fn batch(n: u64) -> RecordBatch {
    let first = u128::from(n * 10);
    let mut records: Vec<Record> =
        (first..first + u128::from(JOBS_IN_BATCH)).map(|id| accepted(job(id), queued(n))).collect();
    records.push(event(n, n, EventKind::JobQueued, Some(first)));
    if n > 1 {
        let before = sample::id(first - 10);
        records.push(Record::JobStatus { job: before, status: completed(n, 1) });
        records.push(Record::Result { job: before, result: body("[1]") });
    }
    records.into()
}

/// Checks that the store contains whole batches without a gap, and at least the acknowledged ones.
async fn check(store: &Store, acknowledged: u64) -> u64 {
    let stored = store.restore().await.unwrap();
    let last = stored.sequence.0;
    assert!(last >= acknowledged, "{acknowledged} batches were acknowledged, {last} are there");
    let jobs = store.jobs(JobFilter::default(), None, usize::MAX).await.unwrap();
    let ids: BTreeSet<u128> = jobs.iter().map(|(job, _)| job.id.as_u128()).collect();
    let wanted = (1..=last).flat_map(|n| (0..JOBS_IN_BATCH).map(move |job| u128::from(n * 10 + job)));
    assert_eq!(ids, wanted.collect());
    let ended = jobs.iter().filter(|(_, status)| !status.state.is_open()).count() as u64;
    assert_eq!(ended, last.saturating_sub(1));
    let events = store.events(Sequence(0), usize::MAX).await.unwrap();
    assert!(events.iter().map(|event| event.seq.0).eq(1..=last));
    for n in [1, last / 2, last].into_iter().filter(|n| (1..last).contains(n)) {
        let first = sample::id(u128::from(n * 10));
        assert!(
            store.workflow(first).await.unwrap().is_some() && store.result(first).await.unwrap().is_some()
        );
    }
    last
}

/// The child process of the other tests; run alone, it commits a few batches and exits.
#[tokio::test]
async fn commit_until_stopped() {
    let folder = Folder::new();
    let own = [(STORE, folder.path().display().to_string()), (BATCHES, "20".to_owned())];
    let own = if std::env::var(STORE).is_ok() { None } else { Some(own) };
    let setting = |name| match &own {
        Some(own) => own.iter().find(|(known, _)| *known == name).map(|(_, value)| value.clone()),
        None => std::env::var(name).ok(),
    };
    let number = |name, otherwise| setting(name).map_or(otherwise, |text: String| text.parse().unwrap());
    let store = Store::open(&format!("sqlite:{}", setting(STORE).unwrap())).await.unwrap();
    let term = store.take_leadership().await.unwrap();
    let first = store.restore().await.unwrap().sequence.0 + 1;
    let numbers: Vec<u64> = (first..first + number(BATCHES, 100_000)).collect();
    let mut refused = 0;
    for flight in numbers.chunks(usize::try_from(number(FLIGHT, 4)).unwrap()) {
        let mut sent = Vec::new();
        for n in flight {
            sent.push((n, store.enqueue(term, batch(*n)).await.unwrap()));
        }
        for (n, written) in sent {
            match written.await {
                Ok(()) => println!("\nacknowledged {n}"),
                Err(error) => {
                    println!("\nrefused {error:?}");
                    refused += 1;
                }
            }
        }
        if refused > 10 {
            return;
        }
    }
    if own.is_some() {
        assert_eq!((refused, check(&store, 20).await), (0, 20));
    }
}

/// The child process, optionally run under another program.
struct Committer {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
    acknowledged: u64,
    refusals: Vec<String>,
}

impl Committer {
    fn start(store: &Path, under: &[&str], settings: &[(&str, &str)]) -> Committer {
        let itself = std::env::current_exe().unwrap();
        let itself = itself.to_str().unwrap();
        let test = "sqlite::tests::child::commit_until_stopped";
        let words = [under, &[itself, "--exact", test, "--nocapture"]].concat();
        let mut command = Command::new(words[0]);
        command.args(&words[1..]).env(STORE, store).envs(settings.iter().copied());
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Committer { child, lines, acknowledged: 0, refusals: Vec::new() }
    }

    /// Reads a line; returns whether there was one.
    fn read_line(&mut self) -> bool {
        let Some(Ok(line)) = self.lines.next() else { return false };
        if let Some(n) = line.strip_prefix("acknowledged ") {
            assert!(self.refusals.is_empty(), "nothing is written after a refusal: {:?}", self.refusals);
            self.acknowledged = n.parse().unwrap();
        }
        self.refusals.extend(line.strip_prefix("refused ").map(str::to_owned));
        true
    }

    /// Reads all remaining output and waits for the exit.
    fn read_to_end(&mut self) {
        while self.read_line() {}
        self.child.wait().unwrap();
    }

    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.read_to_end();
    }
}

#[tokio::test]
async fn d4_kill_keeps_all_acknowledged_batches_whole() {
    let (folder, mut rng) = (Folder::new(), TestRng::new(4));
    let mut before = 0;
    for _ in 0..25 {
        let mut committer = Committer::start(&folder.path(), &[], &[]);
        for _ in 0..rng.below(80) {
            committer.read_line();
        }
        committer.kill();
        let store = folder.open().await;
        let last = check(&store, committer.acknowledged.max(before)).await;
        before = last;
    }
    assert!(before > 100, "the children committed too little");
}

#[tokio::test]
async fn d15_kill_during_creation_leaves_a_usable_store() {
    for suffix in [".lock", "", "-journal", "-wal", "-shm", ".reserve"] {
        let folder = Folder::new();
        let mut committer = Committer::start(&folder.path(), &[], &[]);
        while !folder.sibling(suffix).exists() && committer.child.try_wait().unwrap().is_none() {
            // A journal exists only briefly; if it was missed, the WAL is enough.
            if folder.sibling("-wal").exists() {
                break;
            }
            std::hint::spin_loop();
        }
        committer.kill();
        check(&folder.open().await, committer.acknowledged).await;
    }
}

#[tokio::test]
async fn d5_commit_is_synced_and_proved_before_acknowledgement() {
    if strace().is_none() {
        return;
    }
    let folder = Folder::new();
    let trace = folder.sibling(".trace");
    let calls = "trace=pwrite64,fsync,fdatasync,write";
    let under = ["strace", "-f", "-y", "-s", "16", "-e", calls, "-o", trace.to_str().unwrap()];
    let mut committer = Committer::start(&folder.path(), &under, &[(FLIGHT, "1"), (BATCHES, "30")]);
    committer.read_to_end();
    assert_eq!(committer.acknowledged, 30);

    let (mut is_dirty, mut is_unproved, mut synced, mut acknowledged) = (false, false, 0, 0);
    // The thread whose sync of the log is under way: strace splits a call that another thread's interrupts.
    let mut syncing = None;
    for line in std::fs::read_to_string(&trace).unwrap().lines() {
        let thread = line.split(' ').next().unwrap();
        let is_log = line.contains("remuda.db-wal>");
        let is_end = syncing == Some(thread.to_owned()) && line.contains("sync resumed>");
        if line.contains("acknowledged") || line.contains("\\nacknowl") {
            assert!(!is_dirty, "acknowledged before it was synced: {line}");
            assert!(!is_unproved, "acknowledged before its proof was written: {line}");
            acknowledged += 1;
        } else if is_log && line.contains("pwrite64(") {
            (is_dirty, is_unproved) = (true, true);
        } else if line.contains("remuda.db.proof>") && line.contains("pwrite64(") {
            assert!(is_unproved && !is_dirty, "the proof is ahead of the store: {line}");
            is_unproved = false;
        } else if is_log && line.contains("sync(") && line.ends_with("<unfinished ...>") {
            syncing = Some(thread.to_owned());
        } else if is_end || is_log && line.contains("sync(") {
            assert!(line.ends_with("= 0"), "{line}");
            (is_dirty, synced, syncing) = (false, synced + 1, None);
        }
    }
    assert!(acknowledged >= 30 && synced >= 30, "{acknowledged} acknowledged, {synced} synced");
}

/// Runs a child whose disk fails at some point, and checks its output and the store.
async fn check_broken(under: &[&str]) {
    let folder = Folder::new();
    // Creates the reserve while the disk still works.
    drop(folder.open().await);
    let mut committer = Committer::start(&folder.path(), under, &[]);
    committer.read_to_end();
    assert!(committer.acknowledged > 0, "it failed before the first commit");
    assert!(committer.refusals.len() > 10, "{:?}", committer.refusals);
    let is_broken = |refusal: &String| refusal.starts_with("Broken");
    assert!(committer.refusals.iter().all(is_broken), "{:?}", committer.refusals);
    let store = folder.open().await;
    let last = check(&store, committer.acknowledged).await;
    let term = store.take_leadership().await.unwrap();
    store.commit(term, batch(last + 1)).await.unwrap();
}

#[tokio::test]
async fn d3_failed_sync_stops_writes_until_reopen() {
    if strace().is_some() {
        // strace counts per thread: opening needs fewer than 20 calls, the writer reaches 20.
        let fail = "inject=fsync,fdatasync:error=EIO:when=20+";
        check_broken(&["strace", "-f", "-e", "trace=fsync,fdatasync", "-e", fail, "-o", "/dev/null"]).await;
    }
}

#[tokio::test]
async fn d3_failed_write_stops_writes_until_reopen() {
    // Limits files to 10 MiB (20 in some shells), which the WAL reaches.
    check_broken(&["sh", "-c", r#"trap "" XFSZ; ulimit -f 20480; exec "$0" "$@""#]).await;
}
