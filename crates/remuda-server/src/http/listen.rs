//! Connections: so many and no more, each with time-outs, all of them closed gracefully.

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

/// Whoever does not finish its request line and headers by then is not serious.
const HEADERS_MAX: Duration = Duration::from_secs(15);
/// The same for agreeing on a cipher.
const HANDSHAKE_MAX: Duration = Duration::from_secs(10);
/// How long open requests may take to end once we stop.
const GRACE: Duration = Duration::from_secs(10);
/// After an accept error such as "too many open files": no busy loop.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Connections that one stranger may have open where nothing is set: a quarter of what there is by default.
const PER_ADDRESS: usize = 256;

/// For whom there is no place: how long it is listened to while it is told so, and how much.
const GOODBYE_MAX: Duration = Duration::from_secs(1);
const GOODBYE_BYTES: u64 = 64 << 10;

/// Who is at the other end of a connection; every request that comes over it has this with it.
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

/// Takes the address, so that a port in use is known before anything else starts.
pub async fn listen(address: SocketAddr) -> std::io::Result<Listening> {
    let listener = TcpListener::bind(address).await?;
    let address = listener.local_addr()?;
    Ok(Listening { address, listener: Mutex::new(Some(Arc::new(listener))) })
}

/// What all connections share.
#[derive(Clone)]
struct Shared {
    router: Router,
    tls: Option<Tls>,
    stopping: watch::Receiver<bool>,
}

impl Listening {
    /// Serves until `stopping`, then lets open requests end.
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
        let places = Arc::new(Semaphore::new(settings.connections_max));
        let seats = ConnectionQuota::default();
        let shared = Shared { router, tls, stopping: stopping.clone() };
        // Held by every connection: when all are gone, so are the senders.
        let (open, mut all_closed) = tokio::sync::mpsc::channel::<()>(1);
        loop {
            ticker.tick();
            // No place, no accept: the kernel's queue holds back what we cannot serve.
            let place = tokio::select! {
                place = places.clone().acquire_owned() => place,
                () = stopped(&mut stopping) => break,
            };
            let Ok(place) = place else { break };
            let accepted = tokio::select! {
                accepted = listener.accept() => accepted,
                () = stopped(&mut stopping) => break,
            };
            let (stream, peer) = match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    warn!(%error, "a connection could not be accepted");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            let most = usual(settings.access.connections_per_address_max, PER_ADDRESS, peer.ip());
            let Some(seat) = seats.take(network(peer.ip()), most.unwrap_or(usize::MAX)) else {
                turn_away(stream, shared.tls.is_none(), place);
                continue;
            };
            drop(stream.set_nodelay(true));
            let (shared, open) = (shared.clone(), open.clone());
            let place = ConnectionPermits { _one_of_all: place, _one_of_address: seat };
            tokio::spawn(async move {
                shared.serve(stream, peer, place).await;
                drop(open);
            });
        }
        drop((lock().take(), listener, open));
        tokio::select! {
            _ = all_closed.recv() => {}
            () = tokio::time::sleep(GRACE) => warn!("some requests did not end in time"),
        }
    }
}

impl Shared {
    async fn serve(mut self, stream: TcpStream, peer: SocketAddr, place: ConnectionPermits) {
        let stream = match &self.tls {
            None => Stream::Plain(stream),
            Some(tls) => match tokio::time::timeout(HANDSHAKE_MAX, tls.accept(stream)).await {
                Ok(Ok(stream)) => Stream::Tls(Box::new(stream)),
                Ok(Err(error)) => return debug!(%peer, %error, "no TLS was agreed on"),
                Err(_) => return debug!(%peer, "the handshake took too long"),
            },
        };
        let inner = TowerToHyperService::new(self.router);
        let end = Arc::<ConnectionEnd>::default();
        let peer = Peer { address: peer, end: end.clone() };
        let service = service_fn(move |mut request: Request<Incoming>| {
            request.extensions_mut().insert(peer.clone());
            inner.call(request)
        });
        // Not with `pipeline_flush`: it buffers without bound for whoever does not read.
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEADERS_MAX)
            .serve_connection(TokioIo::new(Connection { stream, end, _place: place }), service)
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
            debug!(%error, "a connection ended early");
        }
    }
}

/// Says why, and lets go soon, whether that was heard or not.
fn turn_away(mut stream: TcpStream, is_plain: bool, place: OwnedSemaphorePermit) {
    const BODY: &str = r#"{"error":{"code":"too_many_connections","message":"too many connections from this address (limits.connections_per_address_max)"}}"#;
    let answer = format!(
        "HTTP/1.1 429 Too Many Requests\r\nretry-after: 5\r\nconnection: close\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n{BODY}",
        BODY.len()
    );
    tokio::spawn(async move {
        let told = async {
            if is_plain {
                stream.write_all(answer.as_bytes()).await?;
            }
            stream.shutdown().await?;
            // What was sent is taken in first: closing on it would tear the answer away.
            tokio::io::copy(&mut stream.take(GOODBYE_BYTES), &mut tokio::io::sink()).await
        };
        drop(tokio::time::timeout(GOODBYE_MAX, told).await);
        drop(place);
    });
}
