//! Telling somebody how a job ended. The news is written together with the end, so that no crash can come between them,
//! and is sent until it was taken or a day has passed; the same news always has the same id. Sending is the shell's; when,
//! until when and signed how is said here.

mod target;

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

pub use self::target::WebhookTargets;

use crate::document::{Collection, Document};
use crate::id::{JobId, Tenant};
use crate::options::{Webhook, WebhookSecret};
use crate::time::Timestamp;

/// The first wait after a failed delivery; doubles each time.
const WAIT_MIN: Duration = Duration::from_secs(5);
/// Whoever is down for longer than that is asked once an hour.
const WAIT_MAX: Duration = Duration::from_secs(3600);
/// Whoever did not take it within a day will not miss it.
pub const DELIVERY_TIMEOUT: Duration = Duration::from_secs(24 * 3600);
/// The store forgets it by itself if nobody was there to give it up.
const KEEP_FOR: Duration = Duration::from_secs(48 * 3600);

/// News of a job's end, as it lies on its shelf until it was taken.
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
    /// What is sent, byte for byte, however often.
    pub body: Arc<RawValue>,
}

/// What became of it.
#[derive(Clone, Debug)]
pub struct DeliveryResult {
    pub job: JobId,
    pub tenant: Tenant,
    pub metadata: Map<String, Value>,
    pub tries: u32,
    /// Why it was given up, if it was.
    pub problem: Option<String>,
}

impl WebhookDelivery {
    /// `detail` is what the event of the end says.
    pub fn new(
        (job, tenant, metadata): (JobId, Tenant, Map<String, Value>),
        webhook: &Webhook,
        at: Timestamp,
        name: &str,
        detail: &Map<String, Value>,
    ) -> Self {
        let state = name.trim_start_matches("job:");
        let body = json!({
            "id": job, "event": name, "job": job, "state": state, "at": at.to_string(),
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

    /// When to try again after so many failures, the last of them now; nothing if it is time to give up.
    pub fn retry_at(&self, now: Timestamp, failures: u32) -> Option<Timestamp> {
        let wait = WAIT_MIN.saturating_mul(1 << failures.saturating_sub(1).min(16)).min(WAIT_MAX);
        // Receivers that came back must not be met by everybody at once.
        let spread = Duration::from_millis(self.job.jitter(failures) % (1 + wait.as_millis() as u64 / 4));
        let at = now.plus(wait + spread);
        (at.since(self.ended_at) < DELIVERY_TIMEOUT).then_some(at)
    }

    /// Whether it is too old to be worth a try, however few there were: a receiver that is down gets few.
    pub fn is_over(&self, now: Timestamp) -> bool {
        now.since(self.ended_at) >= DELIVERY_TIMEOUT
    }

    /// What became of it after so many tries.
    pub fn told(&self, tries: u32, problem: Option<String>) -> DeliveryResult {
        let WebhookDelivery { job, tenant, metadata, .. } = self;
        DeliveryResult { job: *job, tenant: tenant.clone(), metadata: metadata.clone(), tries, problem }
    }

    /// `t=<unix>,v1=<hex>`: HMAC-SHA256 of `<unix>.<body>`, so that an old message cannot pass for a new one.
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

    fn news(secret: Option<&str>) -> WebhookDelivery {
        let webhook = Webhook {
            url: "http://example.org/hook".to_owned(),
            secret: secret.map(|secret| WebhookSecret::new(secret.to_owned())),
        };
        let whose = (JobId::from_u128(7), "anna".parse().unwrap(), Map::new());
        WebhookDelivery::new(whose, &webhook, Timestamp::from_millis(0), "job:completed", &Map::new())
    }

    /// The test cases 1, 2 and 6 of RFC 4231.
    #[test]
    fn the_signature_is_what_everybody_else_computes() {
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
    fn only_who_gave_a_secret_gets_a_signature_and_it_has_the_time_in_it() {
        assert_eq!(news(None).signature(Timestamp::ZERO), None);
        let first = news(Some("s")).signature(Timestamp::from_millis(1500)).unwrap();
        assert!(first.starts_with("t=1,v1=") && first.len() == 7 + 64, "{first}");
        assert_ne!(Some(first), news(Some("s")).signature(Timestamp::from_millis(2500)));
    }

    #[test]
    fn waits_grow_and_a_day_later_it_is_over() {
        let (news, mut now, mut tries) = (news(None), Timestamp::ZERO, 0);
        let mut waits = Vec::new();
        while let Some(at) = news.retry_at(now, tries + 1) {
            waits.push(at.since(now));
            (now, tries) = (at, tries + 1);
        }
        assert!(waits[0] >= WAIT_MIN && waits[0] < WAIT_MIN * 2, "{waits:?}");
        assert!(waits.iter().all(|wait| *wait <= WAIT_MAX * 5 / 4), "{waits:?}");
        assert!((20..60).contains(&tries), "{tries}");
        assert!(!news.is_over(now));
        assert!(news.is_over(news.ended_at.plus(DELIVERY_TIMEOUT)), "even if it was never tried");
    }

    #[test]
    fn news_come_back_from_the_shelf_as_they_were_and_do_not_show_their_secret() {
        let before = news(Some("hush"));
        let after: WebhookDelivery = serde_json::from_str(before.document().body.get()).unwrap();
        assert_eq!(after.signature(Timestamp::ZERO), before.signature(Timestamp::ZERO));
        assert!(!format!("{before:?}").contains("hush"));
    }
}
