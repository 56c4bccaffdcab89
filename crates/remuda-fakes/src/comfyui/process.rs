//! The lifecycle of a server: a thread with its own runtime stands for the process. Dropping the runtime cuts every
//! connection, ends every task and closes the port, as a killed process does.
//!
//! ```text
//!  running ──kill, crash──▶ dead ──restart, or `revive` later──▶ running      stop ends both
//! ```
//!
//! While it is dead, the port stays bound without listening: connections are refused, and no other process can take it.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot, watch};

use super::control::Control;
use super::server::{Estate, Server};
use super::tally::Counts;
use super::{Options, routes};

/// Commands for the thread.
#[derive(Debug)]
pub(super) enum Order {
    /// Die; acknowledged once the port refuses.
    Kill(Option<oneshot::Sender<()>>),
    /// Die if running, then start; acknowledged once it listens.
    Restart(Option<oneshot::Sender<()>>),
    Stop(oneshot::Sender<()>),
}

#[derive(Debug)]
pub(super) struct Process {
    estate: Arc<Estate>,
    address: SocketAddr,
    deaths: watch::Receiver<u64>,
}

impl Process {
    pub(super) async fn start(mut options: Options) -> io::Result<Process> {
        let listener = TcpListener::bind(options.listen)?;
        let address = listener.local_addr()?;
        options.listen = address;
        let (orders, inbox) = mpsc::unbounded_channel();
        let (deaths_sender, deaths) = watch::channel(0);
        let estate = Arc::new(Estate::new(options, orders));
        let (ready, is_ready) = oneshot::channel();
        let lives = Lives { estate: Arc::clone(&estate), inbox, deaths: deaths_sender };
        std::thread::Builder::new()
            .name(format!("fake-comfyui:{}", address.port()))
            .spawn(move || lives.run(listener, ready))?;
        is_ready.await.map_err(io::Error::other)??;
        Ok(Process { estate, address, deaths })
    }

    pub(super) fn options(&self) -> &Options {
        &self.estate.options
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(super) fn control(&self) -> Control {
        Control::new(Arc::clone(&self.estate))
    }

    pub(super) fn counts(&self) -> Counts {
        self.estate.tally.counts()
    }

    pub(super) async fn died(&self) {
        let mut deaths = self.deaths.clone();
        // An error means that the thread has ended, which also counts as dead.
        let _ = deaths.wait_for(|deaths| *deaths > 0).await;
    }

    pub(super) async fn stop(&self) {
        let (answer, answered) = oneshot::channel();
        if self.estate.orders.send(Order::Stop(answer)).is_ok() {
            let _ = answered.await;
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let (answer, _) = oneshot::channel();
        let _ = self.estate.orders.send(Order::Stop(answer));
    }
}

struct Lives {
    estate: Arc<Estate>,
    inbox: mpsc::UnboundedReceiver<Order>,
    deaths: watch::Sender<u64>,
}

impl Lives {
    /// The whole thread: one server run after the other.
    fn run(mut self, first: TcpListener, ready: oneshot::Sender<io::Result<()>>) {
        let mut listener = first;
        let mut waiting = Waiting::First(ready);
        loop {
            let order = match self.live(listener, waiting) {
                Ok(Some(order)) => order,
                Ok(None) => return,
                Err(error) => {
                    tracing::error!(%error, "a stand-in cannot live");
                    return;
                }
            };
            self.estate.set_server(None);
            self.estate.disk.wipe_temp();
            let address = self.estate.options.listen;
            // Bound and not listening: refuses. On failure the port is merely not reserved.
            let refusing = refuse(address);
            self.deaths.send_modify(|deaths| *deaths += 1);
            let Some(answer) = self.lie_dead(order) else { return };
            drop(refusing);
            listener = match TcpListener::bind(address) {
                Ok(listener) => listener,
                Err(error) => {
                    tracing::error!(%error, %address, "a stand-in did not get its port back");
                    return;
                }
            };
            waiting = Waiting::Later(answer);
        }
    }

    /// One server run; returns the command that ended it.
    fn live(&mut self, listener: TcpListener, waiting: Waiting) -> io::Result<Option<Order>> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let estate = Arc::clone(&self.estate);
        runtime.block_on(async {
            let serving = routes::serve(listener, Server::start(&estate));
            waiting.answer(serving.is_ok());
            serving?;
            Ok(self.inbox.recv().await)
        })
    }

    /// Waits for the command that restarts it; `None` if it stops for good.
    fn lie_dead(&mut self, order: Order) -> Option<Option<oneshot::Sender<()>>> {
        match order {
            Order::Restart(answer) => return Some(answer),
            Order::Kill(answer) => tell(answer),
            Order::Stop(answer) => {
                tell(Some(answer));
                return None;
            }
        }
        let revive = self.estate.options.revive.unwrap_or(FOR_EVER);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().ok()?;
        loop {
            match runtime.block_on(async { tokio::time::timeout(revive, self.inbox.recv()).await }) {
                Err(_) => return Some(None),
                Ok(None) => return None,
                Ok(Some(Order::Restart(answer))) => return Some(answer),
                Ok(Some(Order::Kill(answer))) => tell(answer),
                Ok(Some(Order::Stop(answer))) => {
                    tell(Some(answer));
                    return None;
                }
            }
        }
    }
}

/// Longer than any test or demo.
const FOR_EVER: Duration = Duration::from_secs(365 * 24 * 3600);

/// Who waits for the start.
enum Waiting {
    First(oneshot::Sender<io::Result<()>>),
    Later(Option<oneshot::Sender<()>>),
}

impl Waiting {
    fn answer(self, is_well: bool) {
        match self {
            Waiting::First(ready) => {
                let result = if is_well { Ok(()) } else { Err(io::Error::other("cannot listen")) };
                let _ = ready.send(result);
            }
            Waiting::Later(answer) => tell(answer),
        }
    }
}

/// A dropped receiver is fine: its caller no longer waits.
fn tell(answer: Option<oneshot::Sender<()>>) {
    if let Some(answer) = answer {
        let _ = answer.send(());
    }
}

fn refuse(address: SocketAddr) -> io::Result<tokio::net::TcpSocket> {
    let socket = match address {
        SocketAddr::V4(_) => tokio::net::TcpSocket::new_v4()?,
        SocketAddr::V6(_) => tokio::net::TcpSocket::new_v6()?,
    };
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    Ok(socket)
}
