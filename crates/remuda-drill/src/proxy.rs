//! The line between a worker and the plane: a TCP proxy on loopback that can be cut or delayed while it is in use, without
//! any privilege. What it does not try: loss of single packets, which TCP hides anyway.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Context as _;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LineState {
    Open,
    /// Nothing passes; connections stay open, as if packets were dropped.
    Cut,
    /// Every piece is held back for so long.
    Delayed(Duration),
}

#[derive(Debug)]
pub(crate) struct Line {
    pub(crate) address: SocketAddr,
    state: watch::Sender<LineState>,
    accepting: JoinHandle<()>,
}

const PIECE_BYTES: usize = 64 << 10;

impl Line {
    pub(crate) async fn open(plane: SocketAddr) -> anyhow::Result<Line> {
        let listener = TcpListener::bind("127.0.0.1:0").await.context("cannot open a line")?;
        let address = listener.local_addr()?;
        let (state, watched) = watch::channel(LineState::Open);
        let accepting = tokio::spawn(async move {
            while let Ok((worker, _)) = listener.accept().await {
                tokio::spawn(carry(worker, plane, watched.clone()));
            }
        });
        Ok(Line { address, state, accepting })
    }

    pub(crate) fn set(&self, state: LineState) {
        self.state.send_replace(state);
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn carry(worker: TcpStream, plane: SocketAddr, mut state: watch::Receiver<LineState>) {
    if passes(&mut state).await.is_none() {
        return;
    }
    let Ok(plane) = TcpStream::connect(plane).await else { return };
    // Beats are small and answers are waited for.
    drop((worker.set_nodelay(true), plane.set_nodelay(true)));
    let (from_worker, to_worker) = worker.into_split();
    let (from_plane, to_plane) = plane.into_split();
    tokio::select! {
        () = pump(from_worker, to_plane, state.clone()) => {}
        () = pump(from_plane, to_worker, state) => {}
    }
}

async fn pump(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, mut state: watch::Receiver<LineState>) {
    let mut piece = vec![0; PIECE_BYTES];
    loop {
        let count = match from.read(&mut piece).await {
            Ok(0) | Err(_) => return,
            Ok(count) => count,
        };
        if passes(&mut state).await.is_none() || to.write_all(&piece[..count]).await.is_err() {
            return;
        }
    }
}

/// Waits until the line lets something through. `None` if the drill is over.
async fn passes(state: &mut watch::Receiver<LineState>) -> Option<()> {
    let current = *state.wait_for(|state| *state != LineState::Cut).await.ok()?;
    if let LineState::Delayed(delay) = current {
        tokio::time::sleep(delay).await;
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn echo() -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                tokio::spawn(async move {
                    let (mut read, mut write) = stream.split();
                    drop(tokio::io::copy(&mut read, &mut write).await);
                });
            }
        });
        address
    }

    #[tokio::test]
    async fn cut_line_holds_everything_until_it_is_whole_again() {
        let line = Line::open(echo().await).await.unwrap();
        let mut stream = TcpStream::connect(line.address).await.unwrap();
        let mut answer = [0; 5];
        stream.write_all(b"first").await.unwrap();
        stream.read_exact(&mut answer).await.unwrap();
        assert_eq!(&answer, b"first");
        line.set(LineState::Cut);
        stream.write_all(b"later").await.unwrap();
        let early = tokio::time::timeout(Duration::from_millis(50), stream.read_exact(&mut answer)).await;
        assert!(early.is_err(), "a cut line passed something on");
        line.set(LineState::Open);
        stream.read_exact(&mut answer).await.unwrap();
        assert_eq!(&answer, b"later");
    }
}
