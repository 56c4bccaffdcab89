//! Stand-ins for services, faithful to what was observed of the real ones, with faults on demand.

mod address;
pub mod comfyui;
mod connection;
mod dice;
pub mod runpod;
