//! Connections: so many and no more, each with time-outs, all of them closed gracefully.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, watch};
use tracing::{debug, warn};

use crate::serve::stopped;

/// Whoever does not finish its request line and headers by then is not serious.
const HEADERS_MAX: Duration = Duration::from_secs(15);
/// How long open requests may take to end once we stop.
const GRACE: Duration = Duration::from_secs(10);
/// After an accept error such as "too many open files": no busy loop.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

#[derive(Debug)]
pub struct Listening {
    pub address: SocketAddr,
    listener: TcpListener,
}

/// Takes the address, so that a port in use is known before anything else starts.
pub async fn listen(address: SocketAddr) -> std::io::Result<Listening> {
    let listener = TcpListener::bind(address).await?;
    Ok(Listening { address: listener.local_addr()?, listener })
}

impl Listening {
    /// Serves until `stopping`, then lets open requests end.
    pub async fn serve(self, router: Router, connections_max: usize, mut stopping: watch::Receiver<bool>) {
        let places = Arc::new(Semaphore::new(connections_max));
        loop {
            // No place, no accept: the kernel's queue holds back what we cannot serve.
            let place = tokio::select! {
                place = places.clone().acquire_owned() => place,
                () = stopped(&mut stopping) => break,
            };
            let accepted = tokio::select! {
                accepted = self.listener.accept() => accepted,
                () = stopped(&mut stopping) => break,
            };
            let stream = match accepted {
                Ok((stream, _)) => stream,
                Err(error) => {
                    warn!(%error, "a connection could not be accepted");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            drop(stream.set_nodelay(true));
            let service = TowerToHyperService::new(router.clone());
            // Not with `pipeline_flush`: it buffers without bound for whoever does not read.
            let connection = http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(HEADERS_MAX)
                .serve_connection(TokioIo::new(stream), service)
                .with_upgrades();
            let mut closing = stopping.clone();
            tokio::spawn(async move {
                tokio::pin!(connection);
                let ended = tokio::select! {
                    ended = connection.as_mut() => ended,
                    () = stopped(&mut closing) => {
                        connection.as_mut().graceful_shutdown();
                        connection.await
                    }
                };
                if let Err(error) = ended {
                    debug!(%error, "a connection ended early");
                }
                drop(place);
            });
        }
        drop(self.listener);
        // Sockets have given their places back when they were upgraded; they end by themselves.
        let all = u32::try_from(connections_max).unwrap_or(u32::MAX);
        tokio::select! {
            _ = places.acquire_many(all) => {}
            () = tokio::time::sleep(GRACE) => warn!("some requests did not end in time"),
        }
    }
}
