//! A commit that failed: nothing that was decided since is carried out, whoever asked is told to ask again, and the plane
//! goes on from what the store has, under a new term, so that what was said to it before cannot pass for news.

use remuda_core::agent::CallError;
use remuda_core::plane::Plane;

use super::lines::{Parked, Release};
use super::{Batch, Driver};
use crate::client::Told;
use crate::net::Answered;
use crate::world::World;

impl World<'_> {
    pub(super) fn start_over(&mut self, at: usize, failed: Batch) {
        let Some(mut driver) = self.drivers[at].take() else { return };
        let stepped = driver.stepped.take().unwrap_or_default();
        failed.releases.into_iter().chain(stepped.releases).for_each(|release| self.take_back(&release));
        for Parked { from, call, .. } in std::mem::take(&mut driver.parked).into_values() {
            self.send_down(from, call, not_stored());
        }
        self.maybe_drop_waiting(at);
        driver.term = self.take_the_lead();
        let (now, stored) = (driver.clock(self.now), self.restore());
        self.note("start over", driver.term.0, now.as_millis());
        driver.plane = Plane::restore(self.scene.core.clone(), driver.term, now, stored);
        self.laws.restored(now, self.now, &driver.plane, &self.store);
        self.drivers[at] = Some(Box::new(Driver { step_at: u64::MAX, ..*driver }));
        self.plan_step(at, self.now);
    }

    fn take_back(&mut self, release: &Release) {
        match release {
            Release::Host { to, call, .. } => drop(self.send_down(*to, *call, not_stored())),
            Release::Hold { line: Parked { from, call, .. }, .. } => {
                self.send_down(*from, *call, not_stored());
            }
            Release::Client { client, call, .. } => self.send_to_client(*client, *call, Told::TryLater),
            Release::Orders { .. } | Release::Ask { .. } => {}
        }
    }
}

fn not_stored() -> Answered {
    Answered::Not(CallError::Unreachable("nothing was stored".to_owned()))
}
