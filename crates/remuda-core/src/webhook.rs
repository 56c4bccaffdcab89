//! Webhooks: reporting the end of a job to its owner. The delivery is stored in the same commit as the end, so no crash can
//! come between them, and is retried until it is accepted or a day has passed. Every retry has the same id and body.
//!
//! Decided here: when, for how long, and how it is signed. The server sends.

mod target;

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

pub use self::target::WebhookTargets;

use crate::document::{Collection, Document};
use crate::event_kind::EventKind;
use crate::id::{JobId, Tenant};
use crate::options::{Webhook, WebhookSecret};
use crate::supervise::Backoff;
use crate::time::Timestamp;

/// Between two tries: 5 s at first, then up to an hour.
const RETRY: Backoff = Backoff::new(Duration::from_secs(5), Duration::from_secs(3600));
/// A receiver that did not accept it within a day does not need it any more.
pub const DELIVERY_TIMEOUT: Duration = Duration::from_secs(24 * 3600);
/// The store expires it by itself if no plane ran in time to abandon it.
const KEEP_FOR: Duration = Duration::from_secs(48 * 3600);

/// One webhook to deliver, as it is stored until it is accepted or abandoned.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct WebhookDelivery {
    pub job: JobId,
    pub tenant: Tenant,
    #[serde(default)]
    pub metadata: Map<String, Value>,
    pub ended_at: Timestamp,
    pub url: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<WebhookSecret>,
    /// The request body; the same bytes in every try.
    pub body: Arc<RawValue>,
}

/// How a delivery ended.
#[derive(Clone, Debug)]
pub struct DeliveryResult {
    pub job: JobId,
    pub tenant: Tenant,
    pub metadata: Map<String, Value>,
    pub tries: u32,
    /// Why it was abandoned; `None` if it was accepted.
    pub problem: Option<String>,
}

impl WebhookDelivery {
    /// `kind` and `detail` are those of the job's final event.
    pub fn new(
        (job, tenant, metadata): (JobId, Tenant, Map<String, Value>),
        webhook: &Webhook,
        at: Timestamp,
        kind: EventKind,
        detail: &Map<String, Value>,
    ) -> Self {
        let (_, state) = kind.parts();
        let body = json!({
            "id": job, "event": kind, "job": job, "state": state, "at": at.to_string(),
            "tenant": tenant, "metadata": metadata, "detail": detail,
        });
        let body = Arc::from(to_raw_value(&body).expect("JSON can be written"));
        let (url, secret) = (webhook.url.clone(), webhook.secret.clone());
        WebhookDelivery { job, tenant, metadata, ended_at: at, url, secret, body }
    }

    pub fn document(&self) -> Arc<Document> {
        let body = to_raw_value(self).expect("JSON can be written");
        Arc::new(Document {
            collection: Collection::Webhook,
            id: self.job.to_string(),
            tenant: Some(self.tenant.clone()),
            index_key: String::new(),
            expires_at: Some(self.ended_at.plus(KEEP_FOR)),
            body: Arc::from(body),
        })
    }

    /// When to try again after `failures` failures, the last of them now; `None` if it is to be abandoned.
    pub fn retry_at(&self, now: Timestamp, failures: u32) -> Option<Timestamp> {
        // A receiver that comes back must not get every delivery at once.
        let at = now.plus(RETRY.extra_jitter(failures.saturating_sub(1), self.job.jitter(failures)));
        (at.since(self.ended_at) < DELIVERY_TIMEOUT).then_some(at)
    }

    /// Whether it is too old for another try, even after few: a receiver that is down gets few.
    pub fn is_expired(&self, now: Timestamp) -> bool {
        now.since(self.ended_at) >= DELIVERY_TIMEOUT
    }

    /// The result after `tries` tries.
    pub fn result(&self, tries: u32, problem: Option<String>) -> DeliveryResult {
        let WebhookDelivery { job, tenant, metadata, .. } = self;
        DeliveryResult { job: *job, tenant: tenant.clone(), metadata: metadata.clone(), tries, problem }
    }

    /// `t=<unix>,v1=<hex>`: HMAC-SHA256 of `<unix>.<body>`, so that a captured message cannot be replayed later.
    pub fn signature(&self, now: Timestamp) -> Option<String> {
        let secret = self.secret.as_ref()?;
        let unix = now.as_millis() / 1000;
        let signed = format!("{unix}.{}", self.body.get());
        let mac = hmac(secret.reveal().as_bytes(), signed.as_bytes());
        let hex: String = mac.iter().map(|byte| format!("{byte:02x}")).collect();
        Some(format!("t={unix},v1={hex}"))
    }
}

/// RFC 2104 with SHA-256.
fn hmac(key: &[u8], message: &[u8]) -> [u8; 32] {
    const BLOCK: usize = 64;
    let mut padded = [0_u8; BLOCK];
    if key.len() > BLOCK {
        padded[..32].copy_from_slice(&Sha256::digest(key));
    } else {
        padded[..key.len()].copy_from_slice(key);
    }
    let inner = Sha256::new().chain_update(padded.map(|byte| byte ^ 0x36)).chain_update(message).finalize();
    Sha256::new().chain_update(padded.map(|byte| byte ^ 0x5c)).chain_update(inner).finalize().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn delivery(secret: Option<&str>) -> WebhookDelivery {
        let webhook = Webhook {
            url: "http://example.org/hook".to_owned(),
            secret: secret.map(|secret| WebhookSecret::new(secret.to_owned())),
        };
        let whose = (JobId::from_u128(7), "anna".parse().unwrap(), Map::new());
        WebhookDelivery::new(whose, &webhook, Timestamp::from_millis(0), EventKind::JobCompleted, &Map::new())
    }

    /// The test cases 1, 2 and 6 of RFC 4231.
    #[test]
    fn hmac_matches_rfc_4231() {
        let hex = |mac: [u8; 32]| mac.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        assert_eq!(
            hex(hmac(&[0x0b; 20], b"Hi There")),
            "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7"
        );
        assert_eq!(
            hex(hmac(b"Jefe", b"what do ya want for nothing?")),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843"
        );
        assert_eq!(
            hex(hmac(&[0xaa; 131], b"Test Using Larger Than Block-Size Key - Hash Key First")),
            "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54"
        );
    }

    #[test]
    fn delivery_with_a_secret_is_signed_with_the_time() {
        assert_eq!(delivery(None).signature(Timestamp::ZERO), None);
        let first = delivery(Some("s")).signature(Timestamp::from_millis(1500)).unwrap();
        assert!(first.starts_with("t=1,v1=") && first.len() == 7 + 64, "{first}");
        assert_ne!(Some(first), delivery(Some("s")).signature(Timestamp::from_millis(2500)));
    }

    #[test]
    fn retries_back_off_and_end_after_a_day() {
        let (delivery, mut now, mut tries) = (delivery(None), Timestamp::ZERO, 0);
        let mut waits = Vec::new();
        while let Some(at) = delivery.retry_at(now, tries + 1) {
            waits.push(at.since(now));
            (now, tries) = (at, tries + 1);
        }
        let (min, max) = (Duration::from_secs(5), Duration::from_secs(3600));
        assert!(waits[0] >= min && waits[0] < min * 2, "{waits:?}");
        assert!(waits.iter().all(|wait| *wait <= max * 5 / 4), "{waits:?}");
        assert!((20..60).contains(&tries), "{tries}");
        assert!(!delivery.is_expired(now));
        assert!(delivery.is_expired(delivery.ended_at.plus(DELIVERY_TIMEOUT)), "even if it was never tried");
    }

    #[test]
    fn stored_delivery_is_restored_and_debug_hides_its_secret() {
        let before = delivery(Some("hush"));
        let after: WebhookDelivery = serde_json::from_str(before.document().body.get()).unwrap();
        assert_eq!(after.signature(Timestamp::ZERO), before.signature(Timestamp::ZERO));
        assert!(!format!("{before:?}").contains("hush"));
    }
}
