//! Everything between the start of the process and its first free slot: the start check, the service, and the attempts
//! that an earlier agent of this name left with the service.

use std::time::Duration;

use remuda_core::agent::FoundAttempt;
use remuda_core::need::Capabilities;
use remuda_core::service::ServiceIncarnation;
use remuda_core::wire::StartCheck;
use tokio::time::Instant;

use crate::attempt::Events;
use crate::comfyui::{ComfyuiService, ReadyComfyui};
use crate::exec::ExecService;
use crate::live_sinks::LiveSinks;
use crate::models::ModelService;
use crate::options::{ServiceSpec, WorkerOptions};
use crate::service::ServiceRunner;
use crate::start_check::StartupReporter;
use crate::worker_credential::CredentialFile;

/// How long a restarted worker of a fleet waits for its service, and for the attempts it left there, before it joins
/// without them. If it joined at once, the plane would start those attempts elsewhere.
const RECOVERY_TIMEOUT: Duration = Duration::from_secs(30);

/// A service that is ready for work, and what the agent has to know about it.
#[derive(Debug)]
pub(crate) struct ReadyWorker {
    pub(crate) service: ServiceRunner,
    /// The capabilities of the service, where it reports them.
    pub(crate) offer: Option<Capabilities>,
    pub(crate) found: Vec<FoundAttempt>,
    pub(crate) life: ServiceIncarnation,
    pub(crate) check: StartCheck,
}

/// Waits until the service is ready, without a time limit, and reports what it waits for. A worker of a fleet joins in
/// the meantime, so that the plane can tell a machine that is loading from one that never came up.
pub(crate) async fn start_service(
    options: WorkerOptions,
    events: Events,
    live: LiveSinks,
) -> anyhow::Result<ReadyWorker> {
    let has_run_before = CredentialFile::new(&options.data, &options.worker).read().is_some();
    let delay = if has_run_before { RECOVERY_TIMEOUT } else { Duration::ZERO };
    let joins_at = options.fleet.is_some().then(|| Instant::now() + delay);
    let reporter = StartupReporter::new(events.clone(), joins_at);
    let gpu = loop {
        match options.start_checks.run(&options.data, &options.job_environment, &reporter).await {
            Ok(gpu) => break gpu,
            Err(problem) => {
                reporter.report_failure(&problem).await;
                // An operator may free disk space or load a driver.
                tokio::time::sleep(options.timeouts.given_up_recheck).await;
            }
        }
    };
    let check = StartCheck { passed: true, problem: String::new(), gpu };
    Ok(match &options.service {
        ServiceSpec::Exec(exec) => {
            let service =
                ServiceRunner::Exec(ExecService::new(exec.clone(), options.job_environment.clone(), events));
            ReadyWorker { service, offer: None, found: Vec::new(), life: ServiceIncarnation(1), check }
        }
        ServiceSpec::Models(models) => {
            let models = ModelService::new(models, &options, events, live.reports);
            let (offer, service) = (Some(models.offer()), ServiceRunner::Models(models));
            ReadyWorker { service, offer, found: Vec::new(), life: ServiceIncarnation(1), check }
        }
        ServiceSpec::Comfyui(comfyui) => {
            let ready = ComfyuiService::start(comfyui.clone(), &options, events, live, &reporter).await?;
            let ReadyComfyui { comfyui, offer, found, life } = ready;
            let (service, offer) = (ServiceRunner::Comfyui(comfyui), Some(offer));
            ReadyWorker { service, offer, found, life, check }
        }
    })
}
