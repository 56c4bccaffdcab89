//! How often a remedy is tried before the level above takes over.

use serde::{Deserialize, Serialize};

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spent_budget_escalates_until_it_is_earned_back() {
        let mut budget = Budget::new(2);
        assert_eq!([budget.spend(), budget.spend()], [BudgetVerdict::Apply(1), BudgetVerdict::Apply(2)]);
        assert_eq!([budget.spend(), budget.spend()], [BudgetVerdict::Escalate, BudgetVerdict::Escalate]);
        budget.earn_back();
        assert_eq!(budget.spend(), BudgetVerdict::Apply(1));
    }
}
