//! `remuda serve`: store, blobs, loop and HTTP, started in that order and stopped in the other.

mod sweep;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use remuda_core::time::Timestamp;
use remuda_store::Store;
use remuda_store::blobs::Blobs;
use tokio::sync::watch;
use tracing::{error, info, warn};

use crate::audit::Audit;
use crate::effects::EffectRunner;
use crate::event_loop::EventLoop;
use crate::fleets::{FleetContext, Fleets};
use crate::http::{self, AccessControl};
use crate::plane_handle::PlaneHandle;
use crate::shutdown::stopped;
use crate::tls::Tls;
use crate::webhooks::{Policy, WebhookSender};
use crate::workflow_cache::WorkflowCache;
use remuda_config::{Resolved, ServeSettings};
use remuda_net::secret::Secret;

/// How often the past is cleared away, and how much of it at once.
const RETAIN_EVERY: Duration = Duration::from_secs(60);
const RETAIN_ROWS: usize = 500;
/// The loop looks up every second; after this long something is wrong that only a restart mends.
const TICK_AGE_MAX: Duration = Duration::from_secs(30);

/// A plane that serves; dropped without `stop` it ends in the background, if the runtime lives to see it, and otherwise
/// as after a crash, which is safe too.
#[derive(Debug)]
pub struct Serving {
    pub address: SocketAddr,
    pub plane: PlaneHandle,
    access: Arc<AccessControl>,
    /// For whoever is in the same process and needs no line.
    pub context: http::Context,
    stop: watch::Sender<bool>,
    tasks: tokio::task::JoinHandle<anyhow::Result<()>>,
}

impl Serving {
    pub async fn start(resolved: &Resolved) -> anyhow::Result<Serving> {
        let fixed = resolved.clone();
        Serving::start_with(resolved, move || Ok(fixed.clone())).await
    }

    /// `read` reads the settings again when somebody asks for it.
    pub async fn start_with(
        resolved: &Resolved,
        read: impl Fn() -> anyhow::Result<Resolved> + Send + Sync + 'static,
    ) -> anyhow::Result<Serving> {
        let serve = &resolved.serve;
        let tls = tls(serve)?;
        require_tls(serve, tls.is_some())?;
        let listening = http::listen(serve.listen).await.with_context(|| {
            format!(
                "cannot listen on {}: is another remuda running? choose another with --listen",
                serve.listen
            )
        })?;
        std::fs::create_dir_all(&serve.data)
            .with_context(|| format!("cannot create the data folder {}", serve.data.display()))?;
        let store = Store::open(&serve.store.to_string()).await.context("cannot open the store")?;
        let blobs = Blobs::open(serve.data.join("blobs"), serve.blob_bytes_max)
            .await
            .context("cannot open the folder of blobs")?;
        let (calls, called) = tokio::sync::mpsc::unbounded_channel();
        let carry_out = EffectRunner::new(WorkflowCache::default(), calls);
        let live = carry_out.live();
        let (plane, drive) = EventLoop::start(store.clone(), resolved.settings.clone(), carry_out).await?;
        // It ends when nobody is left to ask it anything.
        let drive = tokio::spawn(drive.run());
        let (stop, stopping) = watch::channel(false);
        let courier = WebhookSender::new(
            plane.clone(),
            store.clone(),
            live.outbox.clone(),
            Policy { allow_private: serve.webhooks_may_be_private() },
        )?;
        let (sweep, retention) = (blobs.clone(), serve.retention);
        let sweep = sweep::run(sweep, store.clone(), plane.clone(), retention, stopping.clone());
        let address = listening.address;
        let audit = Audit::open(&serve.data, plane.clock.now()).context("cannot open the audit log")?;
        let access = AccessControl::load(serve, address, &store, audit, tls.clone()).await?;
        refuse_without_admin(serve, &access, plane.clock.now())?;
        let access = Arc::new(access);
        let url = FleetContext::local_url(address, tls.is_some());
        let context = FleetContext::new(plane.clone(), access.clone(), url, serve.data.clone());
        let fleets = Fleets::new(context);
        fleets.activate(fleets.ready(&resolved.fleets).await?);
        let reload = http::Reload::new(resolved, read, fleets.clone());
        let context = http::Context::new(
            plane.clone(),
            store.clone(),
            blobs,
            live,
            stopping.clone(),
            reload,
            access.clone(),
        );
        tokio::spawn(http::run_publisher(context.clone()));
        let router = http::router(context.clone());
        let tasks = Tasks {
            drive,
            fleets: tokio::spawn(fleets.run(called, stopping.clone())),
            http: tokio::spawn(listening.serve(router, serve.clone(), tls.clone(), stopping.clone())),
            webhooks: tokio::spawn(courier.run(stopping.clone())),
            retention: tokio::spawn(retain(store.clone(), plane.clone(), retention, stopping)),
            sweep: tokio::spawn(sweep),
            store,
        };
        if let Some(tls) = tls {
            tokio::spawn(tls.follow(stop.subscribe()));
        }
        let tasks = tokio::spawn(tasks.run(plane.clone(), stop.clone()));
        Ok(Serving { address, plane, access, context, stop, tasks })
    }

    /// Where it answers.
    pub fn url(&self) -> String {
        let scheme = if self.access.tls.is_some() { "https" } else { "http" };
        format!("{scheme}://{}", self.address)
    }

    /// What a worker of this process joins with.
    pub fn own_token(&self) -> Secret {
        self.access.own_token()
    }

    /// For a program of its own: a loop that stands still ends the process, and whoever supervises it starts it anew.
    pub fn end_process_if_stuck(&self) {
        watch_tick(self.plane.clone());
    }

    /// Ends when something went wrong; pending otherwise.
    pub async fn failed(&mut self) -> anyhow::Result<()> {
        (&mut self.tasks).await.context("the plane's task ended")?
    }

    /// Answers what was asked, stores what was decided, then ends.
    pub async fn stop(mut self) -> anyhow::Result<()> {
        self.stop.send_replace(true);
        self.failed().await
    }
}

/// Whoever drops it does not wait; but nothing goes on behind their back, and what is locked is let go of.
impl Drop for Serving {
    fn drop(&mut self) {
        self.stop.send_replace(true);
    }
}

struct Tasks {
    drive: tokio::task::JoinHandle<Result<(), remuda_store::StoreError>>,
    fleets: tokio::task::JoinHandle<()>,
    http: tokio::task::JoinHandle<()>,
    retention: tokio::task::JoinHandle<()>,
    sweep: tokio::task::JoinHandle<()>,
    webhooks: tokio::task::JoinHandle<()>,
    store: Store,
}

impl Tasks {
    async fn run(mut self, plane: PlaneHandle, stop: watch::Sender<bool>) -> anyhow::Result<()> {
        let mut stopping = stop.subscribe();
        let result = tokio::select! {
            ended = &mut self.drive => {
                stop.send_replace(true);
                ended.context("the loop panicked")?.context("the store cannot go on; restart to go on from what it holds")
            }
            () = stopped(&mut stopping) => {
                // First no new requests, then the loop: whoever was told something was told the truth.
                (&mut self.http).await.context("the HTTP side panicked")?;
                plane.stop().await;
                self.drive.await.context("the loop panicked")?.map_err(Into::into)
            }
        };
        self.fleets.abort();
        self.retention.abort();
        self.sweep.abort();
        self.webhooks.abort();
        self.store.close().await?;
        result
    }
}

fn tls(serve: &ServeSettings) -> anyhow::Result<Option<Tls>> {
    match (&serve.access.tls_cert, &serve.access.tls_key) {
        (Some(cert), Some(key)) => Tls::load(cert, key).map(Some),
        (None, None) => Ok(None),
        (Some(_), None) => {
            bail!("a certificate is of no use without its key: name it with --tls-key (tls.key)")
        }
        (None, Some(_)) => {
            bail!("a key is of no use without its certificate: name it with --tls-cert (tls.cert)")
        }
    }
}

/// Loopback needs neither token nor TLS; anywhere else whoever listens in would have every token.
fn require_tls(serve: &ServeSettings, has_tls: bool) -> anyhow::Result<()> {
    if serve.listen.ip().is_loopback() || serve.insecure || has_tls {
        return Ok(());
    }
    bail!(
        "{} is open to other machines. Give the plane a certificate, with --tls-cert FILE --tls-key FILE, and an admin, \
         with `remuda token create --role admin --data {}`; or listen on 127.0.0.1; or say --insecure if the network \
         itself keeps strangers out",
        serve.listen,
        serve.data.display()
    )
}

/// Beyond loopback somebody has to be able to make tokens, or nobody could ever get in.
fn refuse_without_admin(serve: &ServeSettings, access: &AccessControl, now: Timestamp) -> anyhow::Result<()> {
    if serve.listen.ip().is_loopback() || access.has_admin(now) {
        return Ok(());
    }
    if serve.insecure {
        warn!(listen = %serve.listen, "everyone who reaches this address can submit jobs and join as a worker");
        return Ok(());
    }
    bail!(
        "{} is open to other machines, and nobody could get in: there is no admin token yet. Make one with \
         `remuda token create --role admin --data {}`, or set REMUDA_ADMIN_TOKEN, and start again",
        serve.listen,
        serve.data.display()
    )
}

/// Clears away what is older than `retention`, in small steps.
async fn retain(store: Store, plane: PlaneHandle, retention: Duration, mut stopping: watch::Receiver<bool>) {
    loop {
        tokio::select! {
            () = tokio::time::sleep(RETAIN_EVERY) => {}
            () = stopped(&mut stopping) => return,
        }
        let before: Timestamp = plane.clock.now().minus(retention);
        let mut cleared = 0;
        loop {
            match store.retain(before, RETAIN_ROWS).await {
                Ok(0) => break,
                Ok(rows) => cleared += rows,
                Err(error) => {
                    warn!(%error, "the past could not be cleared away; trying again later");
                    break;
                }
            }
        }
        if let Err(error) = store.expire(plane.clock.now(), RETAIN_ROWS).await {
            warn!(%error, "what has expired could not be cleared away; trying again later");
        }
        if cleared > 0 {
            info!(cleared, "cleared away what is older than retention");
        }
    }
}

/// A loop that died quietly must not look alive: the process ends, and whoever supervises it starts it anew.
fn watch_tick(plane: PlaneHandle) {
    let watchdog = std::thread::Builder::new().name("watchdog".to_owned());
    let started = watchdog.spawn(move || {
        loop {
            std::thread::sleep(Duration::from_secs(5));
            let age = plane.tick_age();
            if plane.is_stopped() {
                return;
            }
            if age > TICK_AGE_MAX {
                error!(?age, "the loop stands still: ending the process so that it can be started anew");
                std::process::exit(70);
            }
        }
    });
    if let Err(error) = started {
        warn!(%error, "no watchdog: a loop that stands still will not be noticed");
    }
}

#[cfg(test)]
mod tests {
    use remuda_core::settings::Settings;

    use super::*;

    /// Faults: C6.
    #[tokio::test]
    async fn a_loop_that_panics_ends_the_program_instead_of_looking_alive() {
        let store = Store::open("memory:").await.unwrap();
        let carry_out = EffectRunner::new(WorkflowCache::default(), tokio::sync::mpsc::unbounded_channel().0);
        let (plane, _) = EventLoop::start(store.clone(), Settings::default(), carry_out).await.unwrap();
        let (stop, mut stopping) = watch::channel(false);
        let tasks = Tasks {
            drive: tokio::spawn(async { panic!("a rule was broken") }),
            fleets: tokio::spawn(std::future::pending()),
            http: tokio::spawn(std::future::pending()),
            retention: tokio::spawn(std::future::pending()),
            sweep: tokio::spawn(std::future::pending()),
            webhooks: tokio::spawn(std::future::pending()),
            store,
        };
        let error = tasks.run(plane, stop).await.unwrap_err();
        assert_eq!(error.to_string(), "the loop panicked");
        stopped(&mut stopping).await;
    }
}
