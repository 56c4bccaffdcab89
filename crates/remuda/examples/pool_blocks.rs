//! A server on which a workflow failed is avoided for a while; a program can see such blocks and lift them:
//! `cargo run -p remuda --example pool_blocks`.
#![expect(clippy::print_stdout, reason = "it shows what happens")]

#[path = "common/stand_in.rs"]
mod stand_in;

use remuda::{ComfyuiServer, EnqueueOptions, WorkerId, WorkflowPool};
use remuda_fakes::comfyui::{Fault, Faults};

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let (small, large) = (stand_in::server().await?, stand_in::server().await?);
    let name: WorkerId = "small".parse()?;
    let pool = WorkflowPool::builder()
        .comfyui(ComfyuiServer::new(small.url()).name(name.clone()))
        .comfyui(ComfyuiServer::new(large.url()).name("large".parse()?))
        .build()
        .await?;
    for (color, worker) in [name.clone(), "large".parse()?].into_iter().enumerate() {
        pool.enqueue(stand_in::workflow(color as u64), EnqueueOptions::new().pin(worker)).await?.await?;
    }

    small.control().set_faults(Faults::none().with(Fault::Oom, 1.0));
    let options = EnqueueOptions::new().prefer(name.clone());
    let outcome = pool.enqueue(stand_in::workflow(7), options).await?.await?;
    println!("completed on {} in attempt {}", outcome.worker, outcome.attempts);
    for block in pool.blocks().await? {
        println!("{} is blocked until {}: {}", block.worker, block.until, block.reason);
    }

    // The operator gave it more memory.
    small.control().set_faults(Faults::none());
    let shape = pool.shape(stand_in::workflow(7)).await?;
    pool.lift_block(&name, shape).await?;
    let outcome = pool.enqueue(stand_in::workflow(8), EnqueueOptions::new().pin(name)).await?.await?;
    println!("completed on {}; blocks left: {}", outcome.worker, pool.blocks().await?.len());
    pool.shutdown().await?;
    Ok(())
}
