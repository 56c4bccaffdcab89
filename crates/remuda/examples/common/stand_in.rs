//! What every example needs: a server to use, and a workflow that any server can run.

use remuda_fakes::comfyui::{Fake, Options as FakeOptions};
use serde_json::{Value, json};

/// A stand-in for a ComfyUI server; it stops when it is dropped. Use your server's address instead.
pub(crate) async fn server() -> anyhow::Result<Fake> {
    Ok(Fake::start(FakeOptions::default()).await?)
}

/// A plain picture, enlarged; needs no model.
pub(crate) fn workflow(color: u64) -> Value {
    json!({
        "1": { "class_type": "EmptyImage", "inputs": { "width": 64, "height": 64, "batch_size": 1, "color": color } },
        "2": { "class_type": "ImageScale", "inputs": {
            "image": ["1", 0], "upscale_method": "bilinear", "width": 256, "height": 256, "crop": "disabled" } },
        "3": { "class_type": "SaveImage", "inputs": { "images": ["2", 0], "filename_prefix": "pool" } },
    })
}
