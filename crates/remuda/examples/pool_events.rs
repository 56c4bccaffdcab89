//! The events of one customer's jobs, by the metadata they were submitted with: `cargo run -p remuda --example pool_events`.
#![expect(clippy::print_stdout, reason = "it shows what happens")]

#[path = "common/stand_in.rs"]
mod stand_in;

use futures_util::StreamExt as _;
use remuda::{EnqueueOptions, EventFilter, WorkflowPool};

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let server = stand_in::server().await?;
    let pool = WorkflowPool::builder().comfyui(server.url()).build().await?;
    let mut events = Box::pin(pool.events(EventFilter::new().name("job").metadata("customer", "anna")));
    for (color, customer) in ["otto", "anna", "otto"].into_iter().enumerate() {
        let options = EnqueueOptions::new().metadata("customer", customer);
        pool.enqueue(stand_in::workflow(color as u64), options).await?;
    }
    while let Some(event) = events.next().await {
        println!("{:<14} {}", event.name, event.metadata["customer"]);
        if event.name == "job:completed" {
            break;
        }
    }
    pool.shutdown().await?;
    Ok(())
}
