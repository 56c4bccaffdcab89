//! A self-test that waits behind real work, and a cancellation that a silent service never received.

use super::*;
use crate::service::{SelfTestResult, ServiceState};

fn service(event: ServiceEvent) -> AgentEvent {
    AgentEvent::Service(event)
}

fn queued(incarnation: u64) -> AgentEvent {
    service(ServiceEvent::SelfTested {
        incarnation: ServiceIncarnation(incarnation),
        result: SelfTestResult::Queued("it waits behind other work".to_owned()),
        offer: None,
    })
}

fn probed(result: ProbeResult) -> AgentEvent {
    AgentEvent::Probed { job: id(1), attempt: Attempt(1), incarnation: ServiceIncarnation(2), result }
}

fn progress() -> AgentEvent {
    AgentEvent::Signal { job: id(1), attempt: Attempt(1), progress: 0.1, phase: String::new() }
}

/// The socket breaks and opens at what looks like a new process: a self-test begins at 200 ms.
fn in_test() -> Agent {
    let mut agent = holding();
    agent.step(at(100), service(ServiceEvent::SocketClosed { why: "reset".to_owned() }));
    let opened = ServiceEvent::SocketOpened { incarnation: ServiceIncarnation(2) };
    let effects = told(&agent.step(at(200), service(opened)));
    assert!(effects.contains(&"check".to_owned()), "{effects:?}");
    agent.step(at(210), probed(ProbeResult::Running));
    agent
}

fn remedies(effects: &[AgentEffect]) -> Vec<String> {
    told(effects).into_iter().filter(|it| it == "check" || it.starts_with("apply")).collect()
}

/// World 2300055558: a healthy server was out of service for the hour that one run took.
#[test]
fn self_test_behind_an_attempt_that_makes_progress_has_passed() {
    let mut agent = in_test();
    agent.step(at(20_000), progress());
    assert_eq!(remedies(&agent.step(at(30_200), queued(2))), [""; 0]);
    assert_eq!(agent.closed_reason(), None);
}

#[test]
fn self_test_behind_an_attempt_that_runs_in_silence_is_repeated_and_nothing_is_restarted() {
    let mut agent = in_test();
    for test in 1..60 {
        assert_eq!(remedies(&agent.step(at(30_200 * test), queued(2))), ["check"], "test {test}");
        assert_eq!(agent.closed_reason(), Some("the service restarted"));
    }
}

#[test]
fn self_test_behind_a_cancelled_attempt_or_one_that_waits_itself_has_failed() {
    let mut pending = in_test();
    pending.step(at(300), probed(ProbeResult::Pending { ahead: Some(7) }));
    let mut cancelled = in_test();
    let cancel = CancelOrder { job: id(1), attempt: Attempt(1), reason: "by its client".to_owned() };
    let seq = cancelled.seq;
    cancelled.step(at(300), reply(seq, BeatReply { cancel: vec![cancel], ..BeatReply::default() }));
    cancelled.step(at(400), progress());
    for mut agent in [pending, cancelled] {
        assert_eq!(remedies(&agent.step(at(30_200), queued(2))), ["apply FreeMemory"]);
    }
}

/// When the first remedy begins, if the service is silent until `silent_for` and has the cancelled attempt from then on.
fn treated_at(silent_for: u64, still_there: &ProbeResult) -> Option<u64> {
    let mut agent = holding();
    let cancel = CancelOrder { job: id(1), attempt: Attempt(1), reason: "by its client".to_owned() };
    let seq = agent.seq;
    agent.step(at(0), reply(seq, BeatReply { cancel: vec![cancel], ..BeatReply::default() }));
    (1..200).find(|second| {
        agent.step(at(second * 1000), AgentEvent::Tick);
        let is_silent = *second < silent_for;
        let result =
            if is_silent { ProbeResult::NoAnswer("timed out".to_owned()) } else { still_there.clone() };
        !remedies(&agent.step(at(second * 1000 + 1), probed(result))).is_empty()
    })
}

/// World 2300023360: the service was mute for 24 s, and the cancellation was lost.
#[test]
fn cancellation_that_a_silent_service_may_not_have_received_is_not_ignored() {
    let pending = ProbeResult::Pending { ahead: Some(7) };
    assert_eq!(pending.state(), ServiceState::Pending);
    for still_there in [pending, ProbeResult::Running] {
        assert_eq!(treated_at(0, &still_there), Some(30), "it answers at once");
        assert_eq!(treated_at(25, &still_there), Some(55), "30 s after its first answer");
    }
}

#[test]
fn service_that_is_silent_for_as_long_as_a_cancellation_may_take_is_sick() {
    assert_eq!(treated_at(100, &ProbeResult::Running), Some(31));
}
