//! Stories of an agent, told against what the plane would say.

use std::sync::Arc;

use serde_json::value::RawValue;

use super::*;
use crate::cause::Cause;
use crate::service::{
    AttemptEnd, ProbeResult, ServiceEvent, ServiceIncarnation, ServiceRemedy, SubmitOutcome,
};
use crate::wire::{CancelOrder, SettledAttempt};
use crate::workflow::JobKeys;

mod lives;
mod monitor;
mod repair;
mod self_test;
mod shutdown;

pub(crate) use self::lives::{attempt_table, condition_table};

fn at(millis: u64) -> Timestamp {
    Timestamp::from_millis(millis)
}

fn id(n: u128) -> JobId {
    JobId::from_u128(n)
}

fn agent(slots: u32) -> Agent {
    Agent::new(
        AgentSettings {
            worker: "a".parse().unwrap(),
            machine: None,
            fleet: None,
            services: BTreeSet::from(["exec".parse().unwrap()]),
            slots,
            offer: Capabilities::default(),
            inactivity: Duration::from_secs(30),
            timeouts: AgentTimeouts::default(),
            deadlines: Default::default(),
        },
        at(0),
    )
}

fn joined() -> AgentEvent {
    AgentEvent::Joined(JoinReply {
        worker: "a".parse().unwrap(),
        incarnation: Incarnation(1),
        token: String::new(),
        term: Term(1),
        beat_idle_millis: 30_000,
        beat_busy_millis: 5_000,
        lease_millis: 30_000,
        stale_after_millis: 90_000,
    })
}

fn start(job: u128, attempt: u32) -> StartOrder {
    StartOrder {
        job: id(job),
        attempt: Attempt(attempt),
        service: "exec".parse().unwrap(),
        service_job_id: String::new(),
        include_outputs: BTreeSet::new(),
        workflow: Some(Arc::from(RawValue::from_string("{}".to_owned()).unwrap())),
        keys: JobKeys::default(),
    }
}

fn done() -> AttemptEnd {
    AttemptEnd::Completed { result: Arc::from(RawValue::from_string("1".to_owned()).unwrap()) }
}

/// What the effects are, in short.
fn told(effects: &[AgentEffect]) -> Vec<String> {
    effects
        .iter()
        .map(|effect| match effect {
            AgentEffect::Join(join) => format!("join holding {}", join.held.len()),
            AgentEffect::Beat { beat, wait } => {
                let (held, finished) = (beat.held.len(), beat.finished.len());
                format!("beat {}: {held} held, {finished} finished, wait {} s", beat.seq, wait.as_secs())
            }
            AgentEffect::Run { job, attempt, .. } => format!("run {} {attempt}", job.as_u128()),
            AgentEffect::Cancel { job, attempt, .. } => format!("cancel {} {attempt}", job.as_u128()),
            AgentEffect::Probe { job, attempt, .. } => format!("probe {} {attempt}", job.as_u128()),
            AgentEffect::FetchOutputs { job, attempt, .. } => format!("collect {} {attempt}", job.as_u128()),
            AgentEffect::ReopenSocket => "reopen".to_owned(),
            AgentEffect::ApplyRemedy(remedy) => format!("apply {remedy:?}"),
            AgentEffect::SelfTest => "check".to_owned(),
            AgentEffect::Leave { .. } => "leave".to_owned(),
            AgentEffect::Exit(end) => format!("exit {end:?}"),
        })
        .collect()
}

fn check(agent: &mut Agent, story: Vec<(u64, AgentEvent, &[&str])>) {
    for (millis, event, expected) in story {
        let shown = format!("{event:?}");
        assert_eq!(told(&agent.step(at(millis), event)), expected, "after {shown} at {millis} ms");
    }
}

fn reply(seq: u64, reply: BeatReply) -> AgentEvent {
    AgentEvent::Reply { seq, reply: BeatReply { term: Term(1), ..reply } }
}

fn settled(job: u128) -> SettledAttempt {
    SettledAttempt { job: id(job), attempt: Attempt(1), refused: None }
}

#[test]
fn an_attempt_is_run_reported_until_settled_and_never_run_again() {
    let ended = AgentEvent::Ended { job: id(7), attempt: Attempt(1), outcome: done() };
    let unreachable =
        AgentEvent::CallFailed { seq: Some(3), why: CallError::Unreachable("cut".to_owned()), jitter: 0 };
    check(
        &mut agent(1),
        vec![
            (
                0,
                AgentEvent::Started { found: vec![], incarnation: ServiceIncarnation(1) },
                &["join holding 0"],
            ),
            (1, joined(), &["beat 1: 0 held, 0 finished, wait 25 s"]),
            (
                2,
                reply(1, BeatReply { start: vec![start(7, 1)], ..BeatReply::default() }),
                &["run 7 1", "beat 2: 1 held, 0 finished, wait 5 s"],
            ),
            (3, ended, &["beat 3: 0 held, 1 finished, wait 0 s"]),
            (4, unreachable, &[]),
            (54, AgentEvent::Tick, &["beat 4: 0 held, 1 finished, wait 0 s"]),
            (
                55,
                reply(
                    4,
                    BeatReply { settled: vec![settled(7)], start: vec![start(7, 1)], ..BeatReply::default() },
                ),
                &["beat 5: 0 held, 0 finished, wait 25 s"],
            ),
        ],
    );
}

#[test]
fn news_gathers_behind_a_beat_that_carries_news() {
    let ended = |job| AgentEvent::Ended { job: id(job), attempt: Attempt(1), outcome: done() };
    let starts = vec![start(1, 1), start(2, 1), start(3, 1)];
    check(
        &mut agent(3),
        vec![
            (
                0,
                AgentEvent::Started { found: vec![], incarnation: ServiceIncarnation(1) },
                &["join holding 0"],
            ),
            (0, joined(), &["beat 1: 0 held, 0 finished, wait 25 s"]),
            (
                0,
                reply(1, BeatReply { start: starts, ..BeatReply::default() }),
                &["run 1 1", "run 2 1", "run 3 1", "beat 2: 3 held, 0 finished, wait 5 s"],
            ),
            (1, ended(1), &["beat 3: 2 held, 1 finished, wait 0 s"]),
            (2, ended(2), &[]),
            (3, ended(3), &[]),
            (
                4,
                reply(3, BeatReply { settled: vec![settled(1)], ..BeatReply::default() }),
                &["beat 4: 0 held, 2 finished, wait 0 s"],
            ),
        ],
    );
}

#[test]
fn what_a_former_incarnation_left_is_adopted_and_asked_about() {
    let found = vec![FoundAttempt { job: id(4), attempt: Attempt(2) }];
    check(
        &mut agent(1),
        vec![
            (0, AgentEvent::Started { found, incarnation: ServiceIncarnation(1) }, &["join holding 1"]),
            (0, joined(), &["beat 1: 1 held, 0 finished, wait 5 s"]),
            (1, reply(1, BeatReply::default()), &["probe 4 2", "beat 2: 1 held, 0 finished, wait 5 s"]),
        ],
    );
}

#[test]
fn of_several_attempts_at_one_job_that_were_left_the_newest_is_adopted() {
    let attempt = |attempt| FoundAttempt { job: id(4), attempt: Attempt(attempt) };
    for found in [vec![attempt(1), attempt(2), attempt(2)], vec![attempt(2), attempt(1), attempt(2)]] {
        let mut agent = agent(1);
        let effects =
            told(&agent.step(at(0), AgentEvent::Started { found, incarnation: ServiceIncarnation(1) }));
        assert!(effects.contains(&"cancel 4 1".to_owned()), "{effects:?}");
        assert!(!effects.contains(&"cancel 4 2".to_owned()), "{effects:?}");
        assert_eq!(agent.held().collect::<Vec<_>>(), [(id(4), Attempt(2))]);
    }
}

#[test]
fn an_unknown_worker_joins_again_and_a_replaced_one_stops() {
    let unanswered = |why| AgentEvent::CallFailed { seq: Some(1), why, jitter: 0 };
    check(
        &mut agent(1),
        vec![
            (
                0,
                AgentEvent::Started { found: vec![], incarnation: ServiceIncarnation(1) },
                &["join holding 0"],
            ),
            (0, joined(), &["beat 1: 0 held, 0 finished, wait 25 s"]),
            (1, unanswered(CallError::Unknown), &["join holding 0"]),
            (2, joined(), &["beat 1: 0 held, 0 finished, wait 25 s"]),
            (3, unanswered(CallError::Replaced("taken".to_owned())), &["exit Replaced(\"taken\")"]),
            (9999, AgentEvent::Tick, &[]),
        ],
    );
}

#[test]
fn a_result_that_is_not_settled_is_claimed_when_joining_again() {
    let ended = AgentEvent::Ended { job: id(7), attempt: Attempt(1), outcome: done() };
    let unknown = AgentEvent::CallFailed { seq: Some(3), why: CallError::Unknown, jitter: 0 };
    check(
        &mut agent(1),
        vec![
            (
                0,
                AgentEvent::Started { found: vec![], incarnation: ServiceIncarnation(1) },
                &["join holding 0"],
            ),
            (0, joined(), &["beat 1: 0 held, 0 finished, wait 25 s"]),
            (
                0,
                reply(1, BeatReply { start: vec![start(7, 1)], ..BeatReply::default() }),
                &["run 7 1", "beat 2: 1 held, 0 finished, wait 5 s"],
            ),
            (1, ended, &["beat 3: 0 held, 1 finished, wait 0 s"]),
            (2, unknown, &["join holding 1"]),
            (3, joined(), &["beat 1: 0 held, 1 finished, wait 0 s"]),
        ],
    );
}

#[test]
fn too_much_work_is_turned_down() {
    check(
        &mut agent(1),
        vec![
            (
                0,
                AgentEvent::Started { found: vec![], incarnation: ServiceIncarnation(1) },
                &["join holding 0"],
            ),
            (0, joined(), &["beat 1: 0 held, 0 finished, wait 25 s"]),
            (
                0,
                reply(1, BeatReply { start: vec![start(1, 1), start(2, 1)], ..BeatReply::default() }),
                &["run 1 1", "beat 2: 1 held, 1 finished, wait 0 s"],
            ),
        ],
    );
}

#[test]
fn a_stop_lets_work_finish_and_a_second_one_does_not() {
    let stop = || AgentEvent::Stop;
    let mut patient = agent(1);
    let begin = vec![
        (
            0,
            AgentEvent::Started { found: vec![], incarnation: ServiceIncarnation(1) },
            &["join holding 0"] as &[&str],
        ),
        (0, joined(), &["beat 1: 0 held, 0 finished, wait 25 s"]),
        (
            0,
            reply(1, BeatReply { start: vec![start(1, 1)], ..BeatReply::default() }),
            &["run 1 1", "beat 2: 1 held, 0 finished, wait 5 s"],
        ),
        (1, stop(), &["beat 3: 1 held, 0 finished, wait 5 s"]),
    ];
    check(&mut patient, begin.clone());
    let ended = AgentEvent::Ended { job: id(1), attempt: Attempt(1), outcome: done() };
    check(
        &mut patient,
        vec![
            (2, ended, &["beat 4: 0 held, 1 finished, wait 0 s"]),
            (
                3,
                reply(4, BeatReply { settled: vec![settled(1)], ..BeatReply::default() }),
                &["leave", "exit Stopped"],
            ),
        ],
    );
    let mut hasty = agent(1);
    check(&mut hasty, begin);
    check(&mut hasty, vec![(2, stop(), &["cancel 1 1", "leave", "exit Stopped"])]);
}

#[test]
fn a_cancelled_attempt_is_stopped_once_and_its_end_is_reported() {
    let cancel = || CancelOrder { job: id(1), attempt: Attempt(1), reason: "not wanted".to_owned() };
    let failed = AttemptEnd::Failed { cause: Cause::Job, message: "killed".to_owned() };
    check(
        &mut agent(1),
        vec![
            (
                0,
                AgentEvent::Started { found: vec![], incarnation: ServiceIncarnation(1) },
                &["join holding 0"],
            ),
            (0, joined(), &["beat 1: 0 held, 0 finished, wait 25 s"]),
            (
                0,
                reply(1, BeatReply { start: vec![start(1, 1)], ..BeatReply::default() }),
                &["run 1 1", "beat 2: 1 held, 0 finished, wait 5 s"],
            ),
            (
                1,
                reply(2, BeatReply { cancel: vec![cancel()], ..BeatReply::default() }),
                &["cancel 1 1", "beat 3: 1 held, 0 finished, wait 5 s"],
            ),
            (
                2,
                reply(3, BeatReply { cancel: vec![cancel()], ..BeatReply::default() }),
                &["beat 4: 1 held, 0 finished, wait 5 s"],
            ),
            (
                3,
                AgentEvent::Ended { job: id(1), attempt: Attempt(1), outcome: failed },
                &["beat 5: 0 held, 1 finished, wait 0 s"],
            ),
        ],
    );
}

/// Tells how an agent that runs attempt 1 of a job came to be where it is.
fn holding() -> Agent {
    let mut agent = agent(1);
    agent.step(at(0), AgentEvent::Started { found: vec![], incarnation: ServiceIncarnation(1) });
    agent.step(at(0), joined());
    agent.step(at(0), reply(1, BeatReply { start: vec![start(1, 1)], ..BeatReply::default() }));
    agent.step(at(0), submitted(SubmitOutcome::Accepted));
    agent
}

fn submitted(answer: SubmitOutcome) -> AgentEvent {
    AgentEvent::Submitted { job: id(1), attempt: Attempt(1), incarnation: ServiceIncarnation(1), answer }
}

fn json(text: &str) -> Arc<RawValue> {
    Arc::from(RawValue::from_string(text.to_owned()).unwrap())
}

#[test]
fn progress_is_told_every_second_unless_the_line_is_slow() {
    let signal =
        |progress| AgentEvent::Signal { job: id(1), attempt: Attempt(1), progress, phase: String::new() };
    let begin = |joined_at: u64| -> Vec<(u64, AgentEvent, &[&str])> {
        vec![
            (
                0,
                AgentEvent::Started { found: vec![], incarnation: ServiceIncarnation(1) },
                &["join holding 0"],
            ),
            (joined_at, joined(), &["beat 1: 0 held, 0 finished, wait 25 s"]),
            (
                joined_at,
                reply(1, BeatReply { start: vec![start(1, 1)], ..BeatReply::default() }),
                &["run 1 1", "beat 2: 1 held, 0 finished, wait 5 s"],
            ),
        ]
    };
    let mut quick = agent(1);
    check(&mut quick, begin(5));
    check(
        &mut quick,
        vec![
            (505, signal(0.1), &[]),
            (1005, signal(0.2), &["beat 3: 1 held, 0 finished, wait 5 s"]),
            (1505, signal(0.3), &[]),
            (2005, AgentEvent::Tick, &["beat 4: 1 held, 0 finished, wait 5 s"]),
        ],
    );
    let mut slow = agent(1);
    check(&mut slow, begin(4000));
    check(
        &mut slow,
        vec![
            (6000, signal(0.1), &[]),
            (11_999, signal(0.2), &[]),
            (12_000, AgentEvent::Tick, &["beat 3: 1 held, 0 finished, wait 5 s"]),
        ],
    );
}

#[test]
fn a_line_that_became_slow_is_not_overtaken_for_ever() {
    let signal =
        || AgentEvent::Signal { job: id(1), attempt: Attempt(1), progress: 0.5, phase: String::new() };
    let mut agent = agent(2);
    check(
        &mut agent,
        vec![
            (
                0,
                AgentEvent::Started { found: vec![], incarnation: ServiceIncarnation(1) },
                &["join holding 0"],
            ),
            (0, joined(), &["beat 1: 0 held, 0 finished, wait 25 s"]),
            (
                0,
                reply(1, BeatReply { start: vec![start(1, 1)], ..BeatReply::default() }),
                &["run 1 1", "beat 2: 1 held, 0 finished, wait 5 s"],
            ),
        ],
    );
    let beats = (1..=20).flat_map(|second| agent.step(at(second * 1000), signal())).count();
    assert_eq!(beats, 3, "then an answer must come first");
    assert_eq!(agent.wake_at(), Timestamp::NEVER, "and it does not wake in circles");
    check(
        &mut agent,
        vec![(
            21_000,
            reply(5, BeatReply { start: vec![start(2, 1)], ..BeatReply::default() }),
            &["run 2 1", "beat 6: 2 held, 0 finished, wait 5 s"],
        )],
    );
}
