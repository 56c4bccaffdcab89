//! A strategy of one's own: jobs of tenant `free` stay away from the expensive server, and a job that failed anywhere goes to
//! it first: `cargo run -p remuda --example pool_strategy`.
#![expect(clippy::print_stdout, reason = "it shows what happens")]

#[path = "common/stand_in.rs"]
mod stand_in;

use remuda::{
    ComfyuiServer, EnqueueOptions, FailoverStrategy, StrategyJob, StrategyVerdict, StrategyWorker,
    WorkflowPool,
};

struct ExpensiveLast;

impl FailoverStrategy for ExpensiveLast {
    fn judge(&self, job: &StrategyJob<'_>, worker: &StrategyWorker<'_>) -> StrategyVerdict {
        let is_expensive = worker.worker.as_str() == "expensive";
        match (is_expensive, job.tenant.as_str()) {
            (true, "free") => StrategyVerdict::Veto,
            (true, _) if job.attempts > 0 => StrategyVerdict::Rank(-1),
            (true, _) => StrategyVerdict::Rank(1),
            (false, _) => StrategyVerdict::NEUTRAL,
        }
    }
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let servers = [stand_in::server().await?, stand_in::server().await?];
    let pool = WorkflowPool::builder()
        .comfyui(ComfyuiServer::new(servers[0].url()).name("expensive".parse()?))
        .comfyui(ComfyuiServer::new(servers[1].url()).name("cheap".parse()?))
        .strategy(ExpensiveLast)
        .build()
        .await?;
    let mut jobs = Vec::new();
    for (color, tenant) in ["free", "free", "paying", "free"].into_iter().enumerate() {
        let options = EnqueueOptions::new().tenant(tenant.parse()?);
        jobs.push((tenant, pool.enqueue(stand_in::workflow(color as u64), options).await?));
    }
    for (tenant, job) in jobs {
        println!("{tenant:<7} ran on {}", job.await?.worker);
    }
    println!("turned off: {:?}", pool.strategy_failure());
    pool.shutdown().await?;
    Ok(())
}
