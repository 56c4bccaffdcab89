//! Slow and failing calls, with a scripted provider.

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use remuda_core::id::PodId;
use remuda_core::money::Money;
use remuda_core::provider::{Pod, ProviderError, ProviderEvent};
use remuda_core::settings::Settings;
use remuda_providers::{Provider, RentOrder};
use remuda_store::Store;

use super::*;
use crate::effects::EffectRunner;
use crate::event_loop::EventLoop;
use crate::join_key::SharedJoinKey;
use crate::workflow_cache::WorkflowCache;

/// Records its calls; creations never end, and a return panics.
#[derive(Debug)]
struct ScriptedProvider(mpsc::UnboundedSender<&'static str>);

impl ScriptedProvider {
    fn record(&self, what: &'static str) {
        self.0.send(what).unwrap();
    }
}

impl Provider for ScriptedProvider {
    fn rent(&self, order: RentOrder) -> BoxFuture<'_, Result<Pod, ProviderError>> {
        assert!(order.environment["REMUDA_TOKEN"].starts_with("rmj_"));
        self.record("rent");
        futures_util::future::pending().boxed()
    }

    fn list(&self) -> BoxFuture<'_, Result<Vec<Pod>, ProviderError>> {
        self.record("list");
        async { Ok(Vec::new()) }.boxed()
    }

    fn return_pod(&self, _: PodId) -> BoxFuture<'_, Result<(), ProviderError>> {
        self.record("return");
        async { panic!("a rule was broken") }.boxed()
    }

    fn prices(&self) -> BoxFuture<'_, Result<BTreeMap<String, Money>, ProviderError>> {
        self.record("price");
        async { Ok(BTreeMap::new()) }.boxed()
    }
}

async fn client() -> (Arc<FleetClient>, mpsc::UnboundedReceiver<&'static str>, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open("memory:").await.unwrap();
    let effects = EffectRunner::new(WorkflowCache::default(), mpsc::unbounded_channel().0);
    let (plane, event_loop) = EventLoop::start(store, Settings::default(), effects).await.unwrap();
    tokio::spawn(event_loop.run());
    let (url, data) = ("http://127.0.0.1:1".to_owned(), folder.path().to_path_buf());
    let context = Arc::new(FleetContext::new(plane, SharedJoinKey::default(), url, data));
    deployment::ensure_identity(&context).await.unwrap();
    let (calls, recorded) = mpsc::unbounded_channel();
    let toml = folder.path().join("remuda.toml");
    std::fs::write(&toml, "[[fleet]]\nname = 'a'\nprovider = 'fixed'\nmachines = ['one']\n").unwrap();
    let home = [("HOME".to_owned(), "/nowhere".to_owned())];
    let fleet = config::load(Some(&toml), home, &[]).unwrap().fleets.remove(0);
    let client = FleetClient::with(fleet, Arc::new(ScriptedProvider(calls)), context);
    (Arc::new(client), recorded, folder)
}

fn rent(machine: &str) -> ProviderCall {
    let (tag, offer) = (format!("remuda-0-{machine}"), "any".to_owned());
    ProviderCall::Rent { machine: machine.parse().unwrap(), tag, offer }
}

#[tokio::test]
async fn slow_creations_delay_no_list_or_return_and_are_bounded() {
    let (client, mut recorded, _folder) = client().await;
    let mut tasks = JoinSet::new();
    let queue = CallQueue::new(client.plane().clone(), &mut tasks);
    let in_flight = InFlight::default();
    let push = |call, tasks: &mut JoinSet<()>| {
        queue.push(client.clone(), in_flight.insert(client.fleet().clone(), call), tasks);
    };
    for number in 0..AT_ONCE_MAX + 3 {
        push(rent(&format!("a-{number}")), &mut tasks);
    }
    for call in [ProviderCall::Return { pod: "p".parse().unwrap() }, ProviderCall::List, ProviderCall::Price]
    {
        push(call, &mut tasks);
    }
    let mut calls = Vec::new();
    while calls.last() != Some(&"price") || calls.len() < AT_ONCE_MAX + 3 {
        calls.push(recorded.recv().await.unwrap());
    }
    let rest: Vec<_> = calls.iter().filter(|call| **call != "rent").collect();
    assert_eq!(rest, [&"return", &"list", &"price"], "in order, although the first of them panicked");
    assert_eq!(calls.len() - rest.len(), AT_ONCE_MAX);
}

#[tokio::test]
async fn call_that_panics_is_answered_as_ambiguous() {
    let (client, _recorded, _folder) = client().await;
    let event = client.make(ProviderCall::Return { pod: "p".parse().unwrap() }).await;
    let ProviderEvent::Returned { result: Err(fault), .. } = event else { panic!("{event:?}") };
    assert_eq!(fault.class, ProviderErrorClass::Ambiguous);
}

#[test]
fn calls_stay_in_flight_until_they_are_answered() {
    let in_flight = InFlight::default();
    let fleet: FleetId = "a".parse().unwrap();
    let answered = in_flight.insert(fleet.clone(), ProviderCall::List);
    let lost = in_flight.insert(fleet.clone(), rent("a-1"));
    answered.answered();
    drop(lost);
    let left = in_flight.take_all();
    assert!(matches!(&left[..], [(of, ProviderCall::Rent { .. })] if *of == fleet), "{left:?}");
    assert!(in_flight.take_all().is_empty());
}

#[tokio::test]
async fn deployment_gets_its_name_once() {
    let (client, _recorded, _folder) = client().await;
    let read_name = |plane: &remuda_core::plane::Plane, _| plane.deployment().map(str::to_owned);
    let name = client.plane().read(read_name).await.unwrap().unwrap();
    assert!(name.len() == 8 && name.bytes().all(|byte| byte.is_ascii_hexdigit()), "{name}");
    deployment::ensure_identity(client.context()).await.unwrap();
    assert_eq!(client.plane().read(read_name).await.unwrap(), Some(name));
}
