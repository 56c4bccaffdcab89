//! The tables of `docs/lifecycles.md` that concern an agent: an attempt inside a worker, and the condition of its service.

use super::*;
use crate::agent::condition::{ConditionEvent, ConditionState, Repair, ServiceCondition};

/// An attempt of a job as the agent sees it, and what it did about it.
fn shown(agent: &Agent, effects: &[AgentEffect]) -> String {
    let key = (id(1), Attempt(1));
    let state = match agent.held.get(&id(1)) {
        Some(work) if work.attempt > Attempt(1) => "newer one held",
        Some(work) if work.cancelled_at.is_some() => "being stopped",
        Some(_) => "held",
        None => match agent.finished.get(&key).map(|finished| finished.outcome) {
            Some(AttemptOutcome::Completed) => "completed",
            Some(AttemptOutcome::Failed) => "failed",
            Some(AttemptOutcome::Cancelled) => "cancelled",
            Some(AttemptOutcome::Rejected) => "rejected",
            None if agent.settled.contains(&key) => "settled",
            None => "unknown",
        },
    };
    let done = told(effects).into_iter().filter(|it| !it.starts_with("beat"));
    let done: Vec<_> = done.filter_map(|it| it.split(' ').next().map(str::to_owned)).collect();
    if done.is_empty() { state.to_owned() } else { format!("{state} ({})", done.join(", ")) }
}

type Named<T> = (&'static str, T);
type Happening = Named<Box<dyn Fn(&Agent) -> AgentEvent>>;

/// The table of `docs/lifecycles.md`: an attempt inside a worker against everything that can happen.
pub(crate) fn attempt_table() -> (Vec<&'static str>, Vec<Named<Vec<String>>>) {
    let answer = |agent: &Agent, reply: BeatReply| AgentEvent::Reply { seq: agent.seq, reply };
    let ended = |outcome| AgentEvent::Ended { job: id(1), attempt: Attempt(1), outcome };
    let failed = || AttemptEnd::Failed { cause: Cause::Job, message: "boom".to_owned() };
    let cancel = || CancelOrder { job: id(1), attempt: Attempt(1), reason: "not wanted".to_owned() };
    let probe =
        |incarnation, result| AgentEvent::Probed { job: id(1), attempt: Attempt(1), incarnation, result };
    let probed = move |result| probe(ServiceIncarnation(1), result);
    let restarted = probe(ServiceIncarnation(2), ProbeResult::Unknown);
    let events: Vec<Happening> = vec![
        (
            "order: start",
            Box::new(move |agent| {
                answer(agent, BeatReply { start: vec![start(1, 1)], ..BeatReply::default() })
            }),
        ),
        (
            "order: start a newer one",
            Box::new(move |agent| {
                answer(agent, BeatReply { start: vec![start(1, 2)], ..BeatReply::default() })
            }),
        ),
        (
            "order: cancel",
            Box::new(move |agent| {
                answer(agent, BeatReply { cancel: vec![cancel()], ..BeatReply::default() })
            }),
        ),
        ("the service completes it", Box::new(move |_| ended(done()))),
        ("the service fails it", Box::new(move |_| ended(failed()))),
        ("30 s without a signal", Box::new(|_| AgentEvent::Tick)),
        ("probe: it runs", Box::new(move |_| probed(ProbeResult::Running))),
        ("probe: it succeeded", Box::new(move |_| probed(ProbeResult::Succeeded { outputs: json("{}") }))),
        ("probe: no answer", Box::new(move |_| probed(ProbeResult::NoAnswer("busy".to_owned())))),
        ("probe: unknown", Box::new(move |_| probed(ProbeResult::Unknown))),
        ("probe: unknown, and the service has restarted", Box::new(move |_| restarted.clone())),
        (
            "settled",
            Box::new(move |agent| {
                answer(agent, BeatReply { settled: vec![settled(1)], ..BeatReply::default() })
            }),
        ),
    ];
    let states: Vec<Named<fn(&mut Agent)>> = vec![
        ("unknown", |agent| {
            *agent = self::agent(1);
            agent.step(at(0), AgentEvent::Started { found: vec![], incarnation: ServiceIncarnation(1) });
            agent.step(at(0), joined());
        }),
        ("held", |_| {}),
        ("being stopped", |agent| agent.cancel(at(0), id(1), Attempt(1), "not wanted".to_owned())),
        ("completed", |agent| agent.ended(id(1), Attempt(1), done())),
        ("settled", |agent| {
            agent.ended(id(1), Attempt(1), done());
            let seq = agent.seq;
            agent.step(at(0), reply(seq, BeatReply { settled: vec![settled(1)], ..BeatReply::default() }));
        }),
    ];
    let rows = states.iter().map(|(name, prepare)| {
        let cells = events.iter().map(|(_, event)| {
            let mut agent = holding();
            prepare(&mut agent);
            agent.effects.clear();
            let event = event(&agent);
            let effects = agent.step(at(30_000), event);
            shown(&agent, &effects)
        });
        (*name, cells.collect())
    });
    (events.iter().map(|(name, _)| *name).collect(), rows.collect())
}

/// A service whose condition came about by these events.
fn condition(events: &[ConditionEvent]) -> ServiceCondition {
    let mut condition = ServiceCondition::default();
    for event in events {
        condition.apply(at(0), event.clone());
    }
    condition
}

fn shown_condition(condition: &ServiceCondition) -> &'static str {
    match condition.state() {
        ConditionState::Well => "well",
        ConditionState::Freeing { .. } => "freeing",
        ConditionState::Restarting { .. } => "restarting",
        ConditionState::Testing { .. } => "testing",
        ConditionState::GivenUp { .. } => "given up",
    }
}

/// The table of `docs/lifecycles.md`: a service against everything that its agent learns about it.
pub(crate) fn condition_table() -> (Vec<&'static str>, Vec<Named<Vec<String>>>) {
    use ConditionEvent as On;
    let why = || "broken".to_owned();
    let done = |remedy, problem| On::RemedyDone { remedy, problem, is_stuck: false };
    let [freed, restarted] = [ServiceRemedy::FreeMemory, ServiceRemedy::Restart].map(|it| done(it, None));
    let sick = || On::Sickened { why: why() };
    let failed = || On::Tested { problem: Some(why()) };
    let events: Vec<Named<On>> = vec![
        ("a new process answers", On::Replaced),
        ("its process exits", On::Exited { why: why() }),
        ("its device is broken", On::DeviceBroken { why: why() }),
        ("its disk is full", On::DiskFull { why: why() }),
        ("it ignores a cancellation", sick()),
        ("memory freed", freed.clone()),
        ("restarted", restarted.clone()),
        ("the remedy fails", done(ServiceRemedy::Restart, Some(why()))),
        ("self-test passed", On::Tested { problem: None }),
        ("self-test failed", failed()),
        ("self-test waited behind our attempt", On::TestQueued),
        ("10 min pass", On::Tick),
    ];
    let states: Vec<Named<Vec<On>>> = vec![
        ("well", vec![]),
        ("freeing", vec![sick()]),
        ("testing, after freeing", vec![sick(), freed.clone()]),
        ("restarting", vec![sick(), freed.clone(), failed()]),
        ("testing, after a restart", vec![sick(), freed, failed(), restarted]),
        ("given up", vec![On::DiskFull { why: why() }]),
    ];
    let rows = states.into_iter().map(|(name, before)| {
        assert!(name.starts_with(shown_condition(&condition(&before))), "{name}");
        let cells = events.iter().map(|(_, event)| {
            let mut condition = condition(&before);
            let repair = condition.apply(at(600_000), event.clone());
            let state = shown_condition(&condition);
            match repair {
                Repair::Nothing => state.to_owned(),
                Repair::FreeMemory => format!("{state} (free memory)"),
                Repair::Restart { .. } => format!("{state} (restart)"),
                Repair::SelfTest => format!("{state} (self-test)"),
            }
        });
        (name, cells.collect())
    });
    let rows: Vec<_> = rows.collect();
    (events.iter().map(|(name, _)| *name).collect(), rows)
}
