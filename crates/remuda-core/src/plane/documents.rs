//! Documents that the plane stores without reading them, and the ends of webhook deliveries.

use std::sync::Arc;

use super::{EventSubject, Plane, PlaneAnswer, detail};
use crate::document::{Collection, Document};
use crate::record::Record;
use crate::time::Timestamp;
use crate::webhook::DeliveryResult;

impl Plane {
    pub(super) fn put_document(&mut self, document: Arc<Document>) -> PlaneAnswer {
        self.records.push(Record::Document(document));
        PlaneAnswer::Done
    }

    pub(super) fn webhook_settled(&mut self, now: Timestamp, told: &DeliveryResult) -> PlaneAnswer {
        self.records
            .push(Record::DocumentDeleted { collection: Collection::Webhook, id: told.job.to_string() });
        let name = if told.problem.is_none() { "webhook:delivered" } else { "webhook:given_up" };
        let mut how = detail([("tries", told.tries.into())]);
        if let Some(problem) = &told.problem {
            how.insert("reason".to_owned(), problem.clone().into());
        }
        self.publish(now, name, EventSubject { ended: Some(told), ..EventSubject::default() }, how);
        PlaneAnswer::Done
    }

    pub(super) fn delete_document(&mut self, collection: Collection, id: String) -> PlaneAnswer {
        self.records.push(Record::DocumentDeleted { collection, id });
        PlaneAnswer::Done
    }
}
