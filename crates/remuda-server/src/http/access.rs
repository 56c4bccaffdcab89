//! Access control. Every request passes here first:
//!
//! ```text
//!  host, origin ──▶ lockout ──▶ token ──▶ access of the route ──▶ rate limit ──▶ job's tenant ──▶ handler ──▶ audit log
//! ```
//!
//! Without any token every caller may do everything: on loopback, or with `--insecure`. From the first token on, every
//! caller needs one.

mod caller;
mod credential;
mod guard;
mod origin;
mod places;
mod revocation;
mod rules;
mod token_store;
pub(super) mod tokens;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};

use axum::extract::{MatchedPath, Request};
use axum::http::{HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use remuda_core::document::Collection;
use remuda_core::id::JobId;
use remuda_core::time::Timestamp;
use remuda_store::{Store, StoreError};
use tracing::{error, warn};

pub use self::caller::Caller;
pub(super) use self::guard::{network, usual};
pub(super) use self::rules::Access;
pub use self::token_store::{Role, Token, TokenRequest};

use self::credential::credential;
use self::guard::{Counted, Guard};
use self::origin::Origins;
use self::token_store::{Entry, TokenStore, is_credential, token_made_at};
use super::listen::{ConnectionPlace, ConnectionPlaces, Peer};
use super::routes::{self, Route};
use super::{ApiError, Context, body, lost};
use crate::audit::{Audit, Note};
use crate::join_key::{JoinKey, KEY_ID, SharedJoinKey, is_join_token};
use crate::tls::Tls;
use remuda_config::ServeSettings;
use remuda_net::secret::Secret;

/// The caller's name where no token is needed.
const ANYONE: &str = "anyone";
/// The accepted schemes; the second makes a browser ask for the token.
const CHALLENGES: [&str; 2] = ["Bearer realm=\"remuda\"", "Basic realm=\"remuda\", charset=\"UTF-8\""];
/// The address of requests without a connection: they come from this process.
const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
/// Tokens read at a time at the start.
const PAGE: usize = 1000;

/// Everything that access decisions depend on.
#[derive(Debug)]
pub struct AccessControl {
    tokens: RwLock<TokenStore>,
    /// An admin token from the environment or a file; it is in no list.
    admin: Option<Arc<Entry>>,
    /// The token of workers in this process.
    own: Arc<Entry>,
    own_secret: Secret,
    join_key: SharedJoinKey,
    /// Serialises changes: two that are valid each by itself may be invalid together.
    changing: tokio::sync::Mutex<()>,
    /// Whether no token is needed as long as none exists.
    may_be_open: bool,
    /// The highest priority of a client: priority overrides fairness, so clients may not choose it freely.
    client_priority_max: i8,
    guard: Guard,
    origins: Origins,
    /// Who may keep a connection open.
    pub places: ConnectionPlaces,
    pub audit: Audit,
    pub tls: Option<Tls>,
}

impl AccessControl {
    pub async fn load(
        settings: &ServeSettings,
        address: SocketAddr,
        store: &Store,
        audit: Audit,
        tls: Option<Tls>,
    ) -> anyhow::Result<AccessControl> {
        let access = &settings.access;
        let origins = Origins {
            listen: address,
            hosts: access.allowed_hosts.clone(),
            origins: access.allowed_origins.clone(),
        };
        let own_secret = Secret::new(remuda_net::secret::random_hex(32)?);
        let join_key = SharedJoinKey::default();
        if let Some(key) =
            store.document(Collection::Token, KEY_ID).await?.and_then(|it| JoinKey::restore(&it))
        {
            join_key.set(key);
        }
        let admin = settings.admin_token()?;
        Ok(AccessControl {
            tokens: RwLock::new(load_tokens(store).await?),
            admin: admin.map(|secret| Entry::fixed("admin", Role::Admin, &secret)),
            own: Entry::fixed("this process", Role::Worker, &own_secret),
            own_secret,
            join_key,
            changing: tokio::sync::Mutex::default(),
            may_be_open: settings.listen.ip().is_loopback() || settings.insecure,
            client_priority_max: i8::try_from(settings.client_priority_max).unwrap_or(i8::MAX),
            guard: Guard::new(access.requests_per_second, access.streams_per_token_max),
            origins,
            places: ConnectionPlaces::new(settings),
            audit,
            tls,
        })
    }

    /// Whether every caller may do everything.
    pub fn is_open(&self) -> bool {
        self.may_be_open && self.admin.is_none() && self.tokens().is_empty()
    }

    /// Whether an admin exists, who can create tokens.
    pub fn has_admin(&self, now: Timestamp) -> bool {
        self.admin.is_some() || self.tokens().admins(now) > 0
    }

    /// The highest priority that this caller may request.
    pub(super) fn priority_max(&self, caller: &Caller) -> i8 {
        if caller.role == Role::Client { self.client_priority_max } else { i8::MAX }
    }

    /// The requested priority, if this caller may request it.
    pub(super) fn priority(&self, caller: &Caller, asked: i8) -> Result<i8, ApiError> {
        let max = self.priority_max(caller);
        if asked <= max {
            return Ok(asked);
        }
        let message = format!(
            "priority {asked} is more than this token may ask for: {max} is the most (limits.client_priority_max)"
        );
        Err(ApiError::invalid(message))
    }

    /// The token with which a worker of this process joins.
    pub fn own_token(&self) -> Secret {
        self.own_secret.clone()
    }

    pub fn join_key(&self) -> &SharedJoinKey {
        &self.join_key
    }

    fn tokens(&self) -> RwLockReadGuard<'_, TokenStore> {
        self.tokens.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, change: impl FnOnce(&mut TokenStore)) {
        change(&mut self.tokens.write().unwrap_or_else(PoisonError::into_inner));
    }

    /// The caller with this secret; `None` if it is unknown or expired.
    fn find_caller(&self, secret: &Secret, from: IpAddr, now: Timestamp) -> Option<Caller> {
        let fixed = self.admin.iter().chain([&self.own]).find(|entry| entry.token.matches(secret)).cloned();
        let entry = fixed.or_else(|| self.tokens().find(secret, now))?;
        Some(Caller::of(entry, from))
    }

    /// The caller, if it may make this request.
    fn admit(
        &self,
        request_info: &RequestInfo,
        secret: Option<&Secret>,
        now: Timestamp,
    ) -> Result<Caller, RefusedRequest> {
        let caller = self.identify(request_info, secret, now)?;
        // Workers are never rate limited: their beats must arrive.
        if caller.role != Role::Worker && !request_info.route.access.is_worker_self() {
            self.guard.request(caller.counted(), request_info.from, now)?;
        }
        let who = request_info.route.access;
        if !caller.is_joined() && !caller.is_anyone() && !who.admits(caller.role) {
            let (role, path) = (caller.role, &request_info.path);
            let message = format!("this token is for a {role}, and {path} is for: {}", who.as_str());
            let problem = ApiError::new(StatusCode::FORBIDDEN, "forbidden", message);
            return Err(RefusedRequest { problem, who: caller.shown() });
        }
        Ok(caller)
    }

    fn identify(
        &self,
        request_info: &RequestInfo,
        secret: Option<&Secret>,
        now: Timestamp,
    ) -> Result<Caller, ApiError> {
        let RequestInfo { from, route, .. } = *request_info;
        if let Some(caller) = secret.and_then(|secret| self.rejoining(request_info, secret, now)) {
            return caller;
        }
        if route.access == Access::Public || self.is_open() {
            return Ok(Caller::anyone(from));
        }
        let Some(secret) = secret else {
            self.guard.request(Counted::Address(network(from)), from, now)?;
            return Err(no_token());
        };
        if route.access.takes_credentials() && is_credential(secret.reveal()) {
            let entry = self.tokens().accept_credential(secret.reveal(), now);
            return entry
                .map(|entry| Caller::joined(entry, from))
                .ok_or_else(|| self.bad_token(request_info, secret, now));
        }
        let caller = self.find_caller(secret, from, now);
        if let Some((since, left)) = self.guard.locked_since(from, now) {
            // During a lockout a correct guess is refused too; tokens used before it stay valid.
            if !caller.as_ref().is_some_and(|caller| caller.was_known_before(since)) {
                let message =
                    "too many wrong tokens came from this address: new tokens are refused for a while";
                let problem = ApiError::new(StatusCode::TOO_MANY_REQUESTS, "locked_out", message);
                return Err(problem.with_retry_after(left.as_secs().max(1)));
            }
        }
        let caller = caller.ok_or_else(|| self.bad_token(request_info, secret, now))?;
        caller.used(now);
        Ok(caller)
    }

    /// A caller that joins with its machine's join token, or with its credential from an earlier join. These are checked
    /// even where no token is needed: the name of a rented machine is protected.
    fn rejoining(
        &self,
        request_info: &RequestInfo,
        secret: &Secret,
        now: Timestamp,
    ) -> Option<Result<Caller, ApiError>> {
        if !request_info.route.access.takes_join_tokens() {
            return None;
        }
        let bad_token = || self.bad_token(request_info, secret, now);
        if is_join_token(secret.reveal()) {
            let machine = self.join_key.current().and_then(|key| key.machine(secret));
            return Some(
                machine.map(|machine| Caller::machine(machine, request_info.from)).ok_or_else(bad_token),
            );
        }
        if !is_credential(secret.reveal()) {
            return None;
        }
        let entry = self.tokens().accept_credential(secret.reveal(), now);
        Some(entry.map(|entry| Caller::former(entry, secret, request_info.from)).ok_or_else(bad_token))
    }

    fn bad_token(&self, request_info: &RequestInfo, secret: &Secret, now: Timestamp) -> ApiError {
        if self.guard.wrong(request_info.from, secret.hash(), now) {
            error!(from = %request_info.from, "too many bad tokens from this address; locked out");
        }
        let message = "this token is unknown, expired or revoked: `remuda token create` makes a new one";
        ApiError::new(StatusCode::UNAUTHORIZED, "wrong_token", message)
    }
}

async fn load_tokens(store: &Store) -> Result<TokenStore, StoreError> {
    let mut tokens = TokenStore::default();
    let mut after = String::new();
    loop {
        let page = store.documents(Collection::Token, &after, PAGE).await?;
        let Some(last) = page.last() else { return Ok(tokens) };
        after.clone_from(&last.id);
        for document in page {
            if document.id == KEY_ID {
                continue;
            }
            match serde_json::from_str(document.body.get()) {
                Ok(token) => tokens.insert(token),
                // Its holder will be refused, which is the safe failure.
                Err(error) => error!(id = %document.id, %error, "stored token unreadable"),
            }
        }
    }
}

fn no_token() -> ApiError {
    let message = "send a token: Authorization: Bearer TOKEN, or REMUDA_TOKEN or --token-file with remuda's own commands; \
                   an admin makes one with `remuda token create`";
    ApiError::new(StatusCode::UNAUTHORIZED, "no_token", message)
}

/// Why a request was refused, and whose it was.
struct RefusedRequest {
    problem: ApiError,
    who: String,
}

impl RefusedRequest {
    /// A token that is unknown because it was made after the backup that was restored.
    fn or_lost(self, context: &Context, secret: Option<&Secret>) -> RefusedRequest {
        let lost = secret.filter(|_| self.problem.code == "wrong_token");
        match lost.and_then(token_made_at).and_then(|made_at| lost::token(context, made_at)) {
            Some(problem) => RefusedRequest { problem, ..self },
            None => self,
        }
    }
}

impl From<ApiError> for RefusedRequest {
    fn from(problem: ApiError) -> RefusedRequest {
        RefusedRequest { problem, who: ANYONE.to_owned() }
    }
}

/// What access decisions need of a request.
struct RequestInfo {
    from: IpAddr,
    connection: Option<Arc<ConnectionPlace>>,
    /// It offers the WebSocket protocol `remuda`.
    offers_remuda: bool,
    route: &'static Route,
    method: Method,
    /// The path as the router has it.
    matched_path: Option<MatchedPath>,
    /// The path of the request.
    path: String,
}

impl RequestInfo {
    fn new(request: &Request) -> RequestInfo {
        let peer = request.extensions().get::<Peer>().cloned();
        let matched_path = request.extensions().get::<MatchedPath>().cloned();
        RequestInfo {
            from: peer.as_ref().map_or(HERE, |peer| peer.address.ip().to_canonical()),
            connection: peer.map(|peer| peer.place),
            offers_remuda: credential::offers_remuda(request.headers()),
            route: routes::find(request.method().as_str(), matched_path.as_ref().map(MatchedPath::as_str)),
            method: request.method().clone(),
            matched_path,
            path: request.uri().path().to_owned(),
        }
    }

    /// The id of the job in its path, if there is one.
    fn job(&self) -> Option<&str> {
        let matched = self.matched_path.as_ref()?.as_str();
        let rest = self.path.strip_prefix("/remuda/v1/jobs/")?;
        matched.starts_with("/remuda/v1/jobs/{id}").then(|| rest.split('/').next().unwrap_or(rest))
    }

    fn note(&self, now: Timestamp, who: String, what: &'static str, outcome: String) -> Note {
        let on = format!("{} {}", self.method, self.path);
        Note { at: now, who, from: self.from.to_string(), what, on, outcome }
    }
}

/// What the audit log should name, set by handlers whose path does not say it.
#[derive(Clone, Debug)]
pub(super) struct AuditTarget(pub(super) String);

/// Passes a request to its handler, or refuses it before its body is read.
pub(super) async fn check(context: Context, mut request: Request, next: Next) -> Response {
    let access = &*context.access;
    let (request_info, now) = (RequestInfo::new(&request), context.plane.clock.now());
    let origin = match access.origins.check(&request_info.method, request.headers(), access.is_open()) {
        Ok(origin) => origin,
        Err(refused) => return refuse(access, &request_info, now, refused.into()).await,
    };
    if let Some(origin) = origin.clone().filter(|_| request_info.method == Method::OPTIONS) {
        let mut response = StatusCode::NO_CONTENT.into_response();
        origin::allowed(response.headers_mut(), origin, true);
        return response;
    }
    let secret = credential(request.headers());
    let mut caller = match access.admit(&request_info, secret.as_ref(), now) {
        Ok(caller) => caller,
        Err(refused) => {
            let refused = refused.or_lost(&context, secret.as_ref());
            return refuse(access, &request_info, now, refused).await;
        }
    };
    if let Err(problem) = places::claim(&request_info, &caller, secret.as_ref()) {
        return places::last_answer(problem.into_response());
    }
    if (caller.is_joined() && request_info.route.access == Access::AnyToken || caller.is_former())
        && let Some(secret) = &secret
        && !has_joined(&context, secret).await
    {
        if !access.is_open() {
            places::disprove(&request_info);
            let refused = access.bad_token(&request_info, secret, now).into();
            return refuse(access, &request_info, now, refused).await;
        }
        caller = Caller::anyone(request_info.from);
    }
    if let Err(problem) = belongs(&context, &caller, &request_info).await {
        return problem.into_response();
    }
    request.extensions_mut().insert(caller.clone());
    let answer = async {
        if request_info.route.is_streamed {
            return next.run(request).await;
        }
        match body::read_whole(request, context.body_bytes_max).await {
            Ok(request) => next.run(request).await,
            Err(problem) => problem.into_response(),
        }
    };
    let mut response =
        revocation::until_revoked(access, &request_info, &caller, context.plane.clock, answer).await;
    if caller.is_joined() && matches!(response.status(), StatusCode::FORBIDDEN | StatusCode::NOT_FOUND) {
        places::disprove(&request_info);
    }
    if caller.is_joined() && response.status() == StatusCode::FORBIDDEN {
        // The plane knows no worker with this credential.
        if let Some(secret) = &secret {
            access.bad_token(&request_info, secret, now);
        }
    }
    let (done, refused) = audit_notes(&request_info, &caller, now, &response);
    if let Some(note) = done {
        access.audit.note(note).await;
    }
    if let Some(note) = refused {
        access.audit.refused(note).await;
    }
    if let Some(origin) = origin {
        origin::allowed(response.headers_mut(), origin, false);
    }
    response
}

/// What a request did, if its route is audited, and a job that a tenant's rules refused.
fn audit_notes(
    request_info: &RequestInfo,
    caller: &Caller,
    now: Timestamp,
    response: &Response,
) -> (Option<Note>, Option<Note>) {
    let is_audited =
        !request_info.route.audit.is_empty() && (caller.role != Role::Client || request_info.job().is_none());
    let done = is_audited.then(|| {
        let outcome = match response.status() {
            status if status.is_success() => "done".to_owned(),
            status => status.as_u16().to_string(),
        };
        let mut note = request_info.note(now, caller.shown(), request_info.route.audit, outcome);
        if let Some(AuditTarget(what)) = response.extensions().get() {
            note.on = what.clone();
        }
        note
    });
    let refused = response.extensions().get::<ApiError>().filter(|it| it.code == "tenant_rule");
    let refused = refused.map(|it| request_info.note(now, caller.shown(), "job.refused", it.message.clone()));
    (done, refused)
}

async fn refuse(
    access: &AccessControl,
    request_info: &RequestInfo,
    now: Timestamp,
    refused: RefusedRequest,
) -> Response {
    let RefusedRequest { problem, who } = refused;
    let (status, code) = (problem.status, problem.code);
    if code != "too_many_requests" {
        warn!(from = %request_info.from, path = %request_info.path.escape_debug(), code, "refused");
        access.audit.refused(request_info.note(now, who, "access.refused", code.to_owned())).await;
    }
    let mut response = problem.into_response();
    if status == StatusCode::UNAUTHORIZED {
        for scheme in CHALLENGES {
            response.headers_mut().append(header::WWW_AUTHENTICATE, HeaderValue::from_static(scheme));
        }
    }
    response
}

/// Whether a joined worker has this credential; where the path names the worker, its handler checks the same.
async fn has_joined(context: &Context, credential: &Secret) -> bool {
    let hash = credential.hash();
    context.plane.read(move |plane, _| plane.is_worker_token(hash)).await.unwrap_or(false)
}

/// A caller of one tenant gets 404 for jobs of another, so that it cannot learn that they exist.
async fn belongs(context: &Context, caller: &Caller, request_info: &RequestInfo) -> Result<(), ApiError> {
    let (Some(id), Some(_)) = (request_info.job(), caller.only()) else { return Ok(()) };
    // An id with escapes might be a valid one to the handler, which decodes them.
    let Ok(id) = id.parse::<JobId>() else {
        return Err(ApiError::not_found(format!("{:?} is the id of no job", id.escape_debug().to_string())));
    };
    match context.store.job(id).await? {
        Some((accepted, _)) if caller.may_see(&accepted.tenant) => Ok(()),
        Some(_) | None => Err(super::jobs::unknown(context, id)),
    }
}

#[cfg(test)]
mod tests;
