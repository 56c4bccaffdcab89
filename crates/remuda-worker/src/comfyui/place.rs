//! Brings the files that a workflow names to the server that will run it.

use std::collections::BTreeMap;
use std::sync::PoisonError;

use remuda_comfyui::{Asset, assets};
use remuda_core::service::{Failure, Fault};
use remuda_store::blobs::BlobHash;
use serde_json::value::RawValue;

use super::Shared;
use crate::blobs::LinkError;

impl Shared {
    /// Under which name each file lies there.
    pub(super) async fn place(&self, workflow: &RawValue) -> Result<BTreeMap<String, String>, Failure> {
        let mut names = BTreeMap::new();
        for asset in assets(workflow)? {
            let known = self.placed.lock().unwrap_or_else(PoisonError::into_inner).get(&asset.hash).cloned();
            let name = match known {
                Some(name) => name,
                None => self.place_one(&asset).await?,
            };
            names.insert(asset.hash, name);
        }
        Ok(names)
    }

    async fn place_one(&self, asset: &Asset) -> Result<String, Failure> {
        let hash: BlobHash = asset
            .hash
            .parse()
            .map_err(|error| Failure::new(Fault::Graph, format!("input {}: {error}", asset.hash)))?;
        let path = self.scratch.join(format!("{}-{}", hash.hex(), uuid::Uuid::new_v4()));
        let placed = self.place_from(asset, hash, &path).await;
        // Nothing to remove if nothing was fetched.
        tokio::fs::remove_file(&path).await.ok();
        let name = placed?;
        let mut known = self.placed.lock().unwrap_or_else(PoisonError::into_inner);
        known.insert(asset.hash.clone(), name.clone());
        Ok(name)
    }

    async fn place_from(
        &self,
        asset: &Asset,
        hash: BlobHash,
        path: &std::path::Path,
    ) -> Result<String, Failure> {
        let size = self.blobs.fetch(&hash, path).await.map_err(|error| match error {
            LinkError::Missing { .. } => {
                Failure::new(Fault::Graph, format!("the plane does not have input {hash}: store it again"))
            }
            error @ (LinkError::Refused { .. }
            | LinkError::Unreachable { .. }
            | LinkError::Wrong { .. }
            | LinkError::Local { .. }
            | LinkError::TooLarge { .. }) => {
                Failure::new(Fault::Lost, format!("input {hash} could not be fetched: {error}"))
            }
        })?;
        let lost = |what: &dyn std::fmt::Display| {
            Failure::new(Fault::Lost, format!("input {hash} could not be placed on ComfyUI: {what}"))
        };
        let file = std::fs::File::open(path).map_err(|error| lost(&error))?;
        let body = reqwest::Body::wrap_stream(remuda_store::blobs::pieces(file, 0, size));
        self.client.upload(&asset.name(), body, size).await.map_err(|error| lost(&error))
    }
}
