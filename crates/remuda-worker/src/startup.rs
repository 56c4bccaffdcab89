//! Everything between the start of the process and its first free slot: the start check, the service, and what a former
//! agent of this name left there.

use std::time::Duration;

use remuda_core::agent::FoundAttempt;
use remuda_core::need::Capabilities;
use remuda_core::service::ServiceIncarnation;
use remuda_core::wire::StartCheck;
use tokio::time::Instant;

use super::check::Says;
use super::comfyui::Comfyui;
use super::exec::Commands;
use super::hands::{Events, Hands};
use super::models::Models;
use super::ticket::Drawer;
use super::{Does, Options, Shows};

/// So long a worker that was here before waits for its service, and for what it left there, before it joins without.
const FORMER_WORK_MAX: Duration = Duration::from_secs(30);

/// It may begin.
#[derive(Debug)]
pub(super) struct Ready {
    pub(super) hands: Hands,
    /// What the service can do, where that is found out and not said.
    pub(super) offer: Option<Capabilities>,
    pub(super) found: Vec<FoundAttempt>,
    pub(super) life: ServiceIncarnation,
    pub(super) check: StartCheck,
}

/// Waits until there is something to work with, however long that takes. What it waits for is told; a worker that
/// belongs to a fleet joins meanwhile, so that the plane can tell a machine that loads from one that never came up.
pub(super) async fn ready(options: Options, events: Events, shows: Shows) -> anyhow::Result<Ready> {
    let was_here = Drawer::new(&options.data, &options.worker).open().is_some();
    let patience = if was_here { FORMER_WORK_MAX } else { Duration::ZERO };
    let joins_at = options.fleet.is_some().then(|| Instant::now() + patience);
    let says = Says::new(events.clone(), joins_at);
    let gpu = loop {
        match options.check.run(&options.data, &says).await {
            Ok(gpu) => break gpu,
            Err(problem) => {
                says.failed(&problem).await;
                // Somebody may mend it: space is freed, a driver is loaded.
                tokio::time::sleep(options.patience.look_every).await;
            }
        }
    };
    let check = StartCheck { passed: true, problem: String::new(), gpu };
    Ok(match &options.does {
        Does::Exec(exec) => {
            let hands = Hands::Commands(Commands::new(exec.clone(), events));
            Ready { hands, offer: None, found: Vec::new(), life: ServiceIncarnation(1), check }
        }
        Does::Models(models) => {
            let models = Models::new(models, &options, events, shows.reports);
            let (offer, hands) = (Some(models.offer()), Hands::Models(models));
            Ready { hands, offer, found: Vec::new(), life: ServiceIncarnation(1), check }
        }
        Does::Comfyui(comfyui) => {
            let ready = Comfyui::begin(comfyui.clone(), &options, events, shows, &says).await?;
            let (hands, offer) = (Hands::Comfyui(ready.comfyui), Some(ready.offer));
            Ready { hands, offer, found: ready.found, life: ready.life, check }
        }
    })
}
