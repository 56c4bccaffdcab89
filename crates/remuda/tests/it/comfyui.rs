//! Workers on ComfyUI servers: real planes and workers, a stand-in for ComfyUI that fails on demand, and, where
//! `REMUDA_COMFYUI_URL` names one, a real server for everything that needs no such faults.

mod cached;
mod crashes;
mod errors;
mod failover;
pub(crate) mod fixture;
pub(crate) mod graph;
mod inputs;
pub(crate) mod live;
mod lost_completions;
mod lost_prompts;
mod outputs;
mod owned;
mod shared;
mod sick;
mod sockets;
mod thousand;
