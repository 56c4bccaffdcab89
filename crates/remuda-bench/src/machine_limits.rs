//! What this machine can do without Remuda: the yardstick for everything else in the same run.

use std::hint::black_box;
use std::io::{Seek, SeekFrom, Write};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use remuda_core::id::Hash;
use remuda_core::workflow::{Workflow, WorkflowLimits};
use serde_json::json;
use serde_json::value::RawValue;

const EACH: Duration = Duration::from_secs(2);

/// Syncs of one page a second.
pub(crate) fn syncs_per_second(data: &Path) -> anyhow::Result<f64> {
    let path = data.join("sync-probe");
    let mut file = std::fs::File::create(&path)?;
    let page = [7_u8; 4096];
    let rate = rate(|| {
        file.seek(SeekFrom::Start(0))?;
        file.write_all(&page)?;
        file.sync_data()?;
        Ok(1.0)
    });
    drop(std::fs::remove_file(&path));
    rate
}

/// Megabytes of SHA-256 a second.
pub(crate) fn sha_megabytes_per_second() -> anyhow::Result<f64> {
    let buffer = vec![7_u8; 50_000];
    rate(|| {
        black_box(Hash::digest(black_box(&buffer)));
        Ok(buffer.len() as f64 / 1e6)
    })
}

/// Megabytes of a 50 KB workflow that are read, checked and hashed a second.
pub(crate) fn workflow_megabytes_per_second() -> anyhow::Result<f64> {
    let text: Arc<RawValue> = Arc::from(RawValue::from_string(workflow())?);
    let limits = WorkflowLimits::default();
    rate(|| {
        black_box(Workflow::parse(black_box(text.clone()), &limits)?);
        Ok(text.get().len() as f64 / 1e6)
    })
}

fn rate(mut once: impl FnMut() -> anyhow::Result<f64>) -> anyhow::Result<f64> {
    let started = Instant::now();
    let mut sum = 0.0;
    while started.elapsed() < EACH {
        sum += once()?;
    }
    Ok(sum / started.elapsed().as_secs_f64())
}

/// A graph as people export it, indented, with samplers, texts and links: about 50 KB.
fn workflow() -> String {
    let mut nodes = serde_json::Map::new();
    for n in 0..110 {
        let text = format!("wide shot {n} of a herd of horses crossing a river at dusk, dust and backlight");
        let base = n * 4;
        let inputs = json!({ "ckpt_name": format!("sdxl_base_{}.safetensors", n % 3) });
        nodes.insert(base.to_string(), json!({ "class_type": "CheckpointLoaderSimple", "inputs": inputs }));
        let inputs = json!({ "text": text, "clip": [base.to_string(), 1] });
        nodes.insert((base + 1).to_string(), json!({ "class_type": "CLIPTextEncode", "inputs": inputs }));
        let inputs = json!({ "width": 1024, "height": 1024, "batch_size": 1 });
        nodes.insert((base + 2).to_string(), json!({ "class_type": "EmptyLatentImage", "inputs": inputs }));
        let inputs = json!({
            "seed": n * 7919, "steps": 28, "cfg": 6.5, "sampler_name": "dpmpp_2m", "scheduler": "karras", "denoise": 1.0,
            "model": [base.to_string(), 0], "positive": [(base + 1).to_string(), 0],
            "negative": [(base + 1).to_string(), 0], "latent_image": [(base + 2).to_string(), 0],
        });
        nodes.insert((base + 3).to_string(), json!({ "class_type": "KSampler", "inputs": inputs }));
    }
    serde_json::to_string_pretty(&nodes).unwrap_or_default()
}
