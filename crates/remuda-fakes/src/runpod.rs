//! A stand-in for RunPod's REST v2 whose pods are processes on this machine, or mere records: the same answers, the same
//! oddities, faults on demand, and books that tell what was really made and paid. `README.md` beside `fake.rs` lists what
//! is guessed and where it differs.
//!
//! ```text
//!  request ──▶ routes (proxy, size, key, quota) ──▶ Account ──▶ Answer, which may differ from what happened
//!                                                     │  ▲
//!                                     books, pods ◀───┘  └── settle: what time does
//!                                               │
//!                                               └──▶ Process ──pipe──▶ keeper ──▶ what runs in the pod
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
pub use control::Control;
pub use faults::{Fault, Faults, UnknownFault};
pub use keeper::keep;
pub use ledger::{Entry, Ledger, Named};
pub use process::Exec;

use server::Server;

/// How a stand-in is to be.
#[derive(Clone, Debug)]
pub struct Options {
    /// Port 0 takes a free one.
    pub listen: SocketAddr,
    /// What the provider's own durations (pulls, delays, windows) are divided by. Stamps, uptimes and books are in real
    /// time.
    pub speed: f64,
    pub faults: Faults,
    /// Two runs with one seed and the same requests in the same order meet the same faults.
    pub seed: u64,
    /// Demands this key; by default any will do, but there must be one.
    pub token: Option<String>,
    /// What runs in each pod; without it pods are mere records.
    pub exec: Option<Exec>,
    /// `ssh.direct` points at this port of 127.0.0.1.
    pub ssh_port: Option<u16>,
    pub capacity: Vec<Capacity>,
    pub volumes: Vec<Volume>,
    /// Pods of somebody else that are there from the start.
    pub foreign: u32,
    /// How long an image takes that the host has; half a minute is what was measured.
    pub pull: Duration,
    /// Past so much an hour nothing is free any more.
    pub spend_max: Option<Money>,
    /// None: as often as you like, and no headers about it.
    pub requests_per_minute: Option<u64>,
    /// Time stands still until `Control::advance`.
    pub manual_time: bool,
}

/// A network volume; it lies in one data centre, and so do its pods.
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

impl Default for Options {
    fn default() -> Options {
        Options {
            listen: SocketAddr::from(([127, 0, 0, 1], 0)),
            speed: 1.0,
            faults: Faults::none(),
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

/// An account at the provider, in this process. Dropping it stops it and ends its pods.
#[derive(Debug)]
pub struct Fake {
    address: SocketAddr,
    server: Arc<Server>,
    stop: Option<oneshot::Sender<oneshot::Sender<()>>>,
}

impl Fake {
    /// Listens, and answers from then on.
    pub async fn start(options: Options) -> io::Result<Fake> {
        let listener = TcpListener::bind(options.listen)?;
        let address = listener.local_addr()?;
        let (stop, stopped) = oneshot::channel();
        let server = server::start(listener, options, stopped)?;
        Ok(Fake { address, server, stop: Some(stop) })
    }

    /// `http://ADDRESS/v2`: what a client takes for the base of every path.
    pub fn url(&self) -> String {
        format!("http://{}/v2", self.address)
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The same powers as the endpoints under `/_remuda`.
    pub fn control(&self) -> Control {
        Control::new(Arc::clone(&self.server))
    }

    /// What was made and paid so far.
    pub fn ledger(&self) -> Ledger {
        self.server.account().settle();
        self.server.ledger()
    }

    /// Requests by `METHOD /path`, without query; ids stand as `{id}`.
    pub fn requests(&self) -> BTreeMap<String, u64> {
        self.server.account().requests.clone()
    }

    /// Faults that struck, by name.
    pub fn struck(&self) -> BTreeMap<String, u64> {
        self.server.account().luck.struck()
    }

    /// Ends every pod, and answers once nothing of them is left.
    pub async fn stop(mut self) {
        let (told, ended) = oneshot::channel();
        if let Some(stop) = self.stop.take()
            && stop.send(told).is_ok()
        {
            // An error means that the thread is gone for good.
            ended.await.ok();
        }
    }
}
