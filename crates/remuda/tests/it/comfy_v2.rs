//! Comfy API v2 as its clients use it: real planes and workers, fake ComfyUI servers. Every answer is checked against the
//! contract, by operation and status.

mod api;
mod assets;
mod errors;
mod events;
mod jobs;
mod schema;
mod tenants;
