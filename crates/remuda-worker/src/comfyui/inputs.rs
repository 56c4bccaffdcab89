//! Uploads the files that a workflow references to the server that will run it.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::PoisonError;

use remuda_comfyui::AssetRef;
use remuda_core::service::{ServiceFailure, ServiceFault};
use remuda_store::blobs::BlobHash;

use super::ComfyuiContext;
use crate::blob_link::BlobLinkError;

impl ComfyuiContext {
    /// Uploads every file that the server does not have yet; returns the name of each there.
    pub(super) async fn upload_inputs(
        &self,
        assets: &[AssetRef],
    ) -> Result<BTreeMap<String, String>, ServiceFailure> {
        let mut names = BTreeMap::new();
        for asset in assets {
            let known =
                self.uploaded.lock().unwrap_or_else(PoisonError::into_inner).get(&asset.hash).cloned();
            let name = match known {
                Some(name) => name,
                None => self.upload(asset).await?,
            };
            names.insert(asset.hash.clone(), name);
        }
        Ok(names)
    }

    async fn upload(&self, asset: &AssetRef) -> Result<String, ServiceFailure> {
        let hash: BlobHash = asset.hash.parse().map_err(|error| {
            ServiceFailure::new(ServiceFault::Graph, format!("input {}: {error}", asset.hash))
        })?;
        let path = self.scratch.join(format!("{}-{}", hash.hex(), uuid::Uuid::new_v4()));
        let uploaded = self.upload_through(asset, hash, &path).await;
        // The file does not exist if the fetch failed.
        tokio::fs::remove_file(&path).await.ok();
        let name = uploaded?;
        let mut known = self.uploaded.lock().unwrap_or_else(PoisonError::into_inner);
        known.insert(asset.hash.clone(), name.clone());
        Ok(name)
    }

    async fn upload_through(
        &self,
        asset: &AssetRef,
        hash: BlobHash,
        path: &Path,
    ) -> Result<String, ServiceFailure> {
        let size = self.blobs.fetch(&hash, path).await.map_err(|error| match error {
            BlobLinkError::Missing { .. } => ServiceFailure::new(
                ServiceFault::Graph,
                format!("the plane does not have input {hash}: store it again"),
            ),
            error @ (BlobLinkError::Refused { .. }
            | BlobLinkError::Unreachable { .. }
            | BlobLinkError::Wrong { .. }
            | BlobLinkError::Local { .. }
            | BlobLinkError::TooLarge { .. }) => {
                ServiceFailure::new(ServiceFault::Lost, format!("input {hash} could not be fetched: {error}"))
            }
        })?;
        let lost = |problem: &dyn std::fmt::Display| {
            ServiceFailure::new(
                ServiceFault::Lost,
                format!("input {hash} could not be uploaded to ComfyUI: {problem}"),
            )
        };
        let file = std::fs::File::open(path).map_err(|error| lost(&error))?;
        let body = reqwest::Body::wrap_stream(remuda_store::blobs::read_chunks(file, 0, size));
        self.client.upload(&asset.upload_name(), body, size).await.map_err(|error| lost(&error))
    }
}
