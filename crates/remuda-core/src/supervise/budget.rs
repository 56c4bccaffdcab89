//! How often a remedy is tried before the level above takes over.

use std::collections::VecDeque;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::time::Timestamp;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Budget {
    remedies_max: u32,
    spent: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BudgetVerdict {
    /// Apply the remedy; the number counts from 1.
    Apply(u32),
    /// The budget is spent: the level above decides.
    Escalate,
}

impl Budget {
    pub fn new(remedies_max: u32) -> Self {
        Budget { remedies_max, spent: 0 }
    }

    pub fn spend(&mut self) -> BudgetVerdict {
        if self.spent == self.remedies_max {
            return BudgetVerdict::Escalate;
        }
        self.spent += 1;
        BudgetVerdict::Apply(self.spent)
    }

    /// It works again. Call this on proof (a completed attempt, a passed self-test), not on the remedy's own success.
    pub fn earn_back(&mut self) {
        self.spent = 0;
    }
}

/// A budget that time earns back: for a thing whose success cannot be observed, so that remedies far apart must not add
/// up to an escalation.
#[derive(Clone, Debug)]
pub struct WindowedBudget {
    remedies_max: u32,
    within: Duration,
    /// When the remedies of the window were applied; at most `remedies_max`.
    spent_at: VecDeque<Timestamp>,
}

impl WindowedBudget {
    pub fn new(remedies_max: u32, within: Duration) -> Self {
        WindowedBudget { remedies_max, within, spent_at: VecDeque::new() }
    }

    /// The number of an applied remedy counts those of the window.
    pub fn spend(&mut self, now: Timestamp) -> BudgetVerdict {
        while self.spent_at.front().is_some_and(|at| now.since(*at) > self.within) {
            self.spent_at.pop_front();
        }
        let spent = u32::try_from(self.spent_at.len()).unwrap_or(u32::MAX);
        if spent >= self.remedies_max {
            return BudgetVerdict::Escalate;
        }
        self.spent_at.push_back(now);
        BudgetVerdict::Apply(spent + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remedies_far_apart_do_not_add_up() {
        let mut budget = WindowedBudget::new(2, Duration::from_secs(60));
        let at = |seconds: u64| Timestamp::from_millis(seconds * 1000);
        for round in 1..50 {
            assert_eq!(budget.spend(at(round * 120)), BudgetVerdict::Apply(1));
        }
        assert_eq!(budget.spend(at(5900)), BudgetVerdict::Apply(2));
        assert_eq!(budget.spend(at(5910)), BudgetVerdict::Escalate);
        assert_eq!(budget.spend(at(5961)), BudgetVerdict::Apply(1));
    }

    #[test]
    fn spent_budget_escalates_until_it_is_earned_back() {
        let mut budget = Budget::new(2);
        assert_eq!([budget.spend(), budget.spend()], [BudgetVerdict::Apply(1), BudgetVerdict::Apply(2)]);
        assert_eq!([budget.spend(), budget.spend()], [BudgetVerdict::Escalate, BudgetVerdict::Escalate]);
        budget.earn_back();
        assert_eq!(budget.spend(), BudgetVerdict::Apply(1));
    }
}
