//! The seven promises of this pool, one test each.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::{Mutex, Once};
use std::time::{Duration, Instant};

use remuda_models::{ModelError, ModelPoolSettings, ModelSpec};
use tracing::field::{Field, Visit};
use tracing::{Level, Metadata, Subscriber, span};

use super::fixture::{KINDS, PoolFixture, fixture, fixture_with, settings};

fn is_gone(fixture: &PoolFixture, id: u64) -> bool {
    fixture.model().copies.iter().all(|copy| copy.id != id)
}

/// 1. Worker death detection: a thread or process that ends is noticed within a second and its handle is removed.
#[test]
fn one_death_is_seen_within_a_second_and_the_handle_removed() {
    for kind in KINDS {
        let fixture = fixture();
        fixture.embedding(2, kind);
        let id = fixture.model().copies[0].id;
        let asked = Instant::now();
        fixture.embed("!broken").unwrap_err();
        fixture.until("the dead copies are reaped", |_| is_gone(&fixture, id));
        assert!(asked.elapsed() < Duration::from_secs(1), "two deaths took {:?}", asked.elapsed());
        assert!(!fixture.pool.is_alive(id));
    }
}

/// 2. No routing to dead workers: while one of two copies is dead, every request is answered by the other.
#[test]
fn two_nothing_is_routed_to_dead_copies() {
    for kind in KINDS {
        let fixture = fixture_with(ModelPoolSettings { stall_max: Duration::from_millis(300), ..settings() });
        fixture.embedding(2, kind);
        let hung = fixture.ask("!hang");
        let hung_id = fixture
            .until("one hangs", |model| model.deaths.contains_key("hung"))
            .copies
            .iter()
            .find(|copy| copy.stuck)
            .map(|copy| copy.id);
        drop(hung);
        for n in 0..50 {
            fixture.embed(&format!("text {n}")).unwrap();
        }
        let model = fixture.model();
        let dead = model.copies.iter().find(|copy| Some(copy.id) == hung_id);
        assert!(dead.is_none_or(|copy| copy.state == "dead" && copy.answered == 0), "{model:#?}");
        assert_ne!(fixture.pool.get_alive_worker("embed"), hung_id);
    }
}

/// 3. Automatic cleanup: maintenance finds copies that answer wrongly and replaces them.
#[test]
fn three_maintenance_removes_wrong_copies_by_itself() {
    let limits = ModelPoolSettings { maintenance_every: Duration::from_millis(50), ..settings() };
    let fixture = fixture_with(limits);
    fixture.embedding(1, "wrong_after = 2");
    let id = fixture.model().copies[0].id;
    fixture.until("found out", |model| model.deaths.contains_key("wrong"));
    fixture.until("replaced", |model| is_gone(&fixture, id) && model.copies.len() == 1);
}

/// 4. Memory tracking: the memory of dead copies is released once, when they are reaped.
#[test]
fn four_memory_of_dead_copies_is_released() {
    for kind in KINDS {
        let fixture = fixture_with(ModelPoolSettings { deaths_max: 1, ..settings() });
        fixture.embedding(2, kind);
        assert_eq!(fixture.pool.snapshot().memory_reserved_bytes, 2 << 20);
        fixture.embed("!broken").unwrap_err();
        fixture.until("no copy is left", |model| model.copies.is_empty());
        assert_eq!(fixture.pool.snapshot().memory_reserved_bytes, 0);
    }
}

/// 5. Graceful degradation: without a worker the answer is `NoWorkers`, and it comes at once.
#[test]
fn five_callers_get_no_workers_at_once_when_all_are_dead() {
    let fixture = fixture_with(ModelPoolSettings { deaths_max: 1, ..settings() });
    let spec = fixture.spec("embed", "text_embedding\nfailing_loads = 9");
    fixture.pool.add(ModelSpec { copies: 2, ..spec }).unwrap();
    fixture.until("both are given up", |model| model.deaths.get("load") == Some(&2));
    let asked = Instant::now();
    assert!(matches!(fixture.try_ask("text"), Err(ModelError::NoWorkers { .. })));
    assert!(asked.elapsed() < Duration::from_secs(1), "{:?}", asked.elapsed());
}

// 6. Performance overhead: tests/cost.rs, in its own process.

/// 7. Logging: a removal is logged as a warning with the worker's id and the model's key.
#[test]
fn seven_removal_is_logged_with_worker_and_model() {
    listen();
    let fixture = fixture();
    let spec = fixture.spec("logged", "text_embedding");
    fixture.pool.add(spec).unwrap();
    let request = remuda_models::ModelRequest::TextEmbedding { texts: vec!["!broken".to_owned()] };
    fixture.pool.call("logged", request, remuda_models::CallOptions::default()).unwrap().wait().unwrap_err();
    let warnings = WARNINGS.lock().unwrap();
    let ours =
        warnings.iter().find(|fields| fields.get("model_key").is_some_and(|key| key.contains("logged")));
    let ours = ours.unwrap_or_else(|| panic!("no warning was logged: {warnings:?}"));
    assert!(ours["worker_id"].parse::<u64>().is_ok(), "{ours:?}");
    assert!(ours["why"].contains("injected fault"), "{ours:?}");
}

/// The fields of every warning in this process.
static WARNINGS: Mutex<Vec<BTreeMap<String, String>>> = Mutex::new(Vec::new());

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
        WARNINGS.lock().unwrap().push(fields.0);
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
