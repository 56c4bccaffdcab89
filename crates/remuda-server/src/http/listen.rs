//! Accepts connections: a bounded number (`places`), with timeouts, closed gracefully at the end.

mod connection;
mod open_files;
mod places;

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
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tracing::{debug, warn};

pub(super) use self::connection::ConnectionEnd;
pub use self::open_files::raise_open_files_limit;
pub use self::places::ConnectionPlaces;
pub(super) use self::places::{ConnectionClass, ConnectionPlace};

use self::connection::{Connection, Stream};
use crate::shutdown::stopped;
use crate::tasks::Ticker;
use crate::tls::Tls;

/// For the request line and headers.
const HEADERS_TIMEOUT: Duration = Duration::from_secs(15);
/// For the TLS handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// For open requests to end once the plane stops.
const GRACE: Duration = Duration::from_secs(10);
/// After an accept error such as "too many open files": no busy loop.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The other end of a connection; every request has it as an extension.
#[derive(Clone, Debug)]
pub(super) struct Peer {
    pub(super) address: SocketAddr,
    pub(super) place: Arc<ConnectionPlace>,
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
        places: ConnectionPlaces,
        tls: Option<Tls>,
        mut stopping: watch::Receiver<bool>,
        ticker: Ticker,
    ) {
        let lock = || self.listener.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(listener) = lock().clone() else { return };
        let shared = ServerParts { router, tls, stopping: stopping.clone() };
        // Every connection holds a sender: when all are gone, the channel closes.
        let (open, mut all_closed) = tokio::sync::mpsc::channel::<()>(1);
        loop {
            ticker.tick();
            let accepted = tokio::select! {
                accepted = listener.accept() => accepted,
                () = stopped(&mut stopping) => break,
            };
            let (stream, peer) = match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    places.not_accepted(&error);
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            let place = places.enter(peer.ip());
            drop(stream.set_nodelay(true));
            let (shared, open) = (shared.clone(), open.clone());
            tokio::spawn(async move {
                shared.serve(stream, peer, place).await;
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
    async fn serve(mut self, stream: TcpStream, peer: SocketAddr, place: Arc<ConnectionPlace>) {
        let stream = match self.open(stream, &place.end).await {
            Ok(stream) => stream,
            Err(error) => {
                place.leave();
                return debug!(%peer, %error, "TLS handshake failed");
            }
        };
        let inner = TowerToHyperService::new(self.router);
        let peer = Peer { address: peer, place: place.clone() };
        let service = service_fn(move |mut request: Request<Incoming>| {
            request.extensions_mut().insert(peer.clone());
            inner.call(request)
        });
        // Without `pipeline_flush`, which buffers without bound for a client that does not read.
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEADERS_TIMEOUT)
            .serve_connection(TokioIo::new(Connection { stream, place }), service)
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

    /// The stream to read requests from, after the TLS handshake if there is one.
    async fn open(&self, stream: TcpStream, end: &ConnectionEnd) -> std::io::Result<Stream> {
        let Some(tls) = &self.tls else { return Ok(Stream::Plain(stream)) };
        tokio::select! {
            accepted = tls.accept(stream) => accepted.map(|stream| Stream::Tls(Box::new(stream))),
            () = tokio::time::sleep(HANDSHAKE_TIMEOUT) => Err(std::io::ErrorKind::TimedOut.into()),
            () = end.cut_off() => Err(std::io::ErrorKind::ConnectionAborted.into()),
        }
    }
}
