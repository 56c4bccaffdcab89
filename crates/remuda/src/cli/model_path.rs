//! Where a model lies: a path, or the bare name of a model that `remuda models get` fetched.

use std::path::{Component, Path, PathBuf};

use remuda_config::ResolvedConfig;
use remuda_models::ModelSpec;

use super::UsageError;

/// The folder that models are fetched into.
pub(super) fn models_folder(resolved: &ResolvedConfig) -> PathBuf {
    resolved.serve.data.join("models")
}

/// The models of the file and of the command line, each with the path that it is loaded from.
pub(super) fn model_specs(resolved: &ResolvedConfig, flags: &[String]) -> Result<Vec<ModelSpec>, UsageError> {
    let mut specs = resolved.models.with_flags(flags).map_err(|error| UsageError(error.to_string()))?;
    let folder = models_folder(resolved);
    for spec in &mut specs {
        spec.path = find_model(&spec.path, &folder)?;
    }
    Ok(specs)
}

/// A path that exists is meant as it is. Otherwise a bare name is looked for among the fetched models.
pub(super) fn find_model(typed: &Path, folder: &Path) -> Result<PathBuf, UsageError> {
    let mut parts = typed.components();
    let is_bare = matches!((parts.next(), parts.next()), (Some(Component::Normal(_)), None));
    if !is_bare || typed.exists() {
        return Ok(typed.to_owned());
    }
    let fetched = folder.join(typed);
    if fetched.exists() {
        return Ok(fetched);
    }
    if typed.to_str().is_some_and(is_known) {
        let (name, folder) = (typed.display(), folder.display());
        let message = format!("model {name} is not in {folder}: fetch it with `remuda models get {name}`");
        return Err(UsageError(message));
    }
    Ok(typed.to_owned())
}

#[cfg(feature = "models")]
fn is_known(name: &str) -> bool {
    remuda_models::fetch::KNOWN_PACKAGES.iter().any(|package| package.name == name)
}

/// Without models there is nothing to fetch.
#[cfg(not(feature = "models"))]
fn is_known(_: &str) -> bool {
    false
}
