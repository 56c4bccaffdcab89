//! Connected ComfyUI clients, and what each of them receives.
//!
//! A client that reads too slowly first loses previews and progress, then its connection. It never delays another client.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use remuda_core::id::{JobId, Sequence, Tenant};
use remuda_core::time::Timestamp;
use serde_json::json;

use super::super::Context;
use super::connection::{
    Connection, EncodedImage, EncodedMessage, OutboxReceiver, SocketImage, outbox_channel,
};
use super::logs::LogLine;
use super::queue::exec_info;
use super::run_translator::{ClientMessage, RunTranslator};
use crate::plane_handle::PlaneError;

/// Ends of prompts whose client was not connected: how many are remembered, for all clients together, and for how long.
const MISSED_MAX: usize = 10_000;
pub(super) const MISSED_TTL: Duration = Duration::from_secs(600);

#[derive(Debug, Default)]
pub(super) struct ClientRegistry(Mutex<Clients>);

#[derive(Debug, Default)]
pub(super) struct Clients {
    tenants: BTreeMap<Tenant, TenantClients>,
    pub(super) runs: BTreeMap<JobId, RunTranslator>,
    missed: VecDeque<MissedEnd>,
    serial: u64,
    /// Sequence number of the last event that was applied.
    pub(super) last_seq: Sequence,
}

/// All connections of a tenant.
#[derive(Debug)]
struct TenantClients {
    connections: BTreeMap<u64, Connection>,
    /// Open jobs, as of event `counted_at`.
    open: usize,
    counted_at: Sequence,
}

/// The end of a prompt whose client was not connected.
#[derive(Debug)]
pub(super) struct MissedEnd {
    tenant: Tenant,
    client: String,
    pub(super) job: JobId,
    at: Timestamp,
}

/// A connection that was just opened.
#[derive(Debug)]
pub(super) struct OpenConnection {
    pub(super) serial: u64,
    pub(super) inbox: OutboxReceiver,
    pub(super) knows_metadata: Arc<AtomicBool>,
    pub(super) owes_status: Arc<AtomicBool>,
    /// Prompts that ended while this client was away. Ends that could not be sent are returned to `disconnect`.
    pub(super) missed: VecDeque<MissedEnd>,
}

/// The number of open jobs of a tenant, and the event up to which it was counted.
async fn count(context: &Context, tenant: &Tenant) -> Result<(usize, Sequence), PlaneError> {
    let tenant = tenant.clone();
    context
        .plane
        .read(move |plane, _| (plane.jobs().filter(|job| job.tenant == tenant).count(), plane.sequence()))
        .await
}

impl ClientRegistry {
    pub(super) fn lock(&self) -> MutexGuard<'_, Clients> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Open jobs. A job that is no longer counted is already in the history.
    pub(super) async fn open_jobs(&self, context: &Context, tenant: &Tenant) -> Result<usize, PlaneError> {
        let (counted, _) = count(context, tenant).await?;
        Ok(self.lock().tenants.get(tenant).map_or(counted, |group| group.open.max(counted)))
    }

    /// Opens a connection. Its first messages are the status and the node that is executing.
    pub(super) async fn connect(
        &self,
        context: &Context,
        tenant: &Tenant,
        client: &str,
    ) -> Result<OpenConnection, PlaneError> {
        loop {
            let (open, counted) = count(context, tenant).await?;
            let mut clients = self.lock();
            // An event between the count and now must be counted exactly once; if one was published meanwhile, count again.
            if clients.tenants.contains_key(tenant) || clients.last_seq <= counted {
                let now = context.plane.clock.now();
                return Ok(clients.add_connection(tenant, client, open, counted, now));
            }
        }
    }

    /// Closes a connection and remembers the ends it could not deliver.
    pub(super) fn disconnect(&self, tenant: &Tenant, serial: u64, undelivered: VecDeque<MissedEnd>) {
        let mut clients = self.lock();
        undelivered.into_iter().for_each(|missed| clients.put_back(missed));
        if let Some(group) = clients.tenants.get_mut(tenant) {
            group.connections.remove(&serial);
            if group.connections.is_empty() {
                clients.tenants.remove(tenant);
            }
        }
    }

    /// Counts the open jobs of every connected tenant again, after events were missed.
    pub(super) async fn recount(&self, context: &Context) -> Result<(), PlaneError> {
        let tenants: Vec<Tenant> = self.lock().tenants.keys().cloned().collect();
        for tenant in tenants {
            let (open, counted) = count(context, &tenant).await?;
            let mut clients = self.lock();
            if let Some(group) = clients.tenants.get_mut(&tenant) {
                (group.open, group.counted_at) = (open, counted);
            }
            clients.publish_status(&tenant);
        }
        Ok(())
    }
}

impl Clients {
    /// Connections of all tenants.
    pub(super) fn len(&self) -> usize {
        self.tenants.values().map(|group| group.connections.len()).sum()
    }

    fn add_connection(
        &mut self,
        tenant: &Tenant,
        client: &str,
        open: usize,
        counted_at: Sequence,
        now: Timestamp,
    ) -> OpenConnection {
        let (outbox, inbox) = outbox_channel();
        self.serial += 1;
        let serial = self.serial;
        let (knows_metadata, owes_status) =
            (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let connection = Connection {
            client: client.to_owned(),
            outbox,
            knows_metadata: knows_metadata.clone(),
            owes_status: owes_status.clone(),
            follows_logs: false,
        };
        let group = self.tenants.entry(tenant.clone()).or_insert_with(|| TenantClients {
            connections: BTreeMap::new(),
            open,
            counted_at,
        });
        let greeting = json!({ "status": exec_info(group.open.max(open)), "sid": client });
        connection.send_text(&EncodedMessage::new(&ClientMessage::new("status", greeting)));
        let runs = self.runs.values().filter(|run| run.is_from(tenant, client));
        for executing in runs.filter_map(|run| run.executing.clone()) {
            connection.send_text(&EncodedMessage::new(&ClientMessage::new("executing", executing)));
        }
        group.connections.insert(serial, connection);
        let missed = self.take_missed(tenant, client, now);
        OpenConnection { serial, inbox, knows_metadata, owes_status, missed }
    }

    fn take_missed(&mut self, tenant: &Tenant, client: &str, now: Timestamp) -> VecDeque<MissedEnd> {
        let is_fresh = |missed: &MissedEnd| now.since(missed.at) < MISSED_TTL;
        let is_theirs = |missed: &MissedEnd| missed.tenant == *tenant && missed.client == client;
        let fresh = std::mem::take(&mut self.missed).into_iter().filter(is_fresh);
        let (theirs, others) = fresh.partition(is_theirs);
        self.missed = others;
        theirs
    }

    /// Remembers an end until a connection with this client id is opened.
    pub(super) fn record_missed(&mut self, tenant: Tenant, client: String, job: JobId, at: Timestamp) {
        self.put_back(MissedEnd { tenant, client, job, at });
    }

    fn put_back(&mut self, missed: MissedEnd) {
        if self.missed.len() == MISSED_MAX {
            self.missed.pop_front();
        }
        self.missed.push_back(missed);
    }

    pub(super) fn is_connected(&self, tenant: &Tenant, client: &str) -> bool {
        let group = self.tenants.get(tenant);
        group.is_some_and(|group| group.connections.values().any(|connection| connection.client == client))
    }

    /// Whether a client is connected that gets the previews of this job.
    pub(super) fn is_watched(&self, job: JobId) -> bool {
        let Some(run) = self.runs.get(&job) else { return false };
        match &run.client {
            Some(client) => self.is_connected(&run.tenant, client),
            None => self.tenants.contains_key(&run.tenant),
        }
    }

    /// Applies one queued (+1) or ended (-1) job to the count.
    pub(super) fn adjust_open(&mut self, tenant: &Tenant, seq: Sequence, change: isize) {
        if let Some(group) = self.tenants.get_mut(tenant)
            && seq > group.counted_at
        {
            group.open = group.open.saturating_add_signed(change);
            group.counted_at = seq;
        }
    }

    pub(super) fn has_open(&self, tenant: &Tenant) -> bool {
        self.tenants.get(tenant).is_some_and(|group| group.open > 0)
    }

    pub(super) fn status_message(&self, tenant: &Tenant) -> Option<ClientMessage> {
        let group = self.tenants.get(tenant)?;
        Some(ClientMessage::new("status", json!({ "status": exec_info(group.open) })))
    }

    pub(super) fn publish_status(&mut self, tenant: &Tenant) {
        let Some(status) = self.status_message(tenant).as_ref().map(EncodedMessage::new) else { return };
        let Some(group) = self.tenants.get_mut(tenant) else { return };
        for connection in group.connections.values() {
            if connection.outbox.is_busy() || !connection.send_text(&status) {
                connection.owes_status.store(true, Ordering::Relaxed);
            }
        }
    }

    /// Sends messages to all connections with this client id, or to the whole tenant.
    pub(super) fn publish(&mut self, tenant: &Tenant, client: Option<&str>, messages: &[ClientMessage]) {
        let Some(group) = self.tenants.get_mut(tenant) else { return };
        let texts: Vec<EncodedMessage> = messages.iter().map(EncodedMessage::new).collect();
        group.connections.retain(|_, connection| {
            if client.is_some_and(|client| client != connection.client) {
                return true;
            }
            // Dropping the sender closes the socket.
            texts
                .iter()
                .all(|text| (text.is_droppable && connection.outbox.is_busy()) || connection.send_text(text))
        });
    }

    /// Starts or stops sending lines of the log to the connections with this client id.
    pub(super) fn follow_logs(&mut self, tenant: &Tenant, client: &str, is_on: bool) {
        let Some(group) = self.tenants.get_mut(tenant) else { return };
        for connection in group.connections.values_mut().filter(|connection| connection.client == client) {
            connection.follows_logs = is_on;
        }
    }

    /// Sends a line of the log to the connections that follow it; those that are behind do not get it.
    pub(super) fn publish_log(&self, tenant: &Tenant, line: &LogLine) {
        let Some(group) = self.tenants.get(tenant) else { return };
        let mut followers =
            group.connections.values().filter(|it| it.follows_logs && !it.outbox.is_busy()).peekable();
        if followers.peek().is_some() {
            let message = EncodedMessage::new(&line.message());
            for connection in followers {
                connection.send_text(&message);
            }
        }
    }

    /// Answers one connection.
    pub(super) fn reply(&mut self, tenant: &Tenant, serial: u64, messages: &[ClientMessage]) {
        let Some(group) = self.tenants.get_mut(tenant) else { return };
        if let Some(connection) = group.connections.get(&serial)
            && !messages.iter().all(|message| connection.send_text(&EncodedMessage::new(message)))
        {
            group.connections.remove(&serial);
        }
    }

    /// Sends a preview; connections that are behind do not get it.
    pub(super) fn publish_preview(&self, run: &RunTranslator, image: &SocketImage<'_>) {
        let Some(group) = self.tenants.get(&run.tenant) else { return };
        let client = run.client.as_deref();
        let connections = group
            .connections
            .values()
            .filter(|connection| client.is_none_or(|client| client == connection.client));
        let encoded = EncodedImage::new(&run.prompt, image);
        for connection in connections.filter(|connection| !connection.outbox.is_busy()) {
            connection.send_image(&encoded);
        }
    }

    /// Sends an image that is a result.
    pub(super) fn publish_image(
        &mut self,
        tenant: &Tenant,
        client: &str,
        prompt: &str,
        image: &SocketImage<'_>,
    ) {
        if let Some(group) = self.tenants.get_mut(tenant) {
            let encoded = EncodedImage::new(prompt, image);
            group
                .connections
                .retain(|_, connection| connection.client != client || connection.send_image(&encoded));
        }
    }
}

impl RunTranslator {
    fn is_from(&self, tenant: &Tenant, client: &str) -> bool {
        self.tenant == *tenant && self.client.as_deref() == Some(client)
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use tokio::sync::mpsc::error::TryRecvError;

    use super::super::connection::{MESSAGES_BYTES_MAX, OUTBOX_BUSY, OUTBOX_MAX, PREVIEW_BYTES_MAX};
    use super::*;

    fn tenant() -> Tenant {
        "t".parse().unwrap()
    }

    fn connection(clients: &mut Clients, client: &str) -> OpenConnection {
        clients.add_connection(&tenant(), client, 0, Sequence(5), Timestamp::ZERO)
    }

    fn received(open: &mut OpenConnection) -> usize {
        std::iter::from_fn(|| open.inbox.try_recv().ok()).count()
    }

    fn message(kind: &str) -> ClientMessage {
        ClientMessage::new(kind, json!({ "prompt_id": "p" }))
    }

    #[test]
    fn slow_client_loses_progress_first_then_its_connection() {
        let mut clients = Clients::default();
        let (mut deaf, mut other) = (connection(&mut clients, "deaf"), connection(&mut clients, "other"));
        for _ in 0..OUTBOX_MAX * 2 {
            clients.publish(&tenant(), Some("deaf"), &[message("progress")]);
        }
        assert!(clients.is_connected(&tenant(), "deaf"), "progress alone disconnects no client");
        let bytes = Bytes::from_static(b"x");
        let run = RunTranslator::new(JobId::from_u128(1), tenant(), &serde_json::Map::new(), 1);
        clients.publish_preview(&run, &SocketImage { node: None, mime: "image/png", bytes: &bytes });
        assert_eq!(deaf.inbox.len(), OUTBOX_BUSY, "half of the queue is reserved for other messages");
        for _ in 0..=OUTBOX_BUSY {
            clients.publish(&tenant(), Some("deaf"), &[message("executed")]);
        }
        assert!(!clients.is_connected(&tenant(), "deaf"));
        received(&mut deaf);
        assert!(matches!(deaf.inbox.try_recv(), Err(TryRecvError::Disconnected)), "the socket is closed");
        assert_eq!(received(&mut other), 2, "a status and a preview, undisturbed");
        clients.publish(&tenant(), None, &[message("executed")]);
        assert_eq!(received(&mut other), 1);
    }

    /// Faults: X7.
    #[test]
    fn queue_of_slow_client_is_bounded_in_bytes() {
        let mut clients = Clients::default();
        let (mut deaf, mut other) = (connection(&mut clients, "deaf"), connection(&mut clients, "other"));
        let bytes = Bytes::from(vec![0; 1 << 20]);
        let run = RunTranslator::new(JobId::from_u128(1), tenant(), &serde_json::Map::new(), 1);
        for _ in 0..20 {
            clients.publish_preview(&run, &SocketImage { node: None, mime: "image/png", bytes: &bytes });
            received(&mut other);
        }
        let previews = PREVIEW_BYTES_MAX / bytes.len();
        assert_eq!(deaf.inbox.len(), 1 + previews, "then previews are dropped");
        clients.publish(&tenant(), Some("deaf"), &[message("progress")]);
        assert_eq!(deaf.inbox.len(), 1 + previews, "and so is progress");
        let large = ClientMessage::new("executed", json!({ "text": "x".repeat(1 << 20) }));
        let fit = (0..100).take_while(|_| {
            clients.publish(&tenant(), Some("deaf"), std::slice::from_ref(&large));
            clients.is_connected(&tenant(), "deaf")
        });
        assert_eq!(fit.count(), MESSAGES_BYTES_MAX / (1 << 20) - 1, "then the client is disconnected");
        assert_eq!(received(&mut deaf), previews + MESSAGES_BYTES_MAX / (1 << 20));
        clients.publish_preview(&run, &SocketImage { node: None, mime: "image/png", bytes: &bytes });
        assert_eq!(received(&mut other), 1, "other clients are unaffected");
    }

    #[test]
    fn event_before_the_count_is_not_counted_twice() {
        let mut clients = Clients::default();
        let _taken = connection(&mut clients, "a");
        for (seq, change, expected) in [(4, 1, 0), (5, 1, 0), (6, 1, 1), (6, 1, 1), (7, -1, 0), (8, -1, 0)] {
            clients.adjust_open(&tenant(), Sequence(seq), change);
            assert_eq!(clients.tenants[&tenant()].open, expected, "after event {seq}");
        }
    }

    #[test]
    fn missed_end_is_delivered_once_and_expires() {
        let mut clients = Clients::default();
        let at = |millis| Timestamp::from_millis(millis);
        clients.record_missed(tenant(), "a".to_owned(), JobId::from_u128(1), at(0));
        clients.record_missed(tenant(), "a".to_owned(), JobId::from_u128(2), at(60_000));
        clients.record_missed(tenant(), "b".to_owned(), JobId::from_u128(3), at(60_000));
        let late = at(MISSED_TTL.as_millis() as u64 + 1);
        assert!(clients.take_missed(&"other".parse().unwrap(), "a", at(60_000)).is_empty());
        let missed = clients.take_missed(&tenant(), "a", late);
        assert_eq!(missed.iter().map(|missed| missed.job).collect::<Vec<_>>(), [JobId::from_u128(2)]);
        assert!(clients.take_missed(&tenant(), "a", late).is_empty());
        let registry = ClientRegistry(Mutex::new(clients));
        registry.disconnect(&tenant(), 1, missed);
        let mut clients = registry.lock();
        assert_eq!(clients.take_missed(&tenant(), "a", late).len(), 1, "an undelivered end is kept");
        for job in 0..MISSED_MAX as u128 + 10 {
            clients.record_missed(tenant(), "c".to_owned(), JobId::from_u128(job), late);
        }
        assert_eq!(clients.missed.len(), MISSED_MAX);
    }
}
