//! Who asks, as every handler can ask for it.

use std::net::IpAddr;
use std::sync::Arc;

use axum::extract::FromRequestParts;
use axum::http::StatusCode;
use axum::http::request::Parts;
use remuda_core::id::{MachineId, Tenant, WorkerId};
use remuda_core::plane::JoinProof;
use remuda_core::time::Timestamp;

use super::super::{ApiError, Context};
use super::guard::{Counted, network};
use super::token_store::{Entry, draw_ticket};
use super::{ANYONE, Role, Token};
use remuda_net::clock::Clock;
use remuda_net::secret::{RngError, Secret};

/// Who asks, as the token says. On loopback without tokens anyone may do everything.
#[derive(Clone, Debug)]
pub struct Caller {
    pub(super) role: Role,
    name: Arc<str>,
    pub(super) from: IpAddr,
    /// Whose jobs it may see; nothing if it may see everybody's.
    tenant: Option<Tenant>,
    entry: Option<Arc<Entry>>,
    /// It goes by what it was given when it joined.
    is_joined: bool,
    proof: JoinProof,
}

impl Caller {
    /// Who asks where nobody needs a token, or not for this.
    pub(super) fn anyone(from: IpAddr) -> Caller {
        Caller::named(ANYONE, Role::Admin, from)
    }

    fn named(name: &str, role: Role, from: IpAddr) -> Caller {
        let proof = JoinProof::JoinToken;
        Caller { role, name: name.into(), from, tenant: None, entry: None, is_joined: false, proof }
    }

    /// A worker of a rented machine, by what that was given.
    pub(super) fn machine(machine: MachineId, from: IpAddr) -> Caller {
        let name = format!("machine {machine}");
        Caller { proof: JoinProof::MachineToken(machine), ..Caller::named(&name, Role::Worker, from) }
    }

    /// A worker that joined before, by what it was given then.
    pub(super) fn former(entry: Option<Arc<Entry>>, ticket: &Secret, from: IpAddr) -> Caller {
        let proof = JoinProof::PreviousToken(ticket.hash());
        Caller { entry, proof, ..Caller::named("a worker", Role::Worker, from) }
    }

    pub(super) fn of(entry: Arc<Entry>, from: IpAddr) -> Caller {
        let Token { role, name, tenant, .. } = &entry.token;
        let mut caller = Caller::named(name, *role, from);
        caller.tenant.clone_from(tenant);
        Caller { entry: Some(entry), ..caller }
    }

    /// A worker that joined with this token, or when nobody needed one.
    pub(super) fn joined(entry: Option<Arc<Entry>>, from: IpAddr) -> Caller {
        Caller { entry, is_joined: true, ..Caller::named("a worker", Role::Worker, from) }
    }

    /// The tenant that a submission of this caller belongs to; whoever belongs to one cannot speak for another.
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

    /// Whether it may know of something that belongs to this tenant; if not, it is told that there is nothing (404).
    pub fn may_see(&self, tenant: &Tenant) -> bool {
        self.tenant.as_ref().is_none_or(|own| own == tenant)
    }

    /// To what a listing is narrowed; nothing if it is not.
    pub fn only(&self) -> Option<&Tenant> {
        self.tenant.as_ref()
    }

    /// To whose a listing is narrowed, if it was asked for somebody's; whoever belongs to a tenant sees its own.
    pub fn narrowed(&self, asked: Option<Tenant>) -> Result<Option<Tenant>, ApiError> {
        match &self.tenant {
            Some(_) => self.tenant(asked.as_ref()).map(Some),
            None => Ok(asked),
        }
    }

    pub fn role(&self) -> Role {
        self.role
    }

    /// Whether it is a worker that goes by what it was given when it joined.
    pub(in crate::http) fn is_joined(&self) -> bool {
        self.is_joined
    }

    /// Whether nobody was asked who it is.
    pub(in crate::http) fn is_anyone(&self) -> bool {
        &*self.name == ANYONE && self.entry.is_none()
    }

    /// Whether it joins again, with what it was given before.
    pub(super) fn is_former(&self) -> bool {
        matches!(self.proof, JoinProof::PreviousToken(_))
    }

    /// How it has shown who it is.
    pub(in crate::http) fn proof(&self) -> JoinProof {
        self.proof.clone()
    }

    /// Whether it may join under this name, on this machine. A machine's own token is for its own workers: `gpus-1` and
    /// whatever begins with `gpus-1-`.
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

    /// What a worker that joins goes by from then on; it ends with the token it joins with.
    pub(in crate::http) fn ticket(&self) -> Result<String, RngError> {
        draw_ticket(self.entry.as_ref().map(|entry| entry.token.id.as_str()))
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

    /// Until the token is revoked or has expired; for ever without one.
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
        let message = "nobody looked at who asks";
        let unasked = || ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", message);
        parts.extensions.get().cloned().ok_or_else(unasked)
    }
}
