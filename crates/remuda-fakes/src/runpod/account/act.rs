//! Operations on existing pods.

use std::time::Duration;

use axum::http::StatusCode;

use super::Account;
use super::create::NO_GPUS;
use crate::runpod::answer::Answer;
use crate::runpod::faults::{Occasion, RunpodFault};
use crate::runpod::logs::Source;
use crate::runpod::order::Change;
use crate::runpod::pod::{Boot, Life, Pod, Status};

impl Account {
    pub(in crate::runpod) fn delete(&mut self, id: &str) -> Answer {
        let Some(number) = self.found(id).map(|pod| pod.number) else { return Answer::not_found() };
        let drawn = self.luck.draw(Occasion::Delete);
        if self.luck.strikes(&drawn, RunpodFault::Delete404) {
            return Answer::not_found();
        }
        if self.luck.strikes(&drawn, RunpodFault::Delete500) {
            return Answer::trouble();
        }
        if self.luck.strikes(&drawn, RunpodFault::DeleteIgnored) {
            return Answer::Empty;
        }
        if self.luck.strikes(&drawn, RunpodFault::DeleteLate) {
            let late = self.luck.dice(number).seconds(5, 120);
            let gone_at = self.now().plus(self.clock.scaled(late));
            if let Some(pod) = self.found(id) {
                pod.gone_at = Some(pod.gone_at.map_or(gone_at, |at| at.min(gone_at)));
            }
            return Answer::Empty;
        }
        self.remove(number);
        if self.luck.strikes(&drawn, RunpodFault::Delete500Done) { Answer::trouble() } else { Answer::Empty }
    }

    /// Deletes a pod with its process.
    pub(super) fn remove(&mut self, number: u64) {
        let now = self.now();
        if let Some(at) = self.pods.iter().position(|pod| pod.number == number) {
            let pod = self.pods.remove(at);
            self.books.deleted(&pod.id, now);
        }
    }

    pub(in crate::runpod) fn act(&mut self, id: &str, body: &[u8]) -> Answer {
        let asked: serde_json::Value = serde_json::from_slice(body).unwrap_or_default();
        let action = asked["action"].as_str().unwrap_or_default();
        if !matches!(action, "start" | "stop" | "restart" | "terminate") {
            let error = "$.action: value must be one of 'start', 'stop', 'restart', 'terminate'";
            return Answer::invalid(vec![error.to_owned()]);
        }
        let now = self.now();
        let Some(pod) = self.found(id) else { return Answer::not_found() };
        let (number, status) = (pod.number, pod.status(now));
        if !status.actions().contains(&action) || (pod.is_locked && action == "stop") {
            let detail = format!("cannot {action} a pod that is {}", status.name());
            return Answer::problem(StatusCode::CONFLICT, detail);
        }
        match action {
            "terminate" => return self.delete(id),
            "stop" => self.exit(number, false),
            "restart" => self.reset(number),
            _ => {
                if let Err(answer) = self.start(number, status) {
                    return answer;
                }
            }
        }
        Answer::ok(self.picture(number))
    }

    fn start(&mut self, number: u64, status: Status) -> Result<(), Answer> {
        let now = self.now();
        let Some(pod) = self.pods.iter().find(|pod| pod.number == number) else {
            return Err(Answer::not_found());
        };
        let is_pinned = pod.life == (Life::Exited { is_pinned: true });
        let has_room = status == Status::Error || self.has_room(&pod.order, pod.count, &pod.centre, now);
        if is_pinned || !has_room {
            return Err(Answer::bad_request(NO_GPUS));
        }
        let id = pod.id.clone();
        self.books.started(&id, now);
        self.boot(number);
        Ok(())
    }

    /// Starts from the beginning, on new ports.
    fn boot(&mut self, number: u64) {
        let (now, ssh_port) = (self.now(), self.options.ssh_port);
        let Some(pod) = self.pods.iter_mut().find(|pod| pod.number == number) else { return };
        let mut dice = self.luck.dice(number ^ (pod.runs << 32) ^ now.as_millis());
        pod.boot = Boot::new(now, false, &pod.order.ports, ssh_port, &mut dice);
        pod.life = Life::Up;
        pod.end();
    }

    /// Recreates the container: its processes end first.
    fn reset(&mut self, number: u64) {
        let now = self.now();
        if let Some(pod) = self.pods.iter().find(|pod| pod.number == number) {
            pod.logs.say(now, Source::System, "restart container");
        }
        self.boot(number);
    }

    pub(super) fn exit(&mut self, number: u64, is_pinned: bool) {
        let now = self.now();
        let Some(pod) = self.pods.iter_mut().find(|pod| pod.number == number) else { return };
        pod.life = Life::Exited { is_pinned };
        pod.end();
        pod.exits_at = None;
        pod.logs.say(now, Source::System, "stop container");
        let id = pod.id.clone();
        self.books.stopped(&id, now);
    }

    pub(in crate::runpod) fn change(&mut self, id: &str, change: Change) -> Answer {
        let Some(pod) = self.found(id) else { return Answer::not_found() };
        let is_reset = change.is_reset() && pod.life == Life::Up;
        let number = pod.number;
        let Pod { name, order, is_locked, .. } = pod;
        *name = change.name.unwrap_or_else(|| name.clone());
        order.image = change.image.unwrap_or_else(|| order.image.clone());
        order.ports = change.ports.unwrap_or_else(|| order.ports.clone());
        order.env = change.env.unwrap_or_else(|| order.env.clone());
        *is_locked = change.is_locked.unwrap_or(*is_locked);
        if is_reset {
            self.reset(number);
        }
        Answer::ok(self.picture(number))
    }

    /// Breaks a pod on command, regardless of the provider's rules.
    pub(in crate::runpod) fn harm(&mut self, id: &str, how: &str) -> bool {
        let now = self.now();
        let Some(pod) = self.pods.iter_mut().find(|pod| pod.id == id) else { return false };
        let number = pod.number;
        match how {
            "exit" => self.exit(number, true),
            "vanish" => {
                pod.kill();
                self.remove(number);
            }
            "crash" => pod.crash(now, Duration::ZERO),
            _ => return false,
        }
        true
    }
}
