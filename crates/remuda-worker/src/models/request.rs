//! What a job asks of a model: a workflow in the shape of the pool's own requests.
//!
//! ```json
//! { "model": "embed", "capability": "text_embedding", "texts": ["one", "two"] }
//! { "model": "chat", "capability": "text_to_text", "messages": [{ "role": "user", "content": "hello" }], "tokens_max": 64 }
//! { "model": "eyes", "capability": "image_embedding", "images": ["blake3:…"] }
//! { "model": "ocr", "capability": "vision", "image": "blake3:…" }
//! { "model": "draw", "capability": "text_to_image", "prompt": "a wild horse", "size": [512, 512] }
//! ```
//!
//! Pictures are blobs. Without `model` it is the first that does what is asked; without `capability` what the model does.

use remuda_core::service::{ServiceFailure, ServiceFault};
use remuda_models::request::Look;
use remuda_models::{Capability, Pool, Request};
use remuda_store::blobs::BlobHash;
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use crate::blobs::{BlobLink, LinkError};

/// A picture that a model looks at; cameras give a tenth of it.
const PICTURE_BYTES_MAX: usize = 64 << 20;
const PICTURES_MAX: usize = 256;

#[derive(Debug)]
pub(super) struct Asked {
    model: String,
    capability: Capability,
    rest: Map<String, Value>,
}

impl Asked {
    pub(super) fn read(workflow: &RawValue, pool: &Pool) -> Result<Asked, ServiceFailure> {
        let mut rest: Map<String, Value> =
            serde_json::from_str(workflow.get()).map_err(|error| wrong(error.to_string()))?;
        let model = take_text(&mut rest, "model")?;
        let capability: Option<Capability> = match take_text(&mut rest, "capability")? {
            Some(word) => Some(word.parse().map_err(wrong::<String>)?),
            None => None,
        };
        let models = pool.models();
        let fits = |can: Capability| capability.is_none_or(|asked| asked == can);
        let chosen = match &model {
            Some(model) => models.iter().find(|(spec, _)| spec.name == *model),
            None if capability.is_none() => {
                return Err(wrong("name a `model`, or say with `capability` what it should do"));
            }
            None => models.iter().find(|(_, found)| fits(found.capability)),
        };
        match chosen {
            Some((spec, found)) if fits(found.capability) => {
                Ok(Asked { model: spec.name.clone(), capability: found.capability, rest })
            }
            Some((spec, found)) => {
                Err(wrong(format!("{} does {} and nothing else", spec.name, found.capability)))
            }
            None => Err(ServiceFailure::new(ServiceFault::Missing, "this worker has no such model")),
        }
    }

    /// With the pictures it names.
    pub(super) async fn request(mut self, blobs: &BlobLink) -> Result<(String, Request), ServiceFailure> {
        let request = match self.capability {
            Capability::Vision => {
                let image = self.rest.remove("image").unwrap_or_default();
                let question = take_text(&mut self.rest, "question")?;
                Request::Vision(Look { image: picture(&image, blobs).await?, question })
            }
            Capability::ImageEmbedding => {
                let named = self.rest.remove("images").unwrap_or_default();
                let named = named.as_array().filter(|all| (1..=PICTURES_MAX).contains(&all.len()));
                let named =
                    named.ok_or_else(|| wrong(format!("`images` is a list of 1 to {PICTURES_MAX} blobs")))?;
                let mut images = Vec::new();
                for name in named {
                    images.push(picture(name, blobs).await?);
                }
                Request::ImageEmbedding { images }
            }
            Capability::TextEmbedding | Capability::TextToText | Capability::TextToImage => {
                self.rest.insert("capability".to_owned(), self.capability.name().into());
                serde_json::from_value(Value::Object(self.rest)).map_err(|error| wrong(error.to_string()))?
            }
        };
        Ok((self.model, request))
    }
}

async fn picture(name: &Value, blobs: &BlobLink) -> Result<Vec<u8>, ServiceFailure> {
    let hash = name.as_str().and_then(|name| name.parse::<BlobHash>().ok());
    let hash = hash.ok_or_else(|| wrong("a picture is a blob: store it and name it as blake3:…"))?;
    match blobs.fetch_bytes(&hash, PICTURE_BYTES_MAX).await {
        Ok(bytes) => Ok(bytes.into()),
        Err(error @ (LinkError::Missing { .. } | LinkError::TooLarge { .. })) => {
            Err(wrong(error.to_string()))
        }
        Err(error) => Err(ServiceFailure::new(
            ServiceFault::Lost,
            format!("picture {hash} could not be fetched: {error}"),
        )),
    }
}

fn take_text(fields: &mut Map<String, Value>, name: &str) -> Result<Option<String>, ServiceFailure> {
    match fields.remove(name) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text)),
        Some(_) => Err(wrong(format!("`{name}` is a text"))),
    }
}

fn wrong<T: Into<String>>(why: T) -> ServiceFailure {
    ServiceFailure::new(ServiceFault::Graph, why)
}
