//! Calls that take long, and calls that go wrong, with a provider that does as the story says.

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
use crate::http::AccessControl;
use crate::workflow_cache::WorkflowCache;
use remuda_config::Resolved;

/// Says what it is asked; creations never end, and a return is more than it can take.
#[derive(Debug)]
struct Slow(mpsc::UnboundedSender<&'static str>);

impl Slow {
    fn asked(&self, what: &'static str) {
        self.0.send(what).unwrap();
    }
}

impl Provider for Slow {
    fn rent(&self, order: RentOrder) -> BoxFuture<'_, Result<Pod, ProviderError>> {
        assert!(order.environment["REMUDA_TOKEN"].starts_with("rmj_"));
        self.asked("rent");
        futures_util::future::pending().boxed()
    }

    fn list(&self) -> BoxFuture<'_, Result<Vec<Pod>, ProviderError>> {
        self.asked("list");
        async { Ok(Vec::new()) }.boxed()
    }

    fn give_back(&self, _: PodId) -> BoxFuture<'_, Result<(), ProviderError>> {
        self.asked("return");
        async { panic!("a rule was broken") }.boxed()
    }

    fn prices(&self) -> BoxFuture<'_, Result<BTreeMap<String, Money>, ProviderError>> {
        self.asked("price");
        async { Ok(BTreeMap::new()) }.boxed()
    }
}

async fn maker() -> (Arc<FleetClient>, mpsc::UnboundedReceiver<&'static str>, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open("memory:").await.unwrap();
    let carry_out = EffectRunner::new(WorkflowCache::default(), mpsc::unbounded_channel().0);
    let (plane, drive) = EventLoop::start(store.clone(), Settings::default(), carry_out).await.unwrap();
    tokio::spawn(drive.run());
    let resolved = Resolved::defaults(folder.path().to_path_buf());
    let audit = crate::audit::Audit::open(folder.path(), plane.clock.now()).unwrap();
    let access =
        AccessControl::load(&resolved.serve, resolved.serve.listen, &store, audit, None).await.unwrap();
    let (url, data) = ("http://127.0.0.1:1".to_owned(), folder.path().to_path_buf());
    let context = Arc::new(FleetContext::new(plane, Arc::new(access), url, data));
    deployment::settle(&context).await.unwrap();
    let (asked, heard) = mpsc::unbounded_channel();
    let toml = folder.path().join("remuda.toml");
    std::fs::write(&toml, "[[fleet]]\nname = 'a'\nprovider = 'fixed'\nmachines = ['one']\n").unwrap();
    let home = [("HOME".to_owned(), "/nowhere".to_owned())];
    let fleet = config::load(Some(&toml), home, &[]).unwrap().fleets.remove(0);
    let maker = FleetClient::with(fleet, Arc::new(Slow(asked)), context);
    (Arc::new(maker), heard, folder)
}

fn rent(machine: &str) -> ProviderCall {
    let (tag, offer) = (format!("remuda-0-{machine}"), "any".to_owned());
    ProviderCall::Rent { machine: machine.parse().unwrap(), tag, offer }
}

#[tokio::test]
async fn creations_that_take_long_hold_up_neither_lists_nor_returns_and_are_few_at_a_time() {
    let (maker, mut heard, _folder) = maker().await;
    let mut tasks = JoinSet::new();
    let queue = CallQueue::new(maker.plane().clone(), &mut tasks);
    for number in 0..AT_ONCE_MAX + 3 {
        queue.take(maker.clone(), rent(&format!("a-{number}")), &mut tasks);
    }
    for call in [ProviderCall::Return { pod: "p".parse().unwrap() }, ProviderCall::List, ProviderCall::Price]
    {
        queue.take(maker.clone(), call, &mut tasks);
    }
    let mut asked = Vec::new();
    while asked.last() != Some(&"price") || asked.len() < AT_ONCE_MAX + 3 {
        asked.push(heard.recv().await.unwrap());
    }
    let rest: Vec<_> = asked.iter().filter(|what| **what != "rent").collect();
    assert_eq!(rest, [&"return", &"list", &"price"], "in order, although the first of them panicked");
    assert_eq!(asked.len() - rest.len(), AT_ONCE_MAX);
}

#[tokio::test]
async fn a_call_that_panics_is_answered_as_one_in_doubt() {
    let (maker, _heard, _folder) = maker().await;
    let news = maker.make(ProviderCall::Return { pod: "p".parse().unwrap() }).await;
    let ProviderEvent::Returned { result: Err(fault), .. } = news else { panic!("{news:?}") };
    assert_eq!(fault.class, ProviderErrorClass::Ambiguous);
}

#[tokio::test]
async fn a_deployment_is_settled_once_and_for_ever() {
    let (maker, _heard, _folder) = maker().await;
    let look = |plane: &remuda_core::plane::Plane, _| plane.deployment().map(str::to_owned);
    let name = maker.plane().read(look).await.unwrap().unwrap();
    assert!(name.len() == 8 && name.bytes().all(|byte| byte.is_ascii_hexdigit()), "{name}");
    deployment::settle(maker.context()).await.unwrap();
    assert_eq!(maker.plane().read(look).await.unwrap(), Some(name));
}
