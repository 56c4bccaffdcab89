//! The line between workers and their plane: a TCP proxy on loopback that counts requests, and that a test can cut or make
//! lossy while it is in use.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::{TestRng, sleep_for};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LineState {
    Open,
    /// Nothing passes, and no connection is closed: packets are dropped on the way.
    Cut,
    /// So many of a hundred messages are lost, each way, and the others are held back for so long.
    Lossy {
        percent: u64,
        delay: Duration,
    },
}

#[derive(Debug)]
pub(crate) struct Line {
    pub(crate) url: String,
    state: watch::Sender<LineState>,
    traffic: Arc<Traffic>,
    accepting: JoinHandle<()>,
}

/// What came along.
#[derive(Debug)]
struct Traffic {
    /// When each request was sent by a worker, whether or not it arrived.
    requests: Mutex<Vec<Instant>>,
    lost: Mutex<u64>,
    luck: Mutex<TestRng>,
}

impl Line {
    pub(crate) async fn to(plane: SocketAddr) -> Line {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let (state, watched) = watch::channel(LineState::Open);
        let traffic = Arc::new(Traffic {
            requests: Mutex::default(),
            lost: Mutex::default(),
            luck: Mutex::new(TestRng::new()),
        });
        let shared = traffic.clone();
        let accepting = tokio::spawn(async move {
            while let Ok((worker, _)) = listener.accept().await {
                tokio::spawn(carry(worker, plane, watched.clone(), shared.clone()));
            }
        });
        Line { url, state, traffic, accepting }
    }

    pub(crate) fn set(&self, state: LineState) {
        self.state.send_replace(state);
    }

    /// The requests that were sent since then, each by its time since then.
    pub(crate) fn requests_since(&self, since: Instant) -> Vec<Duration> {
        let requests = self.traffic.requests.lock().unwrap();
        requests.iter().filter_map(|at| at.checked_duration_since(since)).collect()
    }

    /// Messages lost so far, in either direction.
    pub(crate) fn lost(&self) -> u64 {
        *self.traffic.lost.lock().unwrap()
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn carry(
    worker: TcpStream,
    plane: SocketAddr,
    state: watch::Receiver<LineState>,
    traffic: Arc<Traffic>,
) {
    let (mut from_worker, to_worker) = worker.into_split();
    // Read first: a request counts even if there is no plane.
    let Some(first) = piece(&mut from_worker, Some(&traffic)).await else { return };
    let Ok(plane) = TcpStream::connect(plane).await else { return };
    let (from_plane, to_plane) = plane.into_split();
    tokio::select! {
        () = pump(from_worker, to_plane, state.clone(), &traffic, Some(first)) => {}
        () = pump(from_plane, to_worker, state, &traffic, None) => {}
    }
}

/// Passes pieces on; ends the connection with the first one that is lost. `first`: the way up, with what was read already.
async fn pump(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    mut state: watch::Receiver<LineState>,
    traffic: &Traffic,
    first: Option<Vec<u8>>,
) {
    let counted = first.is_some().then_some(traffic);
    let mut next = first;
    loop {
        let bytes = match next.take() {
            Some(bytes) => bytes,
            None => match piece(&mut from, counted).await {
                Some(bytes) => bytes,
                None => return,
            },
        };
        let Ok(current) = state.wait_for(|state| *state != LineState::Cut).await.map(|state| *state) else {
            return;
        };
        if let LineState::Lossy { percent, delay } = current {
            sleep_for(delay).await;
            if traffic.luck.lock().unwrap().below(100) < percent {
                *traffic.lost.lock().unwrap() += 1;
                return;
            }
        }
        if to.write_all(&bytes).await.is_err() {
            return;
        }
    }
}

async fn piece(from: &mut OwnedReadHalf, counted: Option<&Traffic>) -> Option<Vec<u8>> {
    let mut bytes = vec![0; 64 << 10];
    let count = from.read(&mut bytes).await.ok().filter(|count| *count > 0)?;
    bytes.truncate(count);
    let methods: [&[u8]; 4] = [b"POST ", b"GET ", b"PUT ", b"DELETE "];
    if let Some(traffic) = counted.filter(|_| methods.iter().any(|method| bytes.starts_with(method))) {
        traffic.requests.lock().unwrap().push(Instant::now());
    }
    Some(bytes)
}
