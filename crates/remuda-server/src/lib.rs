//! The plane as a server: the event loop around `core::Plane`, the effects it runs, the HTTP surfaces, access control,
//! webhooks and the calls to providers. It translates and acts; every decision is made in `remuda-core`.
//!
//! ```text
//!  plane_handle ◀── effects ◀── event_loop          shutdown, tasks, live, previews, workflow_cache, …: leaves
//!       ▲
//!       └── intake, fleets, webhooks ◀── http ◀── serve
//! ```

pub mod audit;
pub mod data_folder;
pub mod effects;
pub mod event_loop;
pub mod fleets;
pub mod follower;
pub mod http;
pub mod intake;
pub mod job_secrets;
pub mod join_key;
pub mod live;
mod live_budgets;
pub mod plane_handle;
pub mod previews;
pub mod serve;
pub mod shutdown;
pub mod tasks;
pub mod tls;
pub mod webhooks;
pub mod workflow_cache;
