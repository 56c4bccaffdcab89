//! Small things that are kept beside the jobs: what the plane promised to remember and does not decide upon at every
//! step. Each lies on a collection under its id; a index_key is what it is also found by.

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
    /// Whose it is, if it is somebody's.
    pub tenant: Option<Tenant>,
    /// What else it is found by; need not be the only one with it.
    pub index_key: String,
    /// From then on it is gone for whoever asks, and soon from the store.
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
    /// A file that somebody sent or may send again; marked by its content.
    Asset,
    /// A key that was used once and must not be used again.
    Claim,
    /// Who may do what; marked by the hash of the secret.
    Token,
    /// News of a job's end that somebody is yet to be told.
    Webhook,
    /// Which workers a shape would rather run on.
    Affinity,
    /// What stock ComfyUI clients put down: uploads by name, settings, files of theirs, what they want to see no more.
    Comfyui,
    /// A fleet as it stands: which way it went, what was refused, what was spent.
    Fleet,
    /// A rented machine, from the wish for it to the proof that it is gone; marked by its fleet.
    Machine,
    /// How well a machine was heard, whoever it belongs to.
    Reliability,
}

impl Collection {
    pub const ALL: [Collection; 9] = [
        Collection::Asset,
        Collection::Claim,
        Collection::Token,
        Collection::Webhook,
        Collection::Affinity,
        Collection::Comfyui,
        Collection::Fleet,
        Collection::Machine,
        Collection::Reliability,
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
        }
    }

    /// Whether clients put things there, who can be told to come back when the store has room again.
    pub fn is_client_data(self) -> bool {
        match self {
            Collection::Asset | Collection::Claim | Collection::Comfyui => true,
            Collection::Token
            | Collection::Webhook
            | Collection::Affinity
            | Collection::Fleet
            | Collection::Machine
            | Collection::Reliability => false,
        }
    }

    /// Whether the plane itself needs them at every step, and so gets them back when it is restored.
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
