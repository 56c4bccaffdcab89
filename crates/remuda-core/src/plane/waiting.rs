//! Why no matching worker takes a waiting job now, in one sentence for operators: how many are in which state, and what
//! happens next.

use super::PassedOver;
use crate::time::Timestamp;
use crate::worker::Availability;

/// States in the order in which they are told: what frees a worker soonest comes first, and decides what is next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Group {
    Busy,
    Starting,
    OnProbation,
    Blocked,
    OnTrial,
    FailedBefore,
    TooSmall,
    Vetoed,
    Unheard,
    Silent,
    Sick,
    Draining,
    Gone,
}

const GROUPS: [Group; 13] = [
    Group::Busy,
    Group::Starting,
    Group::OnProbation,
    Group::Blocked,
    Group::OnTrial,
    Group::FailedBefore,
    Group::TooSmall,
    Group::Vetoed,
    Group::Unheard,
    Group::Silent,
    Group::Sick,
    Group::Draining,
    Group::Gone,
];

impl Group {
    fn of(reason: &PassedOver) -> Group {
        match reason {
            PassedOver::Busy { .. } | PassedOver::NotIdle => Group::Busy,
            PassedOver::Blocked { .. } | PassedOver::Quarantined { .. } => Group::Blocked,
            PassedOver::BlockTrial { .. } | PassedOver::QuarantineTrial { .. } => Group::OnTrial,
            PassedOver::FailedBefore => Group::FailedBefore,
            PassedOver::TooSmall => Group::TooSmall,
            PassedOver::Vetoed => Group::Vetoed,
            PassedOver::Unavailable(Availability::Starting | Availability::Ready) => Group::Starting,
            PassedOver::Unavailable(Availability::Probation { .. }) => Group::OnProbation,
            PassedOver::Unavailable(Availability::Unheard) => Group::Unheard,
            PassedOver::Unavailable(Availability::Suspect | Availability::Disconnected) => Group::Silent,
            PassedOver::Unavailable(Availability::Sick { .. }) => Group::Sick,
            PassedOver::Unavailable(Availability::Draining) => Group::Draining,
            PassedOver::Unavailable(
                Availability::Offline | Availability::Terminated | Availability::Failed,
            )
            | PassedOver::Mismatch(_)
            | PassedOver::Excluded => Group::Gone,
        }
    }

    fn describe(self, count: usize, problem: Option<&str>) -> String {
        let are = if count == 1 { "is" } else { "are" };
        let state = match self {
            Group::Busy => "busy",
            Group::Starting => "starting",
            Group::OnProbation => "on probation",
            Group::Blocked => "blocked for this workflow",
            Group::OnTrial => "on trial with another job",
            Group::FailedBefore => return format!("{count} failed it before"),
            Group::TooSmall => return format!("{count} ran out of memory"),
            Group::Vetoed => "refused by the program's own strategy",
            Group::Unheard => return format!("{count} {are} not heard since the plane started"),
            Group::Silent => "silent",
            Group::Sick => return format!("{count} {are} sick ({})", problem.unwrap_or("no reason given")),
            Group::Draining => "draining",
            Group::Gone => "gone",
        };
        format!("{count} {are} {state}")
    }

    fn next(self, until: Option<Timestamp>) -> String {
        match (self, until) {
            (Group::Busy, _) => "it starts when one of them is free".to_owned(),
            (Group::Starting, _) => "it starts when one of them is ready".to_owned(),
            (Group::OnProbation | Group::Blocked, Some(until)) => format!("a trial at {until}"),
            (Group::OnProbation | Group::Blocked | Group::OnTrial, _) => {
                "it starts if the trial succeeds".to_owned()
            }
            (Group::FailedBefore, _) => "it is tried there again soon".to_owned(),
            (Group::TooSmall, _) => "it starts when a larger worker is free".to_owned(),
            (Group::Vetoed, _) => "it starts when the strategy allows a worker".to_owned(),
            (Group::Unheard | Group::Silent, _) => "it starts when one of them is heard again".to_owned(),
            (Group::Sick, _) => "it starts when a service recovers".to_owned(),
            (Group::Draining | Group::Gone, _) => "start a worker that can run it".to_owned(),
        }
    }
}

/// The sentence for workers that all match and cannot take the job now.
pub(super) fn summary(reasons: &[&PassedOver]) -> String {
    let count = |group: Group| reasons.iter().filter(|reason| Group::of(reason) == group).count();
    let present = GROUPS.iter().map(|group| (*group, count(*group))).filter(|(_, count)| *count > 0);
    let present: Vec<_> = present.collect();
    let Some((first, _)) = present.first() else { return "no worker matches".to_owned() };
    let until =
        reasons.iter().filter(|reason| Group::of(reason) == *first).filter_map(|reason| until(reason));
    let problem = reasons.iter().find_map(|reason| match reason {
        PassedOver::Unavailable(Availability::Sick { reason }) => Some(reason.as_str()),
        _ => None,
    });
    let told: Vec<_> = present.iter().map(|(group, count)| group.describe(*count, problem)).collect();
    let next = first.next(until.min());
    format!("no matching worker is ready: {}; next: {next}", told.join(", "))
}

fn until(reason: &PassedOver) -> Option<Timestamp> {
    match reason {
        PassedOver::Blocked { until } | PassedOver::Unavailable(Availability::Probation { until }) => {
            Some(*until)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workers_are_counted_by_state_and_the_next_step_is_named() {
        let (busy, gone) = (PassedOver::Busy { slots: 1 }, PassedOver::Unavailable(Availability::Terminated));
        let offline = PassedOver::Unavailable(Availability::Offline);
        let mut reasons = vec![&busy; 4];
        reasons.extend([&gone, &offline]);
        assert_eq!(
            summary(&reasons),
            "no matching worker is ready: 4 are busy, 2 are gone; next: it starts when one of them is free"
        );
        assert_eq!(
            summary(&[&gone]),
            "no matching worker is ready: 1 is gone; next: start a worker that can run it"
        );
    }

    #[test]
    fn earliest_end_and_the_problem_are_named() {
        let sick = PassedOver::Unavailable(Availability::Sick { reason: "disk full".to_owned() });
        assert_eq!(
            summary(&[&sick]),
            "no matching worker is ready: 1 is sick (disk full); next: it starts when a service recovers"
        );
        let [early, late] =
            [5, 9].map(|seconds| PassedOver::Blocked { until: Timestamp::from_millis(seconds * 1000) });
        let told = summary(&[&late, &early, &sick]);
        assert!(
            told.contains(
                "2 are blocked for this workflow, 1 is sick (disk full); next: a trial at 1970-01-01T00:00:05"
            ),
            "{told}"
        );
    }
}
