//! Where Remuda meets the world: `store` keeps what the core decided, `blobs` what jobs take and give, `comfyui` talks to
//! ComfyUI servers, `provider` to those who rent out machines, `ssh` to the machines, `fake` stands in for what a test
//! machine cannot have.

pub mod blobs;
pub mod comfyui;
pub mod fake;
pub mod provider;
#[cfg(feature = "ssh")]
pub mod ssh;
pub mod store;
