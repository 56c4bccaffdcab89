//! Tokens: who may do what, until when. All of them are in memory, so that a request costs no look into the store and a
//! revoked one is gone for the very next request; only their hashes are kept.

use std::collections::HashMap;
use std::fmt;
use std::str::FromStr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use remuda_core::document::{Collection, Document};
use remuda_core::id::{Hash, Tenant, WorkerId};
use remuda_core::time::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::value::to_raw_value;
use serde_json::{Value, json};
use tokio::sync::watch;

use remuda_net::clock::Clock;
use remuda_net::secret::{RngError, Secret, constant_time_eq, random_hex};

/// What every token begins with, so that one that leaked can be found by looking for it.
const PREFIX: &str = "rmd_";
/// What a worker is given when it joins begins with this, then says by which token it joined.
const TICKET_PREFIX: &str = "rmw_";
/// Of a worker that joined when nobody needed a token, or with one that is in no list.
const NO_TOKEN: &str = "0";
const ID_BYTES: usize = 6;
/// 256 bits.
const SECRET_BYTES: usize = 32;
const NAME_CHARS_MAX: usize = 100;
/// More than people keep apart; all of them are in memory.
pub(super) const TOKENS_MAX: usize = 10_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Submits, looks at and cancels the jobs of one tenant.
    Client,
    /// Joins as a worker.
    Worker,
    /// Everything.
    Admin,
}

impl Role {
    pub const ALL: [Role; 3] = [Role::Client, Role::Worker, Role::Admin];

    pub fn as_str(self) -> &'static str {
        match self {
            Role::Client => "client",
            Role::Worker => "worker",
            Role::Admin => "admin",
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Role {
    type Err = String;

    fn from_str(word: &str) -> Result<Role, String> {
        let found = Role::ALL.into_iter().find(|role| role.as_str() == word);
        found.ok_or_else(|| format!("{word:?} is no role: choose client, worker or admin"))
    }
}

/// A token that is asked for.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TokenRequest {
    pub role: Role,
    /// Whose jobs a client may see and submit.
    #[serde(default)]
    pub tenant: Option<Tenant>,
    /// What people call it.
    #[serde(default)]
    pub name: Option<String>,
    /// The only names a worker may join under; any if there are none.
    #[serde(default)]
    pub workers: Vec<WorkerId>,
    #[serde(default)]
    pub expires_seconds: Option<u64>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Token {
    pub id: String,
    pub name: String,
    pub role: Role,
    pub tenant: Option<Tenant>,
    #[serde(default)]
    pub workers: Vec<WorkerId>,
    pub created_at: Timestamp,
    pub expires_at: Option<Timestamp>,
    hash: Hash,
}

#[derive(Debug, thiserror::Error)]
pub enum BadToken {
    #[error("{0}")]
    Unfit(String),
    #[error(transparent)]
    Rng(#[from] RngError),
}

impl Token {
    /// Makes one; the secret is known to nobody once it is dropped.
    pub fn make(wanted: TokenRequest, now: Timestamp) -> Result<(Token, Secret), BadToken> {
        let unfit = |why: &str| Err(BadToken::Unfit(why.to_owned()));
        let tenant = match (wanted.role, wanted.tenant) {
            (Role::Client, Some(tenant)) => Some(tenant),
            (Role::Client, None) => return unfit("a client belongs to a tenant: name it (tenant, --tenant)"),
            (Role::Worker | Role::Admin, None) => None,
            (Role::Worker | Role::Admin, Some(_)) => return unfit("only a client belongs to a tenant"),
        };
        if wanted.role != Role::Worker && !wanted.workers.is_empty() {
            return unfit("only a worker's token is bound to names of workers");
        }
        if wanted.expires_seconds == Some(0) {
            return unfit("it would have expired before anybody had it");
        }
        let id = random_hex(ID_BYTES)?;
        let name = wanted.name.unwrap_or_else(|| format!("{}-{id}", wanted.role));
        if name.is_empty() || name.chars().count() > NAME_CHARS_MAX || name.chars().any(char::is_control) {
            return Err(BadToken::Unfit(format!(
                "a name has 1 to {NAME_CHARS_MAX} characters that can be shown"
            )));
        }
        let secret = Secret::new(format!("{PREFIX}{id}_{}", random_hex(SECRET_BYTES)?));
        let expires_at = wanted.expires_seconds.map(|seconds| now.plus(Duration::from_secs(seconds)));
        let hash = secret.hash();
        let workers = wanted.workers;
        Ok((
            Token { id, name, role: wanted.role, tenant, workers, created_at: now, expires_at, hash },
            secret,
        ))
    }

    /// As it is stored. It does not expire there: a plane whose last token has expired must not be open to everyone.
    pub fn document(&self) -> serde_json::Result<Document> {
        Ok(Document {
            collection: Collection::Token,
            id: self.id.clone(),
            tenant: self.tenant.clone(),
            index_key: self.hash.to_string(),
            expires_at: None,
            body: to_raw_value(self)?.into(),
        })
    }

    pub(super) fn is_opened_by(&self, secret: &Secret) -> bool {
        constant_time_eq(&self.hash, &secret.hash())
    }

    pub fn has_expired(&self, now: Timestamp) -> bool {
        self.expires_at.is_some_and(|expires_at| expires_at <= now)
    }

    /// As people and programs see it: nothing that opens anything.
    pub fn shown(&self, now: Timestamp) -> Value {
        json!({
            "id": self.id,
            "name": self.name,
            "role": self.role,
            "tenant": self.tenant,
            "workers": self.workers,
            "created_at": self.created_at.to_string(),
            "expires_at": self.expires_at.map(|at| at.to_string()),
            "has_expired": self.has_expired(now),
        })
    }
}

/// A token, when it was used since the plane began, and whether it still counts.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) token: Token,
    first_used_at: OnceLock<Timestamp>,
    used_at: AtomicU64,
    is_struck: watch::Sender<bool>,
}

impl Entry {
    fn new(token: Token) -> Entry {
        let (first_used_at, used_at) = (OnceLock::new(), AtomicU64::new(0));
        Entry { token, first_used_at, used_at, is_struck: watch::Sender::new(false) }
    }

    /// One that is in no list and has no end.
    pub(super) fn fixed(name: &str, role: Role, secret: &Secret) -> Arc<Entry> {
        let (id, name, hash) = (NO_TOKEN.to_owned(), name.to_owned(), secret.hash());
        let (tenant, workers, created_at) = (None, Vec::new(), Timestamp::ZERO);
        let token = Token { id, name, role, tenant, workers, created_at, expires_at: None, hash };
        Arc::new(Entry::new(token))
    }

    pub(super) fn use_at(&self, now: Timestamp) {
        self.first_used_at.get_or_init(|| now);
        self.used_at.store(now.as_millis(), Ordering::Relaxed);
    }

    pub(super) fn first_used_at(&self) -> Option<Timestamp> {
        self.first_used_at.get().copied()
    }

    pub(super) fn used_at(&self) -> Option<Timestamp> {
        self.first_used_at()?;
        Some(Timestamp::from_millis(self.used_at.load(Ordering::Relaxed)))
    }

    /// Until it is struck from the book, or its time is over.
    pub(super) async fn ended(&self, clock: Clock) {
        let mut struck = self.is_struck.subscribe();
        let expires_at = self.token.expires_at.unwrap_or(Timestamp::NEVER);
        while !self.token.has_expired(clock.now()) {
            tokio::select! {
                _ = struck.wait_for(|struck| *struck) => return,
                () = tokio::time::sleep_until(clock.instant(expires_at).into()) => {}
            }
        }
    }
}

/// All tokens there are.
#[derive(Debug, Default)]
pub(super) struct TokenStore(HashMap<String, Arc<Entry>>);

impl TokenStore {
    pub(super) fn enter(&mut self, token: Token) {
        self.0.insert(token.id.clone(), Arc::new(Entry::new(token)));
    }

    pub(super) fn strike(&mut self, id: &str) {
        if let Some(entry) = self.0.remove(id) {
            entry.is_struck.send_replace(true);
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// In the order they were made.
    pub(super) fn all(&self) -> Vec<Arc<Entry>> {
        let mut all: Vec<_> = self.0.values().cloned().collect();
        all.sort_by(|a, b| (a.token.created_at, &a.token.id).cmp(&(b.token.created_at, &b.token.id)));
        all
    }

    pub(super) fn admins(&self, now: Timestamp) -> usize {
        let is_admin = |token: &Token| token.role == Role::Admin && !token.has_expired(now);
        self.0.values().filter(|entry| is_admin(&entry.token)).count()
    }

    /// The one this secret belongs to, if it is good now. The part that is looked up by opens nothing.
    pub(super) fn find(&self, secret: &Secret, now: Timestamp) -> Option<Arc<Entry>> {
        let (id, _) = secret.reveal().strip_prefix(PREFIX)?.split_once('_')?;
        let entry = self.0.get(id)?;
        let is_good = entry.token.is_opened_by(secret) && !entry.token.has_expired(now);
        is_good.then(|| entry.clone())
    }

    /// Whether a worker that was given this may still go by it: the token it joined with is good, which comes with the
    /// answer, or it needed none. That the ticket is the worker's own is for the plane to say.
    pub(super) fn honours(&self, ticket: &str, now: Timestamp) -> Option<Option<Arc<Entry>>> {
        let (id, _) = ticket.strip_prefix(TICKET_PREFIX)?.split_once('_')?;
        if id == NO_TOKEN {
            return Some(None);
        }
        let entry = self.0.get(id).filter(|entry| !entry.token.has_expired(now))?;
        Some(Some(entry.clone()))
    }
}

/// What a worker goes by once it has joined. It names the token it joined with, so that both end together.
pub(super) fn draw_ticket(token: Option<&str>) -> Result<String, RngError> {
    Ok(format!("{TICKET_PREFIX}{}_{}", token.unwrap_or(NO_TOKEN), random_hex(SECRET_BYTES)?))
}

/// Whether it looks like something a worker is given when it joins, rather than like a token; an admin's may look like
/// anything else.
pub(super) fn is_ticket(text: &str) -> bool {
    text.starts_with(TICKET_PREFIX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp::from_millis(1_000_000);

    fn wanted(role: Role) -> TokenRequest {
        let tenant = (role == Role::Client).then(|| "anna".parse().unwrap());
        TokenRequest { role, tenant, name: None, workers: Vec::new(), expires_seconds: None }
    }

    /// Faults: X3, X9.
    #[test]
    fn a_token_opens_as_it_was_given_and_is_kept_only_as_a_hash() {
        let (token, secret) = Token::make(wanted(Role::Client), NOW).unwrap();
        assert!(secret.reveal().starts_with("rmd_") && secret.reveal().len() == 4 + 12 + 1 + 64);
        let document = token.document().unwrap();
        let hidden = secret.reveal().rsplit('_').next().unwrap();
        assert!(!format!("{document:?} {token:?}").contains(hidden));
        let mut book = TokenStore::default();
        book.enter(serde_json::from_str(document.body.get()).unwrap());
        assert_eq!(book.find(&secret, NOW).unwrap().token.id, token.id);
        let mut almost = secret.reveal().to_owned();
        almost.pop();
        for wrong in [almost.as_str(), "rmd_", "rmd__", "", hidden, &format!("{almost}g")] {
            assert!(book.find(&Secret::new(wrong), NOW).is_none(), "{wrong}");
        }
        book.strike(&token.id);
        assert!(book.find(&secret, NOW).is_none());
    }

    #[test]
    fn a_token_ends_when_it_said_it_would_and_so_does_who_joined_by_it() {
        let mut wanted = wanted(Role::Worker);
        wanted.expires_seconds = Some(60);
        let (token, secret) = Token::make(wanted, NOW).unwrap();
        let ticket = draw_ticket(Some(&token.id)).unwrap();
        let mut book = TokenStore::default();
        book.enter(token);
        let (before, after) = (NOW.plus(Duration::from_secs(59)), NOW.plus(Duration::from_secs(60)));
        assert!(book.find(&secret, before).is_some() && book.honours(&ticket, before).is_some());
        assert!(book.find(&secret, after).is_none() && book.honours(&ticket, after).is_none());
        assert!(!book.is_empty(), "an expired token does not open the plane to everyone");
        assert!(book.honours(&draw_ticket(None).unwrap(), after).is_some());
        assert!(book.honours("anything", after).is_none());
    }

    #[test]
    fn what_makes_no_sense_is_no_token() {
        let mut stranger = wanted(Role::Client);
        stranger.tenant = None;
        let mut bound = wanted(Role::Admin);
        bound.workers = vec!["a".parse().unwrap()];
        let mut odd = wanted(Role::Admin);
        odd.name = Some("a\u{1b}[2J".to_owned());
        let mut over = wanted(Role::Admin);
        over.expires_seconds = Some(0);
        for wanted in [stranger, bound, odd, over] {
            assert!(Token::make(wanted, NOW).is_err());
        }
    }
}
