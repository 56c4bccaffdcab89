//! A worker: steps its real agent, runs the effects, and delivers what is meant for it.

use remuda_core::agent::{AgentEffect, AgentEvent, AgentExit, CallError};
use remuda_core::plane::JoinProof;
use remuda_core::service::{ServiceEvent, ServiceIncarnation, SubmitOutcome};

use super::{AttemptState, Attempts, Message, OpenCall, ProbeStage, PromptPhase, QUANTUM};
use crate::model::search::BrokenRule;
use crate::net::{AgentResponse, PlaneRequest};

/// The only process of a service that this model has.
pub(super) const SERVICE: ServiceIncarnation = ServiceIncarnation(1);
/// How long an agent waits for an answer, and how much longer than the wait it asked for.
const CALL_TIMEOUT: u64 = 2 * QUANTUM.as_millis() as u64;
const POLL_MARGIN: u64 = QUANTUM.as_millis() as u64;

impl Attempts {
    pub(super) fn step_agent(
        &self,
        state: &mut AttemptState,
        host: usize,
        event: AgentEvent,
    ) -> Result<(), BrokenRule> {
        let now = state.time();
        let Some(agent) = &mut state.hosts[host].agent else { return Ok(()) };
        let effects = agent.change(|agent| agent.step(now, event));
        effects.into_iter().try_for_each(|effect| self.run_effect(state, host, effect))
    }

    fn run_effect(
        &self,
        state: &mut AttemptState,
        host: usize,
        effect: AgentEffect,
    ) -> Result<(), BrokenRule> {
        let process = state.hosts[host].process;
        match effect {
            AgentEffect::Join(mut join) => {
                join.nonce = Some(format!("{host}-{process}-{}", state.hosts[host].calls));
                join.process = Some(format!("{host}-{process}"));
                let request = PlaneRequest::Join { join, proof: JoinProof::JoinToken };
                self.call(state, host, None, request, CALL_TIMEOUT);
            }
            AgentEffect::Beat { beat, wait } => {
                let (seq, wait) = (beat.seq, wait.as_millis() as u64);
                let (worker, token) = (self.workers[host].clone(), state.hosts[host].token);
                let request = PlaneRequest::Beat { worker, token, beat, wait };
                self.call(state, host, Some(seq), request, CALL_TIMEOUT.max(wait + POLL_MARGIN));
            }
            AgentEffect::Run { job, attempt, service_job_id, .. } => {
                let key = (job, attempt);
                self.check_submission(state, host, key, &service_job_id)?;
                state.hosts[host].prompts.insert(key, PromptPhase::Running { is_answered: false });
                state.send(Message::Submitted { host, process, key });
            }
            AgentEffect::Cancel { job, attempt, .. } => {
                // At once: a run that ends first is another order of the same actions.
                if let Some(prompt @ PromptPhase::Running { .. }) =
                    state.hosts[host].prompts.get_mut(&(job, attempt))
                {
                    *prompt = PromptPhase::Interrupted;
                }
            }
            AgentEffect::Probe { job, attempt, .. } => {
                let (key, stage) = ((job, attempt), self.first_look());
                state.send(Message::Probe { host, process, key, stage });
            }
            AgentEffect::FetchOutputs { job, attempt, .. } => {
                state.send(Message::OutputsFetched { host, process, key: (job, attempt) });
            }
            AgentEffect::ReopenSocket => state.send(Message::SocketOpened { host, process }),
            AgentEffect::Leave { .. } => {
                let (worker, token) = (self.workers[host].clone(), state.hosts[host].token);
                let request = PlaneRequest::Leave { worker, token };
                state.send(Message::Call { host, process, call: 0, request });
            }
            AgentEffect::Exit(exit) => {
                self.end_agent(state, host);
                state.hosts[host].has_stopped = exit == AgentExit::Stopped;
            }
            AgentEffect::ApplyRemedy(_) | AgentEffect::SelfTest => {
                panic!("the services of this model are never sick")
            }
        }
        Ok(())
    }

    fn call(
        &self,
        state: &mut AttemptState,
        host: usize,
        seq: Option<u64>,
        request: PlaneRequest,
        timeout: u64,
    ) {
        let it = &mut state.hosts[host];
        it.calls += 1;
        let (process, id) = (it.process, it.calls);
        it.call = Some(OpenCall { id, seq, times_out_at: state.now + timeout });
        state.send(Message::Call { host, process, call: id, request });
    }

    /// The process ends, and its connection with it; the service goes on.
    pub(super) fn end_agent(&self, state: &mut AttemptState, host: usize) {
        let it = &mut state.hosts[host];
        (it.agent, it.call, it.is_paused) = (None, None, false);
        if let Some(poll) = it.parked.take() {
            let request = PlaneRequest::ConnectionLost { worker: self.workers[host].clone(), seq: poll.seq };
            state.send(Message::Call { host, process: poll.process, call: 0, request });
        }
    }

    /// No answer came in time.
    pub(super) fn time_out_call(&self, state: &mut AttemptState, host: usize) -> Result<(), BrokenRule> {
        let Some(call) = state.hosts[host].call.take() else { return Ok(()) };
        self.maybe_requeue_on_timeout(state, host)?;
        let why = CallError::Unreachable("no answer".to_owned());
        self.step_agent(state, host, AgentEvent::CallFailed { seq: call.seq, why, jitter: 0 })
    }

    /// Delivers a message that is on its way, or a late one.
    pub(super) fn deliver(
        &self,
        state: &mut AttemptState,
        index: usize,
        is_late: bool,
    ) -> Result<(), BrokenRule> {
        let from = if is_late { &mut state.late } else { &mut state.messages };
        let message = Message::clone(&from.remove(index));
        match message {
            Message::Call { host, process, call, request } => {
                self.call_arrives(state, (host, process, call), &request)
            }
            Message::Answer { host, call, answer, .. } => self.answer_arrives(state, host, call, answer),
            Message::Submitted { host, key: (job, attempt), .. } => {
                if let Some(PromptPhase::Running { is_answered }) =
                    state.hosts[host].prompts.get_mut(&(job, attempt))
                {
                    *is_answered = true;
                }
                let answer = SubmitOutcome::Accepted;
                self.step_agent(
                    state,
                    host,
                    AgentEvent::Submitted { job, attempt, incarnation: SERVICE, answer },
                )
            }
            Message::Probe { host, process, key, stage } => {
                self.look_at_service(state, host, process, key, stage)
            }
            Message::OutputsFetched { host, key, .. } => self.outputs_fetched(state, host, key),
            Message::CompletionHint { host, key: (job, attempt), .. } => {
                self.step_agent(state, host, AgentEvent::CompletionHint { job, attempt })
            }
            Message::SocketOpened { host, .. } => {
                let opened = ServiceEvent::SocketOpened { incarnation: SERVICE };
                self.step_agent(state, host, AgentEvent::Service(opened))
            }
        }
    }

    fn answer_arrives(
        &self,
        state: &mut AttemptState,
        host: usize,
        call: u64,
        answer: AgentResponse,
    ) -> Result<(), BrokenRule> {
        let it = &mut state.hosts[host];
        let Some(open) = it.call.take_if(|open| open.id == call) else { return Ok(()) };
        let event = match (answer, open.seq) {
            (AgentResponse::Joined(joined, token), _) => {
                it.token = token;
                AgentEvent::Joined(joined)
            }
            (AgentResponse::Reply(reply), Some(seq)) => AgentEvent::Reply { seq, reply },
            (AgentResponse::Failed(why), seq) => AgentEvent::CallFailed { seq, why, jitter: 0 },
            (AgentResponse::Reply(_), None) | (AgentResponse::Unwanted, _) => return Ok(()),
        };
        self.step_agent(state, host, event)
    }

    pub(super) fn is_agent_due(state: &AttemptState, host: usize) -> bool {
        let it = &state.hosts[host];
        let is_due = it.agent.as_ref().is_some_and(|agent| agent.wake_at() <= state.time());
        is_due && !it.is_paused && it.ticked_at < state.now
    }

    pub(super) fn is_call_overdue(state: &AttemptState, host: usize) -> bool {
        let it = &state.hosts[host];
        it.agent.is_some() && !it.is_paused && it.call.is_some_and(|call| call.times_out_at <= state.now)
    }
}

impl ProbeStage {
    pub(super) fn other(self) -> ProbeStage {
        match self {
            ProbeStage::Queue => ProbeStage::History,
            ProbeStage::History => ProbeStage::Queue,
        }
    }
}
