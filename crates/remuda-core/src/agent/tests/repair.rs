//! A service that is out of reach or sick.

use super::*;
use crate::service::{Failure, Fault};

fn news(news: News) -> AgentEvent {
    AgentEvent::Service(news)
}

fn treated(remedy: Remedy, problem: Option<&str>) -> AgentEvent {
    news(News::Treated { remedy, problem: problem.map(str::to_owned) })
}

fn checked(problem: Option<&str>) -> AgentEvent {
    news(News::Checked { life: ServiceLife(1), problem: problem.map(str::to_owned), offer: None })
}

fn opened(life: u64) -> AgentEvent {
    news(News::SocketOpened { life: ServiceLife(life) })
}

fn closed() -> AgentEvent {
    news(News::SocketClosed { why: "reset".to_owned() })
}

fn fails(fault: Fault) -> AgentEvent {
    AgentEvent::Probed {
        job: id(1),
        attempt: Attempt(1),
        life: ServiceLife(1),
        seen: Seen::Failed(Failure::new(fault, "it says")),
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
        agent.step(at(millis), reply(seq, Reply { settled: vec![settled(1)], ..Reply::default() }));
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
fn a_service_in_a_new_life_shows_that_it_works_first() {
    tell(
        &mut holding(),
        vec![(100, closed(), &["0 slots"]), (200, opened(2), &["check"]), (300, checked(None), &["1 slots"])],
    );
}

#[test]
fn running_out_of_memory_empties_caches_and_no_more() {
    let mut agent = holding();
    tell(
        &mut agent,
        vec![(100, fails(Fault::Memory), &["treat Free"]), (200, treated(Remedy::Free, None), &[])],
    );
}

#[test]
fn a_broken_device_means_a_restart_and_a_service_that_is_not_ours_is_given_up() {
    let mut ours = holding();
    tell(
        &mut ours,
        vec![
            (100, fails(Fault::Device), &["treat Restart", "0 slots"]),
            (200, treated(Remedy::Restart, None), &["check"]),
            (300, checked(None), &["1 slots"]),
        ],
    );
    let mut not_ours = holding();
    tell(
        &mut not_ours,
        vec![
            (100, fails(Fault::Device), &["treat Restart", "0 slots"]),
            (200, treated(Remedy::Restart, Some("we did not start it")), &[]),
            (60_200, AgentEvent::Tick, &["check"]),
            (60_300, checked(Some("still broken")), &[]),
            (120_300, AgentEvent::Tick, &["check"]),
            (120_400, checked(None), &["1 slots"]),
        ],
    );
}

/// Faults: V11.
#[test]
fn the_ladder_is_climbed_and_ends() {
    let mut agent = holding();
    agent.step(at(90), fails(Fault::Device));
    let mut now = 100;
    let mut restarts = 1;
    loop {
        let effects = told(&agent.step(at(now), treated(Remedy::Restart, None)));
        assert!(effects.contains(&"check".to_owned()), "{effects:?}");
        let effects = told(&agent.step(at(now + 10), checked(Some("no"))));
        if !effects.contains(&"treat Restart".to_owned()) {
            break;
        }
        (restarts, now) = (restarts + 1, now + 1000);
    }
    assert_eq!(restarts, 3, "then it is given up");
    assert!(agent.health.closed().unwrap().contains("3 restarts did not help"));
}

/// Faults: V14.
#[test]
fn three_questions_without_an_answer_pause_new_work_until_one_is_answered() {
    let mut agent = holding();
    let unanswered = || AgentEvent::Probed {
        job: id(1),
        attempt: Attempt(1),
        life: ServiceLife(1),
        seen: Seen::NoAnswer("timed out".to_owned()),
    };
    let runs =
        AgentEvent::Probed { job: id(1), attempt: Attempt(1), life: ServiceLife(1), seen: Seen::Running };
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
            (100, fails(Fault::Disk), &["0 slots"]),
            (60_100, AgentEvent::Tick, &["check"]),
            (60_200, checked(None), &["1 slots"]),
        ],
    );
}

/// Faults: V11.
#[test]
fn what_cannot_be_stopped_makes_the_service_sick() {
    let mut agent = holding();
    let cancel = Cancel { job: id(1), attempt: Attempt(1), reason: "stuck".to_owned() };
    let seq = agent.seq;
    agent.step(at(0), reply(seq, Reply { cancel: vec![cancel], ..Reply::default() }));
    let runs =
        || AgentEvent::Probed { job: id(1), attempt: Attempt(1), life: ServiceLife(1), seen: Seen::Running };
    let mut treated_at = None;
    for second in 1..60 {
        let effects = told(&agent.step(at(second * 1000), AgentEvent::Tick));
        let effects = [effects, told(&agent.step(at(second * 1000 + 1), runs()))].concat();
        if effects.contains(&"treat Free".to_owned()) {
            treated_at = Some(second);
            break;
        }
    }
    assert_eq!(treated_at, Some(30));
    // A check would wait behind it, however long.
    let effects = told(&agent.step(at(30_100), treated(Remedy::Free, None)));
    assert!(effects.contains(&"treat Restart".to_owned()), "{effects:?}");
}

#[test]
fn a_change_of_what_it_has_is_told_until_it_is_heard() {
    let mut agent = holding();
    let offer = Offer { vram_bytes: Some(8 << 30), ..Offer::default() };
    let told_offer = |effects: &[AgentEffect]| {
        effects.iter().any(|effect| matches!(effect, AgentEffect::Beat { beat, .. } if beat.offer.is_some()))
    };
    assert!(told_offer(&agent.step(at(10), AgentEvent::Offer(Box::new(offer.clone())))));
    let seq = agent.seq;
    let lost =
        AgentEvent::Unanswered { seq: Some(seq), why: Unanswered::Unreachable("cut".to_owned()), luck: 0 };
    agent.step(at(20), lost);
    assert!(told_offer(&agent.step(at(200), AgentEvent::Tick)), "the first time was lost");
    let seq = agent.seq;
    assert!(!told_offer(&agent.step(at(300), reply(seq, Reply::default()))));
    assert!(!told_offer(&agent.step(at(400), AgentEvent::Offer(Box::new(offer)))), "nothing new");
}
