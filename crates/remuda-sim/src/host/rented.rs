//! What differs on a rented machine: the worker proves which machine it is, and reports its start check.

use remuda_core::plane::JoinProof;
use remuda_core::wire::{Beat, StartCheck};

use super::Host;

impl Host {
    /// How the worker proves its identity when it joins.
    pub(crate) fn proof(&self) -> JoinProof {
        match &self.plan.machine {
            Some(_) if self.has_joined => JoinProof::PreviousToken(self.token),
            Some(machine) => JoinProof::MachineToken(machine.clone()),
            None => JoinProof::JoinToken,
        }
    }

    /// Adds the result of the start check to a beat.
    pub(crate) fn add_start_check(&self, now: u64, beat: &mut Beat) {
        if self.pod.is_none() {
            return;
        }
        let gpu = "as ordered".to_owned();
        if self.has_bad_gpu {
            let problem = "CUDA error: device-side assert".to_owned();
            beat.check = Some(StartCheck { passed: false, problem, gpu });
        } else if now >= self.ready_at {
            beat.check = Some(StartCheck { passed: true, problem: String::new(), gpu });
        } else if beat.unavailable_reason.is_none() {
            beat.unavailable_reason = Some("models are being loaded".to_owned());
        }
    }
}
