//! Accepts connections: a bounded number, with timeouts, closed gracefully at the end.

mod connection;

use std::net::SocketAddr;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::extract::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service as _, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tracing::{debug, warn};

pub(super) use self::connection::ConnectionEnd;

use self::connection::{Connection, ConnectionPermits, ConnectionQuota, Stream};
use super::access::{network, usual};
use crate::shutdown::stopped;
use crate::tasks::Ticker;
use crate::tls::Tls;
use remuda_config::ServeSettings;

/// For the request line and headers.
const HEADERS_TIMEOUT: Duration = Duration::from_secs(15);
/// For the TLS handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// For open requests to end once the plane stops.
const GRACE: Duration = Duration::from_secs(10);
/// After an accept error such as "too many open files": no busy loop.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Default limit of connections from one address: a quarter of the default total.
const PER_ADDRESS_DEFAULT_MAX: usize = 256;

/// How long, and how much, a refused connection is read so that it can receive its answer.
const REFUSAL_TIMEOUT: Duration = Duration::from_secs(1);
const REFUSAL_BYTES_MAX: u64 = 64 << 10;

/// The other end of a connection; every request has it as an extension.
#[derive(Clone, Debug)]
pub(super) struct Peer {
    pub(super) address: SocketAddr,
    pub(super) end: Arc<ConnectionEnd>,
}

#[derive(Debug)]
pub struct Listening {
    pub address: SocketAddr,
    /// Taken at the end, so that new connections are refused while open requests finish.
    listener: Mutex<Option<Arc<TcpListener>>>,
}

/// Binds the address first, so that a port in use is reported before anything else starts.
pub async fn listen(address: SocketAddr) -> std::io::Result<Listening> {
    let listener = TcpListener::bind(address).await?;
    let address = listener.local_addr()?;
    Ok(Listening { address, listener: Mutex::new(Some(Arc::new(listener))) })
}

/// Shared by all connections.
#[derive(Clone)]
struct ServerParts {
    router: Router,
    tls: Option<Tls>,
    stopping: watch::Receiver<bool>,
}

impl Listening {
    /// Serves until the plane stops, then lets open requests end.
    pub async fn serve(
        self: Arc<Self>,
        router: Router,
        settings: ServeSettings,
        tls: Option<Tls>,
        mut stopping: watch::Receiver<bool>,
        ticker: Ticker,
    ) {
        let lock = || self.listener.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(listener) = lock().clone() else { return };
        let permits = Arc::new(Semaphore::new(settings.connections_max));
        let quota = ConnectionQuota::default();
        let shared = ServerParts { router, tls, stopping: stopping.clone() };
        // Every connection holds a sender: when all are gone, the channel closes.
        let (open, mut all_closed) = tokio::sync::mpsc::channel::<()>(1);
        loop {
            ticker.tick();
            // No permit, no accept: the kernel queues the connections that we cannot serve.
            let permit = tokio::select! {
                permit = permits.clone().acquire_owned() => permit,
                () = stopped(&mut stopping) => break,
            };
            let Ok(permit) = permit else { break };
            let accepted = tokio::select! {
                accepted = listener.accept() => accepted,
                () = stopped(&mut stopping) => break,
            };
            let (stream, peer) = match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    warn!(%error, "accepting a connection failed");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            let most = usual(settings.access.connections_per_address_max, PER_ADDRESS_DEFAULT_MAX, peer.ip());
            let Some(quota_permit) = quota.take(network(peer.ip()), most.unwrap_or(usize::MAX)) else {
                refuse(stream, shared.tls.is_none(), permit);
                continue;
            };
            drop(stream.set_nodelay(true));
            let (shared, open) = (shared.clone(), open.clone());
            let permits = ConnectionPermits { _one_of_all: permit, _one_of_address: quota_permit };
            tokio::spawn(async move {
                shared.serve(stream, peer, permits).await;
                drop(open);
            });
        }
        drop((lock().take(), listener, open));
        tokio::select! {
            _ = all_closed.recv() => {}
            () = tokio::time::sleep(GRACE) => warn!("some requests did not end within the grace period"),
        }
    }
}

impl ServerParts {
    async fn serve(mut self, stream: TcpStream, peer: SocketAddr, permits: ConnectionPermits) {
        let stream = match &self.tls {
            None => Stream::Plain(stream),
            Some(tls) => match tokio::time::timeout(HANDSHAKE_TIMEOUT, tls.accept(stream)).await {
                Ok(Ok(stream)) => Stream::Tls(Box::new(stream)),
                Ok(Err(error)) => return debug!(%peer, %error, "TLS handshake failed"),
                Err(_) => return debug!(%peer, "TLS handshake timed out"),
            },
        };
        let inner = TowerToHyperService::new(self.router);
        let end = Arc::<ConnectionEnd>::default();
        let peer = Peer { address: peer, end: end.clone() };
        let service = service_fn(move |mut request: Request<Incoming>| {
            request.extensions_mut().insert(peer.clone());
            inner.call(request)
        });
        // Without `pipeline_flush`, which buffers without bound for a client that does not read.
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEADERS_TIMEOUT)
            .serve_connection(TokioIo::new(Connection { stream, end, _permits: permits }), service)
            .with_upgrades();
        let mut connection = pin!(connection);
        let ended = tokio::select! {
            ended = connection.as_mut() => ended,
            () = stopped(&mut self.stopping) => {
                connection.as_mut().graceful_shutdown();
                connection.await
            }
        };
        if let Err(error) = ended {
            debug!(%error, "connection ended early");
        }
    }
}

/// Answers 429 and closes the connection soon, whether or not the client reads it.
fn refuse(mut stream: TcpStream, is_plain: bool, permit: OwnedSemaphorePermit) {
    const BODY: &str = r#"{"error":{"code":"too_many_connections","message":"too many connections from this address (limits.connections_per_address_max)"}}"#;
    let answer = format!(
        "HTTP/1.1 429 Too Many Requests\r\nretry-after: 5\r\nconnection: close\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n{BODY}",
        BODY.len()
    );
    tokio::spawn(async move {
        let answered = async {
            if is_plain {
                stream.write_all(answer.as_bytes()).await?;
            }
            stream.shutdown().await?;
            // Read what the client sent: closing with unread data would reset the connection and lose the answer.
            tokio::io::copy(&mut stream.take(REFUSAL_BYTES_MAX), &mut tokio::io::sink()).await
        };
        drop(tokio::time::timeout(REFUSAL_TIMEOUT, answered).await);
        drop(permit);
    });
}
