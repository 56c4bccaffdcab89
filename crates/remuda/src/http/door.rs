//! The ComfyUI front door: to stock clients and to the stock web interface, Remuda is one ComfyUI that happens to be a fleet.
//!
//! ```text
//!  POST /prompt ──▶ submit ──▶ intake ──▶ plane            every job of the tenant that ComfyUI runs is a prompt here
//!  GET  /queue, /history, /api/jobs ◀── prompt, entry ◀── store: histories survive restarts
//!  GET  /ws ◀── hub ◀── crier ◀── news: what happened, what workers told, previews
//!  GET  /view, POST /upload/* ◀──▶ blobs, found by name
//! ```
//!
//! | of ComfyUI | here |
//! |---|---|
//! | `prompt_id` | the client's own, kept as the job's key; else the job's id |
//! | output `subfolder` | `<job>/<node>`: two servers may both have written `ComfyUI_00001_.png` |
//! | `number`, `front` | below zero and in front are a higher priority; among equals the oldest goes first |
//! | input files | documents of the tenant, by name; a graph that names one gets its content by hash |
//! | `/history` delete, clear | hidden from this door; the jobs stay as long as every other |
//!
//! Every route stands also under `/api`. Who asks sees the jobs of one tenant and of nobody else.

mod classes;
mod crier;
mod entry;
mod history;
mod hub;
mod prompt;
mod queue;
mod refused;
mod rest;
mod run;
mod socket;
mod submit;
mod view;

use std::sync::Arc;

use axum::Router;
use axum::routing::{get, post};

pub use self::crier::cry;

use self::hub::Hub;
use super::Context;

/// What the door keeps in memory; clones share it.
#[derive(Clone, Debug, Default)]
pub struct Door {
    hub: Arc<Hub>,
    classes: Arc<classes::Classes>,
}

pub(super) fn routes() -> Router<Context> {
    Router::new().merge(plain()).nest("/api", plain())
}

fn plain() -> Router<Context> {
    Router::new()
        .route("/prompt", post(submit::submit).get(queue::remaining))
        .route("/queue", get(queue::list).post(queue::change))
        .route("/interrupt", post(queue::interrupt))
        .route("/history", get(history::list).post(history::hide))
        .route("/history/{id}", get(history::one))
        .route("/view", get(view::view))
        .route("/ws", get(socket::open))
        .route("/object_info", get(classes::all))
        .route("/object_info/{class}", get(classes::one))
}
