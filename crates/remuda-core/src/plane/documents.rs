//! Small things that are kept beside the jobs, and news of ends that were taken off their shelf.

use std::sync::Arc;

use super::{About, Plane, PlaneAnswer, detail};
use crate::document::{Collection, Document};
use crate::record::Record;
use crate::time::Timestamp;
use crate::webhook::DeliveryResult;

impl Plane {
    pub(super) fn keep(&mut self, document: Arc<Document>) -> PlaneAnswer {
        self.records.push(Record::Document(document));
        PlaneAnswer::Done
    }

    pub(super) fn told(&mut self, now: Timestamp, told: &DeliveryResult) -> PlaneAnswer {
        self.records
            .push(Record::DocumentDeleted { collection: Collection::Webhook, id: told.job.to_string() });
        let name = if told.problem.is_none() { "webhook:delivered" } else { "webhook:given_up" };
        let mut how = detail([("tries", told.tries.into())]);
        if let Some(problem) = &told.problem {
            how.insert("reason".to_owned(), problem.clone().into());
        }
        self.happened(now, name, About { ended: Some(told), ..About::default() }, how);
        PlaneAnswer::Done
    }

    pub(super) fn discard(&mut self, collection: Collection, id: String) -> PlaneAnswer {
        self.records.push(Record::DocumentDeleted { collection, id });
        PlaneAnswer::Done
    }
}
