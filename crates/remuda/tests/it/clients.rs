//! Clients of others, as their users have them: unmodified, of the versions that the lists here name, against a plane
//! with two ComfyUI servers, one of which is killed with the job on it.
//!
//! `tools` fetches them; without a registry within reach these tests fail and say so.

mod browser;
mod fleet;
mod fuzzed;
mod sdks;
mod stock;
pub(crate) mod tools;
