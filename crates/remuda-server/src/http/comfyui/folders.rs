//! `/internal/files/{type}` and `/internal/folder_paths`: the folders of a server, as the web interface lists them. Files are
//! those of the tenant: what it uploaded, and outputs of its newest prompts.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde_json::{Map, Value, json};

use super::super::path::Path;
use super::super::{Caller, Context};
use super::error::ComfyuiError;
use super::history::list_ended;
use super::history_entry::EndedPrompt;
use super::server_info::MODEL_FOLDERS;
use super::uploads;

/// Prompts whose outputs are listed. The panel shows the newest; the history has all.
const PROMPTS_MAX: usize = 200;

/// Names of files at the top of a folder, newest first.
pub(super) async fn files(
    State(context): State<Context>,
    caller: Caller,
    Path(kind): Path<String>,
) -> Result<Response, ComfyuiError> {
    let tenant = caller.tenant(None)?;
    if !uploads::KINDS.contains(&kind.as_str()) {
        let body = json!({ "error": "Invalid directory type" });
        return Ok((StatusCode::BAD_REQUEST, Json(body)).into_response());
    }
    let mut names = uploads::top_names(&context, &tenant, &kind).await?;
    if kind != "input" {
        for prompt in list_ended(&context, &tenant).await?.iter().take(PROMPTS_MAX) {
            let ended = EndedPrompt::read(&context, prompt).await?;
            let lists = ended.outputs.values().flat_map(Map::values).filter_map(Value::as_array).flatten();
            let files = lists.filter(|file| file["type"] == *kind && file["subfolder"] == "");
            names.extend(files.filter_map(|file| file["filename"].as_str()).map(str::to_owned));
        }
    }
    Ok(Json(names).into_response())
}

/// Folders of model files. The servers of a fleet have different ones: these are the names that all of them use.
pub(super) async fn folder_paths() -> Json<Value> {
    let folders = MODEL_FOLDERS.iter();
    Json(folders.map(|(folder, _)| ((*folder).to_owned(), json!([format!("models/{folder}")]))).collect())
}
