//! Decides how a run will end at the moment it starts. The workflow and the worker decide first; random faults happen
//! only during the storm.

use remuda_core::service::ServiceFault;

use crate::scenario::{Quirk, WorkflowKind, client_of};
use crate::service::{Defect, Key, PromptEnd};
use crate::world::World;

impl World<'_> {
    pub(super) fn decide_end(&mut self, host: usize, key: Key, mark: u64) {
        let workflow_kind = self.scenario.workflow_kind(self.scenario.jobs[client_of(key.0)].shape);
        let fault_rates = self.scenario.fault_rates;
        let (quirk, defect) = (self.hosts[host].plan.quirk, self.hosts[host].service.defect);
        let is_fault = self.draw_fault(fault_rates.runs_fail);
        let is_cached = self.draw_fault(fault_rates.runs_cached);
        let random = self.random.draw();
        let (end, most) = match (quirk, workflow_kind, defect) {
            (_, _, Defect::Device) => (PromptEnd::Fails(ServiceFault::Device), 500),
            (_, _, Defect::Disk) => (PromptEnd::Fails(ServiceFault::Disk), u64::MAX),
            (Quirk::BlackHole, ..) => (PromptEnd::Fails(ServiceFault::Lost), 1),
            (_, WorkflowKind::Bad, _) => (PromptEnd::Fails(ServiceFault::Node), 2000),
            (_, WorkflowKind::Poison, _) => (PromptEnd::KillsAgent, 1000),
            (_, WorkflowKind::MissingModel, _) if self.lacks_model(host) => {
                (PromptEnd::Fails(ServiceFault::Missing), 500)
            }
            (
                Quirk::None | Quirk::OverstatesSlots,
                WorkflowKind::Good | WorkflowKind::Quiet | WorkflowKind::MissingModel,
                _,
            ) => match random % 6 {
                _ if !is_fault => (PromptEnd::Succeeds, if is_cached { 5 } else { u64::MAX }),
                0 => (PromptEnd::Hangs, u64::MAX),
                1 | 2 => (PromptEnd::Fails(ServiceFault::Memory), u64::MAX),
                3 => (PromptEnd::Fails(ServiceFault::Node), u64::MAX),
                4 if !self.hosts[host].service.plan.reports_outcome => {
                    (PromptEnd::Fails(ServiceFault::Device), u64::MAX)
                }
                _ => (PromptEnd::Interrupted, u64::MAX),
            },
        };
        let uninterruptible_until = match self.draw_fault(fault_rates.runs_uninterruptible) {
            true if random.is_multiple_of(4) => u64::MAX,
            true => self.now + self.random.between(1000, 60_000),
            false => 0,
        };
        let service = &mut self.hosts[host].service;
        if end == PromptEnd::Fails(ServiceFault::Device) {
            service.defect = Defect::Device;
        }
        // Some nodes only hang; others block the executor thread.
        if end == PromptEnd::Hangs && random.is_multiple_of(2) && !service.plan.reports_outcome {
            service.defect = Defect::Executor;
        }
        if let Some(prompt) = service.running_mut(mark) {
            (prompt.end, prompt.duration) = (end, prompt.duration.min(most));
            (prompt.uninterruptible_until, prompt.is_cached) =
                (uninterruptible_until, is_cached && end == PromptEnd::Succeeds);
            if end == PromptEnd::Hangs {
                prompt.progress_every = u64::MAX;
            }
        }
    }

    /// Every other worker lacks a model until the storm ends.
    pub(super) fn lacks_model(&self, host: usize) -> bool {
        !self.is_calm && host.is_multiple_of(2)
    }
}
