//! The server: a thread with its own runtime answers requests and advances pods.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, mpsc, oneshot, watch};

use super::account::Account;
use super::clock::Clock;
use super::ledger::Ledger;
use super::process::Word;
use super::quota::Quota;
use super::{FakeRunpodOptions, routes};

/// Buffered output lines and ends of containers.
const WORDS_MAX: usize = 1024;
/// How long containers may take to end when the fake stops; their supervisors need no more than their grace.
const END_MAX: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub(super) struct Server {
    pub(super) options: Arc<FakeRunpodOptions>,
    pub(super) clock: Arc<Clock>,
    account: Mutex<Account>,
    quota: Mutex<Quota>,
    /// Something may be due earlier than before.
    noticed: Notify,
}

impl Server {
    pub(super) fn account(&self) -> MutexGuard<'_, Account> {
        self.account.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn quota(&self) -> MutexGuard<'_, Quota> {
        self.quota.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn notice(&self) {
        self.noticed.notify_one();
    }

    pub(super) fn ledger(&self) -> Ledger {
        self.account().books.ledger(self.clock.now())
    }

    /// Does what is due when it is due, for as long as the fake runs.
    async fn let_time_pass(&self, mut words: mpsc::Receiver<Word>) {
        loop {
            let due = self.account().settle();
            let wait = async {
                match due {
                    Some(due) => self.clock.until(due).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = wait => {}
                () = self.noticed.notified() => {}
                Some(word) = words.recv() => self.account().hear(word),
            }
        }
    }
}

/// Listens and answers until it is stopped or its sender is gone; then it ends the processes of its pods.
pub(super) fn start(
    listener: std::net::TcpListener,
    options: FakeRunpodOptions,
    stop: oneshot::Receiver<oneshot::Sender<()>>,
) -> io::Result<Arc<Server>> {
    listener.set_nonblocking(true)?;
    let port = listener.local_addr()?.port();
    let clock = Arc::new(Clock::new(options.manual_time, options.speed));
    let options = Arc::new(options);
    let (words, heard) = mpsc::channel(WORDS_MAX);
    let living = watch::Sender::new(0);
    let account = Account::new(Arc::clone(&options), Arc::clone(&clock), words, living.clone());
    let quota = Quota::new(options.requests_per_minute, clock.now());
    let server = Arc::new(Server {
        options,
        clock,
        account: Mutex::new(account),
        quota: Mutex::new(quota),
        noticed: Notify::new(),
    });
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let inner = Arc::clone(&server);
    std::thread::Builder::new().name(format!("fake-runpod:{port}")).spawn(move || {
        runtime.block_on(async {
            let listener = match tokio::net::TcpListener::from_std(listener) {
                Ok(listener) => listener,
                Err(error) => return tracing::error!(%error, "a stand-in cannot listen"),
            };
            let passing = inner.let_time_pass(heard);
            tokio::pin!(passing);
            let told = tokio::select! {
                _ = routes::serve(listener, Arc::clone(&inner)) => None,
                () = &mut passing => None,
                told = stop => told.ok(),
            };
            inner.account().close();
            let mut living = living.subscribe();
            // Keep reading the output: a process could block on its last lines.
            let ended = async {
                tokio::select! {
                    _ = living.wait_for(|living| *living == 0) => {}
                    () = &mut passing => {}
                }
            };
            if tokio::time::timeout(END_MAX, ended).await.is_err() {
                tracing::error!("some pods did not end");
            }
            if let Some(told) = told {
                // The caller may not have waited.
                told.send(()).ok();
            }
        });
    })?;
    Ok(server)
}
