//! `remuda worker`: the shell around `core::Agent`, and the services it runs attempts on (a command, a ComfyUI server,
//! models of this process).
//!
//! The shell carries messages between the plane, the agent and the service. When to beat, which attempts to accept and
//! when to give one up is decided by the agent in `remuda-core`.

mod attempt;
mod blob_link;
mod comfyui;
mod exec;
mod gpu;
mod live_reports;
mod live_sinks;
mod metrics;
mod models;
mod options;
mod plane_link;
mod previews;
mod process_group;
mod service;
mod shell;
mod start_check;
mod startup;
mod worker_credential;
mod worker_name;

pub use self::blob_link::{BlobLink, BlobLinkError};
pub use self::models::{inspect as inspect_models, serve_copy as serve_model_copy, start as start_models};
pub use self::options::{
    COMFYUI_REQUEST_TIMEOUT, ComfyuiOptions, ExecCommand, ModelsOptions, ServiceSpec, WorkerOptions,
};
pub use self::shell::{WorkerDismissed, run};
pub use self::start_check::StartChecks;
pub use self::worker_name::{hostname, worker_name_for};
