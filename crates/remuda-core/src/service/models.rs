//! Rules of the model service: when a model is offered, and whose fault a failed call is.
//!
//! The pool restarts copies by itself and escalates when that does not help. Such a model is not offered until one of
//! its copies is ready again. When no model is left, the whole service counts as exited.

use std::collections::BTreeSet;

use super::ServiceFault;
use crate::cause::Cause;
use crate::need::Capabilities;

/// The models of a worker, and those that its pool gave up for now.
#[derive(Clone, Debug, Default)]
pub struct ModelOffer {
    models: BTreeSet<String>,
    withdrawn: BTreeSet<String>,
}

/// What an escalation changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OfferChange {
    /// Another copy answers, or the model is withdrawn already.
    None,
    Withdrawn,
    /// The last model is withdrawn: the service takes no work.
    Exhausted,
}

impl ModelOffer {
    pub fn new(models: impl IntoIterator<Item = String>) -> Self {
        ModelOffer { models: models.into_iter().collect(), withdrawn: BTreeSet::new() }
    }

    pub fn capabilities(&self) -> Capabilities {
        let offered = self.models.difference(&self.withdrawn).cloned().collect();
        Capabilities { models: Some(offered), ..Capabilities::default() }
    }

    /// Why the service takes no work, if it does not.
    pub fn problem(&self) -> Option<&'static str> {
        self.is_exhausted().then_some("no model has a working copy")
    }

    /// The pool could not repair a copy. One copy may be beyond repair while the others answer.
    pub fn escalated(&mut self, model: &str, has_ready_copy: bool) -> OfferChange {
        if has_ready_copy || !self.withdrawn.insert(model.to_owned()) {
            return OfferChange::None;
        }
        if self.is_exhausted() { OfferChange::Exhausted } else { OfferChange::Withdrawn }
    }

    /// Offers the withdrawn models again that have a ready copy, and returns them.
    pub fn restore(&mut self, has_ready_copy: impl Fn(&str) -> bool) -> Vec<String> {
        let ready: Vec<_> = self.withdrawn.iter().filter(|model| has_ready_copy(model)).cloned().collect();
        self.withdrawn.retain(|model| !ready.contains(model));
        ready
    }

    fn is_exhausted(&self) -> bool {
        self.models.is_subset(&self.withdrawn)
    }
}

/// Why a call of a model failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallFailure {
    /// The request is wrong, here and everywhere.
    Input,
    /// This worker has no such model, or no copy of it.
    NoModel,
    OutOfMemory,
    /// The engine failed, or its answer cannot be trusted.
    Engine,
    /// The copy stopped, or the answer came too late.
    Lost,
    /// The pool was given more than it can take, or is closing: neither the job's nor the worker's fault.
    Overloaded,
    Cancelled,
}

impl CallFailure {
    pub fn fault(self) -> ServiceFault {
        match self {
            CallFailure::Input => ServiceFault::Graph,
            CallFailure::NoModel => ServiceFault::Missing,
            CallFailure::OutOfMemory => ServiceFault::Memory,
            CallFailure::Engine => ServiceFault::Died,
            CallFailure::Lost | CallFailure::Overloaded | CallFailure::Cancelled => ServiceFault::Lost,
        }
    }

    pub fn cause(self) -> Cause {
        match self {
            CallFailure::Overloaded | CallFailure::Cancelled => Cause::Plane,
            CallFailure::Input
            | CallFailure::NoModel
            | CallFailure::OutOfMemory
            | CallFailure::Engine
            | CallFailure::Lost => self.fault().cause(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn model_is_withdrawn_until_a_copy_is_ready_and_the_last_one_closes_the_service() {
        let mut offer = ModelOffer::new(["a".to_owned(), "b".to_owned()]);
        assert_eq!(offer.escalated("a", true), OfferChange::None, "another copy answers");
        assert_eq!(offer.escalated("a", false), OfferChange::Withdrawn);
        assert_eq!(offer.escalated("a", false), OfferChange::None, "known already");
        assert_eq!(offer.capabilities().models, Some(["b".to_owned()].into()));
        assert_eq!((offer.problem(), offer.escalated("b", false)), (None, OfferChange::Exhausted));
        assert_eq!(offer.problem(), Some("no model has a working copy"));
        assert_eq!(offer.restore(|model| model == "a"), ["a"]);
        assert_eq!(offer.capabilities().models, Some(["a".to_owned()].into()));
    }

    #[test]
    fn wrong_request_is_the_jobs_fault_and_a_full_pool_is_neither_sides() {
        assert_eq!(CallFailure::Input.cause(), Cause::Job);
        assert_eq!(CallFailure::OutOfMemory.cause(), Cause::Worker);
        assert_eq!(CallFailure::Engine.cause(), Cause::Service);
        assert_eq!(CallFailure::Overloaded.cause(), Cause::Plane);
    }
}
