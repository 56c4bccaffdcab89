//! What happens to pods as time passes: images arrive, containers start, crash and restart, hosts take their GPUs back.

use std::collections::BTreeMap;
use std::time::Duration;

use remuda_core::time::Timestamp;

use super::Account;
use crate::runpod::logs::Source;
use crate::runpod::plan::Pull;
use crate::runpod::pod::{Container, Life, Pod};
use crate::runpod::process::{Process, Word};
use crate::runpod::routes::POD_KEY;

/// Between the end of a container and the next one.
const RESTART: Duration = Duration::from_secs(2);
/// At any speed: a command that exits at once must not keep a CPU busy.
const RESTART_MIN: Duration = Duration::from_millis(250);
/// How long a container has after SIGTERM. Not divided by the speed: real processes take real time.
const GRACE: Duration = Duration::from_secs(5);

/// What is due for a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Due {
    Gone,
    Exits,
    Fails,
    Starts,
    Crashes,
}

impl Account {
    /// Does everything that is due, in order. Returns when the next thing is due.
    pub(in crate::runpod) fn settle(&mut self) -> Option<Timestamp> {
        let now = self.now();
        loop {
            let dues = self.pods.iter().filter_map(|pod| pod.due().map(|(at, due)| (at, due, pod.number)));
            let (at, due, number) = dues.min()?;
            if at > now {
                return Some(at);
            }
            match due {
                Due::Gone => {
                    if let Some(pod) = self.pods.iter_mut().find(|pod| pod.number == number) {
                        pod.kill();
                    }
                    self.remove(number);
                }
                Due::Exits => self.exit(number, true),
                Due::Fails => self.fail(number, at),
                Due::Starts => self.run(number, at),
                Due::Crashes => {
                    let pause = self.clock.scaled(RESTART).max(RESTART_MIN);
                    if let Some(pod) = self.pods.iter_mut().find(|pod| pod.number == number) {
                        pod.crash(at, pause);
                    }
                }
            }
        }
    }

    fn fail(&mut self, number: u64, at: Timestamp) {
        let Some(pod) = self.pods.iter_mut().find(|pod| pod.number == number) else { return };
        pod.logs.say(at, Source::System, format!("pull of {} failed: manifest unknown", pod.order.image));
        pod.life = Life::Failed;
        let id = pod.id.clone();
        self.books.stopped(&id, at);
    }

    /// Starts a container.
    fn run(&mut self, number: u64, at: Timestamp) {
        let pause = self.clock.scaled(RESTART).max(RESTART_MIN);
        let Some(pod) = self.pods.iter_mut().find(|pod| pod.number == number) else { return };
        pod.runs += 1;
        pod.boot.ready.get_or_insert(at);
        pod.logs.say(at, Source::System, "start container");
        let exec = self.options.exec.as_ref().filter(|_| !pod.is_foreign);
        let started = exec.map(|exec| {
            let who = (pod.id.as_str(), pod.runs);
            Process::start(exec, &environment(pod), GRACE, who, (&self.words, &self.living))
        });
        pod.container = match started.transpose() {
            Ok(process) => Container::Up { since: at, process },
            Err(error) => {
                pod.logs.say(at, Source::System, format!("cannot start container: {error}"));
                Container::Down { until: at.plus(pause) }
            }
        };
    }

    pub(in crate::runpod) fn hear(&mut self, word: Word) {
        let now = self.now();
        let pause = self.clock.scaled(RESTART).max(RESTART_MIN);
        match word {
            Word::Line { pod, source, text } => {
                if let Some(pod) = self.pods.iter().find(|known| known.id == pod) {
                    pod.logs.say(now, source, text);
                }
            }
            Word::Ended { pod, run, code } => {
                let found = self.pods.iter_mut().find(|known| known.id == pod && known.runs == run);
                let Some(pod) = found else { return };
                let code = code.map_or("a signal".to_owned(), |code| format!("code {code}"));
                pod.logs.say(now, Source::System, format!("container ended with {code}"));
                // It may have been restarted or stopped meanwhile: then nothing is to run, or not yet.
                let is_wanted = pod.life == Life::Up && pod.boot.ready.is_some();
                pod.container =
                    if is_wanted { Container::Down { until: now.plus(pause) } } else { Container::Absent };
            }
        }
    }

    /// No container starts from now on.
    pub(in crate::runpod) fn close(&mut self) {
        self.is_closed = true;
        self.pods.clear();
    }
}

impl Pod {
    fn due(&self) -> Option<(Timestamp, Due)> {
        let is_up = self.life == Life::Up;
        let container = match &self.container {
            Container::Absent if is_up => {
                let due = if matches!(self.plan.pull, Pull::Fails(_)) { Due::Fails } else { Due::Starts };
                self.pulled_at().map(|at| (at, due))
            }
            Container::Down { until } => Some((*until, Due::Starts)),
            Container::Up { process: Some(process), .. } if process.is_ending() => None,
            Container::Up { since, .. } => self.plan.crash_every.map(|time| (since.plus(time), Due::Crashes)),
            Container::Absent => None,
        };
        let exits = self.exits_at.filter(|_| is_up).map(|at| (at, Due::Exits));
        let gone = self.gone_at.map(|at| (at, Due::Gone));
        [gone, exits, container].into_iter().flatten().min()
    }

    /// The container dies; a real process reports that itself.
    pub(super) fn crash(&mut self, at: Timestamp, pause: Duration) {
        match &mut self.container {
            Container::Up { process: Some(process), .. } => process.kill(),
            Container::Up { process: None, .. } => self.container = Container::Down { until: at.plus(pause) },
            Container::Absent | Container::Down { .. } => {}
        }
    }

    /// The container ends; a real process takes its time.
    pub(super) fn end(&mut self) {
        match &mut self.container {
            Container::Up { process: Some(process), .. } => process.end(),
            Container::Up { process: None, .. } | Container::Down { .. } | Container::Absent => {
                self.container = Container::Absent;
            }
        }
    }

    /// As when the host dies: no grace.
    pub(super) fn kill(&mut self) {
        if let Container::Up { process: Some(process), .. } = &mut self.container {
            process.kill();
        }
    }
}

/// The environment of a container.
fn environment(pod: &Pod) -> BTreeMap<String, String> {
    let mut environment = pod.order.env.clone();
    let own = [
        ("RUNPOD_POD_ID", pod.id.clone()),
        ("RUNPOD_DC_ID", pod.centre.clone()),
        ("RUNPOD_GPU_COUNT", pod.count.to_string()),
        ("RUNPOD_PUBLIC_IP", pod.host.clone()),
        ("RUNPOD_API_KEY", format!("{POD_KEY}{}", pod.id)),
    ];
    environment.extend(own.map(|(name, value)| (name.to_owned(), value)));
    for port in pod.boot.ports.iter().filter(|port| port.kind == "tcp") {
        environment.insert(format!("RUNPOD_TCP_PORT_{}", port.private), port.public.to_string());
    }
    if let Some((volume, _)) = &pod.order.volume {
        environment.insert("RUNPOD_VOLUME_ID".to_owned(), volume.clone());
    }
    environment
}
