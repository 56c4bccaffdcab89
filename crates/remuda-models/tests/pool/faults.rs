//! Section 1 of the fault catalogue, for thread copies and child processes where both can have the fault.

use std::time::{Duration, Instant};

use remuda_models::{CallOptions, InferenceError, ModelError, ModelPoolSettings, ModelRequest, ModelSpec};

use rustix::process::Signal;

use super::fixture::{KINDS, PoolFixture, fixture, fixture_with, kill, settings, wait_until};

fn ready(fixture: &PoolFixture) -> usize {
    fixture.model().copies.iter().filter(|copy| copy.state == "ready").count()
}

/// Faults: T1. The request in flight moves to another copy, until it has killed two.
#[test]
fn panic_ends_only_its_copy() {
    for kind in KINDS {
        let fixture = fixture();
        fixture.embedding(2, kind);
        let first = fixture.model().copies[1].id;
        let killer = fixture.ask("!panic");
        let others: Vec<_> = (0..20).map(|n| fixture.ask(&format!("text {n}"))).collect();
        let Err(ModelError::Failed { failure: InferenceError::Engine(why), .. }) = killer.wait() else {
            panic!()
        };
        assert!(why.contains("2 copies died") && why.contains("injected fault"), "{why}");
        for other in others {
            other.wait().unwrap();
        }
        let model = fixture.until("two new copies", |_| ready(&fixture) == 2);
        assert_eq!(model.deaths["panicked"], 2, "{model:#?}");
        fixture.until("the dead copies are reaped", |model| model.copies.len() == 2);
        assert!(fixture.model().copies.iter().all(|copy| copy.id > first), "{model:#?}");
        assert_eq!(fixture.pool.snapshot().memory_reserved_bytes, 2 << 20);
    }
}

/// Faults: T1. A process can also end without noticing it itself.
#[test]
fn exit_abort_and_kill_are_seen_at_once() {
    let fixture = fixture();
    fixture.embedding(2, KINDS[1]);
    for (text, sign) in [("!exit", "code 1"), ("!abort", "signal 6")] {
        let Err(ModelError::Failed { failure: InferenceError::Engine(why), .. }) = fixture.embed(text) else {
            panic!()
        };
        assert!(why.contains("2 copies died") && why.contains(sign), "{why}");
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

/// Returns when every thread of the process is stopped.
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

/// Faults: T1. If nothing was streamed yet, the caller does not notice.
#[test]
fn work_of_a_killed_process_moves_to_another() {
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

/// Faults: T2. The slot is retried: once the model is repaired it comes back by itself.
#[test]
fn unloadable_model_gets_no_requests_and_callers_learn_why() {
    for (kind, way) in [(KINDS[0], "fails"), (KINDS[1], "fails"), (KINDS[0], "panics"), (KINDS[1], "panics")]
    {
        let crash_loop_pause = Duration::from_secs(1);
        let fixture =
            fixture_with(ModelPoolSettings { copy_wait_max: Duration::ZERO, crash_loop_pause, ..settings() });
        let mut escalations = fixture.pool.escalations();
        let spec =
            fixture.spec("embed", &format!("text_embedding\nfailing_loads = 1000\nload = {way}\n{kind}"));
        fixture.pool.add(ModelSpec { copies: 2, ..spec }).unwrap();
        let asked = Instant::now();
        let refused = fixture.embed("text").unwrap_err();
        assert!(asked.elapsed() < Duration::from_secs(30), "no caller waits for its deadline");
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
        fixture.until("the second copy as well", |_| ready(&fixture) == 2);
    }
}

/// Faults: T2. Three loads fail and the fourth succeeds: a waiting caller is answered.
#[test]
fn late_successful_load_serves_waiting_callers() {
    for kind in KINDS {
        let fixture = fixture();
        let spec = fixture.spec("embed", &format!("text_embedding\nfailing_loads = 3\n{kind}"));
        fixture.pool.add(spec).unwrap();
        fixture.embed("text").unwrap();
        assert_eq!(fixture.model().deaths["load"], 3);
    }
}

/// Faults: T3. Busy for six times the stall limit, with beacon steps, and not declared dead.
#[test]
fn busy_copy_is_not_a_dead_copy() {
    for kind in KINDS {
        let fixture = fixture_with(ModelPoolSettings { stall_max: Duration::from_millis(500), ..settings() });
        fixture.embedding(1, kind);
        let busy = fixture.ask("!busy 3000");
        let id = fixture.until("busy", |model| model.copies[0].state == "busy").copies[0].id;
        let asked = Instant::now();
        assert!(fixture.pool.is_alive(id));
        assert_eq!(fixture.pool.validate_workers("embed"), 0);
        assert_eq!(fixture.pool.get_alive_worker("embed"), Some(id));
        assert!(asked.elapsed() < Duration::from_secs(1), "the ping does not wait for the work");
        busy.wait().unwrap();
        let model = fixture.model();
        assert!(model.deaths.is_empty() && model.copies[0].id == id, "{model:#?}");
        assert!(model.copies[0].steps > 100, "{model:#?}");
    }
}

fn short_stall_limit() -> ModelPoolSettings {
    ModelPoolSettings { stall_max: Duration::from_millis(300), ..settings() }
}

/// Faults: T4. Its work moves to another copy; its memory is counted for as long as it hangs.
#[test]
fn hung_thread_keeps_its_memory_until_it_ends() {
    let fixture = fixture_with(ModelPoolSettings { memory_bytes: 3 << 20, ..short_stall_limit() });
    fixture.embedding(1, KINDS[0]);
    let Err(ModelError::Failed { failure: InferenceError::Engine(why), .. }) = fixture.embed("!hang") else {
        panic!()
    };
    assert!(why.contains("hung"), "{why}");
    fixture.embed("well").unwrap();
    let model = fixture.model();
    assert_eq!(model.deaths["hung"], 2);
    assert_eq!(model.copies.iter().filter(|copy| copy.stuck).count(), 2);
    assert_eq!(fixture.pool.snapshot().memory_reserved_bytes, 3 << 20, "two hung copies and one serving");
    fixture.release("embed");
    fixture.until("the hung copies have ended", |model| model.copies.len() == 1);
    assert_eq!(fixture.pool.snapshot().memory_reserved_bytes, 1 << 20);
}

/// Faults: T4. With no memory left, callers and the owner learn why: only a restart of the process helps.
#[test]
fn hung_threads_holding_all_memory_are_escalated() {
    let fixture = fixture_with(ModelPoolSettings { memory_bytes: 1 << 20, ..short_stall_limit() });
    fixture.embedding(1, KINDS[0]);
    let mut escalations = fixture.pool.escalations();
    let refused = fixture.embed("!hang").unwrap_err();
    let ModelError::NoWorkers { why, .. } = refused else { panic!("{refused:?}") };
    assert!(why.contains("held by hung copies"), "{why}");
    assert!(escalations.blocking_recv().unwrap().why.contains("restart of this process"));
}

/// Faults: T4. A process can be killed from outside, hung or stopped.
#[test]
fn hung_process_is_killed_and_its_memory_released() {
    let fixture = fixture_with(ModelPoolSettings { memory_bytes: 1 << 20, ..short_stall_limit() });
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

/// Faults: T4, T5. A missed pong is no verdict: the copy gets a golden request, and not answering that is one.
#[test]
fn process_stopped_while_idle_is_found_by_a_ping() {
    let fixture = fixture_with(short_stall_limit());
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

/// Faults: T4. Loading is watched by the same signal.
#[test]
fn hung_load_is_given_up() {
    for kind in KINDS {
        let limits = ModelPoolSettings { load_stall_max: Duration::from_millis(300), ..settings() };
        let fixture = fixture_with(limits);
        let spec = fixture.spec("embed", &format!("text_embedding\nfailing_loads = 1\nload = hangs\n{kind}"));
        fixture.pool.add(spec).unwrap();
        fixture.embed("well").unwrap();
        assert_eq!(fixture.model().deaths["hung"], 1);
    }
}

/// Faults: T4. A slow load with beacon steps is not a hang.
#[test]
fn slow_load_is_awaited() {
    for kind in KINDS {
        let fixture =
            fixture_with(ModelPoolSettings { load_stall_max: Duration::from_millis(400), ..settings() });
        let spec = fixture.spec("embed", &format!("text_embedding\nload_ms = 1500\n{kind}"));
        fixture.pool.add(spec).unwrap();
        fixture.embed("well").unwrap();
        assert!(fixture.model().deaths.is_empty());
    }
}

/// Faults: T6. Failing fast must not attract work: the copy is tested, and ends if it keeps failing.
#[test]
fn fast_failing_copy_does_not_attract_work() {
    for kind in KINDS {
        let fixture = fixture();
        fixture.embedding(2, &format!("{kind}\nwrong_after = 3"));
        for n in 0..40 {
            drop(fixture.ask(&format!("text {n}")).wait());
        }
        fixture.ask("!fail").wait().unwrap_err();
        let model =
            fixture.until("found out", |model| model.deaths.get("wrong").is_some_and(|wrong| *wrong >= 1));
        assert!(model.last_death.unwrap().contains("golden request"), "{:?}", model.deaths);
    }
}

/// Faults: T7.
#[test]
fn nothing_is_in_flight_once_every_request_has_ended() {
    for kind in KINDS {
        let fixture = fixture();
        fixture.embedding(2, kind);
        let requests = ["text", "!panic", "!fail", "!oom", "!input", "!empty", "!nan", "!busy 100000"];
        let tickets: Vec<_> = requests.iter().map(|text| fixture.ask(text)).collect();
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

/// Faults: T8. The request is retried once after the least recently used copy was evicted.
#[test]
fn out_of_memory_at_work_fails_the_request_but_not_the_copy() {
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

/// Faults: T8. The reservation is released for each failed load, and the next load gets it.
#[test]
fn out_of_memory_at_load_releases_the_reservation() {
    for kind in KINDS {
        let fixture = fixture_with(ModelPoolSettings { memory_bytes: 1 << 20, ..settings() });
        let config = format!("text_embedding\nfailing_loads = 2\nload = runs_out_of_memory\n{kind}");
        fixture.pool.add(fixture.spec("embed", &config)).unwrap();
        fixture.embed("well").unwrap();
        assert_eq!(fixture.model().deaths["load"], 2);
        assert_eq!(fixture.pool.snapshot().memory_reserved_bytes, 1 << 20);
    }
}

/// Faults: T9. In a thread the engine stays broken for the whole process, which is escalated; a child process takes the
/// broken engine with it.
#[test]
fn poisoned_engine_ends_with_its_process() {
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
fn when_the_last_copy_is_given_up_every_waiting_caller_is_answered() {
    for kind in KINDS {
        let fixture = fixture_with(ModelPoolSettings { deaths_max: 1, ..settings() });
        fixture.embedding(1, kind);
        let first = fixture.ask("!hang");
        fixture.until("at work", |model| model.copies[0].state == "busy");
        let waiting: Vec<_> = ["!panic", "a", "b", "c"].iter().map(|text| fixture.ask(text)).collect();
        fixture.release("embed");
        first.wait().unwrap();
        for pending in waiting {
            let refused = pending.wait().unwrap_err();
            let ModelError::NoWorkers { why, .. } = refused else { panic!("{refused:?}") };
            assert!(why.contains("injected fault"), "{why}");
        }
        assert!(
            matches!(fixture.try_ask("text"), Err(ModelError::NoWorkers { .. })),
            "later callers immediately"
        );
    }
}

/// Faults: T12.
#[test]
fn invalid_answer_is_the_copys_failure() {
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
