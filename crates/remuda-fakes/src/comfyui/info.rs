//! What a server reports about itself.

use serde_json::{Value, json};

use super::Version;
use super::routes::BODY_MAX;
use super::server::Server;

/// Reported main memory.
const RAM_BYTES: u64 = 64 << 30;
/// Memory of a loaded checkpoint.
const MODEL_BYTES: u64 = 2 << 30;

pub(super) fn features(server: &Server) -> Value {
    let version = server.options().version;
    let mut features = json!({"supports_preview_metadata": true, "max_upload_size": BODY_MAX});
    if version >= Version::V0_7_0 {
        features["extension"] = json!({"manager": {"supports_v4": true}});
    }
    if version >= Version::V0_30_0 {
        features["supports_model_type_tags"] = true.into();
        features["node_replacements"] = true.into();
        features["assets"] = false.into();
    }
    features
}

pub(super) fn system_stats(server: &Server) -> Value {
    let options = server.options();
    let (frontend, templates) = match options.version {
        Version::V0_3_75 => ("1.30.6", "0.7.23"),
        Version::V0_7_0 => ("1.35.9", "0.7.65"),
        Version::V0_30_0 => ("1.47.12", "0.11.27"),
    };
    let mut system = json!({
        "os": "linux", "ram_total": RAM_BYTES, "ram_free": RAM_BYTES / 2, "comfyui_version": options.version.name(),
        "required_frontend_version": frontend, "installed_templates_version": templates,
        "required_templates_version": templates, "python_version": "3.11.7 (remuda fake comfyui)",
        "pytorch_version": "2.11.0+cu130", "embedded_python": false,
        "argv": ["main.py", "--listen", options.listen.ip(), "--port", options.listen.port().to_string()],
    });
    if let (Some(folder), Some(argv)) = (&options.output_directory, system["argv"].as_array_mut()) {
        argv.extend([json!("--output-directory"), json!(folder)]);
    }
    if options.version >= Version::V0_30_0 {
        system["comfy_package_versions"] =
            json!([{"name": "comfyui-frontend-package", "installed": frontend, "required": frontend}]);
        system["deploy_environment"] = "local-git".into();
    }
    let taken = MODEL_BYTES * server.models_loaded().len() as u64;
    let free = options.vram_bytes.saturating_sub(taken);
    let device = json!({
        "name": format!("cuda:0 {} : cudaMallocAsync", options.name), "type": "cuda", "index": 0,
        "vram_total": options.vram_bytes, "vram_free": free, "torch_vram_total": taken, "torch_vram_free": 0,
    });
    json!({"system": system, "devices": [device]})
}

const MODEL_FOLDERS: [&str; 21] = [
    "checkpoints",
    "configs",
    "loras",
    "vae",
    "text_encoders",
    "diffusion_models",
    "clip_vision",
    "style_models",
    "embeddings",
    "diffusers",
    "vae_approx",
    "controlnet",
    "gligen",
    "upscale_models",
    "latent_upscale_models",
    "custom_nodes",
    "hypernetworks",
    "photomaker",
    "classifiers",
    "model_patches",
    "audio_encoders",
];

pub(super) fn model_folders() -> Value {
    json!(MODEL_FOLDERS)
}

/// The files of a model folder; `None` for an unknown folder.
pub(super) fn models(server: &Server, folder: &str) -> Option<Value> {
    match folder {
        "checkpoints" => Some(json!(server.options().models)),
        other => MODEL_FOLDERS.contains(&other).then(|| json!([])),
    }
}
