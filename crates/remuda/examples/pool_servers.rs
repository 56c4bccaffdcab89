//! Servers come and go while a pool runs, and their states are known: `cargo run -p remuda --example pool_servers`.
#![expect(clippy::print_stdout, reason = "it shows what happens")]

#[path = "common/stand_in.rs"]
mod stand_in;

use std::time::Duration;

use remuda::{ComfyuiServer, EnqueueOptions, WorkflowPool};

async fn show_servers(pool: &WorkflowPool) -> anyhow::Result<()> {
    for server in pool.workers().await? {
        println!("  {:<6} {} {}", server.worker.as_str(), server.url, server.availability);
    }
    Ok(())
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let (first, second) = (stand_in::server().await?, stand_in::server().await?);
    let pool = WorkflowPool::builder()
        .comfyui(ComfyuiServer::new(first.url()).name("first".parse()?))
        .comfyui(ComfyuiServer::new("http://127.0.0.1:9").name("absent".parse()?))
        .build()
        .await?;
    pool.enqueue(stand_in::workflow(1), EnqueueOptions::new()).await?.await?;
    println!("one of two servers is there:");
    show_servers(&pool).await?;

    let name = pool.add_server(ComfyuiServer::new(second.url()).name("second".parse()?))?;
    let job = pool.enqueue(stand_in::workflow(2), EnqueueOptions::new().pin(name)).await?;
    println!("the job ran on {}", job.await?.worker);

    // It finishes what it runs, for up to ten seconds, and leaves.
    pool.remove_server_within(&"first".parse()?, Duration::from_secs(10)).await?;
    println!("the first one is gone:");
    show_servers(&pool).await?;
    pool.shutdown().await?;
    Ok(())
}
