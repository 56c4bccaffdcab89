//! Commands that break things and inspect the truth: `RunpodControl` from inside the process, `/_remuda/…` over HTTP.

use std::sync::Arc;
use std::time::Duration;

use axum::http::{Method, StatusCode};
use serde_json::{Map, Value, json};

use super::account::Capacity;
use super::answer::Answer;
use super::faults::{RunpodFault, RunpodFaults, UnknownRunpodFault};
use super::server::Server;

/// Controls an account.
#[derive(Clone, Debug)]
pub struct RunpodControl {
    server: Arc<Server>,
}

impl RunpodControl {
    pub(super) fn new(server: Arc<Server>) -> RunpodControl {
        RunpodControl { server }
    }

    pub fn faults(&self) -> RunpodFaults {
        self.server.account().luck.faults.clone()
    }

    /// Replaces all faults.
    pub fn set_faults(&self, faults: RunpodFaults) {
        self.server.account().set_faults(faults);
    }

    /// The next occasion for this fault gets it: a creation, a list, a deletion, a request.
    pub fn strike_next(&self, fault: RunpodFault) {
        self.server.account().luck.strike_next(fault);
    }

    /// Replaces the capacity limits; existing pods stay.
    pub fn set_capacity(&self, capacity: Vec<Capacity>) {
        self.server.account().capacity = capacity;
    }

    /// Advances manual time; everything due has happened on return.
    pub fn advance(&self, by: Duration) {
        self.server.clock.advance(by);
        self.server.account().settle();
    }

    /// The host takes its GPU back: EXITED, and the pod can never start again. Returns whether the pod exists.
    pub fn exit(&self, pod: &str) -> bool {
        self.harm(pod, "exit")
    }

    /// The host dies, and the pod is gone.
    pub fn vanish(&self, pod: &str) -> bool {
        self.harm(pod, "vanish")
    }

    /// The container dies, and is restarted.
    pub fn crash(&self, pod: &str) -> bool {
        self.harm(pod, "crash")
    }

    fn harm(&self, pod: &str, how: &str) -> bool {
        let is_done = self.server.account().harm(pod, how);
        self.server.notice();
        is_done
    }
}

/// The commands under `/_remuda/…`.
const ORDERS: &str = "GET faults, ledger, pods; PUT faults {\"omit\": 0.1}; PUT capacity [\"*=2\"]; POST strike {\"fault\": \"omit\"}; \
                      POST pods/{id}/exit, vanish, crash";

/// Answers `/_remuda/…`.
pub(super) fn respond(server: &Arc<Server>, method: &Method, order: &[&str], body: &[u8]) -> Answer {
    let control = RunpodControl::new(Arc::clone(server));
    let asked: Value = serde_json::from_slice(body).unwrap_or(Value::Null);
    server.account().settle();
    match (method.as_str(), order) {
        ("GET", ["faults"]) => {}
        ("GET", ["ledger"]) => return Answer::ok(json!(server.ledger())),
        ("GET", ["pods"]) => return Answer::ok(json!({"pods": server.account().insides()})),
        ("PUT" | "POST", ["faults"]) => match read(&asked, control.faults()) {
            Ok(faults) => control.set_faults(faults),
            Err(error) => return Answer::bad_request(error.to_string()),
        },
        ("PUT" | "POST", ["capacity"]) => {
            let rules = asked.as_array().map(Vec::as_slice).unwrap_or_default().iter();
            let rules: Option<Vec<Capacity>> =
                rules.map(|rule| rule.as_str().and_then(Capacity::parse)).collect();
            match rules.filter(|_| asked.is_array()) {
                Some(rules) => control.set_capacity(rules),
                None => return Answer::bad_request("write it as [\"NVIDIA L4@EU-RO-1/SECURE=2\"]"),
            }
        }
        ("POST", ["strike"]) => match asked["fault"].as_str().unwrap_or_default().parse() {
            Ok(fault) => control.strike_next(fault),
            Err(error) => return Answer::bad_request(UnknownRunpodFault::to_string(&error)),
        },
        ("POST", ["pods", id, how @ ("exit" | "vanish" | "crash")]) => {
            if !control.harm(id, how) {
                return Answer::not_found();
            }
            return Answer::ok(json!({"pods": server.account().insides()}));
        }
        _ => return Answer::problem(StatusCode::NOT_FOUND, format!("there are: {ORDERS}")),
    }
    Answer::ok(state(server))
}

/// `{"omit": 0.1}` is added to the current faults; `{}` removes all.
fn read(asked: &Value, mut faults: RunpodFaults) -> Result<RunpodFaults, UnknownRunpodFault> {
    let Some(asked) = asked.as_object() else {
        return Err(UnknownRunpodFault::Probability(asked.to_string()));
    };
    if asked.is_empty() {
        return Ok(RunpodFaults::none());
    }
    for (name, probability) in asked {
        faults.set_from(&format!("{name}={probability}"))?;
    }
    Ok(faults)
}

fn state(server: &Server) -> Value {
    let account = server.account();
    let faults: Map<String, Value> =
        account.luck.faults.iter().map(|(fault, p)| (fault.name().to_owned(), p.into())).collect();
    json!({"faults": faults, "struck": account.luck.struck(), "requests": account.requests})
}
