//! Section 1 of the fault catalogue, each for a thread and for a child process where both can have it.

use std::time::{Duration, Instant};

use remuda_models::{CallOptions, InferenceError, ModelError, ModelPoolSettings, ModelRequest, ModelSpec};

use rustix::process::Signal;

use super::fixture::{KINDS, PoolFixture, fixture, herd_with, kill, settings, wait_until};

fn ready(fixture: &PoolFixture) -> usize {
    fixture.model().copies.iter().filter(|copy| copy.state == "ready").count()
}

/// Faults: T1. The request that was in flight goes on elsewhere, until it is plain that it is the one that kills.
#[test]
fn a_panic_ends_the_copy_and_nothing_else() {
    for kind in KINDS {
        let fixture = fixture();
        fixture.embedding(2, kind);
        let first = fixture.model().copies[1].id;
        let killer = fixture.ask("!panic");
        let others: Vec<_> = (0..20).map(|n| fixture.ask(&format!("text {n}"))).collect();
        let Err(ModelError::Failed { failure: InferenceError::Engine(why), .. }) = killer.wait() else {
            panic!()
        };
        assert!(why.contains("2 copies died at it") && why.contains("a text asked for it"), "{why}");
        for other in others {
            other.wait().unwrap();
        }
        let model = fixture.until("two new copies", |_| ready(&fixture) == 2);
        assert_eq!(model.deaths["panicked"], 2, "{model:#?}");
        fixture.until("the dead are gone", |model| model.copies.len() == 2);
        assert!(fixture.model().copies.iter().all(|copy| copy.id > first), "{model:#?}");
        assert_eq!(fixture.pool.snapshot().memory_reserved_bytes, 2 << 20);
    }
}

/// Faults: T1. A process can also end in ways that nobody in it notices.
#[test]
fn an_exit_an_abort_and_a_kill_are_seen_at_once() {
    let fixture = fixture();
    fixture.embedding(2, KINDS[1]);
    for (text, sign) in [("!exit", "code 1"), ("!abort", "signal 6")] {
        let Err(ModelError::Failed { failure: InferenceError::Engine(why), .. }) = fixture.embed(text) else {
            panic!()
        };
        assert!(why.contains("2 copies died at it") && why.contains(sign), "{why}");
        fixture.embed("well").unwrap();
    }
    fixture.until("two copies", |_| ready(&fixture) == 2);
    let pid = fixture.model().copies[0].pid.unwrap();
    let killed = Instant::now();
    kill(pid, Signal::KILL);
    fixture
        .until("seen", |model| model.copies.iter().all(|copy| copy.pid != Some(pid) || copy.state == "dead"));
    assert!(killed.elapsed() < Duration::from_secs(1), "{:?}", killed.elapsed());
    fixture.embed("well").unwrap();
}

/// Returns when every thread of it stands still.
fn stop(pid: u32) {
    kill(pid, Signal::STOP);
    let is_stopped = |task: std::io::Result<std::fs::DirEntry>| {
        let stat = std::fs::read_to_string(task.unwrap().path().join("stat")).unwrap();
        stat.rsplit(')').next().unwrap().trim_start().starts_with('T')
    };
    wait_until("it is stopped", || {
        let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
        if tasks.into_iter().all(is_stopped) { Ok(()) } else { Err("it runs".to_owned()) }
    });
}

/// Faults: T1. Without a word said it begins anew elsewhere, and its caller does not notice.
#[test]
fn what_a_killed_process_was_at_goes_on_in_another() {
    let fixture = fixture();
    fixture.embedding(1, KINDS[1]);
    let pending = fixture.ask("!hang");
    let pid = fixture.until("at work", |model| model.copies[0].state == "busy").copies[0].pid.unwrap();
    kill(pid, Signal::KILL);
    fixture.until("at work again", |model| {
        model.moved == 1 && model.copies.iter().any(|copy| copy.state == "busy" && copy.pid != Some(pid))
    });
    fixture.release("embed");
    pending.wait().unwrap();
}

/// Faults: T2. Its place is tried again by and by: once somebody has mended the model it comes back by itself.
#[test]
fn a_model_that_fails_to_load_is_never_routable_and_its_callers_know_why() {
    for (kind, way) in [(KINDS[0], "fails"), (KINDS[1], "fails"), (KINDS[0], "panics"), (KINDS[1], "panics")]
    {
        let crash_loop_pause = Duration::from_secs(1);
        let fixture =
            herd_with(ModelPoolSettings { copy_wait_max: Duration::ZERO, crash_loop_pause, ..settings() });
        let mut escalations = fixture.pool.escalations();
        let spec =
            fixture.spec("embed", &format!("text_embedding\nfailing_loads = 1000\nload = {way}\n{kind}"));
        fixture.pool.add(ModelSpec { copies: 2, ..spec }).unwrap();
        let asked = Instant::now();
        let refused = fixture.embed("text").unwrap_err();
        assert!(asked.elapsed() < Duration::from_secs(30), "nobody waits for the deadline");
        let ModelError::NoWorkers { why, .. } = refused else { panic!("{refused:?}") };
        assert!(why.contains(way), "{why}");
        fixture.until("given up", |model| model.deaths.values().sum::<u64>() >= 10);
        assert_eq!(escalations.blocking_recv().unwrap().model, "embed");
        assert!(!fixture.pool.has_alive_workers("embed"));
        assert!(matches!(fixture.embed("text"), Err(ModelError::NoWorkers { .. })));
        let model = fixture.model();
        assert_eq!((model.answered, model.given_up), (0, 2));

        fixture.spec("embed", &format!("text_embedding\n{kind}"));
        wait_until("it is back", || fixture.embed("text").map_err(|refused| refused.to_string()));
        fixture.until("the other as well", |_| ready(&fixture) == 2);
    }
}

/// Faults: T2. Three loads fail and the fourth does not: whoever is patient is answered.
#[test]
fn a_load_that_works_at_last_serves_who_waited() {
    for kind in KINDS {
        let fixture = fixture();
        let spec = fixture.spec("embed", &format!("text_embedding\nfailing_loads = 3\n{kind}"));
        fixture.pool.add(spec).unwrap();
        fixture.embed("text").unwrap();
        assert_eq!(fixture.model().deaths["load"], 3);
    }
}

/// Faults: T3. Busy for six times as long as silence would be forgiven, and nobody takes it for dead.
#[test]
fn a_busy_copy_is_not_a_dead_copy() {
    for kind in KINDS {
        let fixture = herd_with(ModelPoolSettings { stall_max: Duration::from_millis(500), ..settings() });
        fixture.embedding(1, kind);
        let busy = fixture.ask("!busy 3000");
        let id = fixture.until("busy", |model| model.copies[0].state == "busy").copies[0].id;
        let asked = Instant::now();
        assert!(fixture.pool.is_alive(id));
        assert_eq!(fixture.pool.validate_workers("embed"), 0);
        assert_eq!(fixture.pool.get_alive_worker("embed"), Some(id));
        assert!(asked.elapsed() < Duration::from_secs(1), "asked beside its work");
        busy.wait().unwrap();
        let model = fixture.model();
        assert!(model.deaths.is_empty() && model.copies[0].id == id, "{model:#?}");
        assert!(model.copies[0].steps > 100, "{model:#?}");
    }
}

fn quick_to_judge() -> ModelPoolSettings {
    ModelPoolSettings { stall_max: Duration::from_millis(300), ..settings() }
}

/// Faults: T4. What it was at goes on elsewhere; its memory is counted for as long as it hangs.
#[test]
fn a_hung_thread_is_quarantined_with_its_memory_and_comes_back_from_it() {
    let fixture = herd_with(ModelPoolSettings { memory_bytes: 3 << 20, ..quick_to_judge() });
    fixture.embedding(1, KINDS[0]);
    let Err(ModelError::Failed { failure: InferenceError::Engine(why), .. }) = fixture.embed("!hang") else {
        panic!()
    };
    assert!(why.contains("hung"), "{why}");
    fixture.embed("well").unwrap();
    let model = fixture.model();
    assert_eq!(model.deaths["hung"], 2);
    assert_eq!(model.copies.iter().filter(|copy| copy.stuck).count(), 2);
    assert_eq!(fixture.pool.snapshot().memory_reserved_bytes, 3 << 20, "two hang and one serves");
    fixture.release("embed");
    fixture.until("what hung has ended", |model| model.copies.len() == 1);
    assert_eq!(fixture.pool.snapshot().memory_reserved_bytes, 1 << 20);
}

/// Faults: T4. With no memory left, whoever asks is told why, and so is the owner: only a new process helps.
#[test]
fn hung_threads_that_hold_all_memory_are_the_owners_matter() {
    let fixture = herd_with(ModelPoolSettings { memory_bytes: 1 << 20, ..quick_to_judge() });
    fixture.embedding(1, KINDS[0]);
    let mut escalations = fixture.pool.escalations();
    let refused = fixture.embed("!hang").unwrap_err();
    let ModelError::NoWorkers { why, .. } = refused else { panic!("{refused:?}") };
    assert!(why.contains("held by copies that hang"), "{why}");
    assert!(escalations.blocking_recv().unwrap().why.contains("new process"));
}

/// Faults: T4. A process can be ended from outside, hung or stopped.
#[test]
fn a_hung_process_is_killed_and_its_memory_comes_back() {
    let fixture = herd_with(ModelPoolSettings { memory_bytes: 1 << 20, ..quick_to_judge() });
    fixture.embedding(1, KINDS[1]);
    let Err(ModelError::Failed { failure: InferenceError::Engine(why), .. }) = fixture.embed("!hang") else {
        panic!()
    };
    assert!(why.contains("hung"), "{why}");
    fixture.embed("well").unwrap();
    assert_eq!(fixture.model().deaths["hung"], 2);

    let pid = fixture.until("ready", |_| ready(&fixture) == 1).copies[0].pid.unwrap();
    stop(pid);
    fixture.embed("well").unwrap();
    assert_eq!(fixture.model().deaths["hung"], 3, "stopped: no step, no pong, no answer");
    assert_eq!(fixture.pool.snapshot().memory_reserved_bytes, 1 << 20);
}

/// Faults: T4, T5. A missed pong is no verdict: it is asked something real, and that it does not answer is one.
#[test]
fn a_process_that_is_stopped_while_idle_is_found_by_a_ping() {
    let fixture = herd_with(quick_to_judge());
    fixture.embedding(1, KINDS[1]);
    let (id, pid) = (fixture.model().copies[0].id, fixture.model().copies[0].pid.unwrap());
    assert!(fixture.pool.is_alive(id));
    stop(pid);
    assert!(!fixture.pool.is_alive(id));
    fixture.until("killed and replaced", |model| {
        model.deaths.get("hung") == Some(&1) && model.copies.iter().any(|copy| copy.state == "ready")
    });
    assert!(!fixture.pool.is_alive(id));
    fixture.embed("well").unwrap();
}

/// Faults: T4. Loading is watched by the same sign.
#[test]
fn a_load_that_hangs_is_given_up() {
    for kind in KINDS {
        let limits = ModelPoolSettings { load_stall_max: Duration::from_millis(300), ..settings() };
        let fixture = herd_with(limits);
        let spec = fixture.spec("embed", &format!("text_embedding\nfailing_loads = 1\nload = hangs\n{kind}"));
        fixture.pool.add(spec).unwrap();
        fixture.embed("well").unwrap();
        assert_eq!(fixture.model().deaths["hung"], 1);
    }
}

/// Faults: T4. A slow load with signs of life is none of those.
#[test]
fn a_slow_load_is_waited_for() {
    for kind in KINDS {
        let fixture =
            herd_with(ModelPoolSettings { load_stall_max: Duration::from_millis(400), ..settings() });
        let spec = fixture.spec("embed", &format!("text_embedding\nload_ms = 1500\n{kind}"));
        fixture.pool.add(spec).unwrap();
        fixture.embed("well").unwrap();
        assert!(fixture.model().deaths.is_empty());
    }
}

/// Faults: T6. It says no faster than others say yes: it is asked something it has to know, and ends if it goes on.
#[test]
fn a_copy_that_fails_at_once_draws_no_work_to_itself() {
    for kind in KINDS {
        let fixture = fixture();
        fixture.embedding(2, &format!("{kind}\nwrong_after = 3"));
        for n in 0..40 {
            drop(fixture.ask(&format!("text {n}")).wait());
        }
        fixture.ask("!fail").wait().unwrap_err();
        let model =
            fixture.until("found out", |model| model.deaths.get("wrong").is_some_and(|wrong| *wrong >= 1));
        assert!(model.last_death.unwrap().contains("known question"), "{:?}", model.deaths);
    }
}

/// Faults: T7.
#[test]
fn nothing_is_in_flight_once_everybody_has_left_by_whatever_door() {
    for kind in KINDS {
        let fixture = fixture();
        fixture.embedding(2, kind);
        let doors = ["text", "!panic", "!fail", "!oom", "!input", "!empty", "!nan", "!busy 100000"];
        let tickets: Vec<_> = doors.iter().map(|text| fixture.ask(text)).collect();
        let request = ModelRequest::TextEmbedding { texts: vec!["!busy 100000".to_owned()] };
        let late = CallOptions { deadline: Some(Instant::now() + Duration::from_millis(50)) };
        let late = fixture.pool.call("embed", request, late).unwrap();
        assert!(matches!(late.wait(), Err(ModelError::Deadline { .. })));
        let mut tickets = tickets.into_iter();
        drop(tickets.next_back());
        for pending in tickets {
            drop(pending.wait());
        }
        let is_empty = |it: &remuda_models::ModelSnapshot| {
            it.queue_tokens == 0 && it.queue_bytes == 0 && it.copies.iter().all(|copy| copy.in_flight == 0)
        };
        fixture.until("nothing in flight, nothing waiting", is_empty);
    }
}

/// Faults: T8. Who takes too much is tried once more after the longest unused has made room.
#[test]
fn out_of_memory_at_work_is_the_requests_failure_and_not_the_copys() {
    for kind in KINDS {
        let fixture = fixture();
        fixture.embedding(1, kind);
        let id = fixture.model().copies[0].id;
        let Err(ModelError::Failed { failure, .. }) = fixture.embed("!oom") else { panic!() };
        assert!(matches!(failure, InferenceError::OutOfMemory(_)), "{failure:?}");
        fixture.embed("well").unwrap();
        let model = fixture.model();
        assert!(model.copies[0].id == id && model.deaths.is_empty(), "{model:#?}");
    }
}

/// Faults: T8. The reservation comes back once for each load that failed, and the next load has it.
#[test]
fn out_of_memory_at_load_returns_what_was_reserved() {
    for kind in KINDS {
        let fixture = herd_with(ModelPoolSettings { memory_bytes: 1 << 20, ..settings() });
        let config = format!("text_embedding\nfailing_loads = 2\nload = runs_out_of_memory\n{kind}");
        fixture.pool.add(fixture.spec("embed", &config)).unwrap();
        fixture.embed("well").unwrap();
        assert_eq!(fixture.model().deaths["load"], 2);
        assert_eq!(fixture.pool.snapshot().memory_reserved_bytes, 1 << 20);
    }
}

/// Faults: T9. In a thread the engine stays broken for the whole process, and the owner hears of it; a child process
/// takes the broken engine with it.
#[test]
fn a_poisoned_engine_ends_with_its_process() {
    let thread = fixture();
    thread.embedding(1, KINDS[0]);
    let mut escalations = thread.pool.escalations();
    drop(thread.embed("!poison"));
    assert!(escalations.blocking_recv().unwrap().why.contains("poisoned"));
    assert!(thread.embed("well").is_err());

    let process = fixture();
    process.embedding(1, KINDS[1]);
    process.embed("!poison").unwrap_err();
    process.embed("well").unwrap();
}

/// Faults: T10.
#[test]
fn when_the_last_copy_dies_for_good_everybody_who_waits_is_told() {
    for kind in KINDS {
        let fixture = herd_with(ModelPoolSettings { deaths_max: 1, ..settings() });
        fixture.embedding(1, kind);
        let first = fixture.ask("!hang");
        fixture.until("at work", |model| model.copies[0].state == "busy");
        let waiting: Vec<_> = ["!panic", "a", "b", "c"].iter().map(|text| fixture.ask(text)).collect();
        fixture.release("embed");
        first.wait().unwrap();
        for pending in waiting {
            let refused = pending.wait().unwrap_err();
            let ModelError::NoWorkers { why, .. } = refused else { panic!("{refused:?}") };
            assert!(why.contains("a text asked for it"), "{why}");
        }
        assert!(
            matches!(fixture.try_ask("text"), Err(ModelError::NoWorkers { .. })),
            "and who comes later, at once"
        );
    }
}

/// Faults: T12.
#[test]
fn an_answer_that_is_none_is_the_copys_failure() {
    for kind in KINDS {
        let fixture = fixture();
        fixture.embedding(2, kind);
        for text in ["!empty", "!short", "!nan", "!missing"] {
            let Err(ModelError::Failed { failure: InferenceError::Engine(why), .. }) = fixture.embed(text)
            else {
                panic!("{text} was answered")
            };
            assert!(why.contains("answer"), "{why}");
        }
        fixture.embed("well").unwrap();
    }
}
