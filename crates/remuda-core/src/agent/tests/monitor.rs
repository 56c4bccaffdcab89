//! An attempt and the service that has it.

use super::*;
use crate::service::{ServiceFailure, ServiceFault};

fn probed(result: ProbeResult) -> AgentEvent {
    AgentEvent::Probed { job: id(1), attempt: Attempt(1), incarnation: ServiceIncarnation(1), result }
}

fn no_answer() -> ProbeResult {
    ProbeResult::NoAnswer("timed out".to_owned())
}

fn succeeded() -> ProbeResult {
    ProbeResult::Succeeded { outputs: json(r#"{"3":{"images":[]}}"#) }
}

/// An agent that has just handed attempt 1 to its service.
fn handing_in() -> Agent {
    let mut agent = agent(1);
    agent.step(at(0), AgentEvent::Started { found: vec![], incarnation: ServiceIncarnation(1) });
    agent.step(at(0), joined());
    agent.step(at(0), reply(1, BeatReply { start: vec![start(1, 1)], ..BeatReply::default() }));
    agent
}

/// Beats say little here: what is done about the attempt is told alone, and how it ended.
fn tell(agent: &mut Agent, story: Vec<(u64, AgentEvent, &[&str])>) {
    for (millis, event, expected) in story {
        let shown = format!("{event:?}");
        let effects = agent.step(at(millis), event);
        let mut done: Vec<_> = told(&effects).into_iter().filter(|it| !it.starts_with("beat")).collect();
        done.extend(effects.iter().filter_map(ending));
        assert_eq!(done, expected, "after {shown} at {millis} ms");
    }
}

fn ending(effect: &AgentEffect) -> Option<String> {
    let AgentEffect::Beat { beat, .. } = effect else { return None };
    let finished = beat.finished.first()?;
    let fault = finished.fault.map(|fault| format!(" ({fault})")).unwrap_or_default();
    Some(format!("{:?}{fault}", finished.outcome).to_lowercase())
}

/// Faults: V1, W3.
#[test]
fn an_attempt_is_asked_about_right_after_it_was_handed_in_and_then_after_every_silence() {
    let mut agent = handing_in();
    tell(
        &mut agent,
        vec![
            (10, submitted(SubmitOutcome::Accepted), &["probe 1 1"]),
            (15, probed(ProbeResult::Running), &[]),
            (30_014, AgentEvent::Tick, &[]),
            (30_015, AgentEvent::Tick, &["probe 1 1"]),
            (30_020, probed(ProbeResult::Running), &["reopen"]),
            (60_019, AgentEvent::Tick, &[]),
            (60_020, AgentEvent::Tick, &["probe 1 1"]),
            (60_030, probed(succeeded()), &["collect 1 1"]),
            (60_031, AgentEvent::CompletionHint { job: id(1), attempt: Attempt(1) }, &[]),
            (60_040, AgentEvent::Ended { job: id(1), attempt: Attempt(1), outcome: done() }, &["completed"]),
        ],
    );
}

/// Faults: V23.
#[test]
fn what_is_heard_of_an_attempt_before_it_was_taken_is_asked_about_afterwards() {
    let completion_hint = || AgentEvent::CompletionHint { job: id(1), attempt: Attempt(1) };
    let mut agent = handing_in();
    tell(
        &mut agent,
        vec![
            (5, completion_hint(), &[]),
            (10, submitted(SubmitOutcome::Accepted), &["probe 1 1"]),
            (15, probed(ProbeResult::Running), &["probe 1 1"]),
            (20, probed(succeeded()), &["collect 1 1"]),
        ],
    );
    // Half a workflow was taken back: what was heard of that half says nothing.
    let mut agent = handing_in();
    let refused = SubmitOutcome::Refused(ServiceFailure::new(ServiceFault::Graph, "half of it is wrong"));
    tell(&mut agent, vec![(5, completion_hint(), &[]), (10, submitted(refused), &["failed (graph)"])]);
}

#[test]
fn any_message_restarts_silence() {
    let mut agent = handing_in();
    let signal = AgentEvent::Signal { job: id(1), attempt: Attempt(1), progress: 0.5, phase: String::new() };
    tell(
        &mut agent,
        vec![
            (10, submitted(SubmitOutcome::Accepted), &["probe 1 1"]),
            (15, probed(ProbeResult::Running), &[]),
            (29_000, signal, &[]),
            (58_999, AgentEvent::Tick, &[]),
            (59_000, AgentEvent::Tick, &["probe 1 1"]),
        ],
    );
}

/// Faults: V14.
#[test]
fn no_answer_is_no_evidence_however_often() {
    let mut agent = handing_in();
    agent.step(at(10), submitted(SubmitOutcome::Accepted));
    for n in 0..100 {
        let now = 20 + n * 5000;
        tell(
            &mut agent,
            vec![(now, probed(no_answer()), &[]), (now + 5000, AgentEvent::Tick, &["probe 1 1"])],
        );
    }
    assert!(agent.held.contains_key(&id(1)));
}

/// Faults: V7.
#[test]
fn done_is_said_before_it_is_written_down() {
    let mut agent = handing_in();
    let said = || AgentEvent::CompletionHint { job: id(1), attempt: Attempt(1) };
    tell(
        &mut agent,
        vec![
            (10, submitted(SubmitOutcome::Accepted), &["probe 1 1"]),
            (12, said(), &[]),
            (15, probed(ProbeResult::Running), &["probe 1 1"]),
            (20, probed(ProbeResult::Unknown), &[]),
            (60, AgentEvent::Tick, &["probe 1 1"]),
            (61, probed(succeeded()), &["collect 1 1"]),
        ],
    );
}

/// Faults: V9.
#[test]
fn what_the_service_does_not_know_is_looked_for_twice() {
    let mut agent = handing_in();
    tell(
        &mut agent,
        vec![
            (10, submitted(SubmitOutcome::Accepted), &["probe 1 1"]),
            (20, probed(ProbeResult::Unknown), &[]),
            (5019, AgentEvent::Tick, &[]),
            (5020, AgentEvent::Tick, &["probe 1 1"]),
            (5030, probed(ProbeResult::Unknown), &["failed (lost)"]),
        ],
    );
}

/// Faults: V9.
#[test]
fn an_answer_that_took_its_time_is_no_second_look() {
    let mut agent = handing_in();
    let said = || AgentEvent::CompletionHint { job: id(1), attempt: Attempt(1) };
    tell(
        &mut agent,
        vec![
            (10, submitted(SubmitOutcome::Accepted), &["probe 1 1"]),
            (12, AgentEvent::Service(ServiceEvent::SocketOpened { incarnation: ServiceIncarnation(1) }), &[]),
            (20, probed(ProbeResult::Unknown), &["probe 1 1"]),
            (9000, said(), &[]),
            // Asked at 20 ms, in the same moment as the first.
            (9010, probed(ProbeResult::Unknown), &["probe 1 1"]),
            (9020, probed(succeeded()), &["collect 1 1"]),
        ],
    );
}

/// Faults: V9.
#[test]
fn one_miss_between_two_sightings_counts_for_nothing() {
    let mut agent = handing_in();
    tell(
        &mut agent,
        vec![
            (10, submitted(SubmitOutcome::Accepted), &["probe 1 1"]),
            (20, probed(ProbeResult::Unknown), &[]),
            (5020, AgentEvent::Tick, &["probe 1 1"]),
            (5030, probed(ProbeResult::Running), &[]),
            (30_010, AgentEvent::Tick, &["probe 1 1"]),
            (30_020, probed(ProbeResult::Unknown), &[]),
        ],
    );
}

/// Faults: W7, W8. World 1400017599: the answer to a question from before the attempt was submitted came late, and the question
/// that it led to put off the reopening of a mute socket.
#[test]
fn other_questions_do_not_put_off_the_one_that_reopens_a_mute_socket() {
    let opened = || AgentEvent::Service(ServiceEvent::SocketOpened { incarnation: ServiceIncarnation(1) });
    let mut agent = handing_in();
    tell(
        &mut agent,
        vec![
            (10, submitted(SubmitOutcome::Accepted), &["probe 1 1"]),
            (20, probed(ProbeResult::Running), &[]),
            (15_000, probed(ProbeResult::Unknown), &[]),
            (20_000, AgentEvent::Tick, &["probe 1 1"]),
            (20_010, probed(ProbeResult::Running), &[]),
            (30_019, AgentEvent::Tick, &[]),
            (30_020, AgentEvent::Tick, &["probe 1 1"]),
            (30_030, probed(ProbeResult::Running), &["reopen"]),
            // The question about the new socket puts off nothing either, and a silence that falls into it is asked about once.
            (60_025, opened(), &["probe 1 1"]),
            (60_030, AgentEvent::Tick, &[]),
            (60_040, probed(ProbeResult::Running), &["probe 1 1"]),
            (60_050, AgentEvent::Tick, &[]),
            (60_060, probed(ProbeResult::Running), &["reopen"]),
            (60_070, AgentEvent::Tick, &[]),
        ],
    );
}

/// Faults: W7, V14. The question after a silence was not answered, nor in time: the next answer is followed by it again.
#[test]
fn silence_whose_question_got_no_answer_is_asked_about_again() {
    let mut agent = handing_in();
    tell(
        &mut agent,
        vec![
            (10, submitted(SubmitOutcome::Accepted), &["probe 1 1"]),
            (20, probed(ProbeResult::Running), &[]),
            (30_020, AgentEvent::Tick, &["probe 1 1"]),
            (30_030, probed(no_answer()), &[]),
            (35_030, AgentEvent::Tick, &["probe 1 1"]),
            (35_040, probed(ProbeResult::Running), &[]),
            (35_041, AgentEvent::Tick, &["probe 1 1"]),
            (35_050, probed(ProbeResult::Running), &["reopen"]),
        ],
    );
}

/// Faults: V8.
#[test]
fn restarted_service_is_asked_twice_before_the_attempt_is_lost() {
    let restarted = || AgentEvent::Probed {
        job: id(1),
        attempt: Attempt(1),
        incarnation: ServiceIncarnation(2),
        result: ProbeResult::Unknown,
    };
    let until_missed = || {
        let mut agent = handing_in();
        let closed = AgentEvent::Service(ServiceEvent::SocketClosed { why: "reset".to_owned() });
        tell(
            &mut agent,
            vec![
                (10, submitted(SubmitOutcome::Accepted), &["probe 1 1"]),
                (15, probed(ProbeResult::Running), &[]),
                (20, closed, &["probe 1 1"]),
                (30, probed(no_answer()), &[]),
                (5030, AgentEvent::Tick, &["probe 1 1"]),
                (5040, restarted(), &[]),
                (10_040, AgentEvent::Tick, &["probe 1 1"]),
            ],
        );
        agent
    };
    tell(&mut until_missed(), vec![(10_050, restarted(), &["failed (died)"])]);
    // Its history was cleared, which looks like a restart, and it wrote the entry while it was asked.
    tell(&mut until_missed(), vec![(10_050, probed(succeeded()), &["collect 1 1"])]);
}

/// Faults: V8.
#[test]
fn a_service_that_is_gone_twice_took_it_along() {
    let gone = || probed(ProbeResult::Gone("connection refused".to_owned()));
    let mut agent = handing_in();
    tell(
        &mut agent,
        vec![
            (10, submitted(SubmitOutcome::Accepted), &["probe 1 1"]),
            (15, probed(ProbeResult::Running), &[]),
            (20, AgentEvent::Service(ServiceEvent::SocketClosed { why: "reset".to_owned() }), &["probe 1 1"]),
            (30, gone(), &[]),
            (5030, AgentEvent::Tick, &["probe 1 1"]),
            (5040, gone(), &["failed (died)"]),
        ],
    );
}

/// Faults: V3.
#[test]
fn a_submission_whose_answer_was_lost_is_looked_for_before_it_is_sent_again() {
    let mut agent = handing_in();
    let unsure = || submitted(SubmitOutcome::Unconfirmed("connection reset".to_owned()));
    tell(
        &mut agent,
        vec![
            (10, unsure(), &["probe 1 1"]),
            (20, probed(ProbeResult::Unknown), &[]),
            (5020, AgentEvent::Tick, &["probe 1 1"]),
            (5030, probed(ProbeResult::Unknown), &["run 1 1"]),
            (5040, unsure(), &["probe 1 1"]),
            (5050, probed(ProbeResult::Pending { ahead: None }), &[]),
            (
                5060,
                AgentEvent::Service(ServiceEvent::SocketOpened { incarnation: ServiceIncarnation(1) }),
                &["probe 1 1"],
            ),
            (5070, probed(ProbeResult::Unknown), &[]),
            (10_070, AgentEvent::Tick, &["probe 1 1"]),
            // It was seen there: what vanished after that is lost, not handed in a third time.
            (10_080, probed(ProbeResult::Unknown), &["failed (lost)"]),
        ],
    );
}

#[test]
fn what_the_service_speaks_of_is_there_and_is_not_handed_in_again() {
    let mut agent = handing_in();
    let said = || AgentEvent::CompletionHint { job: id(1), attempt: Attempt(1) };
    tell(
        &mut agent,
        vec![
            (10, submitted(SubmitOutcome::Unconfirmed("connection reset".to_owned())), &["probe 1 1"]),
            (20, probed(ProbeResult::Unknown), &[]),
            (4000, said(), &["probe 1 1"]),
            // It is done, and not written down yet.
            (4020, probed(ProbeResult::Unknown), &[]),
            (4060, AgentEvent::Tick, &["probe 1 1"]),
            (5080, probed(ProbeResult::Unknown), &[]),
            (5160, AgentEvent::Tick, &["probe 1 1"]),
            (5170, probed(succeeded()), &["collect 1 1"]),
        ],
    );
}

#[test]
fn a_refused_submission_fails_with_its_fault() {
    let refused =
        submitted(SubmitOutcome::Refused(ServiceFailure::new(ServiceFault::Graph, "node 3: no input")));
    tell(&mut handing_in(), vec![(10, refused, &["failed (graph)"])]);
}

#[test]
fn what_was_told_to_stop_is_looked_after_until_it_has() {
    let cancel = || CancelOrder { job: id(1), attempt: Attempt(1), reason: "not wanted".to_owned() };
    let mut agent = handing_in();
    let seq = agent.seq;
    tell(
        &mut agent,
        vec![
            (5, reply(seq, BeatReply { cancel: vec![cancel()], ..BeatReply::default() }), &["cancel 1 1"]),
            (10, submitted(SubmitOutcome::Accepted), &["cancel 1 1", "probe 1 1"]),
            (20, probed(ProbeResult::Running), &[]),
            (270, AgentEvent::Tick, &["probe 1 1"]),
            (280, probed(ProbeResult::Interrupted), &["cancelled"]),
        ],
    );
}

/// Faults: V13.
#[test]
fn what_was_told_to_stop_and_may_still_be_on_its_way_is_looked_for_twice() {
    let cancel = || CancelOrder { job: id(1), attempt: Attempt(1), reason: "not wanted".to_owned() };
    let unsure = || submitted(SubmitOutcome::Unconfirmed("connection reset".to_owned()));
    for (unknown_recheck, then) in [
        (ProbeResult::Unknown, &["cancelled"] as &[&str]),
        (ProbeResult::Pending { ahead: None }, &["cancel 1 1"]),
    ] {
        let mut agent = handing_in();
        let seq = agent.seq;
        tell(
            &mut agent,
            vec![
                (
                    5,
                    reply(seq, BeatReply { cancel: vec![cancel()], ..BeatReply::default() }),
                    &["cancel 1 1"],
                ),
                (10, unsure(), &["cancel 1 1", "probe 1 1"]),
                (20, probed(ProbeResult::Unknown), &[]),
                (5020, AgentEvent::Tick, &["probe 1 1"]),
                (5030, probed(unknown_recheck), then),
            ],
        );
    }
}

#[test]
fn waiting_behind_other_work_is_not_stuck() {
    let mut agent = handing_in();
    agent.step(at(10), submitted(SubmitOutcome::Accepted));
    let step = |agent: &Agent| agent.held[&id(1)].step;
    agent.step(at(20), probed(ProbeResult::Pending { ahead: Some(7) }));
    assert_eq!(step(&agent), 1);
    agent.step(at(30_020), AgentEvent::Tick);
    agent.step(at(30_030), probed(ProbeResult::Pending { ahead: Some(7) }));
    assert_eq!(step(&agent), 2);
    agent.step(at(3_700_000), AgentEvent::Tick);
    agent.step(at(3_700_010), probed(ProbeResult::Pending { ahead: Some(7) }));
    assert_eq!(step(&agent), 2, "no item may run for so long");
    agent.step(at(3_800_000), AgentEvent::Tick);
    agent.step(at(3_800_010), probed(ProbeResult::Pending { ahead: None }));
    assert_eq!(step(&agent), 2, "nothing runs there, and still it waits");
}

/// Faults: J12, W7.
#[test]
fn socket_is_reopened_soon_if_nothing_is_heard_of_an_adopted_attempt() {
    let mut agent = agent(1);
    let found = vec![FoundAttempt { job: id(1), attempt: Attempt(1) }];
    let opened = || AgentEvent::Service(ServiceEvent::SocketOpened { incarnation: ServiceIncarnation(1) });
    let signal = AgentEvent::Signal { job: id(1), attempt: Attempt(1), progress: 0.5, phase: String::new() };
    tell(
        &mut agent,
        vec![
            (0, AgentEvent::Started { found, incarnation: ServiceIncarnation(1) }, &["join holding 1"]),
            (1, joined(), &[]),
            (2, reply(1, BeatReply::default()), &["probe 1 1"]),
            (3, probed(ProbeResult::Running), &[]),
            (5_002, AgentEvent::Tick, &[]),
            (5_003, AgentEvent::Tick, &["reopen"]),
            // Quiet work is not a reason to reopen it again and again.
            (5_010, opened(), &["probe 1 1"]),
            (5_020, probed(ProbeResult::Running), &[]),
            (20_000, AgentEvent::Tick, &[]),
            (20_001, signal, &[]),
            (20_002, opened(), &["probe 1 1"]),
            (20_003, probed(ProbeResult::Running), &[]),
            (25_003, AgentEvent::Tick, &["reopen"]),
        ],
    );
}

/// Faults: J12.
#[test]
fn progress_that_cannot_be_heard_is_not_missing() {
    let mut agent = handing_in();
    let steps = |agent: &Agent| agent.held[&id(1)].step;
    agent.step(at(10), submitted(SubmitOutcome::Accepted));
    agent.step(at(20), probed(ProbeResult::Running));
    let heard = steps(&agent);
    agent.step(at(30), AgentEvent::Service(ServiceEvent::SocketClosed { why: "refused".to_owned() }));
    agent.step(at(40), probed(ProbeResult::Running));
    let unheard = steps(&agent);
    assert!(unheard > heard, "a run on a server without a socket would be called stuck");
    agent.step(at(3_600_040), AgentEvent::Tick);
    agent.step(at(3_600_050), probed(ProbeResult::Running));
    assert_eq!(steps(&agent), unheard, "an hour without any sign of progress is too long");
}
