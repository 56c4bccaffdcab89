//! The seven points by which this pool was promised, one test each.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::{Mutex, Once};
use std::time::{Duration, Instant};

use remuda_models::{ModelSpec, PoolError, PoolSettings};
use tracing::field::{Field, Visit};
use tracing::{Level, Metadata, Subscriber, span};

use super::herd::{Herd, KINDS, herd, herd_with, settings};

fn is_gone(herd: &Herd, id: u64) -> bool {
    herd.model().copies.iter().all(|copy| copy.id != id)
}

/// 1. Worker death detection: a thread or process that ends is seen within a second and its handle is gone.
#[test]
fn one_a_death_is_seen_within_a_second_and_the_handle_is_gone() {
    for kind in KINDS {
        let herd = herd();
        herd.embedding(2, kind);
        let id = herd.model().copies[0].id;
        let asked = Instant::now();
        herd.embed("!broken").unwrap_err();
        herd.until("the dead are gone", |_| is_gone(&herd, id));
        assert!(asked.elapsed() < Duration::from_secs(1), "two deaths took {:?}", asked.elapsed());
        assert!(!herd.pool.is_alive(id));
    }
}

/// 2. No routing to dead workers: while one of two copies is dead, everybody is answered by the other.
#[test]
fn two_nothing_is_routed_to_the_dead() {
    for kind in KINDS {
        let herd = herd_with(PoolSettings { stall_max: Duration::from_millis(300), ..settings() });
        herd.embedding(2, kind);
        let hung = herd.ask("!hang");
        let hung_id = herd
            .until("one hangs", |model| model.deaths.contains_key("hung"))
            .copies
            .iter()
            .find(|copy| copy.quarantined)
            .map(|copy| copy.id);
        drop(hung);
        for n in 0..50 {
            herd.embed(&format!("text {n}")).unwrap();
        }
        let model = herd.model();
        let dead = model.copies.iter().find(|copy| Some(copy.id) == hung_id);
        assert!(dead.is_none_or(|copy| copy.state == "dead" && copy.answered == 0), "{model:#?}");
        assert_ne!(herd.pool.get_alive_worker("embed"), hung_id);
    }
}

/// 3. Automatic cleanup: maintenance finds by itself who has come to answer wrongly, and replaces it.
#[test]
fn three_maintenance_removes_the_sick_without_anybody_asking() {
    let limits = PoolSettings { maintenance_every: Duration::from_millis(50), ..settings() };
    let herd = herd_with(limits);
    herd.embedding(1, "wrong_after = 2");
    let id = herd.model().copies[0].id;
    herd.until("found out", |model| model.deaths.contains_key("wrong"));
    herd.until("replaced", |model| is_gone(&herd, id) && model.copies.len() == 1);
}

/// 4. Memory tracking: what the dead held is given back, once, when they are gone.
#[test]
fn four_the_memory_of_the_dead_is_subtracted() {
    for kind in KINDS {
        let herd = herd_with(PoolSettings { deaths_max: 1, ..settings() });
        herd.embedding(2, kind);
        assert_eq!(herd.pool.snapshot().memory_reserved_bytes, 2 << 20);
        herd.embed("!broken").unwrap_err();
        herd.until("nobody is left", |model| model.copies.is_empty());
        assert_eq!(herd.pool.snapshot().memory_reserved_bytes, 0);
    }
}

/// 5. Graceful degradation: without a worker the answer is `NoWorkers`, and it comes at once.
#[test]
fn five_when_all_workers_are_dead_callers_are_told_instead_of_kept() {
    let herd = herd_with(PoolSettings { deaths_max: 1, ..settings() });
    let spec = herd.spec("embed", "text_embedding\nfailing_loads = 9");
    herd.pool.add(ModelSpec { copies: 2, ..spec }).unwrap();
    herd.until("both are given up", |model| model.deaths.get("load") == Some(&2));
    let asked = Instant::now();
    assert!(matches!(herd.try_ask("text"), Err(PoolError::NoWorkers { .. })));
    assert!(asked.elapsed() < Duration::from_secs(1), "{:?}", asked.elapsed());
}

// 6. Performance overhead: tests/cost.rs, in a process of its own.

/// 7. Logging: a removal is a warning with the worker's id and the model's key.
#[test]
fn seven_a_removal_is_logged_as_a_warning_with_worker_and_model() {
    listen();
    let herd = herd();
    let spec = herd.spec("logged", "text_embedding");
    herd.pool.add(spec).unwrap();
    let request = remuda_models::Request::TextEmbedding { texts: vec!["!broken".to_owned()] };
    herd.pool.call("logged", request, remuda_models::Call::default()).unwrap().wait().unwrap_err();
    let heard = HEARD.lock().unwrap();
    let ours = heard.iter().find(|fields| fields.get("model_key").is_some_and(|key| key.contains("logged")));
    let ours = ours.unwrap_or_else(|| panic!("nothing was said: {heard:?}"));
    assert!(ours["worker_id"].parse::<u64>().is_ok(), "{ours:?}");
    assert!(ours["why"].contains("a text asked for it"), "{ours:?}");
}

/// The fields of every warning in this process.
static HEARD: Mutex<Vec<BTreeMap<String, String>>> = Mutex::new(Vec::new());

fn listen() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| tracing::subscriber::set_global_default(Warnings).unwrap());
}

struct Warnings;

impl Subscriber for Warnings {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() == Level::WARN
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        let mut fields = Fields::default();
        event.record(&mut fields);
        HEARD.lock().unwrap().push(fields.0);
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

#[derive(Default)]
struct Fields(BTreeMap<String, String>);

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0.insert(field.name().to_owned(), format!("{value:?}"));
    }
}
