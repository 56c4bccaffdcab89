//! `GET /view`: an output or upload by its name. It is shown inline, as in ComfyUI, but never with a type that a browser would
//! run. Images are not decoded: `preview` and `channel` return the original.

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, Uri};
use axum::response::Response;
use remuda_core::id::{JobId, Tenant};
use remuda_store::StoreError;

use super::super::{ApiError, Caller, Context, blobs, lost};
use super::error::ComfyuiError;
use super::history_entry::stored_outputs;
use super::prompt::Prompt;
use super::queue::query;
use super::uploads;

pub(super) async fn view(
    State(context): State<Context>,
    caller: Caller,
    uri: Uri,
    headers: HeaderMap,
) -> Result<Response, ComfyuiError> {
    let tenant = caller.tenant(None)?;
    let query = query(&uri);
    let part = |key: &str| query.get(key).map_or("", String::as_str);
    let (name, folder) = (part("filename"), part("subfolder"));
    let kind = Some(part("type")).filter(|kind| !kind.is_empty()).unwrap_or("output");
    if name.is_empty() || name.starts_with('/') || name.contains("..") {
        return Err(ApiError::bad_request("filename must be a plain file name").into());
    }
    if !["output", "temp", "input"].contains(&kind) {
        return Err(ApiError::bad_request("type must be output, temp or input").into());
    }
    let hash = match uploads::find(&context, &tenant, kind, folder, name).await? {
        Some(upload) => Some(upload.hash),
        None => find_output(&context, &tenant, folder, name, kind).await?,
    };
    let Some(hash) = hash else {
        // The folder of a file without a name of its own begins with its job.
        let job = folder.trim_matches('/').split('/').next().and_then(|job| job.parse().ok());
        if let Some(lost) = job.and_then(|job| lost::job(&context, job)) {
            return Err(lost.into());
        }
        let message = format!("there is no {kind} file {name:?} in {folder:?}");
        return Err(ApiError::new(StatusCode::NOT_FOUND, "not_found", message).into());
    };
    Ok(blobs::show(&context, &hash, name, &headers).await?)
}

/// An output by its name; without one, the folder consists of job and node.
pub(super) async fn find_output(
    context: &Context,
    tenant: &Tenant,
    folder: &str,
    name: &str,
    kind: &str,
) -> Result<Option<String>, StoreError> {
    let folder = folder.trim_matches('/');
    let named = context.comfyui.output_names.find(context, tenant, kind, folder, name).await?;
    let (job, node, name) = match &named {
        Some((job, file)) => (*job, file.node.as_str(), file.name.as_str()),
        None => {
            let Some((job, node)) = folder.split_once('/') else { return Ok(None) };
            let Ok(job) = job.parse::<JobId>() else { return Ok(None) };
            (job, node, name)
        }
    };
    match Prompt::read(context, job).await? {
        Some((owner, _)) if owner == *tenant => {}
        _ => return Ok(None),
    }
    let outputs = stored_outputs(context, job).await?;
    let found = outputs.into_iter().find(|it| it.node == node && it.name == name && it.kind == kind);
    Ok(found.map(|output| output.hash))
}
