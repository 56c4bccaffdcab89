//! Third-party clients, unmodified, in the versions that the lists here pin, against a plane
//! with two ComfyUI servers, one of which is killed with the job on it.
//!
//! `tests/prepare` installs them; without them these tests are skipped.

mod browser;
mod fleet;
mod fuzzed;
mod sdks;
mod stock;
mod suites;
pub(crate) mod tools;
