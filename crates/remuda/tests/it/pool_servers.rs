//! `remuda::WorkflowPool` while it runs: servers come and go, blocks are lifted, affinities change, a program has a strategy
//! of its own, and every node's time is known.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use remuda::{
    Availability, ComfyuiServer, EnqueueOptions, EventFilter, FailoverStrategy, StrategyJob, StrategyVerdict,
    StrategyWorker, WorkerId, WorkflowPool, WorkflowPoolError,
};
use remuda_fakes::comfyui::{Fake, Fault, Faults, Options as FakeOptions};

use crate::harness::{free_address, wait_until};
use crate::pool::{enqueue, fake, hurried, instant_fake, picture, slow, until_begun, until_online};

fn named(url: &str, name: &str) -> ComfyuiServer {
    ComfyuiServer::new(url).name(name.parse().unwrap())
}

async fn names(pool: &WorkflowPool) -> Vec<String> {
    pool.workers().await.unwrap().iter().map(|status| status.worker.to_string()).collect()
}

async fn availability(pool: &WorkflowPool, worker: &WorkerId) -> Availability {
    let workers = pool.workers().await.unwrap();
    workers.into_iter().find(|status| status.worker == *worker).unwrap().availability
}

#[tokio::test]
async fn servers_come_and_go_while_the_pool_runs() {
    let servers = [fake().await, fake().await];
    let pool = hurried().comfyui(named(&servers[0].url(), "one")).build().await.unwrap();
    until_online(&pool, 1).await;
    let two = pool.add_server(named(&servers[1].url(), "two")).unwrap();
    assert_eq!(names(&pool).await, ["one", "two"]);
    until_online(&pool, 2).await;
    let there = pool.enqueue(picture(1), EnqueueOptions::new().pin(two.clone())).await.unwrap();
    assert_eq!(there.await.unwrap().worker, two);

    let one: WorkerId = "one".parse().unwrap();
    let running = pool.enqueue(slow(2, 1.0), EnqueueOptions::new().prefer(one.clone())).await.unwrap();
    until_begun(&servers[0], &running).await;
    pool.remove_server(&one).await.unwrap();
    assert_eq!(names(&pool).await, ["two"]);
    let outcome = running.await.unwrap();
    assert_eq!((outcome.worker, outcome.attempts), (one.clone(), 1), "what ran was let finish");
    for color in 3..6 {
        let preferred = EnqueueOptions::new().prefer(one.clone());
        assert_eq!(pool.enqueue(picture(color), preferred).await.unwrap().await.unwrap().worker, two);
    }

    for unknown in [&one, &"three".parse().unwrap()] {
        let refused = pool.remove_server(unknown).await.unwrap_err();
        assert!(
            matches!(&refused, WorkflowPoolError::Server(why) if why.contains(unknown.as_str())),
            "{refused}"
        );
    }
    for (server, why) in
        [(named("http://127.0.0.1:1", "two"), "two servers"), ("no address".into(), "no address")]
    {
        let refused = pool.add_server(server).unwrap_err();
        assert!(matches!(&refused, WorkflowPoolError::Server(text) if text.contains(why)), "{refused}");
    }
    // The same server comes back under the same name.
    pool.add_server(named(&servers[0].url(), "one")).unwrap();
    until_online(&pool, 2).await;
    let back = pool.enqueue(picture(7), EnqueueOptions::new().pin(one.clone())).await.unwrap();
    assert_eq!(back.await.unwrap().worker, one);
    pool.shutdown().await.unwrap();
    assert!(matches!(pool.add_server("http://127.0.0.1:1"), Err(WorkflowPoolError::Stopped)));
}

#[tokio::test]
async fn job_of_a_server_that_is_removed_at_once_runs_elsewhere() {
    let servers = [fake().await, fake().await];
    let pool = hurried()
        .comfyui(named(&servers[0].url(), "one"))
        .comfyui(named(&servers[1].url(), "two"))
        .build()
        .await
        .unwrap();
    until_online(&pool, 2).await;
    let one: WorkerId = "one".parse().unwrap();
    let job = pool.enqueue(slow(1, 3.0), EnqueueOptions::new().prefer(one.clone())).await.unwrap();
    until_begun(&servers[0], &job).await;
    pool.remove_server_within(&one, Duration::from_millis(50)).await.unwrap();
    assert_eq!(names(&pool).await, ["two"]);
    assert_eq!(job.await.unwrap().worker.as_str(), "two");
    pool.shutdown().await.unwrap();
}

#[tokio::test]
async fn availability_of_a_server_is_what_routing_goes_by() {
    let server = fake().await;
    let absent = format!("http://{}", free_address());
    let pool = hurried()
        .comfyui(named(&server.url(), "here"))
        .comfyui(named(&absent, "absent"))
        .build()
        .await
        .unwrap();
    until_online(&pool, 1).await;
    let [here, missing]: [WorkerId; 2] = ["here", "absent"].map(|name| name.parse().unwrap());
    assert_eq!(availability(&pool, &here).await, Availability::Ready);
    assert_eq!(availability(&pool, &missing).await, Availability::Starting);
    server.kill().await;
    let sick = wait_until("the pool notices that its server died", async || {
        Some(availability(&pool, &here).await).filter(|now| !now.is_ready())
    })
    .await;
    assert!(matches!(sick, Availability::Sick { .. }), "{sick:?}");
    let status = &pool.workers().await.unwrap()[0];
    assert!(!status.is_online && !status.reason.is_empty(), "{status:?}");
    server.restart().await;
    until_online(&pool, 1).await;
    pool.shutdown().await.unwrap();
}

#[tokio::test]
async fn blocks_are_listed_and_lifted() {
    let sized = async |vram_bytes| {
        Fake::start(FakeOptions { vram_bytes, speed: f64::INFINITY, ..FakeOptions::default() }).await.unwrap()
    };
    let servers = [sized(8 << 30).await, sized(48 << 30).await];
    let pool = hurried()
        .cooldown(Duration::from_secs(600))
        .comfyui(named(&servers[0].url(), "small"))
        .comfyui(named(&servers[1].url(), "large"))
        .build()
        .await
        .unwrap();
    until_online(&pool, 2).await;
    assert!(pool.blocks().await.unwrap().is_empty());
    servers[0].control().set_faults(Faults::none().with(Fault::Oom, 1.0));
    let small: WorkerId = "small".parse().unwrap();
    let job = pool.enqueue(picture(1), EnqueueOptions::new().prefer(small.clone())).await.unwrap();
    assert_eq!(job.await.unwrap().worker.as_str(), "large");
    servers[0].control().set_faults(Faults::none());
    let [block] = pool.blocks().await.unwrap().try_into().unwrap();
    assert_eq!((&block.worker, block.shape), (&small, pool.shape(picture(2)).await.unwrap()));
    assert!(block.is_blocked && block.failures == 1 && !block.reason.is_empty(), "{block:?}");

    let waiting = pool.enqueue(picture(1), EnqueueOptions::new().pin(small.clone())).await.unwrap();
    let stats = pool.stats().await.unwrap();
    assert_eq!((stats.queued, stats.running), (1, 0), "it waits for the end of the block");
    pool.lift_block(&small, block.shape).await.unwrap();
    assert_eq!(waiting.await.unwrap().worker, small);
    assert!(pool.blocks().await.unwrap().is_empty());
    let nothing = pool.lift_block(&small, block.shape).await.unwrap_err();
    assert!(matches!(nothing, WorkflowPoolError::NothingToRemove(_)), "{nothing}");
    pool.shutdown().await.unwrap();
}

#[tokio::test]
async fn affinities_are_set_listed_and_removed() {
    let servers = [instant_fake().await, instant_fake().await];
    let pool = hurried().comfyui(servers[0].url()).comfyui(servers[1].url()).build().await.unwrap();
    until_online(&pool, 2).await;
    let workers = pool.workers().await.unwrap();
    let both = || workers.iter().map(|status| status.worker.clone());
    let shape = pool.set_affinity(picture(1), [], both()).await.unwrap();
    let [(listed, affinity)] = pool.affinities().await.unwrap().try_into().unwrap();
    assert_eq!((listed, affinity.excluded.len(), affinity.preferred.len()), (shape, 2, 0));
    let waiting = enqueue(&pool, picture(2)).await;
    assert_eq!(pool.stats().await.unwrap().queued, 1);
    pool.remove_affinity(shape).await.unwrap();
    waiting.await.unwrap();
    assert!(pool.affinities().await.unwrap().is_empty());
    let nothing = pool.remove_affinity(shape).await.unwrap_err();
    assert!(matches!(nothing, WorkflowPoolError::NothingToRemove(_)), "{nothing}");
    pool.shutdown().await.unwrap();
}

struct ClosureStrategy<F>(F);

impl<F> FailoverStrategy for ClosureStrategy<F>
where
    F: Fn(&StrategyJob<'_>, &StrategyWorker<'_>) -> StrategyVerdict + Send + Sync,
{
    fn judge(&self, job: &StrategyJob<'_>, worker: &StrategyWorker<'_>) -> StrategyVerdict {
        (self.0)(job, worker)
    }
}

#[tokio::test]
async fn strategy_orders_and_vetoes_servers() {
    let servers = [instant_fake().await, instant_fake().await, instant_fake().await];
    let refused = Arc::new(Mutex::new("none".to_owned()));
    let rule = {
        let refused = refused.clone();
        move |_: &StrategyJob<'_>, worker: &StrategyWorker<'_>| match worker.worker.as_str() {
            name if *refused.lock().unwrap() == name => StrategyVerdict::Veto,
            "last" => StrategyVerdict::Rank(9),
            "first" => StrategyVerdict::Rank(1),
            _ => StrategyVerdict::Rank(5),
        }
    };
    let mut builder = hurried().strategy(ClosureStrategy(rule));
    for (server, name) in servers.iter().zip(["last", "middle", "first"]) {
        builder = builder.comfyui(named(&server.url(), name));
    }
    let pool = builder.build().await.unwrap();
    until_online(&pool, 3).await;
    for color in 0..4 {
        assert_eq!(enqueue(&pool, picture(color)).await.await.unwrap().worker.as_str(), "first");
    }
    "first".clone_into(&mut refused.lock().unwrap());
    assert_eq!(enqueue(&pool, picture(9)).await.await.unwrap().worker.as_str(), "middle");
    let only: WorkerId = "first".parse().unwrap();
    let waiting = pool.enqueue(picture(10), EnqueueOptions::new().pin(only.clone())).await.unwrap();
    assert_eq!(pool.stats().await.unwrap().queued, 1, "a veto counts even if no other server is left");
    "none".clone_into(&mut refused.lock().unwrap());
    pool.reconsider().await.unwrap();
    assert_eq!(waiting.await.unwrap().worker, only);
    assert_eq!(pool.strategy_failure(), None);
    pool.shutdown().await.unwrap();
}

/// What it had vetoed before is offered again.
#[tokio::test]
async fn strategy_that_panics_is_turned_off_and_no_job_is_stuck() {
    let server = instant_fake().await;
    let calls = Arc::new(AtomicU32::new(0));
    let rule = {
        let calls = calls.clone();
        move |job: &StrategyJob<'_>, _: &StrategyWorker<'_>| {
            calls.fetch_add(1, Ordering::Relaxed);
            assert!(job.priority == 0, "this strategy knows no priorities");
            StrategyVerdict::Veto
        }
    };
    let pool = hurried().comfyui(server.url()).strategy(ClosureStrategy(rule)).build().await.unwrap();
    until_online(&pool, 1).await;
    let vetoed = enqueue(&pool, picture(1)).await;
    assert_eq!((pool.stats().await.unwrap().queued, pool.strategy_failure()), (1, None));
    let panics = pool.enqueue(picture(2), EnqueueOptions::new().priority(1)).await.unwrap();
    panics.await.unwrap();
    vetoed.await.unwrap();
    assert_eq!(pool.strategy_failure().as_deref(), Some("it panicked"));
    let asked = calls.load(Ordering::Relaxed);
    enqueue(&pool, picture(3)).await.await.unwrap();
    assert_eq!(calls.load(Ordering::Relaxed), asked, "it is not asked again");
    pool.shutdown().await.unwrap();
}

#[tokio::test]
async fn strategy_that_is_slow_again_and_again_is_turned_off() {
    let server = instant_fake().await;
    let rule = |_: &StrategyJob<'_>, _: &StrategyWorker<'_>| {
        let began = Instant::now();
        while began.elapsed() < Duration::from_millis(6) {}
        StrategyVerdict::NEUTRAL
    };
    let pool = hurried().comfyui(server.url()).strategy(ClosureStrategy(rule)).build().await.unwrap();
    for color in 0..40 {
        enqueue(&pool, picture(color)).await.await.unwrap();
    }
    let why = pool.strategy_failure().expect("it should be turned off");
    assert!(why.contains("took longer"), "{why}");
    pool.shutdown().await.unwrap();
}

#[tokio::test]
async fn outcome_has_the_time_of_every_node_that_ran() {
    let server = fake().await;
    let pool = hurried().comfyui(server.url()).build().await.unwrap();
    let outcome = enqueue(&pool, slow(1, 0.6)).await.await.unwrap();
    let nodes: Vec<&str> = outcome.node_times.keys().map(String::as_str).collect();
    assert_eq!(nodes, ["1", "2", "3"], "{outcome:?}");
    let [source, sleep] = ["1", "3"].map(|node| outcome.node_times[node]);
    assert!(sleep >= Duration::from_millis(500) && source < sleep, "{:?}", outcome.node_times);
    // Everything but the prefix comes from the cache now.
    let mut again = slow(1, 0.6);
    again["2"]["inputs"]["filename_prefix"] = "again".into();
    let outcome = enqueue(&pool, again).await.await.unwrap();
    assert_eq!(outcome.node_times.keys().collect::<Vec<_>>(), ["2"], "{outcome:?}");
    pool.shutdown().await.unwrap();
}

#[tokio::test]
async fn events_of_one_customer_are_followed_by_metadata() {
    use futures_util::StreamExt as _;
    let server = instant_fake().await;
    let pool = hurried().comfyui(server.url()).build().await.unwrap();
    let filter = EventFilter::new().name("job:completed").metadata("customer", "anna").metadata("order", 7);
    let mut events = Box::pin(pool.events(filter));
    let mut wanted = None;
    for (customer, order) in [("otto", 7), ("anna", 6), ("anna", 7)] {
        let options = EnqueueOptions::new().metadata("customer", customer).metadata("order", order);
        let job = pool.enqueue(picture(order), options).await.unwrap();
        wanted = Some(job.id());
        job.await.unwrap();
    }
    assert_eq!(events.next().await.unwrap().job, wanted);
    pool.shutdown().await.unwrap();
}
