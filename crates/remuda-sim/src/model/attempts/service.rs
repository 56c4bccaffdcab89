//! A worker's service: it runs prompts, and answers a probe by two looks, queue first, between which anything may happen.

use remuda_core::agent::{AgentEvent, FoundAttempt};
use remuda_core::service::{AttemptEnd, ProbeResult};

use super::sabotage::AttemptSabotage;
use super::worker::SERVICE;
use super::{AttemptState, Attempts, Message, ProbeStage, PromptPhase, WorkerHost};
use crate::model::search::BrokenRule;
use crate::service::Key;

impl Attempts {
    /// What a new agent process finds at its service, by the ids that were chosen before the submission.
    pub(super) fn find_attempts(&self, host: &WorkerHost) -> Vec<FoundAttempt> {
        let forgets = self.is_sabotaged(AttemptSabotage::RecordIdAfterSubmission);
        let is_found =
            |phase: &PromptPhase| !(forgets && *phase == PromptPhase::Running { is_answered: false });
        let found = host.prompts.iter().filter(|(_, phase)| is_found(phase));
        found.map(|((job, attempt), _)| FoundAttempt { job: *job, attempt: *attempt }).collect()
    }

    pub(super) fn first_look(&self) -> ProbeStage {
        if self.is_sabotaged(AttemptSabotage::HistoryBeforeQueue) {
            ProbeStage::History
        } else {
            ProbeStage::Queue
        }
    }

    /// One look of a probe. What neither look finds is unknown.
    pub(super) fn look_at_service(
        &self,
        state: &mut AttemptState,
        host: usize,
        process: u32,
        key: Key,
        stage: ProbeStage,
    ) -> Result<(), BrokenRule> {
        let result = match (stage, state.hosts[host].prompts.get(&key)) {
            (ProbeStage::Queue, Some(PromptPhase::Running { .. })) => ProbeResult::Running,
            (ProbeStage::History, Some(PromptPhase::Succeeded)) => {
                ProbeResult::Succeeded { outputs: self.workflow.clone() }
            }
            (ProbeStage::History, Some(PromptPhase::Interrupted)) => ProbeResult::Interrupted,
            _ if stage == self.first_look() => {
                state.send(Message::Probe { host, process, key, stage: stage.other() });
                return Ok(());
            }
            _ => ProbeResult::Unknown,
        };
        self.check_probe(state, host, key, &result)?;
        let (job, attempt) = key;
        self.step_agent(state, host, AgentEvent::Probed { job, attempt, incarnation: SERVICE, result })
    }

    /// The run ends well; a message says so.
    pub(super) fn complete_prompt(&self, state: &mut AttemptState, host: usize, key: Key) {
        let it = &mut state.hosts[host];
        it.prompts.insert(key, PromptPhase::Succeeded);
        if it.agent.is_some() {
            let process = it.process;
            state.send(Message::CompletionHint { host, process, key });
        }
    }

    pub(super) fn outputs_fetched(
        &self,
        state: &mut AttemptState,
        host: usize,
        (job, attempt): Key,
    ) -> Result<(), BrokenRule> {
        let outcome = AttemptEnd::Completed { result: self.workflow.clone() };
        self.step_agent(state, host, AgentEvent::Ended { job, attempt, outcome })
    }
}
