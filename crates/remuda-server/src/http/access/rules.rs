//! Who may call a route. Each route names one of these in its table (`http/routes.rs`); `docs/http.md` shows them.

use super::token_store::Role;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::http) enum Access {
    Public,
    /// Clients, each for its own tenant, and admins.
    Client,
    /// Tokens that may join as a worker, and admins.
    Worker,
    /// The worker itself, with the credential it got when it joined.
    WorkerSelf,
    /// The worker itself, or an admin in its place.
    WorkerSelfOrAdmin,
    /// Any valid token of a client, a worker or an admin.
    AnyToken,
    /// Monitoring, and admins.
    Metrics,
    Admin,
}

impl Access {
    pub(super) fn admits(self, role: Role) -> bool {
        match self {
            Access::Public => true,
            Access::AnyToken => role != Role::Metrics,
            Access::Metrics => matches!(role, Role::Metrics | Role::Admin),
            Access::Client => matches!(role, Role::Client | Role::Admin),
            Access::Worker => matches!(role, Role::Worker | Role::Admin),
            Access::WorkerSelf => false,
            Access::WorkerSelfOrAdmin | Access::Admin => role == Role::Admin,
        }
    }

    /// Whether a joined worker's own credential is accepted.
    pub(super) fn takes_credentials(self) -> bool {
        self.is_worker_self() || self == Access::AnyToken
    }

    /// Whether workers join here, with their machine's join token or an earlier credential.
    pub(super) fn takes_join_tokens(self) -> bool {
        self == Access::Worker
    }

    /// Whether a worker reports about itself here.
    pub(super) fn is_worker_self(self) -> bool {
        matches!(self, Access::WorkerSelf | Access::WorkerSelfOrAdmin)
    }

    /// For documents and messages.
    pub(in crate::http) fn as_str(self) -> &'static str {
        match self {
            Access::Public => "anyone",
            Access::Client => "client, admin",
            Access::Worker => "worker, admin",
            Access::WorkerSelf => "the worker",
            Access::WorkerSelfOrAdmin => "the worker, admin",
            Access::AnyToken => "client, worker, admin",
            Access::Metrics => "metrics, admin",
            Access::Admin => "admin",
        }
    }
}
