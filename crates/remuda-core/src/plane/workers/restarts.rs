//! Workers that restart together. A job runs on one worker at a time, so when several machines restart within moments, and
//! under different workflows, none of their jobs was the reason: a deployment was, or a power failure. The first of them
//! joins alone, so what its restart says about its jobs is withdrawn when the others follow.
//!
//! Machines that ran jobs of the same shape do not clear each other: a bad workflow of which many copies run crashes them
//! together.
//!
//! It is kept in memory only. If the plane dies between two of these restarts, the first one stays circumstantial evidence,
//! which a trial decides.

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use crate::id::{Attempt, Hash, JobId, MachineId};
use crate::time::Timestamp;

/// Machines that join again within this time restarted together.
const TOGETHER_WITHIN: Duration = Duration::from_secs(10);
/// If at least this many other machines restarted, no single job was the reason.
const OTHERS_MIN: usize = 2;
/// Restarts that are remembered; enough to find the others of a large fleet.
const RECENT_MAX: usize = 64;

#[derive(Clone, Debug, Default)]
pub(in crate::plane) struct Restarts {
    recent: VecDeque<Restart>,
}

#[derive(Clone, Debug)]
struct Restart {
    at: Timestamp,
    machine: MachineId,
    /// Shapes of all that its former process held.
    shapes: BTreeSet<Hash>,
    /// Attempts that may have been the reason.
    suspects: Vec<Suspect>,
}

/// An attempt that was running when its worker restarted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::plane) struct Suspect {
    pub job: JobId,
    pub attempt: Attempt,
    pub shape: Hash,
}

impl Restarts {
    /// A worker restarted. Returns the attempts, of this restart and of earlier ones, that are cleared by the others now.
    pub(in crate::plane) fn record(
        &mut self,
        now: Timestamp,
        machine: &MachineId,
        shapes: BTreeSet<Hash>,
        suspects: Vec<Suspect>,
    ) -> Vec<Suspect> {
        self.recent.retain(|restart| now.since(restart.at) < TOGETHER_WITHIN);
        if self.recent.len() >= RECENT_MAX {
            self.recent.pop_front();
        }
        self.recent.push_back(Restart { at: now, machine: machine.clone(), shapes, suspects });
        let is_explained = |own: &MachineId, shape: Hash| {
            let others = self.recent.iter().filter(|it| it.machine != *own && !it.shapes.contains(&shape));
            others.map(|it| &it.machine).collect::<BTreeSet<_>>().len() >= OTHERS_MIN
        };
        let explained: Vec<_> = self
            .recent
            .iter()
            .flat_map(|it| it.suspects.iter().map(|suspect| (&it.machine, *suspect)))
            .filter(|(machine, suspect)| is_explained(machine, suspect.shape))
            .map(|(_, suspect)| suspect)
            .collect();
        let cleared: BTreeSet<_> = explained.iter().map(|it| (it.job, it.attempt)).collect();
        for restart in &mut self.recent {
            restart.suspects.retain(|suspect| !cleared.contains(&(suspect.job, suspect.attempt)));
        }
        explained
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn suspect(job: u128, shape: &str) -> Suspect {
        Suspect { job: JobId::from_u128(job), attempt: Attempt(1), shape: Hash::digest(shape.as_bytes()) }
    }

    /// The jobs that are explained after this restart of a machine that ran one job.
    fn restart(restarts: &mut Restarts, at: u64, machine: &str, job: u128, shape: &str) -> Vec<u128> {
        let suspect = suspect(job, shape);
        let machine = machine.parse().unwrap();
        let now = Timestamp::from_millis(at * 1000);
        let explained = restarts.record(now, &machine, [suspect.shape].into(), vec![suspect]);
        explained.into_iter().map(|it| it.job.as_u128()).collect()
    }

    #[test]
    fn third_machine_explains_all_three() {
        let mut restarts = Restarts::default();
        assert_eq!(restart(&mut restarts, 0, "m1", 1, "a"), [0; 0]);
        assert_eq!(restart(&mut restarts, 1, "m2", 2, "b"), [0; 0]);
        assert_eq!(restart(&mut restarts, 2, "m3", 3, "c"), [1, 2, 3]);
        assert_eq!(restart(&mut restarts, 3, "m4", 4, "d"), [4], "each is explained once");
    }

    #[test]
    fn one_machine_or_one_shape_or_another_time_explains_nothing() {
        let mut restarts = Restarts::default();
        for job in 1..=8 {
            assert_eq!(restart(&mut restarts, 0, "m1", job, &format!("{job}")), [0; 0], "one machine");
        }
        for job in 11..=18 {
            let machine = format!("m{job}");
            assert_eq!(restart(&mut restarts, 100, &machine, job, "same"), [0; 0], "copies of one workflow");
        }
        for job in 21..=28_u64 {
            let machine = format!("m{job}");
            let alone = restart(&mut restarts, job * 10, &machine, job.into(), &format!("{job}"));
            assert_eq!(alone, [0; 0], "one after the other");
        }
    }
}
