use remuda_core::document::Document;
use remuda_core::event_kind::EventKind;
use remuda_core::options::Webhook;
use remuda_core::settings::Settings;
use remuda_core::webhook::DELIVERY_TIMEOUT;
use serde_json::Map;

use super::*;
use crate::effects::EffectRunner;
use crate::event_loop::EventLoop;
use crate::workflow_cache::WorkflowCache;

/// Faults: C11.
#[tokio::test]
async fn day_old_webhook_is_abandoned_without_a_call() {
    let receiver = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", receiver.local_addr().unwrap());
    let store = Store::open("memory:").await.unwrap();
    let effects = EffectRunner::new(WorkflowCache::default(), tokio::sync::mpsc::unbounded_channel().0);
    let (plane, event_loop) = EventLoop::start(store.clone(), Settings::default(), effects).await.unwrap();
    tokio::spawn(event_loop.run());
    let ended_at = plane.clock.now().minus(DELIVERY_TIMEOUT);
    let whose = (plane.new_job_id(), "anna".parse().unwrap(), Map::new());
    let news = WebhookDelivery::new(
        whose,
        &Webhook { url, secret: None },
        ended_at,
        EventKind::JobCompleted,
        &Map::new(),
    );
    let document = Document { expires_at: None, ..(*news.document()).clone() };
    plane.request(PlaneEvent::PutDocument(Arc::new(document))).await.unwrap();
    let (_stop, stopping) = watch::channel(false);
    let policy = Policy::new(&["127.0.0.1".parse().unwrap()]);
    let sender = WebhookSender::new(plane, store.clone(), Arc::default(), policy);
    let ticker = Ticker::new();
    let until_empty = async {
        while !store.documents(Collection::Webhook, "", 1).await.unwrap().is_empty() {
            tokio::task::yield_now().await;
        }
    };
    tokio::select! {
        () = sender.run(stopping, ticker) => panic!("nothing told it to stop"),
        _ = receiver.accept() => panic!("it was tried"),
        result = tokio::time::timeout(Duration::from_secs(10), until_empty) => {
            result.expect("it should be abandoned");
        }
    }
}
