//! Commands that break a server: `Control` from inside the process, `/fake/…` over HTTP.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use axum::http::{Method, StatusCode};
use axum::response::Response;
use serde_json::{Map, Value, json};
use tokio::sync::oneshot;

use super::faults::{Fault, Faults, UnknownFault};
use super::process::Order;
use super::routes::answer;
use super::server::{Estate, Server};

/// Controls a server, whether it runs or not.
#[derive(Clone, Debug)]
pub struct Control {
    estate: Arc<Estate>,
}

impl Control {
    pub(super) fn new(estate: Arc<Estate>) -> Control {
        Control { estate }
    }

    pub fn faults(&self) -> Faults {
        self.estate.faults()
    }

    /// Replaces all faults.
    pub fn set_faults(&self, faults: Faults) {
        self.estate.set_faults(faults);
    }

    /// The next prompt gets this fault.
    pub fn strike_next(&self, fault: Fault) {
        self.estate.strike_next(fault);
    }

    pub async fn kill(&self) {
        self.order(Order::Kill).await;
    }

    pub async fn restart(&self) {
        self.order(Order::Restart).await;
    }

    async fn order(&self, order: impl FnOnce(Option<oneshot::Sender<()>>) -> Order) {
        let (answer, answered) = oneshot::channel();
        if self.estate.orders.send(order(Some(answer))).is_ok() {
            // An error means that the server's thread has ended.
            let _ = answered.await;
        }
    }

    /// Advances the manual GPU time; returns once everything that was due has happened.
    pub async fn advance(&self, by: Duration) {
        if let Some(server) = self.estate.server() {
            server.clock.advance(by, || server.queue.remaining() > 0).await;
        }
    }

    /// Advances to the next due event. Returns whether there was one.
    pub async fn advance_to_next(&self) -> bool {
        self.advance(Duration::ZERO).await;
        let due = self.estate.server().and_then(|server| server.clock.due());
        if let Some(due) = due {
            // A little more, so that rounding does not stop just before it.
            self.advance(due + Duration::from_nanos(1)).await;
        }
        due.is_some()
    }

    /// Cuts every socket without a close frame.
    pub fn drop_sockets(&self) {
        self.alive(|server| server.sockets.cut());
    }

    /// Keeps every socket open, but stops reading and writing.
    pub fn half_open_sockets(&self) {
        self.alive(|server| server.sockets.freeze());
    }

    /// Stops or resumes the delivery of messages.
    pub fn hold_messages(&self, is_held: bool) {
        self.alive(|server| server.sockets.hold(is_held));
    }

    pub fn clear_history(&self) {
        self.alive(|server| server.history().clear());
    }

    /// Removes all pending prompts.
    pub fn clear_queue(&self) {
        self.alive(|server| {
            server.queue.clear();
            server.tell_status();
        });
    }

    /// Interrupts the running prompt, as another client would.
    pub fn interrupt(&self) {
        self.alive(|server| server.interrupt.store(true, Ordering::Relaxed));
    }

    /// Empties the output folder.
    pub fn delete_outputs(&self) {
        self.estate.disk.wipe_output();
    }

    /// Delays every answer.
    pub fn slow_http(&self, delay: Duration) {
        self.alive(|server| server.set_http_delay(delay));
    }

    fn alive(&self, act: impl FnOnce(&Server)) {
        if let Some(server) = self.estate.server() {
            act(&server);
        }
    }
}

/// The commands under `/fake/…`.
const ORDERS: &str = "faults, strike, kill, restart, drop-sockets, half-open, hold-messages, release-messages, \
                      clear-history, clear-queue, interrupt, delete-outputs, slow-http";

/// Answers `/fake/…`.
pub(super) async fn respond(server: &Arc<Server>, method: &Method, order: &str, body: &[u8]) -> Response {
    let control = Control::new(Arc::clone(&server.estate));
    if *method == Method::GET {
        return answer::json(StatusCode::OK, &state(server));
    }
    let asked: Value = serde_json::from_slice(body).unwrap_or(Value::Null);
    match order {
        "faults" => {
            let faults = match read(&asked, control.faults()) {
                Ok(faults) => faults,
                Err(error) => return answer::plain(StatusCode::BAD_REQUEST, error.to_string()),
            };
            control.set_faults(faults);
        }
        "strike" => match asked["fault"].as_str().unwrap_or_default().parse() {
            Ok(fault) => control.strike_next(fault),
            Err(error) => return answer::plain(StatusCode::BAD_REQUEST, UnknownFault::to_string(&error)),
        },
        "kill" => control.kill().await,
        "restart" => control.restart().await,
        "drop-sockets" => control.drop_sockets(),
        "half-open" => control.half_open_sockets(),
        "hold-messages" => control.hold_messages(true),
        "release-messages" => control.hold_messages(false),
        "clear-history" => control.clear_history(),
        "clear-queue" => control.clear_queue(),
        "interrupt" => control.interrupt(),
        "delete-outputs" => control.delete_outputs(),
        "slow-http" => {
            let seconds = asked["seconds"].as_f64().unwrap_or(0.0);
            control.slow_http(Duration::try_from_secs_f64(seconds).unwrap_or_default());
        }
        _ => return answer::plain(StatusCode::NOT_FOUND, format!("there are: {ORDERS}")),
    }
    answer::json(StatusCode::OK, &state(server))
}

/// `{"hang": 0.1}` is added to the current faults; `{}` removes all.
fn read(asked: &Value, mut faults: Faults) -> Result<Faults, UnknownFault> {
    let Some(asked) = asked.as_object() else { return Err(UnknownFault::Probability(asked.to_string())) };
    if asked.is_empty() {
        return Ok(Faults::none());
    }
    for (name, probability) in asked {
        faults.set_from(&format!("{name}={probability}"))?;
    }
    Ok(faults)
}

fn state(server: &Server) -> Value {
    let counts = server.estate.tally.counts();
    let faults: Map<String, Value> =
        server.estate.faults().iter().map(|(fault, p)| (fault.name().to_owned(), p.into())).collect();
    json!({
        "faults": faults, "struck": counts.faults, "requests": counts.requests,
        "prompts_accepted": counts.prompts_accepted, "prompts_refused": counts.prompts_refused,
        "executions": counts.executions.values().sum::<u32>(), "ran_twice": counts.ran_twice(),
        "successes": counts.successes.values().sum::<u32>(),
        "sockets_open": counts.sockets_open, "sockets_opened": counts.sockets_opened, "lives": counts.lives,
    })
}
