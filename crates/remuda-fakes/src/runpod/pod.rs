//! One pod as its owner gets to see it.
//!
//! ```text
//!  at once, as recorded:    RUNNING without runtime ──image there──▶ RUNNING with runtime ──▶ ssh.direct
//!  `stepwise`, as specified: PROVISIONING ──▶ STARTING ──image there──▶ RUNNING
//!                                 stop, host, credit ──▶ EXITED ──start──▶ from the top, on new ports
//! ```

use std::time::Duration;

use remuda_core::money::Money;
use remuda_core::time::Timestamp;
use serde_json::{Value, json};

use super::catalog::{Gpu, dollars};
use super::logs::Logs;
use super::order::{Order, split_port};
use super::plan::{Plan, Pull};
use super::process::Process;
use crate::dice::Dice;

/// A port that the platform opens in each pod, on an unreachable address.
const OWN_PORT: u32 = 19123;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Life {
    Up,
    /// Whether its GPU was given to another customer, so that it can never start again.
    Exited {
        is_pinned: bool,
    },
    Failed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Status {
    Provisioning,
    Starting,
    Running,
    Exited,
    Error,
}

impl Status {
    pub(super) fn name(self) -> &'static str {
        match self {
            Status::Provisioning => "PROVISIONING",
            Status::Starting => "STARTING",
            Status::Running => "RUNNING",
            Status::Exited => "EXITED",
            Status::Error => "ERROR",
        }
    }

    pub(super) fn actions(self) -> &'static [&'static str] {
        match self {
            Status::Provisioning | Status::Starting => &["stop", "terminate"],
            Status::Running => &["stop", "restart", "terminate"],
            Status::Exited | Status::Error => &["start", "terminate"],
        }
    }
}

/// What runs in it.
#[derive(Debug)]
pub(super) enum Container {
    /// Nothing yet, or no longer.
    Absent,
    Up {
        since: Timestamp,
        /// `None` where pods are mere records.
        process: Option<Process>,
    },
    /// Its command has ended and will be restarted.
    Down { until: Timestamp },
}

#[derive(Debug)]
pub(super) struct Pod {
    /// Increasing; list cursors refer to it.
    pub(super) number: u64,
    pub(super) id: String,
    pub(super) name: String,
    pub(super) order: Order,
    /// What was delivered.
    pub(super) gpu: &'static Gpu,
    pub(super) count: u32,
    pub(super) centre: String,
    pub(super) rate: Money,
    pub(super) created: Timestamp,
    pub(super) plan: Plan,
    pub(super) life: Life,
    pub(super) boot: Boot,
    pub(super) container: Container,
    /// Containers started so far.
    pub(super) runs: u64,
    pub(super) exits_at: Option<Timestamp>,
    pub(super) gone_at: Option<Timestamp>,
    pub(super) is_locked: bool,
    pub(super) is_foreign: bool,
    /// Where it can be reached.
    pub(super) host: String,
    pub(super) proxy_user: String,
    pub(super) logs: Logs,
}

/// One start of a pod, with its own ports.
#[derive(Debug)]
pub(super) struct Boot {
    pub(super) at: Timestamp,
    pub(super) is_first: bool,
    /// When its container first came up.
    pub(super) ready: Option<Timestamp>,
    pub(super) ports: Vec<Mapping>,
    pub(super) stale_port: u16,
}

#[derive(Debug)]
pub(super) struct Mapping {
    pub(super) private: u32,
    pub(super) public: u32,
    pub(super) kind: String,
}

impl Boot {
    pub(super) fn new(
        at: Timestamp,
        is_first: bool,
        ports: &[String],
        ssh_port: Option<u16>,
        dice: &mut Dice,
    ) -> Boot {
        let mut public = || 10_000 + u16::try_from(dice.below(50_000)).unwrap_or_default();
        let mapping = |port: &String| {
            let (private, kind) = split_port(port)?;
            let public = match (private, kind, ssh_port) {
                (22, "tcp", Some(port)) => port.into(),
                (70_001.., ..) => private,
                _ => public().into(),
            };
            Some(Mapping { private, public, kind: kind.to_owned() })
        };
        let mut mapped: Vec<Mapping> = ports.iter().filter_map(mapping).collect();
        let own = public().into();
        mapped.push(Mapping { private: OWN_PORT, public: own, kind: "http".to_owned() });
        Boot { at, is_first, ready: None, ports: mapped, stale_port: public() }
    }
}

impl Pod {
    pub(super) fn status(&self, now: Timestamp) -> Status {
        match self.life {
            Life::Exited { .. } => Status::Exited,
            Life::Failed => Status::Error,
            Life::Up => match self.plan.provisioning {
                Some(time) if now < self.boot.at.plus(time) => Status::Provisioning,
                Some(_) if self.boot.ready.is_none() => Status::Starting,
                Some(_) | None => Status::Running,
            },
        }
    }

    /// When its image is there; `None` if never.
    pub(super) fn pulled_at(&self) -> Option<Timestamp> {
        let place = self.plan.provisioning.unwrap_or(Duration::ZERO);
        let pull = match self.plan.pull {
            Pull::Never => return None,
            Pull::Takes(_) if !self.boot.is_first => self.plan.warm,
            Pull::Takes(time) | Pull::Fails(time) => time,
        };
        Some(self.boot.at.plus(place + pull))
    }

    pub(super) fn is_listed(&self, now: Timestamp) -> bool {
        now >= self.created.plus(self.plan.list_after)
    }

    pub(super) fn is_found(&self, now: Timestamp) -> bool {
        now >= self.created.plus(self.plan.get_after)
    }

    /// The port of `ssh.direct` as shown now.
    fn ssh_port(&self, now: Timestamp) -> Option<u32> {
        let ready = self.boot.ready.filter(|_| self.life == Life::Up)?;
        let shown = ready.plus(self.plan.ssh_after?);
        let mapping = self.boot.ports.iter().find(|port| port.private == 22 && port.kind == "tcp")?;
        let is_stale = now < shown.plus(self.plan.stale_for);
        (now >= shown).then(|| if is_stale { self.boot.stale_port.into() } else { mapping.public })
    }

    fn uptime(&self, now: Timestamp) -> u64 {
        match self.container {
            Container::Up { since, .. } => now.since(since).as_secs(),
            Container::Absent | Container::Down { .. } => 0,
        }
    }

    pub(super) fn to_json(&self, now: Timestamp, is_flickering: bool) -> Value {
        let status = self.status(now);
        let is_up = self.life == Life::Up && self.boot.ready.is_some() && !is_flickering;
        let runtime = match status {
            Status::Provisioning => json!({}),
            Status::Running if is_up => self.runtime(now),
            _ => Value::Null,
        };
        let direct = self.ssh_port(now).filter(|_| is_up).map(|port| {
            let command = format!("ssh root@{} -p {port}", self.host);
            json!({"host": self.host, "port": port, "username": "root", "command": command})
        });
        let user = &self.proxy_user;
        let is_free = self.plan.is_cost_hidden || (self.life != Life::Up && !self.plan.is_cost_kept);
        json!({
            "id": self.id, "name": self.name, "status": status.name(),
            // The specification's example.
            "actions": if status == Status::Provisioning { &["start", "terminate"] } else { status.actions() },
            "image": self.order.image, "args": self.order.args, "disk": self.order.disk,
            "mounts": self.order.mounts, "ports": self.order.ports, "env": self.order.env,
            "registry": self.order.registry, "template": null,
            "gpu": {
                "id": self.gpu.id, "count": self.count,
                "vcpuCount": 16 * self.count, "memory": 64 * self.count,
            },
            "cloud": self.order.cloud.name(), "dataCenterId": self.centre, "cudaVersion": "12.8",
            "ssh": {
                "proxy": {
                    "host": "ssh.runpod.io", "port": 22, "username": user,
                    "command": format!("ssh {user}@ssh.runpod.io -i ~/.ssh/id_ed25519"),
                },
                "direct": direct,
            },
            "cost": if is_free { 0.0 } else { dollars(self.rate) },
            "locked": self.is_locked, "globalNetworking": {"enabled": self.order.is_global},
            "runtime": runtime, "createdAt": self.created.to_string(),
            "startedAt": (status != Status::Provisioning).then(|| self.boot.at.to_string()),
        })
    }

    fn runtime(&self, now: Timestamp) -> Value {
        let port = |port: &Mapping| {
            let ip = if port.kind == "tcp" { self.host.as_str() } else { "100.65.14.155" };
            json!({"private": port.private, "public": port.public, "type": port.kind, "ip": ip})
        };
        let gpu = json!({"util": 0, "memoryUtil": 0});
        json!({
            "uptime": self.uptime(now), "gpus": vec![gpu; self.count as usize],
            "cpu": {"util": 1}, "memory": {"util": 2},
            "ports": self.boot.ports.iter().map(port).collect::<Value>(),
        })
    }
}
