//! Workers that restart together. A job runs on one worker at a time, so when several machines restart within moments, and
//! under different workflows, none of their jobs was the reason: a deployment was, or a power failure. The first of them
//! joins alone, so what its restart says about its jobs is withdrawn when the others follow.
//!
//! Machines do not come back in the order in which they went down. So a restart is remembered for a while, with the last sign
//! of life before it: a worker that is judged later may have gone down together with it.
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
/// A worker that fell silent together with others is judged after a lease, or after two if they were cut off; the rest is
/// for a plane that was away.
const REMEMBERED_FOR: Duration = Duration::from_secs(300);
/// Restarts that are remembered; enough to find the others of a large fleet.
const RECENT_MAX: usize = 256;

#[derive(Clone, Debug, Default)]
pub(in crate::plane) struct Restarts {
    recent: VecDeque<Restart>,
}

/// A new process of a worker that was known.
#[derive(Clone, Debug)]
pub(in crate::plane) struct Restart {
    pub at: Timestamp,
    pub machine: MachineId,
    /// The last sign of life of its former process.
    pub heard_at: Timestamp,
    /// Shapes of all that its former process held.
    pub shapes: BTreeSet<Hash>,
    /// Attempts that may have been the reason.
    pub suspects: Vec<Suspect>,
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
    pub(in crate::plane) fn record(&mut self, restart: Restart) -> Vec<Suspect> {
        let now = restart.at;
        self.recent.retain(|it| now.since(it.at) < REMEMBERED_FOR);
        if self.recent.len() >= RECENT_MAX {
            self.recent.pop_front();
        }
        self.recent.push_back(restart);
        let together = || self.recent.iter().filter(|it| now.since(it.at) < TOGETHER_WITHIN);
        let is_explained = |own: &MachineId, shape: Hash| {
            let others = together().filter(|it| it.machine != *own && !it.shapes.contains(&shape));
            others.map(|it| &it.machine).collect::<BTreeSet<_>>().len() >= OTHERS_MIN
        };
        let explained: Vec<_> = together()
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

    /// Machines that have restarted since `heard_at`, without this shape, and were last heard at about that time.
    pub(in crate::plane) fn since(
        &self,
        heard_at: Timestamp,
        apart_max: Duration,
        shape: Hash,
    ) -> impl Iterator<Item = &MachineId> {
        let is_together = move |it: &&Restart| it.at > heard_at && it.heard_at.apart(heard_at) <= apart_max;
        let others = self.recent.iter().filter(is_together);
        others.filter(move |it| !it.shapes.contains(&shape)).map(|it| &it.machine)
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
        let (shapes, suspects) = ([suspect.shape].into(), vec![suspect]);
        let explained = restarts.record(Restart { at: now, machine, heard_at: now, shapes, suspects });
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

    #[test]
    fn restart_is_remembered_for_those_that_went_down_with_it() {
        let mut restarts = Restarts::default();
        for (machine, heard_at, shape) in [("m1", 40, "a"), ("m2", 45, "b"), ("m3", 5, "c")] {
            let (at, machine) = (Timestamp::from_millis(80_000), machine.parse().unwrap());
            let (heard_at, shapes) =
                (Timestamp::from_millis(heard_at * 1000), [suspect(1, shape).shape].into());
            restarts.record(Restart { at, machine, heard_at, shapes, suspects: Vec::new() });
        }
        let since = |heard_at: u64, shape: &str| {
            let (heard_at, within) = (Timestamp::from_millis(heard_at * 1000), Duration::from_secs(30));
            restarts
                .since(heard_at, within, suspect(1, shape).shape)
                .map(MachineId::as_str)
                .collect::<Vec<_>>()
        };
        assert_eq!(since(44, "x"), ["m1", "m2"], "the third had been silent for long");
        assert_eq!(since(44, "b"), ["m1"], "copies of one workflow do not clear each other");
        assert_eq!(since(80, "x"), [""; 0], "they were back by then");
    }
}
