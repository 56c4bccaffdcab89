//! After a failed commit nothing that was decided since is carried out: callers are told to retry, and the plane reloads
//! from the store under a new term, so that beats for the old term count as stale.

use remuda_core::agent::CallError;
use remuda_core::plane::Plane;

use crate::driver::{Batch, Driver, ParkedPoll, Release};
use crate::net::{AgentResponse, ClientResponse};
use crate::world::World;

impl World<'_> {
    pub(super) fn reload_after_failed_commit(&mut self, at: usize, failed: Batch) {
        let Some(mut driver) = self.drivers[at].take() else { return };
        let stepped = driver.stepped.take().unwrap_or_default();
        failed.releases.into_iter().chain(stepped.releases).for_each(|release| self.reject_release(&release));
        for ParkedPoll { from, call, .. } in std::mem::take(&mut driver.parked).into_values() {
            self.send_to_agent(from, call, not_stored());
        }
        self.maybe_drop_queued_calls(at);
        driver.term = self.acquire_term();
        let (now, stored) = (driver.clock(self.now), self.restore());
        self.note("start over", driver.term.0, 0);
        driver.plane = Plane::restore(self.scenario.core.clone(), driver.term, now, stored);
        self.laws.restored(now, self.now, &driver.plane, &self.store);
        self.drivers[at] = Some(Box::new(Driver { step_at: u64::MAX, ..*driver }));
        self.plan_step(at, self.now);
    }

    fn reject_release(&mut self, release: &Release) {
        match release {
            Release::Host { to, call, .. } => drop(self.send_to_agent(*to, *call, not_stored())),
            Release::Hold { poll: ParkedPoll { from, call, .. }, .. } => {
                self.send_to_agent(*from, *call, not_stored());
            }
            Release::Client { client, call, .. } => {
                self.send_to_client(*client, *call, ClientResponse::RetryLater);
            }
            Release::Orders { .. } | Release::ProviderCall { .. } => {}
        }
    }
}

fn not_stored() -> AgentResponse {
    AgentResponse::Failed(CallError::Unreachable("commit failed".to_owned()))
}
