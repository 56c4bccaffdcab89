//! Reloads the settings while the plane runs. Settings of the core apply at once; those of the shell (addresses, folders,
//! limits) need a restart, and the answer says so.

use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use remuda_core::plane::PlaneEvent;
use serde_json::{Value, json};
use tracing::{info, warn};

use super::{ApiError, Context};
use crate::fleets::Fleets;
use remuda_config::{ResolvedConfig, ServeSettings};

/// Reads the settings again, from the same file, environment and flags as at the start.
#[derive(Clone)]
pub struct Reload {
    read: Arc<dyn Fn() -> anyhow::Result<ResolvedConfig> + Send + Sync>,
    at_start: Arc<ResolvedConfig>,
    /// As last read.
    newest: Arc<RwLock<Arc<ResolvedConfig>>>,
    fleets: Fleets,
}

impl fmt::Debug for Reload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Reload")
    }
}

impl Reload {
    pub fn new(
        at_start: &ResolvedConfig,
        read: impl Fn() -> anyhow::Result<ResolvedConfig> + Send + Sync + 'static,
        fleets: Fleets,
    ) -> Self {
        let at_start = Arc::new(at_start.clone());
        Reload { read: Arc::new(read), newest: Arc::new(RwLock::new(at_start.clone())), at_start, fleets }
    }

    /// The deadline of a call to a model.
    pub fn request_timeout(&self) -> Duration {
        self.at_start.models.request_timeout
    }

    /// The settings at the start.
    pub fn settings(&self) -> ServeSettings {
        self.at_start.serve.clone()
    }
}

pub(super) async fn reload(State(context): State<Context>) -> Result<Json<Value>, ApiError> {
    let reload = context.reload.clone();
    let read = tokio::task::spawn_blocking(move || (reload.read)()).await;
    let resolved = match read {
        Ok(Ok(resolved)) => resolved,
        Ok(Err(error)) => {
            warn!(%error, "settings reload failed; the old settings stay");
            return Err(ApiError::invalid(format!("nothing was changed: {error:#}")));
        }
        Err(error) => return Err(ApiError::invalid(format!("nothing was changed: {error}"))),
    };
    if let Some(tls) = context.access.tls.clone() {
        let read = tokio::task::spawn_blocking(move || tls.reload()).await;
        if let Err(error) = read.map_err(anyhow::Error::from).flatten() {
            warn!(%error, "certificate reload failed; the old one stays");
            return Err(ApiError::invalid(format!("nothing was changed: {error:#}")));
        }
    }
    let prepared = match context.reload.fleets.prepare(&resolved.fleets).await {
        Ok(prepared) => prepared,
        Err(error) => {
            warn!(%error, "fleet settings invalid; the old ones stay");
            return Err(ApiError::invalid(format!("nothing was changed: {error:#}")));
        }
    };
    // Before the core gets the settings, so that its first call finds the clients.
    context.reload.fleets.activate(prepared);
    let at_start = &context.reload.at_start;
    let needs_restart = resolved.serve != at_start.serve || resolved.models != at_start.models;
    let newest = Arc::new(resolved.clone());
    context.alerts.configure(resolved.alerts).await;
    context.plane.request(PlaneEvent::ReloadSettings(Box::new(resolved.settings))).await?;
    *context.reload.newest.write().unwrap_or_else(PoisonError::into_inner) = newest;
    info!(needs_restart, "settings reloaded");
    Ok(Json(json!({ "loaded": true, "needs_restart": needs_restart })))
}

/// Every setting with its value and origin, in the form of `remuda config show --json`.
pub(super) async fn settings(State(context): State<Context>) -> Result<Json<Value>, ApiError> {
    let newest = context.reload.newest.read().unwrap_or_else(PoisonError::into_inner).clone();
    let settings: Value = serde_json::from_str(&remuda_config::show(&newest, true))
        .map_err(|error| ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", error.to_string()))?;
    let needs_restart =
        newest.serve != context.reload.at_start.serve || newest.models != context.reload.at_start.models;
    Ok(Json(json!({ "settings": settings, "needs_restart": needs_restart })))
}
