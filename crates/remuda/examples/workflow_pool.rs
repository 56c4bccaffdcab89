//! A pool of ComfyUI servers in a program of its own.
//!
//! ```sh
//! cargo run -p remuda --example workflow_pool                                    # two stand-ins, started here
//! cargo run -p remuda --example workflow_pool http://127.0.0.1:8188 http://gpu-7:8188
//! ```
#![expect(clippy::print_stdout, reason = "it shows what happens")]

use futures_util::StreamExt as _;
use remuda::{EnqueueOptions, WorkflowPool};
use remuda_fakes::comfyui::{Fake, Options as FakeOptions};
use serde_json::{Value, json};

/// Needs no model, so that every server can run it.
fn workflow(color: u64) -> Value {
    json!({
        "1": { "class_type": "EmptyImage", "inputs": { "width": 64, "height": 64, "batch_size": 1, "color": color } },
        "2": { "class_type": "ImageScale", "inputs": {
            "image": ["1", 0], "upscale_method": "bilinear", "width": 256, "height": 256, "crop": "disabled" } },
        "3": { "class_type": "SaveImage", "inputs": { "images": ["2", 0], "filename_prefix": "pool" } },
    })
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let mut urls: Vec<String> = std::env::args().skip(1).collect();
    let mut stand_ins = Vec::new();
    if urls.is_empty() {
        for _ in 0..2 {
            stand_ins.push(Fake::start(FakeOptions::default()).await?);
        }
        urls.extend(stand_ins.iter().map(Fake::url));
    }

    let mut builder = WorkflowPool::builder().max_attempts(3);
    for url in &urls {
        builder = builder.comfyui(url);
    }
    let pool = builder.build().await?;
    pool.on("job", |event| {
        if let (Some(job), Some(_)) = (event.job, event.number) {
            println!("{:<14} {job}", event.name);
        }
    });

    let mut jobs = Vec::new();
    for color in [0xc0_392b, 0x27_ae60, 0x29_80b9] {
        jobs.push(pool.enqueue(workflow(color), EnqueueOptions::new().metadata("color", color)).await?);
    }

    let mut progress = Box::pin(jobs[0].progress());
    while let Some(progress) = progress.next().await {
        let node = progress.current_node_class.unwrap_or_default();
        println!("{:>13.0}% {node}", progress.value * 100.0);
    }
    for job in jobs {
        let outcome = job.await?;
        for output in &outcome.outputs {
            let path = std::env::temp_dir().join(format!("{}-{}", outcome.job, output.name));
            let size = output.save_to(&path).await?;
            println!("{size:>7} bytes from {} in {}", outcome.worker, path.display());
        }
    }

    println!("{:?}", pool.stats().await?);
    pool.shutdown().await?;
    Ok(())
}
