//! Workflows of one shape prefer one server and never run on another: `cargo run -p remuda --example pool_affinities`.
#![expect(clippy::print_stdout, reason = "it shows what happens")]

#[path = "common/stand_in.rs"]
mod stand_in;

use remuda::{ComfyuiServer, EnqueueOptions, WorkflowPool};

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let servers = [stand_in::server().await?, stand_in::server().await?];
    let pool = WorkflowPool::builder()
        .comfyui(ComfyuiServer::new(servers[0].url()).name("red".parse()?))
        .comfyui(ComfyuiServer::new(servers[1].url()).name("blue".parse()?))
        .build()
        .await?;

    let shape = pool.set_affinity(stand_in::workflow(0), ["blue".parse()?], ["red".parse()?]).await?;
    for (shape, affinity) in pool.affinities().await? {
        println!("{}: prefers {:?}, never {:?}", shape.short(), affinity.preferred, affinity.excluded);
    }
    for color in 1..4 {
        let outcome = pool.enqueue(stand_in::workflow(color), EnqueueOptions::new()).await?.await?;
        println!("completed on {}", outcome.worker);
    }
    pool.remove_affinity(shape).await?;
    println!("affinities left: {}", pool.affinities().await?.len());
    pool.shutdown().await?;
    Ok(())
}
