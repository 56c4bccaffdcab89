//! One server that two workers share.

use remuda_fakes::comfyui::Options;

use super::fixture::{ComfyFixture, Server, completed_at_once, executions, worker};
use super::graph::picture;

/// Faults: W6, V13, V21.
#[tokio::test]
async fn workers_sharing_server_see_only_their_messages() {
    let stage = ComfyFixture::on(Server::fake(Options { speed: 4.0, ..Options::default() }).await).await;
    let second = worker(&stage, "second", &stage.server.url(), &[]).await;
    let mut jobs = Vec::new();
    for color in 0..10 {
        jobs.push(stage.submit(picture(color).sleep(0.4, 4).saved()).await);
    }
    for job in &jobs {
        completed_at_once(&stage.ended(job).await);
        assert_eq!(executions(&[&stage.server], job), 1);
    }
    assert!(stage.plane.worker(&second.name).await["completed"].as_u64() > Some(0));
}
