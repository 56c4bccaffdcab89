//! A service that is out of reach or sick.

use super::*;
use crate::service::{SelfTestResult, ServiceExit, ServiceFailure, ServiceFault};

fn news(news: ServiceEvent) -> AgentEvent {
    AgentEvent::Service(news)
}

fn remedy_done(remedy: ServiceRemedy, problem: Option<&str>) -> AgentEvent {
    news(ServiceEvent::RemedyDone { remedy, problem: problem.map(str::to_owned) })
}

fn self_tested(problem: Option<&str>) -> AgentEvent {
    self_tested_in(1, problem)
}

fn self_tested_in(incarnation: u64, problem: Option<&str>) -> AgentEvent {
    news(ServiceEvent::SelfTested {
        incarnation: ServiceIncarnation(incarnation),
        result: problem.map_or(SelfTestResult::Passed, |problem| SelfTestResult::Failed(problem.to_owned())),
        offer: None,
    })
}

fn opened(incarnation: u64) -> AgentEvent {
    news(ServiceEvent::SocketOpened { incarnation: ServiceIncarnation(incarnation) })
}

fn closed() -> AgentEvent {
    news(ServiceEvent::SocketClosed { why: "reset".to_owned() })
}

fn fails(fault: ServiceFault) -> AgentEvent {
    AgentEvent::Probed {
        job: id(1),
        attempt: Attempt(1),
        incarnation: ServiceIncarnation(1),
        result: ProbeResult::Failed(ServiceFailure::new(fault, "it says")),
    }
}

/// What is done about the service, and how many slots the plane hears of.
fn tell(agent: &mut Agent, story: Vec<(u64, AgentEvent, &[&str])>) {
    for (millis, event, expected) in story {
        let shown = format!("{event:?}");
        let effects = agent.step(at(millis), event);
        let mut done: Vec<_> = told(&effects).into_iter().filter(|it| !it.starts_with("beat")).collect();
        for effect in &effects {
            if let AgentEffect::Beat { beat, .. } = effect {
                done.extend(beat.slots.map(|slots| format!("{slots} slots")));
            }
        }
        // The beats are answered at once here.
        let seq = agent.seq;
        agent.step(at(millis), reply(seq, BeatReply { settled: vec![settled(1)], ..BeatReply::default() }));
        assert_eq!(done, expected, "after {shown} at {millis} ms");
    }
}

/// Faults: W1.
#[test]
fn a_socket_that_closes_and_opens_again_pauses_new_work() {
    tell(
        &mut holding(),
        vec![(100, closed(), &["0 slots"]), (200, opened(1), &["1 slots"]), (300, opened(1), &[])],
    );
}

/// Faults: V8.
#[test]
fn who_joins_without_room_says_so_when_there_is_some() {
    let mut agent = agent(1);
    agent.step(at(0), AgentEvent::Started { found: vec![], incarnation: ServiceIncarnation(1) });
    let unreachable = CallError::Unreachable("cut".to_owned());
    agent.step(at(1), AgentEvent::CallFailed { seq: None, why: unreachable, jitter: 0 });
    agent.step(at(2), closed());
    let joins = agent.step(at(200), AgentEvent::Tick);
    assert!(matches!(&joins[..], [AgentEffect::Join(join)] if join.slots == 0), "{joins:?}");
    agent.step(at(210), opened(1));
    let beats = agent.step(at(220), joined());
    let tells =
        |effect: &AgentEffect| matches!(effect, AgentEffect::Beat { beat, .. } if beat.slots == Some(1));
    assert!(beats.iter().any(tells), "{beats:?}");
}

#[test]
fn a_service_in_a_new_life_shows_that_it_works_first() {
    tell(
        &mut holding(),
        vec![
            (100, closed(), &["0 slots"]),
            (200, opened(2), &["check"]),
            (300, self_tested(None), &["1 slots"]),
        ],
    );
}

/// Faults: V8. The self-test of the old process ends only when its time is over.
#[test]
fn self_test_that_began_before_a_restart_says_nothing_about_the_new_process() {
    tell(
        &mut holding(),
        vec![
            (100, closed(), &["0 slots"]),
            (200, opened(2), &["check"]),
            (300, self_tested_in(2, None), &["1 slots"]),
            (30_000, self_tested_in(1, Some("the executor does not run")), &[]),
        ],
    );
    // It started again during the test.
    tell(
        &mut holding(),
        vec![
            (100, closed(), &["0 slots"]),
            (200, opened(2), &["check"]),
            (300, closed(), &[]),
            (400, opened(3), &[]),
            (500, self_tested_in(2, Some("connection reset")), &["check"]),
            (600, self_tested_in(3, None), &["1 slots"]),
        ],
    );
}

/// Faults: V14.
#[test]
fn idle_service_that_does_not_answer_gets_one_self_test_at_a_time() {
    let mut agent = holding();
    let silent = || AgentEvent::Probed {
        job: id(1),
        attempt: Attempt(1),
        incarnation: ServiceIncarnation(1),
        result: ProbeResult::NoAnswer("timed out".to_owned()),
    };
    for second in [1, 6, 11] {
        agent.step(at(second * 1000), AgentEvent::Tick);
        agent.step(at(second * 1000 + 100), silent());
    }
    agent.step(at(12_000), AgentEvent::Ended { job: id(1), attempt: Attempt(1), outcome: done() });
    let tests_to = |agent: &mut Agent, from: u64, to: u64| {
        let effects = (from..to).flat_map(|second| told(&agent.step(at(second * 1000), AgentEvent::Tick)));
        effects.filter(|it| it == "check").count()
    };
    assert_eq!(tests_to(&mut agent, 13, 60), 1);
    agent.step(at(60_000), self_tested(None));
    assert_eq!(agent.closed_reason(), None);
    assert_eq!(tests_to(&mut agent, 61, 120), 0);
}

#[test]
fn running_out_of_memory_empties_caches_and_no_more() {
    let mut agent = holding();
    tell(
        &mut agent,
        vec![
            (100, fails(ServiceFault::Memory), &["apply FreeMemory"]),
            (200, remedy_done(ServiceRemedy::FreeMemory, None), &[]),
        ],
    );
}

#[test]
fn a_broken_device_means_a_restart_and_a_service_that_is_not_ours_is_given_up() {
    let mut ours = holding();
    tell(
        &mut ours,
        vec![
            (100, fails(ServiceFault::Device), &["apply Restart", "0 slots"]),
            (200, remedy_done(ServiceRemedy::Restart, None), &["check"]),
            (300, self_tested(None), &["1 slots"]),
        ],
    );
    let mut not_ours = holding();
    tell(
        &mut not_ours,
        vec![
            (100, fails(ServiceFault::Device), &["apply Restart", "0 slots"]),
            (200, remedy_done(ServiceRemedy::Restart, Some("we did not start it")), &[]),
            (60_200, AgentEvent::Tick, &["check"]),
            (60_300, self_tested(Some("still broken")), &[]),
            (120_300, AgentEvent::Tick, &["check"]),
            (120_400, self_tested(None), &["1 slots"]),
        ],
    );
}

/// Faults: V11.
#[test]
fn the_ladder_is_climbed_and_ends() {
    let mut agent = holding();
    agent.step(at(90), fails(ServiceFault::Device));
    let mut now = 100;
    let mut restarts = 1;
    loop {
        let effects = told(&agent.step(at(now), remedy_done(ServiceRemedy::Restart, None)));
        assert!(effects.contains(&"check".to_owned()), "{effects:?}");
        let effects = told(&agent.step(at(now + 10), self_tested(Some("no"))));
        if !effects.contains(&"apply Restart".to_owned()) {
            break;
        }
        (restarts, now) = (restarts + 1, now + 1000);
    }
    assert_eq!(restarts, 3, "then it is given up");
    assert!(agent.health.closed_reason().unwrap().contains("3 restarts did not help"));
}

/// Faults: V14.
#[test]
fn three_questions_without_an_answer_pause_new_work_until_one_is_answered() {
    let mut agent = holding();
    let unanswered = || AgentEvent::Probed {
        job: id(1),
        attempt: Attempt(1),
        incarnation: ServiceIncarnation(1),
        result: ProbeResult::NoAnswer("timed out".to_owned()),
    };
    let runs = AgentEvent::Probed {
        job: id(1),
        attempt: Attempt(1),
        incarnation: ServiceIncarnation(1),
        result: ProbeResult::Running,
    };
    tell(
        &mut agent,
        vec![
            (100, unanswered(), &[]),
            (5100, AgentEvent::Tick, &["probe 1 1"]),
            (5200, unanswered(), &[]),
            (10_200, AgentEvent::Tick, &["probe 1 1"]),
            (10_300, unanswered(), &["0 slots"]),
            (15_300, AgentEvent::Tick, &["probe 1 1"]),
            (15_400, runs, &["1 slots"]),
        ],
    );
}

/// Faults: V16.
#[test]
fn a_full_disk_closes_the_worker_until_there_is_room() {
    tell(
        &mut holding(),
        vec![
            (100, fails(ServiceFault::Disk), &["0 slots"]),
            (60_100, AgentEvent::Tick, &["check"]),
            (60_200, self_tested(None), &["1 slots"]),
        ],
    );
}

/// Faults: V11.
#[test]
fn what_cannot_be_stopped_makes_the_service_sick() {
    let mut agent = holding();
    let cancel = CancelOrder { job: id(1), attempt: Attempt(1), reason: "stuck".to_owned() };
    let seq = agent.seq;
    agent.step(at(0), reply(seq, BeatReply { cancel: vec![cancel], ..BeatReply::default() }));
    let runs = || AgentEvent::Probed {
        job: id(1),
        attempt: Attempt(1),
        incarnation: ServiceIncarnation(1),
        result: ProbeResult::Running,
    };
    let mut treated_at = None;
    for second in 1..60 {
        let effects = told(&agent.step(at(second * 1000), AgentEvent::Tick));
        let effects = [effects, told(&agent.step(at(second * 1000 + 1), runs()))].concat();
        if effects.contains(&"apply FreeMemory".to_owned()) {
            treated_at = Some(second);
            break;
        }
    }
    assert_eq!(treated_at, Some(30));
    // A check would wait behind it, however long.
    let effects = told(&agent.step(at(30_100), remedy_done(ServiceRemedy::FreeMemory, None)));
    assert!(effects.contains(&"apply Restart".to_owned()), "{effects:?}");
}

#[test]
fn a_service_in_which_work_waits_and_nothing_runs_is_sick() {
    let waits = |ahead| AgentEvent::Probed {
        job: id(1),
        attempt: Attempt(1),
        incarnation: ServiceIncarnation(1),
        result: ProbeResult::Pending { ahead },
    };
    tell(
        &mut holding(),
        vec![
            (100, waits(None), &[]),
            (30_100, waits(Some(7)), &[]),
            (60_200, waits(None), &[]),
            (120_100, waits(None), &[]),
            (120_200, waits(None), &["apply FreeMemory", "0 slots"]),
            (121_000, remedy_done(ServiceRemedy::FreeMemory, None), &["check"]),
            (151_000, self_tested(Some("nothing runs")), &["apply Restart"]),
        ],
    );
}

/// Faults: V13.
#[test]
fn queue_behind_a_long_run_of_ours_has_not_stalled_while_it_makes_progress() {
    let waits = |ahead| AgentEvent::Probed {
        job: id(1),
        attempt: Attempt(1),
        incarnation: ServiceIncarnation(1),
        result: ProbeResult::Pending { ahead },
    };
    let progress =
        |progress| AgentEvent::Signal { job: id(2), attempt: Attempt(1), progress, phase: String::new() };
    let mut agent = agent(2);
    agent.step(at(0), AgentEvent::Started { found: vec![], incarnation: ServiceIncarnation(1) });
    agent.step(at(0), joined());
    let orders = BeatReply { start: vec![start(1, 1), start(2, 1)], ..BeatReply::default() };
    agent.step(at(0), reply(1, orders));
    agent.step(at(0), submitted(SubmitOutcome::Accepted));
    let is_repair =
        |effects: &[AgentEffect]| effects.iter().any(|it| matches!(it, AgentEffect::ApplyRemedy(_)));
    for minute in 0..120_u16 {
        let now = at(u64::from(minute) * 60_000);
        agent.step(now, progress(f32::from(minute) / 120.0));
        assert!(!is_repair(&agent.step(now, waits(Some(7)))), "after {minute} minutes");
    }
    let an_hour_later = at(181 * 60_000);
    assert!(is_repair(&agent.step(an_hour_later, waits(Some(7)))), "nothing moved for an hour");
}

#[test]
fn what_is_lost_when_we_restart_its_service_did_not_take_it_down() {
    let died = |incarnation| AgentEvent::Probed {
        job: id(1),
        attempt: Attempt(1),
        incarnation: ServiceIncarnation(incarnation),
        result: ProbeResult::Unknown,
    };
    for (is_restarted, fault) in [(false, ServiceFault::Died), (true, ServiceFault::Lost)] {
        let mut agent = holding();
        if is_restarted {
            agent.step(at(10), self_tested(Some("nothing runs")));
            let effects =
                told(&agent.step(at(20), remedy_done(ServiceRemedy::FreeMemory, Some("no answer"))));
            assert!(effects.contains(&"apply Restart".to_owned()), "{effects:?}");
        }
        agent.step(at(5000), died(2));
        agent.step(at(10_000), AgentEvent::Tick);
        let effects = agent.step(at(10_010), died(2));
        let faults = effects.iter().filter_map(|effect| match effect {
            AgentEffect::Beat { beat, .. } => beat.finished.first()?.fault,
            _ => None,
        });
        assert_eq!(faults.collect::<Vec<_>>(), [fault]);
    }
}

/// Faults: J8.
#[test]
fn exited_service_restarts_and_its_attempt_is_suspect_unless_it_was_killed() {
    for (how, fault) in [
        (ServiceExit::Crashed, ServiceFault::Crashed),
        (ServiceExit::Killed, ServiceFault::Killed),
        (ServiceExit::Unknown, ServiceFault::Died),
    ] {
        let mut agent = holding();
        let ended = news(ServiceEvent::Exited { why: "Segmentation fault".to_owned(), how });
        assert!(told(&agent.step(at(10), ended)).contains(&"apply Restart".to_owned()));
        let lost = || AgentEvent::Probed {
            job: id(1),
            attempt: Attempt(1),
            incarnation: ServiceIncarnation(2),
            result: ProbeResult::Unknown,
        };
        agent.step(at(5000), lost());
        agent.step(at(10_000), AgentEvent::Tick);
        agent.step(at(10_010), lost());
        let finished = agent.finished.values().next().unwrap();
        assert_eq!(finished.fault, Some(fault), "{how:?}");
    }
}

#[test]
fn a_change_of_what_it_has_is_told_until_it_is_heard() {
    let mut agent = holding();
    let offer = Capabilities { vram_bytes: Some(8 << 30), ..Capabilities::default() };
    let told_offer = |effects: &[AgentEffect]| {
        effects.iter().any(|effect| matches!(effect, AgentEffect::Beat { beat, .. } if beat.offer.is_some()))
    };
    assert!(told_offer(&agent.step(at(10), AgentEvent::CapabilitiesChanged(Box::new(offer.clone())))));
    let seq = agent.seq;
    let lost =
        AgentEvent::CallFailed { seq: Some(seq), why: CallError::Unreachable("cut".to_owned()), jitter: 0 };
    agent.step(at(20), lost);
    assert!(told_offer(&agent.step(at(200), AgentEvent::Tick)), "the first time was lost");
    let seq = agent.seq;
    assert!(!told_offer(&agent.step(at(300), reply(seq, BeatReply::default()))));
    assert!(
        !told_offer(&agent.step(at(400), AgentEvent::CapabilitiesChanged(Box::new(offer)))),
        "nothing new"
    );
}

/// Faults: V11. The plane took a stuck attempt away and gave the same job again: no one waits for the old prompt, but the
/// service that runs it for ever is sick.
#[test]
fn hung_prompt_of_superseded_attempt_makes_its_service_sick() {
    let mut agent = holding();
    agent.step(
        at(1000),
        AgentEvent::Reply {
            seq: agent.seq,
            reply: BeatReply { start: vec![start(1, 2)], ..BeatReply::default() },
        },
    );
    agent.step(at(1001), AgentEvent::Ended { job: id(1), attempt: Attempt(2), outcome: done() });
    let probed = |attempt, result| AgentEvent::Probed {
        job: id(1),
        attempt: Attempt(attempt),
        incarnation: ServiceIncarnation(1),
        result,
    };
    assert!(agent.wake_at() <= at(31_000));
    let effects = told(&agent.step(at(31_000), AgentEvent::Tick));
    assert!(effects.iter().any(|it| it.starts_with("probe 1 1")), "{effects:?}");
    agent.step(at(31_010), probed(1, ProbeResult::NoAnswer("busy".to_owned())));
    assert_eq!(agent.closed_reason(), None, "a timeout is no evidence");
    agent.step(at(41_000), AgentEvent::Tick);
    let effects = told(&agent.step(at(41_010), probed(1, ProbeResult::Running)));
    assert!(agent.closed_reason().is_some(), "{effects:?}");
    let freed = ServiceEvent::RemedyDone { remedy: ServiceRemedy::FreeMemory, problem: None };
    agent.step(at(42_000), AgentEvent::Service(freed));
    assert!(!agent.superseded.is_stuck(at(99_000), Duration::ZERO), "the restart ends it");
}

/// The usual case: the service stops what was cancelled.
#[test]
fn superseded_attempt_that_stopped_says_nothing_about_its_service() {
    let mut agent = holding();
    agent.step(
        at(1000),
        AgentEvent::Reply {
            seq: agent.seq,
            reply: BeatReply { start: vec![start(1, 2)], ..BeatReply::default() },
        },
    );
    agent.step(at(31_000), AgentEvent::Tick);
    let probed = AgentEvent::Probed {
        job: id(1),
        attempt: Attempt(1),
        incarnation: ServiceIncarnation(1),
        result: ProbeResult::Interrupted,
    };
    agent.step(at(31_010), probed);
    assert_eq!((agent.closed_reason(), agent.held.len()), (None, 1));
}

/// Faults: V8.
#[test]
fn failed_self_test_belongs_to_the_process_in_which_it_began() {
    let incarnation_of = |result: SelfTestResult| {
        let (began_in, current) = (ServiceIncarnation(1), ServiceIncarnation(2));
        match ServiceEvent::self_tested(began_in, current, result, None) {
            ServiceEvent::SelfTested { incarnation, .. } => incarnation.0,
            other => panic!("{other:?}"),
        }
    };
    let failed = SelfTestResult::Failed("no answer".to_owned());
    assert_eq!((incarnation_of(SelfTestResult::Passed), incarnation_of(failed)), (2, 1));
}
