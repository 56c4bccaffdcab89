//! Answers about the server itself: system statistics, features, model folders, users. The fleet answers as one server;
//! paths without meaning here answer empty.

use std::collections::BTreeSet;

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use serde_json::{Map, Value, json};

use super::super::path::Path;
use super::super::{ApiError, Caller, Context};
use super::error::ComfyuiError;
use super::prompt::SERVICE;
use super::proxy;

/// Feature flags as the web interface reads them.
const VERSION: &str = "0.30.0";

pub(super) fn features(context: &Context) -> Value {
    json!({
        "supports_preview_metadata": true, "max_upload_size": context.blobs.bytes_max(), "node_replacements": false,
        "assets": false,
    })
}

pub(super) async fn all_features(State(context): State<Context>) -> Json<Value> {
    Json(features(&context))
}

/// The fleet is shown as one machine; every worker contributes its device.
pub(super) async fn system_stats(State(context): State<Context>, _: Caller) -> Result<Json<Value>, ApiError> {
    let workers = context
        .plane
        .read(|plane, _| {
            let theirs = plane.workers().filter(|it| it.services.iter().any(|name| name.as_str() == SERVICE));
            theirs.map(|worker| (worker.id.to_string(), worker.metrics.clone())).collect::<Vec<_>>()
        })
        .await?;
    let sum = |key: &str| sum(workers.iter().map(|(_, metrics)| metrics), key);
    let version = workers.iter().find_map(|(_, metrics)| metrics.get("comfyui_version")?.as_str());
    let devices: Vec<Value> = workers
        .iter()
        .enumerate()
        .map(|(index, (worker, metrics))| {
            let device = metrics.get("device").and_then(Value::as_str).unwrap_or("unknown");
            json!({
                "name": format!("{worker}: {device}"), "type": device.split(':').next(), "index": index,
                "vram_total": number(metrics, "vram_total_bytes"), "vram_free": number(metrics, "vram_free_bytes"),
                "torch_vram_total": 0, "torch_vram_free": 0,
            })
        })
        .collect();
    let system = json!({
        "os": std::env::consts::OS, "ram_total": sum("ram_total_bytes"), "ram_free": sum("ram_free_bytes"),
        "comfyui_version": version.unwrap_or(VERSION), "required_frontend_version": null,
        "installed_templates_version": null, "required_templates_version": null,
        "python_version": format!("none (Remuda {})", env!("CARGO_PKG_VERSION")), "pytorch_version": "none",
        "embedded_python": false, "argv": ["remuda"], "remuda_version": env!("CARGO_PKG_VERSION"),
    });
    Ok(Json(json!({ "system": system, "devices": devices })))
}

fn number(metrics: &Map<String, Value>, key: &str) -> u64 {
    metrics.get(key).and_then(Value::as_u64).unwrap_or(0)
}

/// Workers may report any number, even beyond the range.
fn sum<'m>(metrics: impl Iterator<Item = &'m Map<String, Value>>, key: &str) -> u64 {
    metrics.fold(0, |sum, metrics| sum.saturating_add(number(metrics, key)))
}

pub(super) async fn users() -> Json<Value> {
    Json(json!({ "storage": "server", "migrated": true }))
}

/// The answer of a reachable server, or an empty object.
pub(super) async fn empty_object(State(context): State<Context>, headers: HeaderMap, uri: Uri) -> Response {
    proxy::forward(&context, &headers, &uri).await.unwrap_or_else(|| Json(json!({})).into_response())
}

/// The answer of a reachable server, or an empty list.
pub(super) async fn empty_list(State(context): State<Context>, headers: HeaderMap, uri: Uri) -> Response {
    proxy::forward(&context, &headers, &uri).await.unwrap_or_else(|| Json(json!([])).into_response())
}

/// Accepted without effect: servers free memory themselves, and agents do it when a service is sick.
pub(super) async fn accept() -> StatusCode {
    StatusCode::OK
}

/// Model folders, derived from the inputs that choose files of that kind.
pub(super) const MODEL_FOLDERS: [(&str, &str); 12] = [
    ("checkpoints", "ckpt_name"),
    ("loras", "lora_name"),
    ("vae", "vae_name"),
    ("text_encoders", "clip_name"),
    ("diffusion_models", "unet_name"),
    ("clip_vision", "clip_vision_name"),
    ("style_models", "style_model_name"),
    ("embeddings", "embedding_name"),
    ("controlnet", "control_net_name"),
    ("gligen", "gligen_name"),
    ("upscale_models", "upscale_model_name"),
    ("hypernetworks", "hypernetwork_name"),
];

pub(super) async fn model_folders() -> Json<Value> {
    Json(MODEL_FOLDERS.iter().map(|(folder, _)| *folder).collect())
}

/// Every file that any server offers for this folder.
pub(super) async fn models(
    State(context): State<Context>,
    _: Caller,
    Path(folder): Path<String>,
) -> Result<Response, ComfyuiError> {
    let Some((_, input)) = MODEL_FOLDERS.iter().find(|(known, _)| *known == folder) else {
        return Ok(StatusCode::NOT_FOUND.into_response());
    };
    let merged = context.comfyui.node_classes.merged(&context).await;
    let mut files = BTreeSet::new();
    for info in merged.classes.values() {
        let sections = info["input"].as_object().into_iter().flat_map(|sections| sections.values());
        for spec in sections.filter_map(|inputs| inputs.get(*input)) {
            let choices = [&spec[0], &spec[1]["options"]].into_iter().filter_map(Value::as_array);
            files.extend(choices.flatten().filter_map(Value::as_str).map(str::to_owned));
        }
    }
    Ok(Json(files).into_response())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_metrics_are_summed_without_overflow() {
        let said = [json!(5), json!(u64::MAX), json!(-1), json!("much"), json!(7)];
        let said = said.map(|it| Map::from_iter([("ram".to_owned(), it)]));
        assert_eq!(sum(said.iter(), "ram"), u64::MAX);
        assert_eq!((sum(said[2..].iter(), "ram"), sum(said.iter(), "other")), (7, 0));
    }
}
