//! Asks our own listener whether it answers. If it does not, the plane hears no worker, and must not take their silence for
//! death. One short request every few seconds; the plane is told when the answer changes.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use remuda_core::plane::PlaneEvent;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tracing::{info, warn};

use crate::plane_handle::PlaneHandle;
use crate::shutdown::stopped;
use crate::tasks::Ticker;

/// Several times within a lease.
const CHECK_EVERY: Duration = Duration::from_secs(5);
const ANSWER_TIMEOUT: Duration = Duration::from_secs(3);
/// One request may be lost in a busy moment.
const FAILURES_MAX: u32 = 2;

pub(super) async fn run(
    plane: PlaneHandle,
    address: SocketAddr,
    has_tls: bool,
    mut stopping: watch::Receiver<bool>,
    ticker: Ticker,
) {
    let mut failures = 0;
    loop {
        ticker.tick();
        let is_answering = tokio::time::timeout(ANSWER_TIMEOUT, ask(address, has_tls)).await.unwrap_or(false);
        let was_down = failures >= FAILURES_MAX;
        failures = if is_answering { 0 } else { failures.saturating_add(1) };
        let is_down = failures >= FAILURES_MAX;
        if is_down != was_down {
            match is_down {
                true => warn!(%address, "own listener does not answer; silent workers are not judged"),
                false => info!(%address, "own listener answers again"),
            }
            plane.notify(PlaneEvent::ListenerChecked { is_answering: !is_down });
        }
        tokio::select! {
            () = tokio::time::sleep(CHECK_EVERY) => {}
            () = stopped(&mut stopping) => return,
        }
    }
}

/// Whether it answers. With TLS an open connection is enough: the certificate is not for this address.
async fn ask(address: SocketAddr, has_tls: bool) -> bool {
    let Ok(mut stream) = TcpStream::connect(reachable(address)).await else { return false };
    if has_tls {
        return true;
    }
    let request = format!("GET /health/live HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    let mut start = [0; 5];
    stream.write_all(request.as_bytes()).await.is_ok()
        && stream.read_exact(&mut start).await.is_ok()
        && &start == b"HTTP/"
}

/// Where an address that stands for every interface is reached from here.
fn reachable(address: SocketAddr) -> SocketAddr {
    let ip = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, address.port())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn listener_that_accepts_and_says_nothing_does_not_answer() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let asked = tokio::spawn(ask(address, false));
        drop(listener.accept().await.unwrap());
        assert!(!asked.await.unwrap());
        drop(listener);
        assert!(!ask(address, false).await, "nothing listens there");
    }

    #[test]
    fn address_of_every_interface_is_asked_over_loopback() {
        for (address, expected) in
            [("0.0.0.0:1", "127.0.0.1:1"), ("[::]:1", "[::1]:1"), ("10.0.0.7:1", "10.0.0.7:1")]
        {
            assert_eq!(reachable(address.parse().unwrap()), expected.parse().unwrap());
        }
    }
}
