use remuda_core::event_kind::EventKind;
use remuda_core::id::JobId;
use remuda_core::record::Record;
use remuda_core::time::Timestamp;
use remuda_store::RecordBatch;

use super::*;

/// Fewer than the events of a test: a follower that does not read lags at once.
const CHANNEL_MAX: usize = 4;

struct Story {
    store: Store,
    events: broadcast::Sender<LiveEvent>,
    stop: watch::Sender<bool>,
    next: u64,
}

impl Story {
    async fn begin() -> Story {
        let store = Store::open("memory:").await.unwrap();
        let (stop, events) = (watch::Sender::new(false), broadcast::Sender::new(CHANNEL_MAX));
        Story { store, events, stop, next: 1 }
    }

    fn follow(&self, position: Option<u64>) -> Follower {
        Follower::new(self.store.clone(), &self.events, position.map(Sequence)).until(self.stop.subscribe())
    }

    /// Stores and then publishes so many events, as the event loop does.
    async fn happen(&mut self, count: u64) {
        let term = self.store.take_leadership().await.unwrap();
        for seq in self.next..self.next + count {
            let event = StoredEvent {
                seq: Sequence(seq),
                at: Timestamp::from_millis(seq),
                kind: EventKind::JobQueued,
                job: Some(JobId::from_u128(seq.into())),
                worker: None,
                tenant: None,
                metadata: Default::default(),
                detail: Default::default(),
            };
            let event = std::sync::Arc::new(event);
            let records = vec![Record::Event(event.clone())];
            self.store.commit(term, RecordBatch { records }).await.unwrap();
            drop(self.events.send(LiveEvent::Stored(event)));
        }
        self.next += count;
    }
}

/// Reads until the follower would wait: numbers of stored events, and marks.
async fn read(follower: &mut Follower) -> Vec<String> {
    let mut seen = Vec::new();
    loop {
        let next = tokio::select! {
            biased;
            next = follower.next() => next,
            // The in-memory store answers without waiting, so that the follower is polled to the end first.
            () = std::future::ready(()) => return seen,
        };
        seen.push(match next {
            Some(Followed::Event(LiveEvent::Stored(event))) => event.seq.to_string(),
            Some(Followed::Event(_)) => "live".to_owned(),
            Some(Followed::Gap { missed, is_replayed }) => format!("gap {missed} {is_replayed}"),
            Some(Followed::Restored { generation }) => format!("restored {generation}"),
            Some(Followed::CaughtUp) => "caught up".to_owned(),
            None => return seen,
        });
    }
}

#[tokio::test]
async fn stored_events_come_in_order_and_once_after_a_lag() {
    let mut story = Story::begin().await;
    let mut follower = story.follow(None);
    story.happen(2).await;
    assert_eq!(read(&mut follower).await, ["1", "2"]);
    story.happen(9).await;
    let expected = ["gap 5 true", "3", "4", "5", "6", "7", "8", "9", "10", "11", "caught up"];
    assert_eq!(read(&mut follower).await, expected, "8 to 11 are in the channel too");
    story.happen(1).await;
    assert_eq!(read(&mut follower).await, ["12"]);
    assert_eq!(follower.position(), Some(Sequence(12)));
}

#[tokio::test]
async fn resumed_follower_starts_after_its_position() {
    let mut story = Story::begin().await;
    story.happen(3).await;
    let mut follower = story.follow(Some(1));
    story.happen(1).await;
    assert_eq!(read(&mut follower).await, ["2", "3", "4", "caught up"]);
}

#[tokio::test]
async fn skipped_events_do_not_put_stored_ones_before_live_ones() {
    let mut story = Story::begin().await;
    let follower = story.follow(None);
    story.happen(1).await;
    let mut follower = follower.skip_until(Sequence(1));
    let update = LiveEvent::Progress {
        job: JobId::from_u128(1),
        tenant: "anna".parse().unwrap(),
        metadata: Default::default(),
        worker: "w".parse().unwrap(),
        progress: 0.5,
        phase: String::new(),
    };
    drop(story.events.send(update));
    story.happen(1).await;
    assert_eq!(read(&mut follower).await, ["live", "2"]);
}

#[tokio::test]
async fn gap_before_the_first_event_is_not_replayed() {
    let mut story = Story::begin().await;
    let mut follower = story.follow(None);
    story.happen(6).await;
    assert_eq!(read(&mut follower).await, ["gap 2 false", "3", "4", "5", "6"]);
}

#[tokio::test]
async fn long_backlog_is_read_in_pages() {
    let mut story = Story::begin().await;
    let count = 2 * PAGE as u64 + 1;
    story.happen(count).await;
    let mut expected: Vec<_> = (1..=count).map(|seq| seq.to_string()).collect();
    expected.push("caught up".to_owned());
    assert_eq!(read(&mut story.follow(Some(0))).await, expected);
}

#[tokio::test]
async fn follower_ends_with_the_program() {
    let mut story = Story::begin().await;
    let (mut until_stop, mut until_gone) =
        (story.follow(None), Follower::new(story.store.clone(), &story.events, None));
    story.stop.send_replace(true);
    story.happen(1).await;
    assert_eq!(read(&mut until_gone).await, ["1"], "it sees what happens while the plane stops");
    assert!(matches!(until_stop.next().await, Some(Followed::Event(_))), "what has come already is returned");
    assert!(until_stop.next().await.is_none());
    drop(story.events);
    assert!(until_gone.next().await.is_none());
}

/// Faults: J20, D16.
#[tokio::test]
async fn reader_ahead_of_a_restored_store_is_told_so() {
    let mut story = Story::begin().await;
    story.happen(3).await;
    let mut follower = story.follow(Some(500));
    assert_eq!(read(&mut follower).await, ["restored 1", "caught up"]);
    story.happen(1).await;
    assert_eq!(read(&mut follower).await, ["4"], "it hears what comes, although its number is lower");
}

/// Faults: J20, D16.
#[tokio::test]
async fn reader_at_or_before_lost_events_gets_a_mark_where_they_were() {
    let folder = tempfile::tempdir().unwrap();
    let url = |name: &str| format!("sqlite:{}", folder.path().join(name).display());
    let mut story = Story { store: Store::open(&url("a.sqlite")).await.unwrap(), ..Story::begin().await };
    story.happen(3).await;
    story.store.clone().close().await.unwrap();
    std::fs::copy(folder.path().join("a.sqlite"), folder.path().join("b.sqlite")).unwrap();
    story.store = Store::open(&url("b.sqlite")).await.unwrap();
    let first = story.store.history().await.unwrap().generations[0].first_sequence.0;
    let next = async |follower: &mut Follower| match follower.next().await.unwrap() {
        Followed::Event(LiveEvent::Stored(event)) => event.seq.to_string(),
        Followed::Restored { generation } => format!("restored {generation}"),
        other => format!("{other:?}"),
    };
    // It saw events 4 to 7, which the copy does not have.
    let mut ahead = story.follow(Some(7));
    assert_eq!(next(&mut ahead).await, "restored 2");
    assert_eq!(next(&mut ahead).await, "CaughtUp");
    story.next = first;
    story.happen(2).await;
    assert_eq!(next(&mut ahead).await, first.to_string());
    let mut resumed = story.follow(Some(2));
    let mut seen = Vec::new();
    while seen.last().is_none_or(|last| last != "CaughtUp") {
        seen.push(next(&mut resumed).await);
    }
    assert_eq!(seen, ["3", "restored 2", &first.to_string(), &(first + 1).to_string(), "CaughtUp"]);
    assert_eq!(next(&mut story.follow(Some(first))).await, (first + 1).to_string(), "it is past them");
}
