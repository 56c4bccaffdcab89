//! Places for connections. A connection proves what it is by its first request, so every connection is accepted, and holds
//! an *unproven* place until then:
//!
//! ```text
//!  accept ──▶ unproven ── request ──▶ client, worker or admin place ──▶ closed
//!                │                        none left: 503, or 429 for its address
//!                └─ all taken: the oldest of the address with the most of them is closed
//! ```
//!
//! Idle connections, however many, therefore keep neither workers nor health checks out: a health check needs no other
//! place, and workers and admins have their own. A full accept queue that is left to the kernel was rejected: a caller
//! that waits there is told nothing, and a worker loses its lease.

mod shares;
mod unproven;

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use axum::http::StatusCode;
use remuda_config::ServeSettings;
use remuda_core::id::Hash;
use serde_json::{Value, json};
use tracing::warn;

use self::shares::ConnectionShares;
use self::unproven::UnprovenConnections;
use super::super::ApiError;
use super::super::access::{network, usual};
use super::connection::ConnectionEnd;
use super::open_files;

/// An address whose client places are all taken may still prove that it is a worker or an admin.
const UNPROVEN_PER_ADDRESS_MIN: usize = 16;
/// One worker beats, reports, sends previews and transfers some files at once.
const PER_WORKER_MAX: usize = 64;
/// Default limit of client connections from one address: a sixteenth of the default total.
const PER_ADDRESS_DEFAULT_MAX: usize = 256;
const LOG_EVERY: Duration = Duration::from_secs(10);
const RETRY_AFTER_SECONDS: u64 = 5;

/// What a request shows about its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::http) enum ConnectionClass {
    Client,
    /// With the hash of its credential, once it has joined.
    Worker(Option<Hash>),
    Admin,
}

/// Clones share the places.
#[derive(Clone, Debug)]
pub struct ConnectionPlaces(Arc<SharedPlaces>);

#[derive(Debug)]
struct SharedPlaces {
    shares: ConnectionShares,
    /// As configured; 0 means the default.
    per_address_max: usize,
    table: Mutex<PlaceTable>,
}

impl SharedPlaces {
    fn clients_per_address_max(&self, address: IpAddr) -> usize {
        usual(self.per_address_max, PER_ADDRESS_DEFAULT_MAX, address).unwrap_or(usize::MAX)
    }
}

#[derive(Debug, Default)]
struct PlaceTable {
    unproven: UnprovenConnections,
    clients: usize,
    clients_of: HashMap<IpAddr, usize>,
    workers: usize,
    connections_of: HashMap<Hash, usize>,
    admins: usize,
    refused: RefusedConnections,
    logged_at: Option<Instant>,
}

/// Connections that were closed or refused since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct RefusedConnections {
    /// Closed without a request, to make room.
    unproven: u64,
    clients: u64,
    of_an_address: u64,
    workers: u64,
    of_a_worker: u64,
    /// The system had no file or memory for them.
    not_accepted: u64,
}

impl RefusedConnections {
    fn to_json(self) -> Value {
        json!({
            "without_request": self.unproven,
            "clients": self.clients,
            "per_address": self.of_an_address,
            "workers": self.workers,
            "per_worker": self.of_a_worker,
            "not_accepted": self.not_accepted,
        })
    }
}

impl ConnectionPlaces {
    pub(in crate::http) fn new(settings: &ServeSettings) -> ConnectionPlaces {
        ConnectionPlaces(Arc::new(SharedPlaces {
            shares: ConnectionShares::new(settings, open_files::limit()),
            per_address_max: settings.access.connections_per_address_max,
            table: Mutex::default(),
        }))
    }

    fn table(&self) -> MutexGuard<'_, PlaceTable> {
        self.0.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A place for a connection that was just accepted. Another one without a request is closed if there is none left.
    pub(super) fn enter(&self, address: IpAddr) -> Arc<ConnectionPlace> {
        let (end, counted) = (Arc::<ConnectionEnd>::default(), network(address));
        let mut table = self.table();
        let clients = table.clients_of.get(&counted).copied().unwrap_or(0);
        let own_max =
            self.0.clients_per_address_max(address).saturating_sub(clients).max(UNPROVEN_PER_ADDRESS_MIN);
        let closed = if table.unproven.of(counted) >= own_max {
            table.unproven.remove_oldest_of(counted)
        } else if table.unproven.len() >= self.0.shares.unproven {
            table.unproven.remove_oldest()
        } else {
            None
        };
        let number = table.unproven.insert(counted, end.clone());
        if let Some(closed) = closed {
            closed.cut();
            table.refused.unproven += 1;
            table.log("connections without a request were closed to make room");
        }
        drop(table);
        Arc::new(ConnectionPlace {
            places: self.clone(),
            end,
            address,
            held: Mutex::new(HeldPlace::Unproven(number)),
        })
    }

    /// The system could not give us a connection: idle ones make room.
    pub(super) fn not_accepted(&self, error: &std::io::Error) {
        let mut table = self.table();
        for _ in 0..UNPROVEN_PER_ADDRESS_MIN {
            let Some(closed) = table.unproven.remove_oldest() else { break };
            closed.cut();
            table.refused.unproven += 1;
        }
        table.refused.not_accepted += 1;
        table.log(&format!("accepting a connection failed: {error}"));
    }

    /// For `/remuda/v1/status`.
    pub(in crate::http) fn status(&self) -> Value {
        let (table, shares) = (self.table(), self.0.shares);
        let of = |open: usize, most: usize| json!({ "open": open, "max": most });
        json!({
            "without_request": of(table.unproven.len(), shares.unproven),
            "clients": of(table.clients, shares.clients),
            "workers": of(table.workers, shares.workers),
            "admins": of(table.admins, shares.admins),
            "refused": table.refused.to_json(),
        })
    }
}

impl PlaceTable {
    /// At most one line in ten seconds: a flood of connections must not become a flood of lines.
    fn log(&mut self, what: &str) {
        if self.logged_at.is_some_and(|at| at.elapsed() < LOG_EVERY) {
            return;
        }
        self.logged_at = Some(Instant::now());
        let RefusedConnections { unproven, clients, of_an_address, workers, of_a_worker, not_accepted } =
            self.refused;
        warn!(
            without_request = unproven,
            clients,
            per_address = of_an_address,
            workers,
            per_worker = of_a_worker,
            not_accepted,
            "{what}; refused connections since the start by kind"
        );
    }

    fn take(&mut self, places: &SharedPlaces, class: ConnectionClass, address: IpAddr) -> Option<NoPlace> {
        match class {
            ConnectionClass::Client => {
                let own = self.clients_of.entry(network(address)).or_default();
                let refused = if *own >= places.clients_per_address_max(address) {
                    self.refused.of_an_address += 1;
                    Some(NoPlace::OfAddress)
                } else if self.clients >= places.shares.clients {
                    self.refused.clients += 1;
                    Some(NoPlace::Clients)
                } else {
                    *own += 1;
                    self.clients += 1;
                    None
                };
                if *own == 0 {
                    self.clients_of.remove(&network(address));
                }
                refused
            }
            ConnectionClass::Worker(credential) => {
                if self.workers >= places.shares.workers {
                    self.refused.workers += 1;
                    return Some(NoPlace::Workers);
                }
                if let Some(credential) = credential {
                    let own = self.connections_of.entry(credential).or_default();
                    if *own >= PER_WORKER_MAX {
                        self.refused.of_a_worker += 1;
                        return Some(NoPlace::OfWorker);
                    }
                    *own += 1;
                }
                self.workers += 1;
                None
            }
            ConnectionClass::Admin if self.admins >= places.shares.admins => Some(NoPlace::Clients),
            ConnectionClass::Admin => {
                self.admins += 1;
                None
            }
        }
    }

    fn put_back(&mut self, held: &HeldPlace, address: IpAddr) {
        match held {
            HeldPlace::Unproven(number) => self.unproven.remove(network(address), *number),
            HeldPlace::Proven(ConnectionClass::Client) => {
                self.clients -= 1;
                release(&mut self.clients_of, &network(address));
            }
            HeldPlace::Proven(ConnectionClass::Worker(credential)) => {
                self.workers -= 1;
                if let Some(credential) = credential {
                    release(&mut self.connections_of, credential);
                }
            }
            HeldPlace::Proven(ConnectionClass::Admin) => self.admins -= 1,
            HeldPlace::Nothing => {}
        }
    }
}

/// Counts one less, and forgets a key that has none left.
fn release<K: std::hash::Hash + Eq>(counts: &mut HashMap<K, usize>, key: &K) {
    if let Some(count) = counts.get_mut(key) {
        *count -= 1;
        if *count == 0 {
            counts.remove(key);
        }
    }
}

/// Why there is no place for a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::http) enum NoPlace {
    Clients,
    OfAddress,
    Workers,
    OfWorker,
}

impl From<NoPlace> for ApiError {
    fn from(refused: NoPlace) -> ApiError {
        let full = |message| ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "connections_full", message);
        let own = |message| ApiError::new(StatusCode::TOO_MANY_REQUESTS, "too_many_connections", message);
        let problem = match refused {
            NoPlace::Clients => full("every connection for clients is in use (limits.connections_max)"),
            NoPlace::Workers => {
                full("every connection for workers is in use (limits.worker_connections_max)")
            }
            NoPlace::OfAddress => {
                own("too many connections from this address (limits.connections_per_address_max)")
            }
            NoPlace::OfWorker => own("too many connections of this worker"),
        };
        problem.with_retry_after(RETRY_AFTER_SECONDS)
    }
}

/// The place of one connection.
#[derive(Debug)]
pub(in crate::http) struct ConnectionPlace {
    places: ConnectionPlaces,
    pub(in crate::http) end: Arc<ConnectionEnd>,
    address: IpAddr,
    held: Mutex<HeldPlace>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HeldPlace {
    /// With its number among those.
    Unproven(u64),
    Proven(ConnectionClass),
    Nothing,
}

impl ConnectionPlace {
    /// Takes the place that its request is entitled to; an admin's may be one of the clients'.
    pub(in crate::http) fn claim(&self, class: ConnectionClass) -> Result<(), NoPlace> {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        if *held == HeldPlace::Proven(class)
            || class == ConnectionClass::Admin && *held == HeldPlace::Proven(ConnectionClass::Client)
        {
            return Ok(());
        }
        let (mut table, shared) = (self.places.table(), &*self.places.0);
        let choices = match class {
            ConnectionClass::Admin => &[ConnectionClass::Admin, ConnectionClass::Client][..],
            _ => &[class],
        };
        let mut refused = NoPlace::Clients;
        for &choice in choices {
            match table.take(shared, choice, self.address) {
                None => {
                    let before = std::mem::replace(&mut *held, HeldPlace::Proven(choice));
                    table.put_back(&before, self.address);
                    return Ok(());
                }
                Some(why) => refused = why,
            }
        }
        table.log("there is no place for a connection");
        Err(refused)
    }

    /// Its request turned out not to be what it claimed: the place is free for others.
    pub(in crate::http) fn disprove(&self) {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        if !matches!(*held, HeldPlace::Proven(_)) {
            return;
        }
        let mut table = self.places.table();
        let number = table.unproven.insert(network(self.address), self.end.clone());
        let before = std::mem::replace(&mut *held, HeldPlace::Unproven(number));
        table.put_back(&before, self.address);
    }

    /// The connection is closed.
    pub(super) fn leave(&self) {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        let before = std::mem::replace(&mut *held, HeldPlace::Nothing);
        self.places.table().put_back(&before, self.address);
    }
}

#[cfg(test)]
mod tests;
