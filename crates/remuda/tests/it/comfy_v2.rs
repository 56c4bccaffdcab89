//! Comfy API v2 as its clients use it: real planes, workers and stand-ins for ComfyUI. Every answer is held to the
//! contract, by the operation and the status it came with.

mod api;
mod assets;
mod errors;
mod events;
mod jobs;
mod schema;
mod tenants;
