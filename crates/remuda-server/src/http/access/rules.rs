//! Who may ask for what: one line a route, and a route without one is for admins alone. `docs/http.md` shows it.

use super::token_store::Role;

/// Who may ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::http) enum Access {
    Public,
    /// Clients, each for its tenant, and admins.
    Client,
    /// Whoever may join as a worker, and admins.
    Worker,
    /// The worker itself, by what it was given when it joined.
    WorkerSelf,
    /// The worker itself, or an admin in its place.
    WorkerSelfOrAdmin,
    /// Everyone with a token.
    AnyToken,
    Admin,
}

impl Access {
    pub(super) fn admits(self, role: Role) -> bool {
        match self {
            Access::Public | Access::AnyToken => true,
            Access::Client => matches!(role, Role::Client | Role::Admin),
            Access::Worker => matches!(role, Role::Worker | Role::Admin),
            Access::WorkerSelf => false,
            Access::WorkerSelfOrAdmin | Access::Admin => role == Role::Admin,
        }
    }

    /// Whether the worker's own ticket will do.
    pub(super) fn takes_tickets(self) -> bool {
        self.is_of_a_worker() || self == Access::AnyToken
    }

    /// Whether one joins there: with what one's machine was given, or what one was given before.
    pub(super) fn takes_join_tokens(self) -> bool {
        self == Access::Worker
    }

    /// Whether a worker tells of itself there.
    pub(super) fn is_of_a_worker(self) -> bool {
        matches!(self, Access::WorkerSelf | Access::WorkerSelfOrAdmin)
    }

    /// For people.
    pub(in crate::http) fn as_str(self) -> &'static str {
        match self {
            Access::Public => "anyone",
            Access::Client => "client, admin",
            Access::Worker => "worker, admin",
            Access::WorkerSelf => "the worker",
            Access::WorkerSelfOrAdmin => "the worker, admin",
            Access::AnyToken => "client, worker, admin",
            Access::Admin => "admin",
        }
    }
}

/// A route, who may ask for it, and what the audit log calls it; nothing if it is not noted.
pub(super) struct Rule {
    method: &'static str,
    path: &'static str,
    pub(super) who: Access,
    pub(super) noted: &'static str,
}

const fn rule(method: &'static str, path: &'static str, who: Access) -> Rule {
    Rule { method, path, who, noted: "" }
}

const fn noted(method: &'static str, path: &'static str, who: Access, noted: &'static str) -> Rule {
    Rule { method, path, who, noted }
}

const RULES: &[Rule] = &[
    rule("POST", "/remuda/v1/jobs", Access::Client),
    rule("GET", "/remuda/v1/jobs", Access::Client),
    rule("GET", "/remuda/v1/jobs/{id}", Access::Client),
    rule("GET", "/remuda/v1/jobs/{id}/why", Access::Client),
    rule("GET", "/remuda/v1/jobs/{id}/workflow", Access::Client),
    rule("GET", "/remuda/v1/jobs/{id}/result", Access::Client),
    rule("GET", "/remuda/v1/jobs/{id}/preview", Access::Client),
    noted("POST", "/remuda/v1/jobs/{id}/cancel", Access::Client, "job.cancel"),
    noted("POST", "/remuda/v1/workers", Access::Worker, "worker.join"),
    rule("GET", "/remuda/v1/workers", Access::Admin),
    rule("GET", "/remuda/v1/workers/{id}", Access::Admin),
    rule("POST", "/remuda/v1/workers/{id}/beat", Access::WorkerSelf),
    rule("PUT", "/remuda/v1/workers/{id}/preview", Access::WorkerSelf),
    rule("PUT", "/remuda/v1/workers/{id}/live", Access::WorkerSelf),
    noted("POST", "/remuda/v1/workers/{id}/drain", Access::Admin, "worker.drain"),
    noted("DELETE", "/remuda/v1/workers/{id}", Access::WorkerSelfOrAdmin, "worker.leave"),
    rule("POST", "/remuda/v1/blobs", Access::AnyToken),
    rule("PUT", "/remuda/v1/blobs/{hash}", Access::AnyToken),
    rule("GET", "/remuda/v1/blobs/{hash}", Access::AnyToken),
    rule("GET", "/remuda/v1/machines", Access::Admin),
    rule("GET", "/remuda/v1/machines/{id}", Access::Admin),
    noted("POST", "/remuda/v1/machines/{id}/drain", Access::Admin, "machine.drain"),
    rule("GET", "/remuda/v1/fleets", Access::Admin),
    rule("GET", "/remuda/v1/fleets/{id}", Access::Admin),
    noted("POST", "/remuda/v1/fleets/{id}/pause", Access::Admin, "fleet.pause"),
    noted("POST", "/remuda/v1/fleets/{id}/resume", Access::Admin, "fleet.resume"),
    noted("POST", "/remuda/v1/fleets/{id}/scale", Access::Admin, "fleet.scale"),
    noted("POST", "/remuda/v1/fleets/{id}/reset-brake", Access::Admin, "fleet.reset_brake"),
    rule("GET", "/remuda/v1/cost", Access::Admin),
    rule("GET", "/remuda/v1/blocks", Access::Admin),
    noted("DELETE", "/remuda/v1/blocks/{worker}/{shape}", Access::Admin, "block.lift"),
    rule("GET", "/remuda/v1/affinities", Access::Admin),
    rule("GET", "/remuda/v1/affinities/{shape}", Access::Admin),
    noted("PUT", "/remuda/v1/affinities/{shape}", Access::Admin, "affinity.set"),
    noted("DELETE", "/remuda/v1/affinities/{shape}", Access::Admin, "affinity.remove"),
    rule("GET", "/remuda/v1/quarantine", Access::Admin),
    noted("DELETE", "/remuda/v1/quarantine/{shape}", Access::Admin, "quarantine.release"),
    rule("GET", "/remuda/v1/events", Access::Client),
    rule("GET", "/remuda/v1/cycles", Access::Admin),
    noted("POST", "/remuda/v1/cycles", Access::Admin, "cycle.run"),
    rule("GET", "/remuda/v1/plan", Access::Admin),
    noted("POST", "/remuda/v1/reload", Access::Admin, "settings.reload"),
    rule("GET", "/remuda/v1/status", Access::Admin),
    rule("GET", "/remuda/v1/views/{name}", Access::Admin),
    noted("POST", "/remuda/v1/tokens", Access::Admin, "token.create"),
    rule("GET", "/remuda/v1/tokens", Access::Admin),
    noted("DELETE", "/remuda/v1/tokens/{id}", Access::Admin, "token.revoke"),
    rule("GET", "/remuda/v1/models", Access::Admin),
    rule("POST", "/v1/embeddings", Access::Client),
    rule("POST", "/v1/chat/completions", Access::Client),
    rule("POST", "/v1/images/generations", Access::Client),
    rule("GET", "/v1/models", Access::Client),
    rule("GET", "/v1/models/{id}", Access::Client),
    rule("GET", "/health/live", Access::Public),
    rule("GET", "/health/ready", Access::Public),
];

/// What is about the fleet has a line of its own.
const FLEET: &str = "/remuda/v1";
const FOR_CLIENTS: Rule = rule("", "", Access::Client);
const FOR_ADMINS: Rule = rule("", "", Access::Admin);

/// The rule for a route, by the path as the router has it. Whatever is not about the fleet speaks ComfyUI's languages,
/// and is for clients.
pub(super) fn rule_of(method: &str, path: Option<&str>) -> &'static Rule {
    let method = if method == "HEAD" { "GET" } else { method };
    let Some(path) = path else { return &FOR_CLIENTS };
    let found = RULES.iter().find(|rule| rule.method == method && rule.path == path);
    found.unwrap_or(if path.starts_with(FLEET) { &FOR_ADMINS } else { &FOR_CLIENTS })
}

/// Whether somebody decided on this route: it has a line, or it is none of the fleet's.
#[cfg(test)]
pub(in crate::http) fn is_ruled(method: &str, path: &str) -> bool {
    let is_ours = [FLEET, "/v1", "/health"].iter().any(|ours| path.starts_with(ours));
    !is_ours || RULES.iter().any(|rule| rule.method == method && rule.path == path)
}

/// Who may ask for a route.
#[cfg(test)]
pub(in crate::http) fn who(method: &str, path: &str) -> Access {
    rule_of(method, Some(path)).who
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::ROUTES;

    /// Faults: X17.
    #[test]
    fn every_route_has_a_rule_and_every_rule_a_route() {
        for (method, path, _) in ROUTES {
            assert!(is_ruled(method, path), "{method} {path} has no rule in http/access/rules.rs");
        }
        for rule in RULES {
            let is_there =
                ROUTES.iter().any(|(method, path, _)| (*method, *path) == (rule.method, rule.path));
            assert!(is_there, "there is no {} {}", rule.method, rule.path);
            let same = RULES.iter().filter(|other| (other.method, other.path) == (rule.method, rule.path));
            assert_eq!(same.count(), 1, "{} {} has more than one rule", rule.method, rule.path);
        }
    }

    #[test]
    fn what_nobody_thought_of_is_for_admins() {
        assert_eq!(who("GET", "/remuda/v1/secrets"), Access::Admin);
        assert_eq!(who("PATCH", "/remuda/v1/jobs"), Access::Admin);
        assert_eq!(who("HEAD", "/remuda/v1/blobs/{hash}"), Access::AnyToken);
        assert_eq!(who("GET", "/api/v2/jobs/{id}"), Access::Client);
        assert_eq!(rule_of("GET", None).who, Access::Client);
    }
}
