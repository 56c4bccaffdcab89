//! Small documents stored besides jobs: the plane promised to keep them and mostly does not read them. Each has an id
//! within its collection and an index key for a second lookup.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde_json::value::RawValue;

use crate::id::Tenant;
use crate::time::Timestamp;

#[derive(Clone, Debug)]
pub struct Document {
    pub collection: Collection,
    pub id: String,
    /// The owner, if there is one.
    pub tenant: Option<Tenant>,
    /// Second lookup key; not unique.
    pub index_key: String,
    /// From then on it is treated as absent, and is soon deleted.
    pub expires_at: Option<Timestamp>,
    pub body: Arc<RawValue>,
}

impl Document {
    pub fn is_live(&self, now: Timestamp) -> bool {
        self.expires_at.is_none_or(|expires_at| now < expires_at)
    }
}

impl PartialEq for Document {
    fn eq(&self, other: &Document) -> bool {
        (self.collection, &self.id, &self.tenant, &self.index_key, self.expires_at, self.body.get())
            == (
                other.collection,
                &other.id,
                &other.tenant,
                &other.index_key,
                other.expires_at,
                other.body.get(),
            )
    }
}

/// What a document is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Collection {
    /// A file uploaded by a client; the index key is its content hash.
    Asset,
    /// An idempotency key of an upload.
    Claim,
    /// An access token; the index key is the hash of its secret.
    Token,
    /// A webhook that has to be sent.
    Webhook,
    /// Placement rules of a shape.
    Affinity,
    /// Data of ComfyUI clients: uploads by name, settings, user files, hidden history.
    Comfyui,
    /// State of a fleet: scaling direction, refused offers, costs.
    Fleet,
    /// A rented machine, from its order until it is proven gone; the index key is its fleet.
    Machine,
    /// Uptime history of a machine.
    Reliability,
    /// An incident that people were told of, until its recovery was told too; the index key is its rule.
    Alert,
}

impl Collection {
    pub const ALL: [Collection; 10] = [
        Collection::Asset,
        Collection::Claim,
        Collection::Token,
        Collection::Webhook,
        Collection::Affinity,
        Collection::Comfyui,
        Collection::Fleet,
        Collection::Machine,
        Collection::Reliability,
        Collection::Alert,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            Collection::Asset => "asset",
            Collection::Claim => "claim",
            Collection::Token => "token",
            Collection::Webhook => "webhook",
            Collection::Affinity => "affinity",
            Collection::Comfyui => "comfyui",
            Collection::Fleet => "fleet",
            Collection::Machine => "machine",
            Collection::Reliability => "reliability",
            Collection::Alert => "alert",
        }
    }

    /// Whether clients write there; a client can retry when the store is out of space.
    pub fn is_client_data(self) -> bool {
        match self {
            Collection::Asset | Collection::Claim | Collection::Comfyui => true,
            Collection::Token
            | Collection::Webhook
            | Collection::Affinity
            | Collection::Fleet
            | Collection::Machine
            | Collection::Reliability
            | Collection::Alert => false,
        }
    }

    /// Whether the plane needs them at every step, so that they are loaded on restore.
    pub fn is_plane_state(self) -> bool {
        matches!(
            self,
            Collection::Affinity | Collection::Fleet | Collection::Machine | Collection::Reliability
        )
    }
}

impl fmt::Display for Collection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Collection {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, String> {
        Collection::ALL
            .into_iter()
            .find(|collection| collection.as_str() == word)
            .ok_or_else(|| format!("{word:?} is no collection"))
    }
}
