//! The program as its users have it: real processes, real HTTP on loopback, a real store file, `kill -9` in the middle.
//!
//! `harness` knows how to start, ask and hurt them; every other module is a handful of stories. A test waits for a
//! condition and never for time to pass: the only sleeps stand in `harness`, and `tidy` sees to that.
#![expect(clippy::unwrap_used, reason = "what a test does not expect may end it")]

mod access;
mod answers;
mod blobs;
mod capacity;
mod cli;
mod clients;
mod comfy_v2;
mod comfyui;
mod comfyui_api;
mod disk;
mod drill;
mod events;
mod fake_runpod;
mod fleet;
mod harness;
mod input;
#[cfg(feature = "models")]
mod models;
mod network;
mod pool;
mod pool_servers;
mod presence;
mod previews;
mod quotas;
mod recovery;
mod restarts;
mod run;
#[cfg(feature = "ssh")]
mod ssh;
mod start;
mod store;
mod storm;
mod webhooks;
mod workers;
