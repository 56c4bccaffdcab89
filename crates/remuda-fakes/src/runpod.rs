//! A fake of RunPod's REST v2 whose pods are local processes, or mere records: the same answers, the same quirks,
//! faults on demand, and a ledger of what was really created and billed. `README.md` in this folder lists what is
//! guessed and where it differs.
//!
//! ```text
//!  request ──▶ routes (proxy, size, key, quota) ──▶ Account ──▶ Answer, which may differ from what happened
//!                                                     │  ▲
//!                                     ledger, pods ◀──┘  └── advance: what happens as time passes
//!                                               │
//!                                               └──▶ Process ──pipe──▶ supervisor ──▶ what runs in the pod
//! ```

mod account;
mod answer;
mod billing;
mod catalog;
mod clock;
mod control;
mod faults;
mod keeper;
mod ledger;
mod logs;
mod order;
mod plan;
mod pod;
mod process;
mod quota;
mod routes;
mod server;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use remuda_core::money::Money;
use serde_json::{Value, json};
use tokio::sync::oneshot;

pub use account::Capacity;
pub use control::RunpodControl;
pub use faults::{RunpodFault, RunpodFaults, UnknownRunpodFault};
pub use keeper::keep;
pub use ledger::{Entry, Ledger, Named};
pub use process::Exec;

use server::Server;

/// Options of a fake RunPod.
#[derive(Clone, Debug)]
pub struct FakeRunpodOptions {
    /// Port 0 picks a free one.
    pub listen: SocketAddr,
    /// Divides the provider's durations (pulls, delays, windows). Timestamps, uptimes and the ledger use real time.
    pub speed: f64,
    pub faults: RunpodFaults,
    /// Two runs with one seed and the same requests in the same order get the same faults.
    pub seed: u64,
    /// Requires this key; by default any key is accepted, but one is required.
    pub token: Option<String>,
    /// What runs in each pod; without it pods are mere records.
    pub exec: Option<Exec>,
    /// `ssh.direct` points at this port of 127.0.0.1.
    pub ssh_port: Option<u16>,
    pub capacity: Vec<Capacity>,
    pub volumes: Vec<Volume>,
    /// Foreign pods that exist from the start.
    pub foreign: u32,
    /// Pull time of a cached image; half a minute was measured.
    pub pull: Duration,
    /// Spending limit per hour; beyond it nothing can be rented.
    pub spend_max: Option<Money>,
    /// `None`: no limit, and no rate limit headers.
    pub requests_per_minute: Option<u64>,
    /// Time stands still until `RunpodControl::advance`.
    pub manual_time: bool,
}

/// A network volume; it binds its pods to its data centre.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Volume {
    pub id: String,
    pub data_center: String,
    pub size_gb: u64,
}

impl Volume {
    fn to_json(&self) -> Value {
        json!({"id": self.id, "name": self.id, "size": self.size_gb, "dataCenterId": self.data_center})
    }
}

impl Default for FakeRunpodOptions {
    fn default() -> FakeRunpodOptions {
        FakeRunpodOptions {
            listen: SocketAddr::from(([127, 0, 0, 1], 0)),
            speed: 1.0,
            faults: RunpodFaults::none(),
            seed: 0,
            token: None,
            exec: None,
            ssh_port: None,
            capacity: Vec::new(),
            volumes: Vec::new(),
            foreign: 0,
            pull: Duration::from_secs(28),
            spend_max: None,
            requests_per_minute: Some(180),
            manual_time: false,
        }
    }
}

/// An account at the fake provider, in this process. Dropping it stops it and ends its pods.
#[derive(Debug)]
pub struct FakeRunpod {
    address: SocketAddr,
    server: Arc<Server>,
    stop: Option<oneshot::Sender<oneshot::Sender<()>>>,
}

impl FakeRunpod {
    /// Starts listening and answering.
    pub async fn start(options: FakeRunpodOptions) -> io::Result<FakeRunpod> {
        let listener = TcpListener::bind(options.listen)?;
        let address = listener.local_addr()?;
        let (stop, stopped) = oneshot::channel();
        let server = server::start(listener, options, stopped)?;
        Ok(FakeRunpod { address, server, stop: Some(stop) })
    }

    /// `http://ADDRESS/v2`: the base URL for clients.
    pub fn url(&self) -> String {
        format!("http://{}/v2", self.address)
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Offers the same commands as the endpoints under `/_remuda`.
    pub fn control(&self) -> RunpodControl {
        RunpodControl::new(Arc::clone(&self.server))
    }

    /// What was created and billed so far.
    pub fn ledger(&self) -> Ledger {
        self.server.account().settle();
        self.server.ledger()
    }

    /// Requests by `METHOD /path`, without query; ids are `{id}`.
    pub fn requests(&self) -> BTreeMap<String, u64> {
        self.server.account().requests.clone()
    }

    /// Faults that happened, by name.
    pub fn struck(&self) -> BTreeMap<String, u64> {
        self.server.account().luck.struck()
    }

    /// Ends every pod, and returns once all their processes are gone.
    pub async fn stop(mut self) {
        let (told, ended) = oneshot::channel();
        if let Some(stop) = self.stop.take()
            && stop.send(told).is_ok()
        {
            // An error means that the server's thread has ended.
            ended.await.ok();
        }
    }
}
