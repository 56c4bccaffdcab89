//! How an agent ends: asked to, within a notice, dismissed, forgotten by its plane.

use super::*;

fn with(deadlines: AgentDeadlines) -> Agent {
    let mut agent = agent(1);
    agent.settings.deadlines = deadlines;
    agent
}

fn seconds(seconds: u64) -> Option<Duration> {
    Some(Duration::from_secs(seconds))
}

fn unreachable(seq: u64) -> AgentEvent {
    AgentEvent::CallFailed { seq: Some(seq), why: CallError::Unreachable("cut".to_owned()), jitter: 0 }
}

fn began() -> AgentEvent {
    AgentEvent::Started { found: vec![], incarnation: ServiceIncarnation(1) }
}

/// A worker that holds job 7, at 2 ms.
fn busy(deadlines: AgentDeadlines) -> Agent {
    let mut agent = with(deadlines);
    check(
        &mut agent,
        vec![
            (0, began(), &["join holding 0"]),
            (1, joined(), &["beat 1: 0 held, 0 finished, wait 25 s"]),
            (
                2,
                reply(1, BeatReply { start: vec![start(7, 1)], ..BeatReply::default() }),
                &["run 7 1", "beat 2: 1 held, 0 finished, wait 5 s"],
            ),
        ],
    );
    agent
}

/// Faults: A13.
#[test]
fn what_is_not_done_within_the_notice_is_handed_back_inside_it() {
    let mut agent = busy(AgentDeadlines { notice: seconds(30), ..AgentDeadlines::default() });
    check(
        &mut agent,
        vec![
            (1000, AgentEvent::Stop, &["beat 3: 1 held, 0 finished, wait 5 s"]),
            (
                1001,
                reply(3, BeatReply { drain: true, ..BeatReply::default() }),
                &["beat 4: 1 held, 0 finished, wait 5 s"],
            ),
            (27_999, AgentEvent::Tick, &[]),
        ],
    );
    assert_eq!(agent.wake_at(), at(28_000));
    check(&mut agent, vec![(28_000, AgentEvent::Tick, &["cancel 7 1", "leave", "exit Stopped"])]);
}

/// Faults: A13.
#[test]
fn what_is_done_within_the_notice_is_told_and_the_worker_leaves() {
    let ended = AgentEvent::Ended { job: id(7), attempt: Attempt(1), outcome: done() };
    check(
        &mut busy(AgentDeadlines { notice: seconds(30), ..AgentDeadlines::default() }),
        vec![
            (1000, AgentEvent::Stop, &["beat 3: 1 held, 0 finished, wait 5 s"]),
            (9000, ended, &["beat 4: 0 held, 1 finished, wait 0 s"]),
            (
                9001,
                reply(4, BeatReply { settled: vec![settled(7)], ..BeatReply::default() }),
                &["leave", "exit Stopped"],
            ),
        ],
    );
}

/// Faults: A13.
#[test]
fn a_notice_ends_also_where_no_plane_answers() {
    let mut agent = busy(AgentDeadlines { notice: seconds(4), ..AgentDeadlines::default() });
    check(
        &mut agent,
        vec![
            (
                10,
                AgentEvent::CallFailed { seq: Some(2), why: CallError::Unknown, jitter: 0 },
                &["join holding 1"],
            ),
            (1000, AgentEvent::Stop, &[]),
            (3000, AgentEvent::Tick, &["cancel 7 1", "exit Stopped"]),
        ],
    );
}

/// Faults: A13. The plane is away, and the worker has a result that no plane settles: one signal is enough.
#[test]
fn a_stop_ends_also_where_the_plane_is_away() {
    let ended = || AgentEvent::Ended { job: id(7), attempt: Attempt(1), outcome: done() };
    // With a result to report, and with an attempt that goes on.
    for is_finished in [true, false] {
        let mut agent = busy(AgentDeadlines::default());
        let (mut now, mut seq) = (100, 2);
        if is_finished {
            // Overtakes beat 2.
            check(&mut agent, vec![(now, ended(), &["beat 3: 0 held, 1 finished, wait 0 s"])]);
            seq = 3;
        }
        let mut effects = agent.step(at(now), unreachable(seq));
        effects.append(&mut agent.step(at(1000), AgentEvent::Stop));
        now = 1000;
        while !told(&effects).iter().any(|effect| effect == "exit Stopped") {
            for effect in &effects {
                if let AgentEffect::Beat { beat, .. } = effect {
                    seq = beat.seq;
                }
            }
            effects = agent.step(at(now), unreachable(seq));
            effects.retain(|effect| !told(std::slice::from_ref(effect)).is_empty());
            if effects.is_empty() {
                let wake = agent.wake_at().as_millis();
                assert!(wake <= 31_000, "it waits until {wake} ms");
                now = wake;
                effects = agent.step(at(now), AgentEvent::Tick);
            }
        }
        assert_eq!(now, 31_000, "a lease after the signal");
        assert_eq!(told(&effects).contains(&"cancel 7 1".to_owned()), !is_finished);
    }
}

/// Faults: A13. A plane that answers decides how long a drain takes.
#[test]
fn a_long_attempt_is_finished_while_the_plane_answers() {
    let mut agent = busy(AgentDeadlines::default());
    let mut effects = agent.step(at(1000), AgentEvent::Stop);
    for now in (2..4000).map(|second| second * 1000) {
        if let Some(AgentEffect::Beat { beat, .. }) = effects.last() {
            effects = agent.step(at(now), reply(beat.seq, BeatReply { drain: true, ..BeatReply::default() }));
        }
        assert!(!told(&effects).iter().any(|effect| effect == "exit Stopped"), "it left after {now} ms");
    }
}

/// Faults: P12.
#[test]
fn who_has_no_contact_for_too_long_ends_with_all_it_holds() {
    let mut agent = busy(AgentDeadlines { contact_timeout: seconds(900), ..AgentDeadlines::default() });
    let mut seq = 2;
    let mut now = 100;
    let effects = loop {
        let mut effects = agent.step(at(now), unreachable(seq));
        while told(&effects).is_empty() {
            now = agent.wake_at().as_millis();
            effects = agent.step(at(now), AgentEvent::Tick);
        }
        match &effects[..] {
            [.., AgentEffect::Beat { beat, .. }] => seq = beat.seq,
            _ => break effects,
        }
        now += 10;
    };
    let end = "exit Dismissed(\"no contact with the plane for 15 min\")";
    assert_eq!(told(&effects), ["cancel 7 1", end]);
    // Counted from the last answer, at 2 ms; the last try may have been under way.
    assert!((900_002..906_000).contains(&now), "{now}");
}

/// Faults: P12, K2.
#[test]
fn a_pause_of_its_own_is_no_reason_before_the_plane_was_asked_again() {
    check(
        &mut busy(AgentDeadlines { contact_timeout: seconds(900), ..AgentDeadlines::default() }),
        vec![
            (2_000_000, AgentEvent::Tick, &[]),
            (2_000_001, unreachable(2), &[]),
            (2_000_060, AgentEvent::Tick, &["beat 3: 1 held, 0 finished, wait 5 s"]),
            (2_000_061, reply(3, BeatReply::default()), &["beat 4: 1 held, 0 finished, wait 5 s"]),
            (2_100_000, AgentEvent::Tick, &[]),
        ],
    );
}

/// Faults: M4.
#[test]
fn who_is_not_wanted_ends_with_all_it_holds() {
    let why = || CallError::Retired("given up".to_owned());
    check(
        &mut busy(AgentDeadlines::default()),
        vec![(
            10,
            AgentEvent::CallFailed { seq: Some(2), why: why(), jitter: 0 },
            &["cancel 7 1", "exit Dismissed(\"given up\")"],
        )],
    );
    let at_the_door = AgentEvent::CallFailed { seq: None, why: why(), jitter: 0 };
    check(
        &mut agent(1),
        vec![(0, began(), &["join holding 0"]), (1, at_the_door, &["exit Dismissed(\"given up\")"])],
    );
}

/// Faults: M6.
#[test]
fn who_cannot_work_yet_says_what_it_waits_for_and_takes_nothing() {
    let mut agent = agent(2);
    let preparing = |what: &str| AgentEvent::Preparing { what: what.to_owned() };
    let room = |effects: &[AgentEffect]| match effects {
        [AgentEffect::Join(join)] => (Some(join.slots), None, None),
        [.., AgentEffect::Beat { beat, .. }] => {
            (beat.slots, beat.unavailable_reason.clone(), beat.check.as_ref().map(|it| it.passed))
        }
        other => panic!("{other:?}"),
    };
    assert_eq!(told(&agent.step(at(0), AgentEvent::Tick)), [""; 0], "it has nothing to say yet");
    assert_eq!(room(&agent.step(at(0), preparing("looks at its disk"))), (Some(0), None, None));
    assert_eq!(room(&agent.step(at(1), joined())), (Some(0), Some("looks at its disk".to_owned()), None));
    let loads = agent.step(at(2), preparing("loads a model"));
    assert_eq!(room(&loads), (Some(0), Some("loads a model".to_owned()), None));
    assert!(agent.step(at(3), preparing("loads a model")).is_empty(), "no news");
    let uninvited = reply(2, BeatReply { start: vec![start(7, 1)], ..BeatReply::default() });
    assert_eq!(told(&agent.step(at(4), uninvited)), ["beat 3: 0 held, 1 finished, wait 0 s"], "rejected");
    let checked = StartCheck { passed: true, problem: String::new(), gpu: "A100".to_owned() };
    agent.step(at(5), AgentEvent::StartChecked(checked));
    agent.step(at(6), began());
    let settled = reply(3, BeatReply { settled: vec![settled(7)], ..BeatReply::default() });
    assert_eq!(room(&agent.step(at(7), settled)), (Some(2), None, Some(true)));
}

#[test]
fn readings_are_sent_once_and_again_to_a_plane_that_does_not_know_them() {
    let mut agent = agent(1);
    let sent = |effects: &[AgentEffect]| match effects {
        [.., AgentEffect::Beat { beat, .. }] => beat.metrics.len(),
        other => panic!("{other:?}"),
    };
    let reading =
        || AgentEvent::Metrics(serde_json::Map::from_iter([("vram_free_bytes".to_owned(), 1.into())]));
    agent.step(at(0), reading());
    agent.step(at(0), began());
    assert_eq!(sent(&agent.step(at(1), joined())), 1);
    assert_eq!(sent(&agent.step(at(2), reply(1, BeatReply::default()))), 0);
    let unknown = AgentEvent::CallFailed { seq: Some(2), why: CallError::Unknown, jitter: 0 };
    agent.step(at(3), unknown);
    assert_eq!(sent(&agent.step(at(4), joined())), 1, "another plane, or one that forgot");
    agent.step(at(70_000), AgentEvent::CallFailed { seq: Some(1), why: CallError::Unknown, jitter: 0 });
    assert_eq!(sent(&agent.step(at(70_001), joined())), 0, "no client reads them any more");
}
