//! What can happen in the model, and what happens without another fault.

use remuda_core::agent::AgentEvent;
use remuda_core::plane::PlaneEvent;

use super::plane::Occasion;
use super::sabotage::AttemptSabotage;
use super::{AttemptState, Attempts, Message, PromptPhase, QUANTUM};
use crate::model::search::BrokenRule;
use crate::net::{AgentResponse, PlaneRequest};
use crate::service::Key;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::model) enum AttemptAction {
    /// A message arrives, by its place.
    Deliver(usize),
    /// A message is lost or late.
    Delay(usize),
    /// A copy of a message stays behind.
    Copy(usize),
    DeliverLate(usize),
    PlaneTimer,
    AgentTimer(usize),
    PollEnds(usize),
    CallTimesOut(usize),
    ServiceCompletes(usize, Key),
    /// The plane's process ends with all that is not stored, and a new one starts.
    PlaneCrashes(CrashLoss),
    AgentDies(usize),
    AgentRestarts(usize),
    AgentPauses(usize),
    AgentResumes(usize),
    ClientCancels,
    OperatorDrains(usize),
    TimePasses,
}

use AttemptAction as Do;

/// What is lost with the plane's process. A call that it took and did not store is the same as a call that was lost, and
/// an answer that it stored and did not send the same as an answer that was lost: nothing else of it was ever seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::model) struct CrashLoss {
    pub(super) are_calls_lost: bool,
    /// And its callers do not learn that their connections ended.
    pub(super) are_answers_lost: bool,
}

impl Attempts {
    pub(super) fn possible_actions(&self, state: &AttemptState) -> Vec<AttemptAction> {
        let is_untouched = state.faults == self.faults && state.now > state.after_quanta(FIRST_FAULT_MAX);
        if state.now >= state.after_quanta(self.horizon) || is_untouched {
            return Vec::new();
        }
        let late = state.late.iter().enumerate().filter(|(_, message)| is_deliverable(state, message));
        let late = late.map(|(index, _)| Do::DeliverLate(index));
        if self.is_settled(state) {
            // What else can happen concerns an ended job: only what was sent before may still disturb it.
            return late.collect();
        }
        let mut actions = self.due_actions(state);
        if actions.is_empty() {
            actions.push(Do::TimePasses);
        }
        actions.extend(late);
        actions.extend(running_prompts(state).map(|(host, key)| Do::ServiceCompletes(host, key)));
        actions.extend(recoveries(state));
        if state.faults.total > 0 {
            self.add_faults(state, &mut actions);
        }
        actions
    }

    /// What has to happen before time passes.
    pub(super) fn due_actions(&self, state: &AttemptState) -> Vec<AttemptAction> {
        let on_their_way =
            state.messages.iter().enumerate().filter(|(_, message)| is_deliverable(state, message));
        let mut actions: Vec<_> = on_their_way.map(|(index, _)| Do::Deliver(index)).collect();
        if state.plane.wake_at().0 <= state.time() {
            actions.push(Do::PlaneTimer);
        }
        for host in 0..2 {
            if state.hosts[host].parked.is_some_and(|poll| poll.until <= state.now) {
                actions.push(Do::PollEnds(host));
            }
            if Attempts::is_call_overdue(state, host) {
                actions.push(Do::CallTimesOut(host));
            }
            if Attempts::is_agent_due(state, host) {
                actions.push(Do::AgentTimer(host));
            }
        }
        actions
    }

    fn add_faults(&self, state: &AttemptState, actions: &mut Vec<AttemptAction>) {
        let faults = &state.faults;
        for (index, message) in state.messages.iter().enumerate() {
            let can_be_lost = matches!(
                **message,
                Message::Call { .. } | Message::Answer { .. } | Message::CompletionHint { .. }
            );
            if faults.late > 0 && can_be_lost {
                actions.push(Do::Delay(index));
            }
            // A call has one answer: HTTP delivers no copy of it.
            if faults.copies > 0 && matches!(**message, Message::Call { .. }) {
                actions.push(Do::Copy(index));
            }
        }
        if faults.crashes > 0 {
            let has_calls = state.messages.iter().any(|message| matches!(**message, Message::Call { .. }));
            for are_answers_lost in [false, true] {
                actions.push(Do::PlaneCrashes(CrashLoss { are_calls_lost: false, are_answers_lost }));
                if has_calls {
                    actions.push(Do::PlaneCrashes(CrashLoss { are_calls_lost: true, are_answers_lost }));
                }
            }
        }
        for host in 0..2 {
            let is_running = state.hosts[host].agent.is_some() && !state.hosts[host].is_paused;
            if faults.kills > 0 && is_running {
                actions.push(Do::AgentDies(host));
            }
            if faults.pauses > 0 && is_running {
                actions.push(Do::AgentPauses(host));
            }
            if faults.drains > 0 && !state.drained[host] {
                actions.push(Do::OperatorDrains(host));
            }
        }
        if faults.cancels > 0 {
            actions.push(Do::ClientCancels);
        }
    }

    /// Processes come back, messages arrive in the order of sending, runs end, and then time passes.
    pub(super) fn next_calm_action(&self, state: &AttemptState) -> Option<AttemptAction> {
        let mut next = recoveries(state).into_iter().chain(self.due_actions(state));
        if let Some(action) = next.next() {
            return Some(action);
        }
        if let Some((host, key)) = running_prompts(state).next() {
            return Some(Do::ServiceCompletes(host, key));
        }
        (!self.is_settled(state)).then_some(Do::TimePasses)
    }

    /// The job has ended, every worker knows it, and every worker waits for orders or has stopped.
    fn is_settled(&self, state: &AttemptState) -> bool {
        let has_ended = state.store.status(self.job).is_some_and(|status| !status.state.is_open());
        has_ended
            && state.hosts.iter().all(|host| match &host.agent {
                Some(agent) => agent.held().next().is_none() && host.parked.is_some(),
                None => host.has_stopped,
            })
    }

    pub(super) fn act(&self, state: &mut AttemptState, action: AttemptAction) -> Result<(), BrokenRule> {
        match action {
            Do::Deliver(index) => self.deliver(state, index, false),
            Do::DeliverLate(index) => self.deliver(state, index, true),
            Do::PlaneTimer => self.step_plane(state, PlaneEvent::Tick, Occasion::Timer).map(drop),
            Do::AgentTimer(host) => {
                state.hosts[host].ticked_at = state.now;
                self.step_agent(state, host, AgentEvent::Tick)
            }
            Do::PollEnds(host) => {
                if let Some(poll) = state.hosts[host].parked.take() {
                    self.end_poll(state, host, poll);
                }
                Ok(())
            }
            Do::CallTimesOut(host) => self.time_out_call(state, host),
            Do::ServiceCompletes(host, key) => {
                self.complete_prompt(state, host, key);
                Ok(())
            }
            Do::AgentRestarts(host) => self.start_agent(state, host),
            Do::AgentResumes(host) => {
                state.hosts[host].is_paused = false;
                Ok(())
            }
            Do::TimePasses => self.pass_time(state),
            fault => self.cause(state, fault),
        }
    }

    /// The plane ticks every second, between the moments at which alarms are due: what is due at the end of the quantum is
    /// an action of its own.
    fn pass_time(&self, state: &mut AttemptState) -> Result<(), BrokenRule> {
        loop {
            let end = state.now + QUANTUM.as_millis() as u64;
            state.now += 500;
            for _ in 0..QUANTUM.as_secs() {
                self.step_plane(state, PlaneEvent::Tick, Occasion::Timer)?;
                state.now += 1000;
            }
            state.now = end;
            if !self.due_actions(state).is_empty() || end >= state.after_quanta(self.horizon) {
                return Ok(());
            }
        }
    }

    fn cause(&self, state: &mut AttemptState, fault: AttemptAction) -> Result<(), BrokenRule> {
        let faults = &mut state.faults;
        faults.total -= 1;
        match fault {
            Do::Delay(index) => {
                faults.late -= 1;
                let message = state.messages.remove(index);
                state.late.push(message);
            }
            Do::Copy(index) => {
                faults.copies -= 1;
                state.late.push(state.messages[index].clone());
            }
            Do::PlaneCrashes(loss) => {
                faults.crashes -= 1;
                self.crash_plane(state, loss)?;
            }
            Do::AgentDies(host) => {
                faults.kills -= 1;
                self.end_agent(state, host);
            }
            Do::AgentPauses(host) => {
                faults.pauses -= 1;
                state.hosts[host].is_paused = true;
            }
            Do::ClientCancels => {
                faults.cancels -= 1;
                let cancel = PlaneEvent::Cancel { job: self.job, message: "not wanted".to_owned() };
                let refusal = self.step_plane(state, cancel, Occasion::Client)?;
                self.check_cancelled(state, refusal.as_ref())?;
            }
            Do::OperatorDrains(host) => {
                faults.drains -= 1;
                state.drained[host] = true;
                let (worker, reason) = (self.workers[host].clone(), "maintenance".to_owned());
                if !self.is_sabotaged(AttemptSabotage::IgnoreDrain) {
                    let drain = PlaneEvent::Drain { worker, reason, within: None };
                    self.step_plane(state, drain, Occasion::Client)?;
                }
            }
            _ => {}
        }
        Ok(())
    }

    pub(super) fn describe_action(&self, state: &AttemptState, action: AttemptAction) -> String {
        match action {
            Do::Deliver(index) => format!("arrives: {}", describe_message(&state.messages[index])),
            Do::Delay(index) => format!("LOST OR LATE: {}", describe_message(&state.messages[index])),
            Do::Copy(index) => format!("COPIED: {}", describe_message(&state.messages[index])),
            Do::DeliverLate(index) => format!("arrives late: {}", describe_message(&state.late[index])),
            Do::ServiceCompletes(host, (_, attempt)) => {
                format!("the service of worker-{host} completes attempt {attempt}")
            }
            Do::PlaneCrashes(CrashLoss { are_calls_lost, are_answers_lost }) => {
                let calls = if are_calls_lost { ", calls to it are lost" } else { "" };
                let answers = if are_answers_lost { ", its answers are lost" } else { "" };
                format!("THE PLANE CRASHES and starts again{calls}{answers}")
            }
            Do::AgentDies(host) => format!("THE AGENT OF worker-{host} DIES"),
            Do::AgentPauses(host) => format!("THE AGENT OF worker-{host} IS PAUSED"),
            Do::AgentTimer(host) => format!("timer of worker-{host}"),
            Do::PollEnds(host) => format!("the long poll of worker-{host} ends without orders"),
            Do::CallTimesOut(host) => format!("worker-{host} gets no answer in time"),
            Do::AgentRestarts(host) => format!("the agent of worker-{host} starts again"),
            Do::AgentResumes(host) => format!("the agent of worker-{host} resumes"),
            Do::OperatorDrains(host) => format!("an operator drains worker-{host}"),
            Do::PlaneTimer => "timer of the plane".to_owned(),
            Do::ClientCancels => "the client cancels the job".to_owned(),
            Do::TimePasses => format!("{} s pass", QUANTUM.as_secs()),
        }
    }
}

/// The first fault happens within this many quanta: the order, the submission, and one full period of beats. Without a
/// fault every later period is like that one.
const FIRST_FAULT_MAX: u64 = 2;

impl AttemptState {
    fn after_quanta(&self, count: u64) -> u64 {
        self.began_at + count * QUANTUM.as_millis() as u64
    }
}

/// A paused agent gets nothing.
fn is_deliverable(state: &AttemptState, message: &Message) -> bool {
    matches!(message, Message::Call { .. }) || !state.hosts[message.host()].is_paused
}

/// Ends of faults: always possible, and the first thing in a calm run.
fn recoveries(state: &AttemptState) -> Vec<AttemptAction> {
    let mut actions = Vec::new();
    for (host, it) in state.hosts.iter().enumerate() {
        if it.agent.is_none() && !it.has_stopped {
            actions.push(Do::AgentRestarts(host));
        }
        if it.is_paused {
            actions.push(Do::AgentResumes(host));
        }
    }
    actions
}

fn running_prompts(state: &AttemptState) -> impl Iterator<Item = (usize, Key)> {
    state.hosts.iter().enumerate().flat_map(|(host, it)| {
        let running = it.prompts.iter().filter(|(_, phase)| matches!(phase, PromptPhase::Running { .. }));
        running.map(move |(key, _)| (host, *key))
    })
}

fn describe_message(message: &Message) -> String {
    let attempts = |held: Vec<u32>| if held.is_empty() { "nothing".to_owned() } else { format!("{held:?}") };
    match message {
        Message::Call { host, process, request, .. } => match request {
            PlaneRequest::Join { join, .. } => {
                let held = attempts(join.held.iter().map(|held| held.attempt.0).collect());
                format!("join of worker-{host}, process {process}, holds {held}")
            }
            PlaneRequest::Beat { beat, .. } => {
                let held = attempts(beat.held.iter().map(|held| held.attempt.0).collect());
                let finished: Vec<_> =
                    beat.finished.iter().map(|it| format!(", {:?} {}", it.outcome, it.attempt)).collect();
                let (seq, finished) = (beat.seq, finished.concat());
                format!("beat {seq} of worker-{host}, process {process}, holds {held}{finished}")
            }
            PlaneRequest::Leave { .. } => format!("worker-{host} leaves"),
            other => format!("worker-{host}: {other:?}"),
        },
        Message::Answer { host, answer, .. } => match answer {
            AgentResponse::Joined(joined, _) => {
                format!("worker-{host} has joined as incarnation {}", joined.incarnation)
            }
            AgentResponse::Reply(reply) => {
                let start: Vec<_> = reply.start.iter().map(|it| format!(", start {}", it.attempt)).collect();
                let cancel: Vec<_> =
                    reply.cancel.iter().map(|it| format!(", cancel {}", it.attempt)).collect();
                let settled: Vec<_> = reply
                    .settled
                    .iter()
                    .map(|it| {
                        let how = if it.refused.is_some() { "refused" } else { "recorded" };
                        format!(", {how} {}", it.attempt)
                    })
                    .collect();
                let again = if reply.beat_again { ", beat again" } else { "" };
                format!(
                    "reply to worker-{host}{}{}{}{again}",
                    start.concat(),
                    cancel.concat(),
                    settled.concat()
                )
            }
            AgentResponse::Failed(why) => format!("answer to worker-{host}: {why:?}"),
            AgentResponse::Unwanted => format!("worker-{host} is not wanted"),
        },
        Message::Submitted { host, key, .. } => {
            format!("the service of worker-{host} accepted attempt {}", key.1)
        }
        Message::Probe { host, key, stage, .. } => {
            format!("worker-{host} looks for attempt {} in its service's {stage:?}", key.1)
        }
        Message::OutputsFetched { host, key, .. } => {
            format!("worker-{host} has the outputs of attempt {}", key.1)
        }
        Message::CompletionHint { host, key, .. } => {
            format!("the service of worker-{host} says that attempt {} is over", key.1)
        }
        Message::SocketOpened { host, .. } => format!("worker-{host} opened its socket again"),
    }
}
