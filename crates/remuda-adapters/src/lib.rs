//! Where Remuda meets the world: `store` keeps what the core decided, `blobs` what jobs take and give, `comfyui` talks to
//! ComfyUI servers, `provider` to where machines come from, `fake` stands in for what a test machine cannot have.

pub mod blobs;
pub mod comfyui;
pub mod fake;
pub mod provider;
pub mod store;
