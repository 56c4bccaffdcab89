//! Memory, lines and what is known from earlier.

use remuda_models::{CallOptions, LoadError, ModelError, ModelPoolSettings, ModelRequest, ModelSpec};

use super::fixture::{KINDS, herd_with, settings, wait_until};

const MIB: u64 = 1 << 20;

fn embed(fixture: &super::fixture::PoolFixture, model: &str) {
    let request = ModelRequest::TextEmbedding { texts: vec!["text".to_owned()] };
    fixture.pool.call(model, request, CallOptions::default()).unwrap().wait().unwrap();
}

/// Faults: T8. Three models take turns in room for two, and there is never more than that.
#[test]
fn models_that_do_not_fit_together_take_turns() {
    for kind in KINDS {
        let fixture = herd_with(ModelPoolSettings { memory_bytes: 2 * MIB, ..settings() });
        for name in ["a", "b", "c"] {
            fixture.pool.add(fixture.spec(name, &format!("text_embedding\n{kind}"))).unwrap();
        }
        for name in ["a", "b", "c", "a", "c", "b", "a"] {
            embed(&fixture, name);
            assert!(fixture.pool.snapshot().memory_reserved_bytes <= 2 * MIB);
        }
        let told: u64 =
            fixture.pool.snapshot().models.iter().filter_map(|model| model.deaths.get("told")).sum();
        assert!(told >= 3, "somebody made room: {told}");
    }
}

#[test]
fn what_can_never_fit_is_refused_when_it_is_added() {
    let fixture = herd_with(ModelPoolSettings { memory_bytes: MIB, ..settings() });
    let spec = fixture.spec("large", "text_embedding\nmemory_bytes = 2000000");
    let refused = fixture.pool.add(spec).unwrap_err();
    assert!(matches!(refused, LoadError::Memory { need_bytes: 2_000_000, .. }), "{refused}");
}

#[test]
fn a_full_line_refuses_and_says_when_to_come_back() {
    let fixture = herd_with(ModelPoolSettings { queue_tokens_max: 20, ..settings() });
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

/// Faults: T9. Weights that rot on the disk give other answers than they did at the last start, and nobody gets them.
#[test]
fn wrong_weights_are_found_out_by_what_an_earlier_start_remembered() {
    let known = tempfile::tempdir().unwrap();
    let with_memory = || ModelPoolSettings { golden_folder: Some(known.path().to_owned()), ..settings() };
    let first = herd_with(with_memory());
    first.embedding(1, "wrong_after = 9");
    let path = first.path("embed");
    wait_until("it is remembered", || {
        let names = std::fs::read_dir(known.path()).unwrap().map(|entry| entry.unwrap().file_name());
        let names = names.map(|name| name.into_string().unwrap()).collect::<Vec<_>>();
        if names.iter().any(|name| name.ends_with(".golden")) { Ok(()) } else { Err(format!("{names:?}")) }
    });
    let changed = std::fs::metadata(&path).unwrap().modified().unwrap();

    // As long as before and at the same time, as a disk would have it.
    std::fs::write(&path, "text_embedding\nwrong_after = 0").unwrap();
    std::fs::File::options().write(true).open(&path).unwrap().set_modified(changed).unwrap();
    let second = herd_with(ModelPoolSettings { copy_wait_max: std::time::Duration::ZERO, ..with_memory() });
    second.pool.add(ModelSpec::new("embed", &path)).unwrap();
    let refused = second.embed("text").unwrap_err();
    let ModelError::NoWorkers { why, .. } = refused else { panic!("{refused:?}") };
    assert!(why.contains("known question wrongly"), "{why}");
    assert_eq!(second.model().answered, 0);

    // Replaced on purpose, its time says so.
    std::fs::write(&path, "text_embedding\nwrong_after = 0").unwrap();
    let third = herd_with(with_memory());
    third.pool.add(ModelSpec::new("embed", &path)).unwrap();
    third.embed("text").unwrap();
}
