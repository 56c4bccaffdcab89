//! Names under which a worker describes its services in labels and metrics, and under which the plane looks them up.

/// Label prefix: `model.embed=text_embedding` says what the model `embed` does.
pub const MODEL_LABEL: &str = "model.";
/// Metric with the state of a worker's models.
pub const MODELS_METRIC: &str = "models";
/// Metric with the hash of the blob that holds the `object_info` of a worker's ComfyUI.
pub const OBJECT_INFO: &str = "object_info";
