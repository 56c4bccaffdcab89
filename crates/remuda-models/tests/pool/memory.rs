//! Memory limits, full queues and golden answers of earlier starts.

use remuda_models::{CallOptions, LoadError, ModelError, ModelPoolSettings, ModelRequest, ModelSpec};

use super::fixture::{KINDS, fixture_with, settings, wait_until};

const MIB: u64 = 1 << 20;

fn embed(fixture: &super::fixture::PoolFixture, model: &str) {
    let request = ModelRequest::TextEmbedding { texts: vec!["text".to_owned()] };
    fixture.pool.call(model, request, CallOptions::default()).unwrap().wait().unwrap();
}

/// Faults: T8. Three models share memory for two, and never more is reserved.
#[test]
fn models_that_do_not_fit_together_take_turns() {
    for kind in KINDS {
        let fixture = fixture_with(ModelPoolSettings { memory_bytes: 2 * MIB, ..settings() });
        for name in ["a", "b", "c"] {
            fixture.pool.add(fixture.spec(name, &format!("text_embedding\n{kind}"))).unwrap();
        }
        for name in ["a", "b", "c", "a", "c", "b", "a"] {
            embed(&fixture, name);
            assert!(fixture.pool.snapshot().memory_reserved_bytes <= 2 * MIB);
        }
        let evictions: u64 =
            fixture.pool.snapshot().models.iter().filter_map(|model| model.deaths.get("requested")).sum();
        assert!(evictions >= 3, "evictions: {evictions}");
    }
}

#[test]
fn model_larger_than_the_limit_is_refused_when_added() {
    let fixture = fixture_with(ModelPoolSettings { memory_bytes: MIB, ..settings() });
    let spec = fixture.spec("large", "text_embedding\nmemory_bytes = 2000000");
    let refused = fixture.pool.add(spec).unwrap_err();
    assert!(matches!(refused, LoadError::Memory { need_bytes: 2_000_000, .. }), "{refused}");
}

#[test]
fn full_queue_refuses_with_retry_after() {
    let fixture = fixture_with(ModelPoolSettings { queue_tokens_max: 20, ..settings() });
    fixture.embedding(1, "");
    let running = fixture.ask("!busy 100000");
    fixture.until("busy", |model| model.copies[0].state == "busy");
    let waiting = fixture.ask("twelve chars");
    let refused = fixture.try_ask("and nine more").unwrap_err();
    assert!(matches!(refused, ModelError::Full { .. }), "{refused:?}");
    assert_eq!(fixture.model().refused, 1);
    drop(running);
    waiting.wait().unwrap();
}

/// Faults: T9. Weights that were corrupted on the disk give other answers than at the last start, and no caller gets
/// them.
#[test]
fn corrupted_weights_are_detected_by_the_stored_golden_answer() {
    let known = tempfile::tempdir().unwrap();
    let with_memory = || ModelPoolSettings { golden_folder: Some(known.path().to_owned()), ..settings() };
    let first = fixture_with(with_memory());
    first.embedding(1, "wrong_after = 9");
    let path = first.path("embed");
    wait_until("it is remembered", || {
        let names = std::fs::read_dir(known.path()).unwrap().map(|entry| entry.unwrap().file_name());
        let names = names.map(|name| name.into_string().unwrap()).collect::<Vec<_>>();
        if names.iter().any(|name| name.ends_with(".golden")) { Ok(()) } else { Err(format!("{names:?}")) }
    });
    let changed = std::fs::metadata(&path).unwrap().modified().unwrap();

    // The same length and modification time, as with a failing disk.
    std::fs::write(&path, "text_embedding\nwrong_after = 0").unwrap();
    std::fs::File::options().write(true).open(&path).unwrap().set_modified(changed).unwrap();
    let second =
        fixture_with(ModelPoolSettings { copy_wait_max: std::time::Duration::ZERO, ..with_memory() });
    second.pool.add(ModelSpec::new("embed", &path)).unwrap();
    let refused = second.embed("text").unwrap_err();
    let ModelError::NoWorkers { why, .. } = refused else { panic!("{refused:?}") };
    assert!(why.contains("golden request wrongly"), "{why}");
    assert_eq!(second.model().answered, 0);

    // Replaced on purpose, with a new modification time.
    std::fs::write(&path, "text_embedding\nwrong_after = 0").unwrap();
    let third = fixture_with(with_memory());
    third.pool.add(ModelSpec::new("embed", &path)).unwrap();
    third.embed("text").unwrap();
}
