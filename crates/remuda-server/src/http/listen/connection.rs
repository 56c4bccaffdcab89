//! One connection, plain or with TLS. It holds its permits among all connections and among those of its address, also after
//! an upgrade to a WebSocket.

use std::collections::HashMap;
use std::io;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use futures_util::task::AtomicWaker;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, watch};
use tokio_rustls::server::TlsStream;

#[derive(Debug)]
pub(super) struct Connection {
    pub(super) stream: Stream,
    pub(super) end: Arc<ConnectionEnd>,
    pub(super) _permits: ConnectionPermits,
}

/// Lets a task that does not own the connection close it, or wait for its end.
#[derive(Debug, Default)]
pub(in crate::http) struct ConnectionEnd {
    is_cut: AtomicBool,
    waker: AtomicWaker,
    is_over: watch::Sender<bool>,
}

impl ConnectionEnd {
    pub(in crate::http) fn cut(&self) {
        self.is_cut.store(true, Ordering::Release);
        self.waker.wake();
    }

    /// Returns when the connection is closed, by either side.
    pub(in crate::http) async fn over(&self) {
        drop(self.is_over.subscribe().wait_for(|is_over| *is_over).await);
    }

    fn check(&self, cx: &Context<'_>) -> io::Result<()> {
        self.waker.register(cx.waker());
        match self.is_cut.load(Ordering::Acquire) {
            true => Err(io::ErrorKind::ConnectionAborted.into()),
            false => Ok(()),
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.end.is_over.send_replace(true);
    }
}

#[derive(Debug)]
pub(super) enum Stream {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

/// A permit among all connections, and one among those of the same address.
#[derive(Debug)]
pub(super) struct ConnectionPermits {
    pub(super) _one_of_all: OwnedSemaphorePermit,
    pub(super) _one_of_address: QuotaPermit,
}

/// Counts the open connections of each address.
#[derive(Clone, Debug, Default)]
pub(super) struct ConnectionQuota(Arc<Mutex<HashMap<IpAddr, usize>>>);

#[derive(Debug)]
pub(super) struct QuotaPermit {
    quota: ConnectionQuota,
    address: IpAddr,
}

impl ConnectionQuota {
    /// One more permit for this address, if it has fewer than `most`.
    pub(super) fn take(&self, address: IpAddr, most: usize) -> Option<QuotaPermit> {
        let mut quota = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let open = quota.entry(address).or_default();
        if *open >= most {
            return None;
        }
        *open += 1;
        Some(QuotaPermit { quota: self.clone(), address })
    }
}

impl Drop for QuotaPermit {
    fn drop(&mut self) {
        let mut quota = self.quota.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(open) = quota.get_mut(&self.address) {
            *open -= 1;
            if *open == 0 {
                quota.remove(&self.address);
            }
        }
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.end.check(cx)?;
        match &mut self.stream {
            Stream::Plain(stream) => Pin::new(stream).poll_read(cx, buffer),
            Stream::Tls(stream) => Pin::new(stream).poll_read(cx, buffer),
        }
    }
}

impl AsyncWrite for Connection {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match &mut self.stream {
            Stream::Plain(stream) => Pin::new(stream).poll_write(cx, bytes),
            Stream::Tls(stream) => Pin::new(stream).poll_write(cx, bytes),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.stream {
            Stream::Plain(stream) => Pin::new(stream).poll_flush(cx),
            Stream::Tls(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.stream {
            Stream::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            Stream::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match &mut self.stream {
            Stream::Plain(stream) => Pin::new(stream).poll_write_vectored(cx, pieces),
            Stream::Tls(stream) => Pin::new(stream).poll_write_vectored(cx, pieces),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match &self.stream {
            Stream::Plain(stream) => stream.is_write_vectored(),
            Stream::Tls(stream) => stream.is_write_vectored(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Faults: X13.
    #[test]
    fn connections_of_an_address_are_limited_and_returned() {
        let quota = ConnectionQuota::default();
        let [a, b]: [IpAddr; 2] = ["10.0.0.1", "10.0.0.2"].map(|address| address.parse().unwrap());
        let first = quota.take(a, 2).unwrap();
        let _second = quota.take(a, 2).unwrap();
        assert!(quota.take(a, 2).is_none());
        assert!(quota.take(b, 2).is_some());
        drop(first);
        assert!(quota.take(a, 2).is_some());
        assert_eq!(quota.0.lock().unwrap().len(), 1, "a client that is gone is forgotten");
    }
}
