//! Every decision Remuda makes, as pure computation: `step(now, event) -> Step`.
//!
//! Nothing in here waits, reads a clock, draws a random number or does IO; see `plane` for the control plane and
//! `agent` for what decides inside a worker.

pub mod affinity;
pub mod agent;
pub mod alarm;
pub mod block;
pub mod brake;
pub mod cause;
pub mod cost;
pub mod cycle;
pub mod document;
pub mod event_kind;
pub mod fleet;
pub mod id;
pub mod job;
#[cfg(test)]
mod lifecycles;
pub mod machine;
pub mod money;
pub mod need;
pub mod options;
pub mod orphan;
pub mod plane;
pub mod probation;
pub mod provider;
pub mod quarantine;
pub mod queue;
pub mod rate;
pub mod record;
pub mod refusal;
pub mod reliability;
pub mod rental;
pub mod retry;
pub mod scale;
pub mod scope;
pub mod service;
pub mod settings;
pub mod strategy;
pub mod supervise;
pub mod tenant_rules;
pub mod time;
pub mod verdict;
pub mod webhook;
pub mod wire;
pub mod worker;
pub mod workflow;
