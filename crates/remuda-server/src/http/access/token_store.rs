//! Tokens: role, tenant, expiry. All of them are in memory, so that a request reads nothing from the store and a revoked
//! token is refused from the next request on; only their hashes are stored.

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

/// The prefix of every token, so that secret scanners find leaked ones.
const PREFIX: &str = "rmd_";
/// The prefix of worker credentials; the id of the token used for the join follows.
const CREDENTIAL_PREFIX: &str = "rmw_";
/// In credentials of workers that joined without a token, or with one that is in no list.
const NO_TOKEN: &str = "0";
/// Beside the time of its creation.
const ID_BYTES: usize = 6;
/// Hexadecimal digits of the milliseconds at the beginning of an id, as in a UUID of version 7.
const ID_TIME_DIGITS: usize = 12;
/// 256 bits.
const SECRET_BYTES: usize = 32;
const NAME_CHARS_MAX: usize = 100;
/// A hundred years: a token that is valid for longer has no expiry.
const LIFETIME_SECONDS: std::ops::RangeInclusive<u64> = 1..=100 * 365 * 86_400;
/// All tokens are in memory; more than this is a mistake.
pub(super) const TOKENS_MAX: usize = 10_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Submits, reads and cancels the jobs of one tenant.
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

/// A request for a new token.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TokenRequest {
    pub role: Role,
    /// The tenant of a client.
    #[serde(default)]
    pub tenant: Option<Tenant>,
    /// A name for people.
    #[serde(default)]
    pub name: Option<String>,
    /// The names a worker may join under; any if empty.
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
    /// Creates a token; its secret is not stored anywhere.
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
        if wanted.expires_seconds.is_some_and(|seconds| !LIFETIME_SECONDS.contains(&seconds)) {
            return unfit("a token is valid for one second to a hundred years (expires_seconds)");
        }
        let id = format!("{:0ID_TIME_DIGITS$x}{}", now.as_millis(), random_hex(ID_BYTES)?);
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

    /// The stored form. It does not expire in the store: a plane whose last token has expired must not become open.
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

    pub(super) fn matches(&self, secret: &Secret) -> bool {
        constant_time_eq(&self.hash, &secret.hash())
    }

    pub fn has_expired(&self, now: Timestamp) -> bool {
        self.expires_at.is_some_and(|expires_at| expires_at <= now)
    }

    /// For answers: without any secret.
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

/// A token, when it was used since the plane started, and whether it was revoked.
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

    /// A token that is in no list and never expires.
    pub(super) fn fixed(name: &str, role: Role, secret: &Secret) -> Arc<Entry> {
        let (id, name, hash) = (NO_TOKEN.to_owned(), name.to_owned(), secret.hash());
        let (tenant, workers, created_at) = (None, Vec::new(), Timestamp::ZERO);
        let token = Token { id, name, role, tenant, workers, created_at, expires_at: None, hash };
        Arc::new(Entry::new(token))
    }

    /// Whether it was made by `remuda token`, and not set in the configuration.
    pub(super) fn is_listed(&self) -> bool {
        self.token.id != NO_TOKEN
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

    /// Returns when it is revoked or expires.
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

/// All tokens.
#[derive(Debug, Default)]
pub(super) struct TokenStore(HashMap<String, Arc<Entry>>);

impl TokenStore {
    pub(super) fn insert(&mut self, token: Token) {
        self.0.insert(token.id.clone(), Arc::new(Entry::new(token)));
    }

    pub(super) fn revoke(&mut self, id: &str) {
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

    /// In the order of their creation.
    pub(super) fn all(&self) -> Vec<Arc<Entry>> {
        let mut all: Vec<_> = self.0.values().cloned().collect();
        all.sort_by(|a, b| (a.token.created_at, &a.token.id).cmp(&(b.token.created_at, &b.token.id)));
        all
    }

    pub(super) fn admins(&self, now: Timestamp) -> usize {
        let is_admin = |token: &Token| token.role == Role::Admin && !token.has_expired(now);
        self.0.values().filter(|entry| is_admin(&entry.token)).count()
    }

    /// The token with this secret, if it is valid now. The id by which it is looked up is not secret.
    pub(super) fn find(&self, secret: &Secret, now: Timestamp) -> Option<Arc<Entry>> {
        let (id, _) = secret.reveal().strip_prefix(PREFIX)?.split_once('_')?;
        let entry = self.0.get(id)?;
        let is_good = entry.token.matches(secret) && !entry.token.has_expired(now);
        is_good.then(|| entry.clone())
    }

    /// Whether a worker credential is still valid: the token of its join is valid and returned, or none was needed. The plane
    /// checks that the credential is the worker's own.
    pub(super) fn accept_credential(&self, credential: &str, now: Timestamp) -> Option<Option<Arc<Entry>>> {
        let (id, _) = credential.strip_prefix(CREDENTIAL_PREFIX)?.split_once('_')?;
        if id == NO_TOKEN {
            return Some(None);
        }
        let entry = self.0.get(id).filter(|entry| !entry.token.has_expired(now))?;
        Some(Some(entry.clone()))
    }
}

/// When a token was made, or the token of a worker's credential; its id begins with that. Not proved by anything: it is for
/// messages only.
pub(super) fn token_made_at(secret: &Secret) -> Option<Timestamp> {
    let text = secret.reveal();
    let rest = text.strip_prefix(PREFIX).or_else(|| text.strip_prefix(CREDENTIAL_PREFIX))?;
    let (id, _) = rest.split_once('_').filter(|(id, _)| id.len() == ID_TIME_DIGITS + 2 * ID_BYTES)?;
    u64::from_str_radix(id.get(..ID_TIME_DIGITS)?, 16).ok().map(Timestamp::from_millis)
}

/// Creates the credential of a worker that joins. It names the token of the join, so that both end together.
pub(super) fn create_credential(token: Option<&str>) -> Result<String, RngError> {
    Ok(format!("{CREDENTIAL_PREFIX}{}_{}", token.unwrap_or(NO_TOKEN), random_hex(SECRET_BYTES)?))
}

/// Whether a text looks like a worker credential rather than a token; a configured admin token may look like anything.
pub(super) fn is_credential(text: &str) -> bool {
    text.starts_with(CREDENTIAL_PREFIX)
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
    fn token_is_accepted_by_its_secret_and_stored_as_a_hash() {
        let (token, secret) = Token::make(wanted(Role::Client), NOW).unwrap();
        assert!(secret.reveal().starts_with("rmd_") && secret.reveal().len() == 4 + 24 + 1 + 64);
        let document = token.document().unwrap();
        let hidden = secret.reveal().rsplit('_').next().unwrap();
        assert!(!format!("{document:?} {token:?}").contains(hidden));
        let mut tokens = TokenStore::default();
        tokens.insert(serde_json::from_str(document.body.get()).unwrap());
        assert_eq!(tokens.find(&secret, NOW).unwrap().token.id, token.id);
        let mut almost = secret.reveal().to_owned();
        almost.pop();
        for wrong in [almost.as_str(), "rmd_", "rmd__", "", hidden, &format!("{almost}g")] {
            assert!(tokens.find(&Secret::new(wrong), NOW).is_none(), "{wrong}");
        }
        tokens.revoke(&token.id);
        assert!(tokens.find(&secret, NOW).is_none());
    }

    #[test]
    fn token_expires_and_so_do_credentials_of_its_joins() {
        let mut wanted = wanted(Role::Worker);
        wanted.expires_seconds = Some(60);
        let (token, secret) = Token::make(wanted, NOW).unwrap();
        let credential = create_credential(Some(&token.id)).unwrap();
        let mut tokens = TokenStore::default();
        tokens.insert(token);
        let (before, after) = (NOW.plus(Duration::from_secs(59)), NOW.plus(Duration::from_secs(60)));
        assert!(
            tokens.find(&secret, before).is_some() && tokens.accept_credential(&credential, before).is_some()
        );
        assert!(
            tokens.find(&secret, after).is_none() && tokens.accept_credential(&credential, after).is_none()
        );
        assert!(!tokens.is_empty(), "an expired token does not open the plane to everyone");
        assert!(tokens.accept_credential(&create_credential(None).unwrap(), after).is_some());
        assert!(tokens.accept_credential("anything", after).is_none());
    }

    #[test]
    fn invalid_token_requests_are_refused() {
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
