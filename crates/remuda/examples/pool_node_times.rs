//! Where the time of a workflow goes, node by node: `cargo run -p remuda --example pool_node_times`.
#![expect(clippy::print_stdout, reason = "it shows what happens")]

#[path = "common/stand_in.rs"]
mod stand_in;

use remuda::{EnqueueOptions, WorkflowPool};

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let server = stand_in::server().await?;
    let pool = WorkflowPool::builder().comfyui(server.url()).build().await?;
    let workflow = stand_in::workflow(7);
    let outcome = pool.enqueue(&workflow, EnqueueOptions::new()).await?.await?;
    let mut times: Vec<_> = outcome.node_times.iter().collect();
    times.sort_by_key(|(_, time)| std::cmp::Reverse(**time));
    for (node, time) in times {
        println!("{:>8.3} s  {node} ({})", time.as_secs_f64(), workflow[node]["class_type"]);
    }
    pool.shutdown().await?;
    Ok(())
}
