//! Documents that the plane stores without reading them, and the ends of webhook deliveries.

use std::sync::Arc;

use super::{DomainEvent, Plane, PlaneAnswer};
use crate::document::{Collection, Document};
use crate::record::Record;
use crate::time::Timestamp;
use crate::webhook::DeliveryResult;

impl Plane {
    pub(super) fn put_document(&mut self, document: Arc<Document>) -> PlaneAnswer {
        self.outbox.record(Record::Document(document));
        PlaneAnswer::Done
    }

    pub(super) fn webhook_settled(&mut self, now: Timestamp, told: &DeliveryResult) -> PlaneAnswer {
        self.outbox
            .record(Record::DocumentDeleted { collection: Collection::Webhook, id: told.job.to_string() });
        self.outbox.publish(now, DomainEvent::WebhookSettled(told));
        PlaneAnswer::Done
    }

    pub(super) fn delete_document(&mut self, collection: Collection, id: String) -> PlaneAnswer {
        self.outbox.record(Record::DocumentDeleted { collection, id });
        PlaneAnswer::Done
    }
}
