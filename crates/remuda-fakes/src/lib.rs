//! Fakes of external services, faithful to the observed behaviour of the real ones, with faults on demand.

pub mod comfyui;
mod connection;
mod dice;
pub mod runpod;
mod url;
