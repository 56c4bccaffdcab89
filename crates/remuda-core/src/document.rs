//! Small things that are kept beside the jobs: what the plane promised to remember and does not decide upon at every
//! step. Each lies on a shelf under its id; a mark is what it is also found by.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde_json::value::RawValue;

use crate::id::Tenant;
use crate::time::Timestamp;

#[derive(Clone, Debug)]
pub struct Document {
    pub shelf: Shelf,
    pub id: String,
    /// Whose it is, if it is somebody's.
    pub tenant: Option<Tenant>,
    /// What else it is found by; need not be the only one with it.
    pub mark: String,
    /// From then on it is gone for whoever asks, and soon from the store.
    pub expires_at: Option<Timestamp>,
    pub body: Arc<RawValue>,
}

impl Document {
    pub fn is_there(&self, now: Timestamp) -> bool {
        self.expires_at.is_none_or(|expires_at| now < expires_at)
    }
}

impl PartialEq for Document {
    fn eq(&self, other: &Document) -> bool {
        (self.shelf, &self.id, &self.tenant, &self.mark, self.expires_at, self.body.get())
            == (other.shelf, &other.id, &other.tenant, &other.mark, other.expires_at, other.body.get())
    }
}

/// What a document is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Shelf {
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

impl Shelf {
    pub const ALL: [Shelf; 9] = [
        Shelf::Asset,
        Shelf::Claim,
        Shelf::Token,
        Shelf::Webhook,
        Shelf::Affinity,
        Shelf::Comfyui,
        Shelf::Fleet,
        Shelf::Machine,
        Shelf::Reliability,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            Shelf::Asset => "asset",
            Shelf::Claim => "claim",
            Shelf::Token => "token",
            Shelf::Webhook => "webhook",
            Shelf::Affinity => "affinity",
            Shelf::Comfyui => "comfyui",
            Shelf::Fleet => "fleet",
            Shelf::Machine => "machine",
            Shelf::Reliability => "reliability",
        }
    }

    /// Whether clients put things there, who can be told to come back when the store has room again.
    pub fn is_of_clients(self) -> bool {
        match self {
            Shelf::Asset | Shelf::Claim | Shelf::Comfyui => true,
            Shelf::Token
            | Shelf::Webhook
            | Shelf::Affinity
            | Shelf::Fleet
            | Shelf::Machine
            | Shelf::Reliability => false,
        }
    }

    /// Whether the plane itself needs them at every step, and so gets them back when it is restored.
    pub fn is_held(self) -> bool {
        matches!(self, Shelf::Affinity | Shelf::Fleet | Shelf::Machine | Shelf::Reliability)
    }
}

impl fmt::Display for Shelf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Shelf {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, String> {
        Shelf::ALL
            .into_iter()
            .find(|shelf| shelf.as_str() == word)
            .ok_or_else(|| format!("{word:?} is no shelf"))
    }
}
