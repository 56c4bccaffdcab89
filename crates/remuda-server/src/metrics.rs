//! What `/metrics` shows, in the text format of Prometheus.
//!
//! | part | holds |
//! |---|---|
//! | `table` | every metric: name, type, labels, meaning; `docs/metrics.md` is written from it |
//! | `page` | the text format |
//! | `plane_families` | what the plane counts; written inside the event loop, without a walk over jobs |
//! | `loop_stats` | the event loop: commits, lag, the longest step |
//! | `http_counts` | requests by route and status |
//! | `webhook_stats`, `alert_stats` | messages to others: pending, tries |
//! | `process` | memory, files and CPU of this process |
//!
//! Counters start at zero with the process, and those of the plane also when it was reloaded from the store after a failed
//! commit; `rate()` allows for both. No label has a value that a client, a tenant or a worker chooses.
//!
//! Written by hand, after a look at the crates `metrics` and `metrics-exporter-prometheus`: those keep a global registry of
//! atomics, while nearly everything here is counted by the core, which has no globals and no clock. Each gauge would have
//! to be copied into the registry at every scrape, labels would be free strings instead of columns of one table, and a
//! dozen crates would be added for what `page` does in a hundred lines.

mod alert_stats;
mod http_counts;
mod loop_stats;
mod page;
mod plane_families;
mod process;
pub(crate) mod table;
mod webhook_stats;

#[cfg(test)]
mod document;

pub use self::alert_stats::AlertStats;
pub use self::http_counts::HttpCounts;
pub use self::loop_stats::LoopStats;
pub(crate) use self::page::Page;
pub(crate) use self::plane_families::write_plane;
pub(crate) use self::process::write_process;
pub use self::webhook_stats::WebhookStats;
