//! Who may ask for what: one line a route, and a route without one is for admins alone. `docs/http.md` shows it.

use super::book::Role;

/// Who may ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::http) enum Who {
    Anyone,
    /// Clients, each for its tenant, and admins.
    Client,
    /// Whoever may join as a worker, and admins.
    Worker,
    /// The worker itself, by what it was given when it joined.
    Joined,
    /// The worker itself, or an admin in its place.
    JoinedOrAdmin,
    /// Everyone with a token.
    Known,
    Admin,
}

impl Who {
    pub(super) fn admits(self, role: Role) -> bool {
        match self {
            Who::Anyone | Who::Known => true,
            Who::Client => matches!(role, Role::Client | Role::Admin),
            Who::Worker => matches!(role, Role::Worker | Role::Admin),
            Who::Joined => false,
            Who::JoinedOrAdmin | Who::Admin => role == Role::Admin,
        }
    }

    /// Whether the worker's own ticket will do.
    pub(super) fn takes_tickets(self) -> bool {
        self.is_of_a_worker() || self == Who::Known
    }

    /// Whether one joins there: with what one's machine was given, or what one was given before.
    pub(super) fn takes_join_tokens(self) -> bool {
        self == Who::Worker
    }

    /// Whether a worker tells of itself there.
    pub(super) fn is_of_a_worker(self) -> bool {
        matches!(self, Who::Joined | Who::JoinedOrAdmin)
    }

    /// For people.
    pub(in crate::http) fn as_str(self) -> &'static str {
        match self {
            Who::Anyone => "anyone",
            Who::Client => "client, admin",
            Who::Worker => "worker, admin",
            Who::Joined => "the worker",
            Who::JoinedOrAdmin => "the worker, admin",
            Who::Known => "client, worker, admin",
            Who::Admin => "admin",
        }
    }
}

/// A route, who may ask for it, and what the audit log calls it; nothing if it is not noted.
pub(super) struct Rule {
    method: &'static str,
    path: &'static str,
    pub(super) who: Who,
    pub(super) noted: &'static str,
}

const fn rule(method: &'static str, path: &'static str, who: Who) -> Rule {
    Rule { method, path, who, noted: "" }
}

const fn noted(method: &'static str, path: &'static str, who: Who, noted: &'static str) -> Rule {
    Rule { method, path, who, noted }
}

const RULES: &[Rule] = &[
    rule("POST", "/remuda/v1/jobs", Who::Client),
    rule("GET", "/remuda/v1/jobs", Who::Client),
    rule("GET", "/remuda/v1/jobs/{id}", Who::Client),
    rule("GET", "/remuda/v1/jobs/{id}/why", Who::Client),
    rule("GET", "/remuda/v1/jobs/{id}/workflow", Who::Client),
    rule("GET", "/remuda/v1/jobs/{id}/result", Who::Client),
    rule("GET", "/remuda/v1/jobs/{id}/preview", Who::Client),
    noted("POST", "/remuda/v1/jobs/{id}/cancel", Who::Client, "job.cancel"),
    noted("POST", "/remuda/v1/workers", Who::Worker, "worker.join"),
    rule("GET", "/remuda/v1/workers", Who::Admin),
    rule("GET", "/remuda/v1/workers/{id}", Who::Admin),
    rule("POST", "/remuda/v1/workers/{id}/beat", Who::Joined),
    rule("PUT", "/remuda/v1/workers/{id}/preview", Who::Joined),
    rule("PUT", "/remuda/v1/workers/{id}/live", Who::Joined),
    noted("POST", "/remuda/v1/workers/{id}/drain", Who::Admin, "worker.drain"),
    noted("DELETE", "/remuda/v1/workers/{id}", Who::JoinedOrAdmin, "worker.leave"),
    rule("POST", "/remuda/v1/blobs", Who::Known),
    rule("PUT", "/remuda/v1/blobs/{hash}", Who::Known),
    rule("GET", "/remuda/v1/blobs/{hash}", Who::Known),
    rule("GET", "/remuda/v1/machines", Who::Admin),
    rule("GET", "/remuda/v1/machines/{id}", Who::Admin),
    noted("POST", "/remuda/v1/machines/{id}/drain", Who::Admin, "machine.drain"),
    rule("GET", "/remuda/v1/fleets", Who::Admin),
    rule("GET", "/remuda/v1/fleets/{id}", Who::Admin),
    noted("POST", "/remuda/v1/fleets/{id}/pause", Who::Admin, "fleet.pause"),
    noted("POST", "/remuda/v1/fleets/{id}/resume", Who::Admin, "fleet.resume"),
    noted("POST", "/remuda/v1/fleets/{id}/scale", Who::Admin, "fleet.scale"),
    noted("POST", "/remuda/v1/fleets/{id}/reset-brake", Who::Admin, "fleet.reset_brake"),
    rule("GET", "/remuda/v1/cost", Who::Admin),
    rule("GET", "/remuda/v1/blocks", Who::Admin),
    noted("DELETE", "/remuda/v1/blocks/{worker}/{shape}", Who::Admin, "block.lift"),
    rule("GET", "/remuda/v1/affinities", Who::Admin),
    rule("GET", "/remuda/v1/affinities/{shape}", Who::Admin),
    noted("PUT", "/remuda/v1/affinities/{shape}", Who::Admin, "affinity.set"),
    noted("DELETE", "/remuda/v1/affinities/{shape}", Who::Admin, "affinity.remove"),
    rule("GET", "/remuda/v1/quarantine", Who::Admin),
    noted("DELETE", "/remuda/v1/quarantine/{shape}", Who::Admin, "quarantine.release"),
    rule("GET", "/remuda/v1/events", Who::Client),
    rule("GET", "/remuda/v1/cycles", Who::Admin),
    noted("POST", "/remuda/v1/cycles", Who::Admin, "cycle.run"),
    rule("GET", "/remuda/v1/plan", Who::Admin),
    noted("POST", "/remuda/v1/reload", Who::Admin, "settings.reload"),
    rule("GET", "/remuda/v1/status", Who::Admin),
    rule("GET", "/remuda/v1/views/{name}", Who::Admin),
    noted("POST", "/remuda/v1/tokens", Who::Admin, "token.create"),
    rule("GET", "/remuda/v1/tokens", Who::Admin),
    noted("DELETE", "/remuda/v1/tokens/{id}", Who::Admin, "token.revoke"),
    rule("GET", "/remuda/v1/models", Who::Admin),
    rule("POST", "/v1/embeddings", Who::Client),
    rule("POST", "/v1/chat/completions", Who::Client),
    rule("POST", "/v1/images/generations", Who::Client),
    rule("GET", "/v1/models", Who::Client),
    rule("GET", "/v1/models/{id}", Who::Client),
    rule("GET", "/health/live", Who::Anyone),
    rule("GET", "/health/ready", Who::Anyone),
];

/// What is about the fleet has a line of its own.
const FLEET: &str = "/remuda/v1";
const FOR_CLIENTS: Rule = rule("", "", Who::Client);
const FOR_ADMINS: Rule = rule("", "", Who::Admin);

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
pub(in crate::http) fn who(method: &str, path: &str) -> Who {
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
        assert_eq!(who("GET", "/remuda/v1/secrets"), Who::Admin);
        assert_eq!(who("PATCH", "/remuda/v1/jobs"), Who::Admin);
        assert_eq!(who("HEAD", "/remuda/v1/blobs/{hash}"), Who::Known);
        assert_eq!(who("GET", "/api/v2/jobs/{id}"), Who::Client);
        assert_eq!(rule_of("GET", None).who, Who::Client);
    }
}
