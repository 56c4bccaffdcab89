//! Cuts, copies and crowds (rows N), and how beats tell the living from the dead.

use super::*;
use crate::agent::{Agent, AgentEvent, AgentSettings, AgentTimeouts, CallError};
use crate::service::ServiceIncarnation;

/// Faults: N1.
#[test]
fn a_cut_shorter_than_the_lease_costs_nothing() {
    let mut story = Story::new();
    story.join("a");
    let job = story.submit("s");
    story.join("b");
    story.work_to(29, &["b"]);
    assert_eq!(story.presence("a"), Presence::Suspect);
    assert_eq!(story.complete("a", job), "recorded", "it kept the news until it could deliver it");
    story.is(job, "completed by a");
    assert_eq!(story.presence("a"), Presence::Online);
}

/// Faults: N2.
#[test]
fn a_cut_longer_than_the_lease_requeues_once() {
    let mut story = Story::new();
    story.join("a");
    let job = story.submit("s");
    story.join("b");
    story.work_to(100, &["b"]);
    story.work_to(200, &["a", "b"]);
    story.is(job, "running on b, attempt 2");
    assert_eq!(story.kept.status(job).infra_failures, 1);
    assert!(story.hand("a").held.is_empty());
}

/// Faults: N3.
#[test]
fn a_worker_that_hears_and_is_not_heard_loses_its_job_to_one_that_is() {
    let mut story = Story::new();
    story.join("a");
    story.hand("a").is_mute = true;
    let job = story.submit("s");
    assert!(story.hand("a").held.contains_key(&job), "the order arrived");
    story.join("b");
    story.work_to(60, &["b"]);
    story.is(job, "running on b, attempt 2");
}

/// Faults: N4.
#[test]
fn an_old_copy_of_a_beat_has_no_effect() {
    let mut story = Story::new();
    story.join("a");
    let copy = story.beat_of("a");
    story.send("a", copy.clone(), false).unwrap();
    let job = story.submit("s");
    story.work_to(20, &["a"]);
    let newest = story.hand("a").seq;
    assert_eq!(story.send("a", copy, false).unwrap_err(), Refusal::StaleBeat { newest });
    story.is(job, "running on a, attempt 1");
    assert_eq!(story.plane.refusals.old_beats, 1);
}

/// Faults: N4, C1.
#[test]
fn news_from_before_the_planes_restart_is_no_evidence() {
    let mut story = Story::new();
    story.join("a");
    let mut copy = story.beat_of("a");
    let job = story.submit("s");
    story.work_to(20, &["a"]);
    story.restart();
    copy.seq += 100;
    let event = PlaneEvent::Beat {
        worker: id("a"),
        token_hash: Hash::digest(b"token"),
        beat: Box::new(copy),
        long_poll: true,
    };
    let Ok(PlaneAnswer::Reply(reply)) = story.step(event) else { panic!("it is asked to beat again") };
    assert!(reply.beat_again && reply.term == Term(2));
    assert!(reply.start.is_empty() && reply.cancel.is_empty());
    story.is(job, "running on a, attempt 1");
}

const FLEET: [&str; 4] = ["a", "b", "c", "d"];

/// Four workers with a job each.
fn busy_fleet() -> (Story, Vec<JobId>) {
    let mut story = Story::new();
    FLEET.iter().for_each(|worker| story.join(worker));
    let jobs = FLEET.iter().map(|_| story.submit("s")).collect();
    story.work_to(10, &FLEET);
    story.news("");
    (story, jobs)
}

/// Faults: N5.
#[test]
fn when_most_workers_vanish_together_nothing_is_requeued_until_things_are_calm() {
    let (mut story, jobs) = busy_fleet();
    story.to(100);
    story.are(&jobs, "running");
    assert_eq!(story.news("fleet:"), ["fleet:brake"]);
    story.poll("a");
    story.work_to(129, &["a"]);
    story.are(&jobs, "running");
    story.work_to(135, &["a"]);
    assert_eq!(story.news("fleet:"), ["fleet:brake_released"], "someone was heard, and calm for a lease");
    story.is(jobs[0], "running on a, attempt 1");
    jobs[1..]
        .iter()
        .for_each(|job| assert!(story.kept.status(*job).infra_failures == 1, "now they are judged"));
}

/// Faults: N5.
#[test]
fn lines_that_drop_together_cost_nothing_if_their_workers_return_within_the_lease() {
    let (mut story, jobs) = busy_fleet();
    FLEET.iter().for_each(|worker| drop(story.drop_line(worker).unwrap()));
    story.to(34);
    story.are(&jobs, "running");
    assert_eq!(story.news("fleet:"), [""; 0]);
    story.work_to(120, &FLEET);
    for (job, worker) in jobs.iter().zip(FLEET) {
        story.is(*job, &format!("running on {worker}, attempt 1"));
    }
}

/// Faults: N5.
#[test]
fn after_the_brake_a_single_loss_is_judged_as_ever() {
    let (mut story, jobs) = busy_fleet();
    story.to(40);
    story.work_to(120, &FLEET);
    story.work_to(155, &FLEET[1..]);
    story.is(jobs[0], "queued");
    assert_eq!(story.presence("a"), Presence::Offline);
}

/// Faults: N6.
#[test]
fn everyone_may_return_at_once_with_what_they_hold() {
    let (mut story, jobs) = busy_fleet();
    story.to(25);
    FLEET.iter().for_each(|worker| story.rejoin(worker));
    story.work_to(60, &FLEET);
    for (job, worker) in jobs.iter().zip(FLEET) {
        story.is(*job, &format!("running on {worker}, attempt 1"));
    }
}

/// Faults: N6.
#[test]
fn agents_that_lost_the_plane_together_do_not_come_back_together() {
    let settings = AgentSettings {
        worker: id("a"),
        machine: None,
        fleet: None,
        services: BTreeSet::new(),
        slots: 1,
        offer: Capabilities::default(),
        inactivity: Duration::from_secs(30),
        timeouts: AgentTimeouts::default(),
        deadlines: Default::default(),
    };
    let mut returns = BTreeSet::new();
    for n in 0..100_u128 {
        let mut agent = Agent::new(settings.clone(), Timestamp::ZERO);
        agent.step(
            Timestamp::ZERO,
            AgentEvent::Started { found: Vec::new(), incarnation: ServiceIncarnation(0) },
        );
        let mut now = Timestamp::ZERO;
        for salt in 0..6 {
            let (why, jitter) = (CallError::Unreachable("cut".to_owned()), JobId::from_u128(n).jitter(salt));
            agent.step(now, AgentEvent::CallFailed { seq: None, why, jitter });
            now = agent.wake_at();
            agent.step(now, AgentEvent::Tick);
        }
        returns.insert(now.as_millis() / 100);
    }
    assert!(returns.len() > 20, "100 agents, in tenths of a second: {returns:?}");
}

/// Faults: N7.
#[test]
fn lossy_network_declares_no_worker_dead() {
    let mut story = Story::new();
    story.join("a");
    story.join("b");
    let job = story.submit("s");
    for round in 0..100_u64 {
        // Three beats in a row are lost, the next ones are two seconds late.
        story.to(round * 5 + 2);
        if round % 10 >= 3 {
            story.hand("a").held.values_mut().for_each(|held| held.step += 1);
            story.beat("a").unwrap();
        }
        story.poll("b");
    }
    story.is(job, "running on a, attempt 1");
    assert_eq!(story.plane.worker(&id("a")).unwrap().counts.went_stale, 0);
}

#[test]
fn an_idle_worker_is_offline_after_ninety_seconds_and_not_before() {
    let mut story = Story::new();
    story.join("a");
    story.join("b");
    story.to(44);
    assert_eq!(story.presence("a"), Presence::Online);
    story.poll("b");
    story.to(45);
    assert_eq!(story.presence("a"), Presence::Suspect, "no new work after a beat and a half");
    story.poll("b");
    story.to(89);
    assert_eq!(story.presence("a"), Presence::Suspect);
    story.poll("b");
    story.news("");
    story.to(90);
    assert_eq!(story.presence("a"), Presence::Offline);
    assert_eq!(story.news(""), ["worker:offline a", "machine:state a"]);
    assert_eq!(story.plane.worker(&id("a")).unwrap().watch.seen_at(), secs(0), "our act is no sign of life");
}

#[test]
fn a_busy_worker_is_suspect_after_fifteen_seconds_and_gets_nothing_new() {
    let mut story = Story::new();
    story.join_with("a", |join| join.slots = 2);
    story.submit("s");
    story.to(14);
    assert_eq!(story.presence("a"), Presence::Online);
    story.to(15);
    assert_eq!(story.presence("a"), Presence::Suspect);
    let job = story.submit("s");
    story.is(job, "queued");
    story.poll("a");
    story.is(job, "running on a, attempt 1");
}

#[test]
fn a_machine_is_offline_when_its_last_worker_is_and_back_with_the_first() {
    let mut story = Story::new();
    let host: MachineId = "host".parse().unwrap();
    for worker in ["a", "b"] {
        story.join_with(worker, |join| join.machine = Some(host.clone()));
    }
    story.news("");
    story.leave("a");
    assert_eq!(story.news("machine:"), [""; 0]);
    story.to(90);
    assert_eq!(story.news("machine:"), ["machine:state b"]);
    story.poll("b");
    assert_eq!(story.news("machine:"), ["machine:state b"]);
}

#[test]
fn a_dropped_line_is_a_reason_to_look_closer_and_not_a_verdict() {
    let mut story = Story::new();
    story.join("a");
    let job = story.submit("s");
    story.poll("a");
    story.drop_line("a").unwrap();
    assert_eq!(story.presence("a"), Presence::Online);
    story.to(20);
    assert_eq!(story.presence("a"), Presence::Suspect);
    story.is(job, "running on a, attempt 1");
    story.poll("a");
    assert_eq!(story.presence("a"), Presence::Online);
    story.hand("a").seq += 1;
    story.drop_line("a").unwrap();
    story.hand("a").seq -= 1;
    story.to(30);
    assert_eq!(story.presence("a"), Presence::Online, "a line that was not the newest says nothing");
}

fn join_again(story: &mut Story, nonce: &str) -> Result<PlaneAnswer, Refusal> {
    join_as(story, nonce, None)
}

/// `process`: who sends it, and its number there.
fn join_as(story: &mut Story, nonce: &str, process: Option<(&str, u64)>) -> Result<PlaneAnswer, Refusal> {
    let join = JoinRequest {
        worker: id("a"),
        machine: None,
        fleet: None,
        services: ["exec".parse().unwrap()].into(),
        slots: 1,
        slots_max: None,
        offer: Capabilities::default(),
        incarnation: None,
        stale_after_millis: None,
        nonce: Some(nonce.to_owned()),
        process: process.map(|(process, _)| process.to_owned()),
        join_number: process.map_or(0, |(_, number)| number),
        held: Vec::new(),
    };
    let token_hash = Hash::digest(b"nobody waits for it");
    story.step(PlaneEvent::Join { join: Box::new(join), token_hash, proof: JoinProof::JoinToken })
}

/// Faults: N4, X14.
#[test]
fn copy_of_a_join_changes_nothing_at_once_or_later() {
    let mut story = Story::new();
    story.join_with("a", |join| join.nonce = Some("first".to_owned()));
    let job = story.submit("s");
    story.work_to(10, &["a"]);
    let refused = Err(Refusal::RepeatedJoin(id("a")));
    assert_eq!(join_again(&mut story, "first").map(drop), refused);
    story.work_to(20, &["a"]);
    story.is(job, "running on a, attempt 1");
    // A new process takes over, and the plane starts again: the copies of both joins are known.
    let held: Vec<_> = story.hand("a").held.values().cloned().collect();
    story.join_with("a", |join| (join.nonce, join.held) = (Some("second".to_owned()), held));
    story.restart();
    for nonce in ["first", "second"] {
        assert_eq!(join_again(&mut story, nonce).map(drop), refused);
    }
    story.work_to(40, &["a"]);
    story.is(job, "running on a, attempt 1");
}

/// Faults: N4, X14. No plane has stored the earlier joins: they waited on the way, or the commit failed.
#[test]
fn join_that_arrives_after_a_newer_one_of_its_process_changes_nothing() {
    let mut story = Story::new();
    let number_join = |story: &mut Story, process: &str, number| {
        let held: Vec<_> = story.hands.get("a").map_or(vec![], |it| it.held.values().cloned().collect());
        story.join_with("a", |join| {
            (join.process, join.join_number, join.held) = (Some(process.to_owned()), number, held);
        });
    };
    let refused = Err(Refusal::RepeatedJoin(id("a")));
    number_join(&mut story, "p", 3);
    let job = story.submit("s");
    story.work_to(10, &["a"]);
    assert_eq!(join_as(&mut story, "early", Some(("p", 1))).map(drop), refused);
    story.restart();
    assert_eq!(join_as(&mut story, "earlier", Some(("p", 2))).map(drop), refused);
    // Its next join counts, and so does that of a new process, whose numbers begin again.
    number_join(&mut story, "p", 4);
    number_join(&mut story, "q", 1);
    assert_eq!(story.kept.workers[&id("a")].joined_processes.len(), 2);
    for late in [("p", 2), ("p", 4), ("q", 1)] {
        assert_eq!(join_as(&mut story, "late", Some(late)).map(drop), refused, "{late:?}");
    }
    story.work_to(40, &["a"]);
    story.is(job, "running on a, attempt 1");
}

#[test]
fn only_the_newest_joins_are_remembered() {
    let mut story = Story::new();
    for n in 0..30 {
        story
            .join_with("a", |join| (join.nonce, join.process) = (Some(format!("{n}")), Some(format!("{n}"))));
    }
    assert_eq!(story.kept.workers[&id("a")].join_nonces.len(), 8);
    assert_eq!(story.kept.workers[&id("a")].joined_processes.len(), 8);
    let long = Some("x".repeat(65));
    story.join_with("a", |join| (join.nonce, join.process) = (long.clone(), long));
    assert!(story.kept.workers[&id("a")].join_nonces.iter().all(|nonce| nonce.len() < 65));
    assert!(story.kept.workers[&id("a")].joined_processes.iter().all(|it| it.process.len() < 65));
}
