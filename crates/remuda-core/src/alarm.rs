//! Timers of the plane. Each subject has at most one alarm, at the next time its state can change. An alarm that
//! comes too early is harmless, because the handler decides by `now`.

use std::collections::{BTreeMap, BTreeSet};

use crate::id::{JobId, WorkerId};
use crate::scope::{BlockScope, TenantShape};
use crate::time::Timestamp;

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Alarm {
    /// A retry is due, or a deadline passes.
    Job(JobId),
    /// A worker may have fallen silent, or its probation is over.
    Worker(WorkerId),
    /// A block ends: one trial.
    Block(WorkerId, BlockScope),
    /// A quarantined shape may have a trial.
    Quarantine(TenantShape),
    /// The control cycle is due.
    Cycle,
    /// A provider call is due.
    Provider,
}

impl Alarm {
    /// Why the plane will wake, for people.
    pub fn reason(&self) -> String {
        match self {
            Alarm::Job(job) => format!("job {job}: a retry or a deadline is due"),
            Alarm::Worker(worker) => {
                format!("worker {worker}: a beat, an attempt's limit or the end of its probation is due")
            }
            Alarm::Block(worker, scope) => format!("the block of {worker} for {scope} ends"),
            Alarm::Quarantine(jobs) => format!("shape {} may have its trial", jobs.shape.short()),
            Alarm::Cycle => "the control cycle is due".to_owned(),
            Alarm::Provider => "a call to a provider is due (list, prices or a return)".to_owned(),
        }
    }
}

#[derive(Clone, Debug, Default)]
pub struct Alarms {
    at: BTreeMap<Alarm, Timestamp>,
    order: BTreeSet<(Timestamp, Alarm)>,
}

impl Alarms {
    /// Sets or moves the alarm; `None` removes it.
    pub fn set(&mut self, alarm: Alarm, at: Option<Timestamp>) {
        let before = match at {
            Some(at) => self.at.insert(alarm.clone(), at),
            None => self.at.remove(&alarm),
        };
        if before == at {
            return;
        }
        if let Some(before) = before {
            let entry = (before, alarm);
            self.order.remove(&entry);
            if let Some(at) = at {
                self.order.insert((at, entry.1));
            }
        } else if let Some(at) = at {
            self.order.insert((at, alarm));
        }
    }

    pub fn first(&self) -> Option<&(Timestamp, Alarm)> {
        self.order.first()
    }

    /// Takes the first alarm that is due.
    pub fn take_due(&mut self, now: Timestamp) -> Option<Alarm> {
        let (at, _) = self.order.first()?;
        if *at > now {
            return None;
        }
        let (_, alarm) = self.order.pop_first()?;
        self.at.remove(&alarm);
        Some(alarm)
    }

    pub fn get(&self, alarm: &Alarm) -> Option<Timestamp> {
        self.at.get(alarm).copied()
    }

    /// Whether both indexes agree.
    pub fn is_consistent(&self) -> bool {
        self.at.len() == self.order.len()
            && self.order.iter().all(|(at, alarm)| self.at.get(alarm) == Some(at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_alarm_can_be_moved_and_taken_away() {
        let at = Timestamp::from_millis;
        let mut alarms = Alarms::default();
        alarms.set(Alarm::Provider, Some(at(5)));
        alarms.set(Alarm::Cycle, Some(at(3)));
        alarms.set(Alarm::Provider, Some(at(2)));
        assert!(alarms.is_consistent());
        assert_eq!(alarms.take_due(at(1)), None);
        assert_eq!(alarms.take_due(at(4)), Some(Alarm::Provider));
        alarms.set(Alarm::Cycle, None);
        assert_eq!(alarms.take_due(at(9)), None);
        assert!(alarms.is_consistent());
    }
}
