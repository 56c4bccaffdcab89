//! Brings the files that a workflow names to the server that will run it.

use std::collections::BTreeMap;
use std::sync::PoisonError;

use remuda_comfyui::{Asset, assets};
use remuda_core::service::{ServiceFailure, ServiceFault};
use remuda_store::blobs::BlobHash;
use serde_json::value::RawValue;

use super::Shared;
use crate::blobs::LinkError;

impl Shared {
    /// Under which name each file lies there.
    pub(super) async fn place(
        &self,
        workflow: &RawValue,
    ) -> Result<BTreeMap<String, String>, ServiceFailure> {
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

    async fn place_one(&self, asset: &Asset) -> Result<String, ServiceFailure> {
        let hash: BlobHash = asset.hash.parse().map_err(|error| {
            ServiceFailure::new(ServiceFault::Graph, format!("input {}: {error}", asset.hash))
        })?;
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
    ) -> Result<String, ServiceFailure> {
        let size = self.blobs.fetch(&hash, path).await.map_err(|error| match error {
            LinkError::Missing { .. } => ServiceFailure::new(
                ServiceFault::Graph,
                format!("the plane does not have input {hash}: store it again"),
            ),
            error @ (LinkError::Refused { .. }
            | LinkError::Unreachable { .. }
            | LinkError::Wrong { .. }
            | LinkError::Local { .. }
            | LinkError::TooLarge { .. }) => {
                ServiceFailure::new(ServiceFault::Lost, format!("input {hash} could not be fetched: {error}"))
            }
        })?;
        let lost = |what: &dyn std::fmt::Display| {
            ServiceFailure::new(
                ServiceFault::Lost,
                format!("input {hash} could not be placed on ComfyUI: {what}"),
            )
        };
        let file = std::fs::File::open(path).map_err(|error| lost(&error))?;
        let body = reqwest::Body::wrap_stream(remuda_store::blobs::pieces(file, 0, size));
        self.client.upload(&asset.name(), body, size).await.map_err(|error| lost(&error))
    }
}
