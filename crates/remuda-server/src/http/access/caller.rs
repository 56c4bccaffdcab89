//! The caller of a request, as every handler can extract it.

use std::net::IpAddr;
use std::sync::Arc;

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode};
use remuda_core::id::{MachineId, Tenant, TokenId, WorkerId};
use remuda_core::plane::JoinProof;
use remuda_core::time::Timestamp;

use super::super::{ApiError, Context};
use super::credential::credential;
use super::guard::{Counted, network};
use super::token_store::{Entry, create_credential, is_credential};
use super::{ANYONE, Role, Token};
use remuda_net::clock::Clock;
use remuda_net::secret::{RngError, Secret};

/// The caller, by its token. Where no token is needed, a caller may do everything.
#[derive(Clone, Debug)]
pub struct Caller {
    pub(super) role: Role,
    name: Arc<str>,
    pub(super) from: IpAddr,
    /// The tenant whose jobs it may see; `None` if it may see all.
    tenant: Option<Tenant>,
    entry: Option<Arc<Entry>>,
    /// It is a worker with the credential of its join.
    is_joined: bool,
    proof: JoinProof,
}

impl Caller {
    /// A caller where no token is needed.
    pub(super) fn anyone(from: IpAddr) -> Caller {
        Caller::named(ANYONE, Role::Admin, from)
    }

    fn named(name: &str, role: Role, from: IpAddr) -> Caller {
        let proof = JoinProof::JoinToken;
        Caller { role, name: name.into(), from, tenant: None, entry: None, is_joined: false, proof }
    }

    /// A worker of a rented machine, by the machine's join token.
    pub(super) fn machine(machine: MachineId, from: IpAddr) -> Caller {
        let name = format!("machine {machine}");
        Caller { proof: JoinProof::MachineToken(machine), ..Caller::named(&name, Role::Worker, from) }
    }

    /// A worker that joins again, by the credential of its earlier join.
    pub(super) fn former(entry: Option<Arc<Entry>>, credential: &Secret, from: IpAddr) -> Caller {
        let proof = JoinProof::PreviousToken(credential.hash());
        Caller { entry, proof, ..Caller::named("a worker", Role::Worker, from) }
    }

    pub(super) fn of(entry: Arc<Entry>, from: IpAddr) -> Caller {
        let Token { role, name, tenant, .. } = &entry.token;
        let mut caller = Caller::named(name, *role, from);
        caller.tenant.clone_from(tenant);
        Caller { entry: Some(entry), ..caller }
    }

    /// A worker that joined with this token, or when none was needed.
    pub(super) fn joined(entry: Option<Arc<Entry>>, from: IpAddr) -> Caller {
        Caller { entry, is_joined: true, ..Caller::named("a worker", Role::Worker, from) }
    }

    /// The tenant of this caller's submission; a caller of one tenant cannot submit for another.
    pub fn tenant(&self, asked: Option<&Tenant>) -> Result<Tenant, ApiError> {
        match (&self.tenant, asked) {
            (Some(own), Some(asked)) if own != asked => {
                let message = format!("this token is for tenant {own}, not {asked}");
                Err(ApiError::new(StatusCode::FORBIDDEN, "forbidden", message))
            }
            (Some(own), _) => Ok(own.clone()),
            (None, Some(asked)) => Ok(asked.clone()),
            (None, None) => Ok("default".parse()?),
        }
    }

    /// The token of its submissions, for the quota; `None` where none is needed, and for tokens that are in no list.
    pub(in crate::http) fn token(&self) -> Option<TokenId> {
        self.entry.as_ref().filter(|entry| entry.is_listed()).and_then(|entry| entry.token.id.parse().ok())
    }

    /// Whether it may see this tenant's jobs; if not, the answer is 404.
    pub fn may_see(&self, tenant: &Tenant) -> bool {
        self.tenant.as_ref().is_none_or(|own| own == tenant)
    }

    /// The only tenant it may see; `None` if it may see all.
    pub fn only(&self) -> Option<&Tenant> {
        self.tenant.as_ref()
    }

    /// The tenant of a listing: the requested one, or the caller's own if it belongs to one.
    pub fn narrowed(&self, asked: Option<Tenant>) -> Result<Option<Tenant>, ApiError> {
        match &self.tenant {
            Some(_) => self.tenant(asked.as_ref()).map(Some),
            None => Ok(asked),
        }
    }

    pub fn role(&self) -> Role {
        self.role
    }

    /// Whether it is a worker with the credential of its join.
    pub(in crate::http) fn is_joined(&self) -> bool {
        self.is_joined
    }

    /// Whether it is a worker: by its token, or by the credential that it sends although none is needed.
    pub(in crate::http) fn is_worker(&self, headers: &HeaderMap) -> bool {
        let has_credential = || credential(headers).is_some_and(|secret| is_credential(secret.reveal()));
        self.role == Role::Worker || self.is_joined || self.is_anyone() && has_credential()
    }

    /// Whether it is a caller without a token, where none is needed.
    pub(in crate::http) fn is_anyone(&self) -> bool {
        &*self.name == ANYONE && self.entry.is_none()
    }

    /// Whether it joins again, with the credential of an earlier join.
    pub(super) fn is_former(&self) -> bool {
        matches!(self.proof, JoinProof::PreviousToken(_))
    }

    /// How it has proved its identity.
    pub(in crate::http) fn proof(&self) -> JoinProof {
        self.proof.clone()
    }

    /// Whether it may join under this name, on this machine. A machine's own token is for its own workers: `gpus-1` and
    /// names that begin with `gpus-1-`.
    pub(in crate::http) fn may_join_as(
        &self,
        worker: &WorkerId,
        machine: Option<&MachineId>,
    ) -> Result<(), ApiError> {
        if let JoinProof::MachineToken(own) = &self.proof {
            let rest = worker.as_str().strip_prefix(own.as_str());
            if machine != Some(own) || !rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('-')) {
                let message = format!("this token is for workers of machine {own}, called {own} or {own}-…");
                return Err(ApiError::new(StatusCode::FORBIDDEN, "forbidden", message));
            }
        }
        let names = self.entry.as_ref().map_or(&[][..], |entry| &entry.token.workers);
        if names.is_empty() || names.contains(worker) {
            return Ok(());
        }
        let message = format!("this token is not for a worker called {worker}");
        Err(ApiError::new(StatusCode::FORBIDDEN, "forbidden", message))
    }

    /// A new credential for a worker that joins; it is valid as long as the token it joins with.
    pub(in crate::http) fn new_credential(&self) -> Result<String, RngError> {
        create_credential(self.entry.as_ref().map(|entry| entry.token.id.as_str()))
    }

    pub(super) fn counted(&self) -> Counted {
        match &self.entry {
            Some(entry) => Counted::Token(entry.token.id.as_str().into()),
            None => Counted::Address(network(self.from)),
        }
    }

    pub(super) fn used(&self, now: Timestamp) {
        if let Some(entry) = &self.entry {
            entry.use_at(now);
        }
    }

    pub(super) fn was_known_before(&self, since: Timestamp) -> bool {
        self.entry.as_ref().is_some_and(|entry| entry.first_used_at().is_some_and(|at| at < since))
    }

    /// Returns when the token is revoked or has expired; never without one.
    pub async fn revoked(&self, clock: Clock) {
        match &self.entry {
            Some(entry) => entry.ended(clock).await,
            None => std::future::pending().await,
        }
    }

    /// For the audit log.
    pub(super) fn shown(&self) -> String {
        match &self.entry {
            Some(entry) => format!("{} ({} {})", self.name, entry.token.role, entry.token.id),
            None => self.name.to_string(),
        }
    }
}

impl FromRequestParts<Context> for Caller {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &Context) -> Result<Self, ApiError> {
        let message = "access was not checked";
        let unchecked = || ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", message);
        parts.extensions.get().cloned().ok_or_else(unchecked)
    }
}
