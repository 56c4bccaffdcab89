//! Connections that the server can cut, so that a client loses an answer as it would in production.

use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};

use axum::extract::connect_info::Connected;
use axum::serve::{IncomingStream, Listener};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};

/// Cuts one connection.
#[derive(Clone, Debug, Default)]
pub(super) struct Switch(Arc<State>);

#[derive(Debug, Default)]
struct State {
    is_cut: AtomicBool,
    reader: Mutex<Option<Waker>>,
}

impl Switch {
    /// From now on every read and write fails, and the connection is dropped.
    pub(super) fn cut(&self) {
        self.0.is_cut.store(true, Ordering::Relaxed);
        let waker = self.0.reader.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    fn check(&self) -> io::Result<()> {
        if self.0.is_cut.load(Ordering::Relaxed) {
            Err(io::ErrorKind::ConnectionReset.into())
        } else {
            Ok(())
        }
    }
}

impl Connected<IncomingStream<'_, Gate>> for Switch {
    fn connect_info(stream: IncomingStream<'_, Gate>) -> Switch {
        stream.io().switch.clone()
    }
}

/// Accepts connections and attaches a switch to each.
#[derive(Debug)]
pub(super) struct Gate(pub(super) TcpListener);

impl Listener for Gate {
    type Io = Line;
    type Addr = std::net::SocketAddr;

    async fn accept(&mut self) -> (Line, Self::Addr) {
        let (stream, address) = Listener::accept(&mut self.0).await;
        // Small messages in sequence: Nagle's algorithm would delay them.
        let _ = stream.set_nodelay(true);
        (Line { stream, switch: Switch::default() }, address)
    }

    fn local_addr(&self) -> io::Result<Self::Addr> {
        self.0.local_addr()
    }
}

#[derive(Debug)]
pub(super) struct Line {
    stream: TcpStream,
    switch: Switch,
}

impl AsyncRead for Line {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.switch.check()?;
        let read = Pin::new(&mut self.stream).poll_read(context, into);
        if read.is_pending() {
            let mut reader = self.switch.0.reader.lock().unwrap_or_else(PoisonError::into_inner);
            *reader = Some(context.waker().clone());
        }
        read
    }
}

impl AsyncWrite for Line {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.switch.check()?;
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.switch.check()?;
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
