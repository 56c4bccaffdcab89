//! Memory, lines and what is known from earlier.

use remuda_models::{Call, LoadError, ModelSpec, PoolError, PoolSettings, Request};

use super::herd::{KINDS, herd_with, settings, wait_until};

const MIB: u64 = 1 << 20;

fn embed(herd: &super::herd::Herd, model: &str) {
    let request = Request::TextEmbedding { texts: vec!["text".to_owned()] };
    herd.pool.call(model, request, Call::default()).unwrap().wait().unwrap();
}

/// Faults: T8. Three models take turns in room for two, and there is never more than that.
#[test]
fn models_that_do_not_fit_together_take_turns() {
    for kind in KINDS {
        let herd = herd_with(PoolSettings { memory_bytes: 2 * MIB, ..settings() });
        for name in ["a", "b", "c"] {
            herd.pool.add(herd.spec(name, &format!("text_embedding\n{kind}"))).unwrap();
        }
        for name in ["a", "b", "c", "a", "c", "b", "a"] {
            embed(&herd, name);
            assert!(herd.pool.snapshot().memory_reserved_bytes <= 2 * MIB);
        }
        let told: u64 = herd.pool.snapshot().models.iter().filter_map(|model| model.deaths.get("told")).sum();
        assert!(told >= 3, "somebody made room: {told}");
    }
}

#[test]
fn what_can_never_fit_is_refused_when_it_is_added() {
    let herd = herd_with(PoolSettings { memory_bytes: MIB, ..settings() });
    let spec = herd.spec("large", "text_embedding\nmemory_bytes = 2000000");
    let refused = herd.pool.add(spec).unwrap_err();
    assert!(matches!(refused, LoadError::Memory { need_bytes: 2_000_000, .. }), "{refused}");
}

#[test]
fn a_full_line_refuses_and_says_when_to_come_back() {
    let herd = herd_with(PoolSettings { queue_tokens_max: 20, ..settings() });
    herd.embedding(1, "");
    let running = herd.ask("!busy 100000");
    herd.until("busy", |model| model.copies[0].state == "busy");
    let waiting = herd.ask("twelve chars");
    let refused = herd.try_ask("and nine more").unwrap_err();
    assert!(matches!(refused, PoolError::Full { .. }), "{refused:?}");
    assert_eq!(herd.model().refused, 1);
    drop(running);
    waiting.wait().unwrap();
}

/// Faults: T9. Weights that rot on the disk give other answers than they did at the last start, and nobody gets them.
#[test]
fn wrong_weights_are_found_out_by_what_an_earlier_start_remembered() {
    let known = tempfile::tempdir().unwrap();
    let with_memory = || PoolSettings { golden_folder: Some(known.path().to_owned()), ..settings() };
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
    let second = herd_with(PoolSettings { patience: std::time::Duration::ZERO, ..with_memory() });
    second.pool.add(ModelSpec::new("embed", &path)).unwrap();
    let refused = second.embed("text").unwrap_err();
    let PoolError::NoWorkers { why, .. } = refused else { panic!("{refused:?}") };
    assert!(why.contains("known question wrongly"), "{why}");
    assert_eq!(second.model().answered, 0);

    // Replaced on purpose, its time says so.
    std::fs::write(&path, "text_embedding\nwrong_after = 0").unwrap();
    let third = herd_with(with_memory());
    third.pool.add(ModelSpec::new("embed", &path)).unwrap();
    third.embed("text").unwrap();
}
