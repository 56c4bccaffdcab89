//! A job for a model: a workflow in the shape of the pool's own requests.
//!
//! ```json
//! { "model": "embed", "capability": "text_embedding", "texts": ["one", "two"] }
//! { "model": "chat", "capability": "text_to_text", "messages": [{ "role": "user", "content": "hello" }], "tokens_max": 64 }
//! { "model": "eyes", "capability": "image_embedding", "images": ["blake3:…"] }
//! { "model": "ocr", "capability": "vision", "image": "blake3:…" }
//! { "model": "draw", "capability": "text_to_image", "prompt": "a wild horse", "size": [512, 512] }
//! ```
//!
//! Images are blobs. Without `model` the first model with the capability is used; without `capability` the model's own.

use remuda_core::service::{ServiceFailure, ServiceFault};
use remuda_models::request::ImageQuery;
use remuda_models::{Capability, ModelPool, ModelRequest};
use remuda_store::blobs::BlobHash;
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use crate::blob_link::{BlobLink, BlobLinkError};

/// Ten times what a camera produces.
const IMAGE_BYTES_MAX: usize = 64 << 20;
const IMAGES_MAX: usize = 256;

#[derive(Debug)]
pub(super) struct ModelJob {
    model: String,
    capability: Capability,
    /// The other fields of the workflow.
    fields: Map<String, Value>,
}

impl ModelJob {
    pub(super) fn parse(workflow: &RawValue, pool: &ModelPool) -> Result<ModelJob, ServiceFailure> {
        let mut fields: Map<String, Value> =
            serde_json::from_str(workflow.get()).map_err(|error| invalid(error.to_string()))?;
        let model = take_text(&mut fields, "model")?;
        let capability: Option<Capability> = match take_text(&mut fields, "capability")? {
            Some(word) => Some(word.parse().map_err(invalid::<String>)?),
            None => None,
        };
        let models = pool.models();
        let fits = |offered: Capability| capability.is_none_or(|requested| requested == offered);
        let chosen = match &model {
            Some(model) => models.iter().find(|(spec, _)| spec.name == *model),
            None if capability.is_none() => {
                return Err(invalid("give a `model`, or a `capability` that one of the models has"));
            }
            None => models.iter().find(|(_, found)| fits(found.capability)),
        };
        match chosen {
            Some((spec, found)) if fits(found.capability) => {
                Ok(ModelJob { model: spec.name.clone(), capability: found.capability, fields })
            }
            Some((spec, found)) => {
                Err(invalid(format!("model {} only has the capability {}", spec.name, found.capability)))
            }
            None => Err(ServiceFailure::new(ServiceFault::Missing, "this worker has no such model")),
        }
    }

    /// The model's name and the request, with the images fetched from the plane.
    pub(super) async fn into_request(
        mut self,
        blobs: &BlobLink,
    ) -> Result<(String, ModelRequest), ServiceFailure> {
        let request = match self.capability {
            Capability::Vision => {
                let image = self.fields.remove("image").unwrap_or_default();
                let question = take_text(&mut self.fields, "question")?;
                ModelRequest::Vision(ImageQuery { image: fetch_image(&image, blobs).await?, question })
            }
            Capability::ImageEmbedding => {
                let names = self.fields.remove("images").unwrap_or_default();
                let names = names.as_array().filter(|all| (1..=IMAGES_MAX).contains(&all.len()));
                let names = names
                    .ok_or_else(|| invalid(format!("`images` must be a list of 1 to {IMAGES_MAX} blobs")))?;
                let mut images = Vec::new();
                for name in names {
                    images.push(fetch_image(name, blobs).await?);
                }
                ModelRequest::ImageEmbedding { images }
            }
            Capability::TextEmbedding | Capability::TextToText | Capability::TextToImage => {
                self.fields.insert("capability".to_owned(), self.capability.name().into());
                serde_json::from_value(Value::Object(self.fields))
                    .map_err(|error| invalid(error.to_string()))?
            }
        };
        Ok((self.model, request))
    }
}

async fn fetch_image(name: &Value, blobs: &BlobLink) -> Result<Vec<u8>, ServiceFailure> {
    let hash = name.as_str().and_then(|name| name.parse::<BlobHash>().ok());
    let hash =
        hash.ok_or_else(|| invalid("an image must be the hash of an uploaded blob, such as blake3:…"))?;
    match blobs.fetch_bytes(&hash, IMAGE_BYTES_MAX).await {
        Ok(bytes) => Ok(bytes.into()),
        Err(error @ (BlobLinkError::Missing { .. } | BlobLinkError::TooLarge { .. })) => {
            Err(invalid(error.to_string()))
        }
        Err(error) => Err(ServiceFailure::new(
            ServiceFault::Lost,
            format!("image {hash} could not be fetched: {error}"),
        )),
    }
}

fn take_text(fields: &mut Map<String, Value>, name: &str) -> Result<Option<String>, ServiceFailure> {
    match fields.remove(name) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text)),
        Some(_) => Err(invalid(format!("`{name}` must be a string"))),
    }
}

fn invalid<T: Into<String>>(why: T) -> ServiceFailure {
    ServiceFailure::new(ServiceFault::Graph, why)
}
