//! The contract of every provider that rents machines. A provider passes all of it: `passes_the_contract!(fixture)`
//! makes a test of each rule, where `fixture().await` is a fresh [`Account`].

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use futures_util::future::join_all;
use remuda_core::id::PodId;
use remuda_core::money::Money;
use remuda_core::provider::{Pod, PodStatus, PodTag, ProviderErrorClass};

use crate::provider::{Provider, RentOrder};

/// An account at a provider that also has pods that are not ours.
pub(super) trait Account {
    /// Opens the account: also for the next plane, after the previous one was killed.
    fn open(&self) -> Box<dyn Provider>;

    /// The offers that can be rented.
    fn offers(&self) -> Vec<String>;

    /// Advances the clock where it is simulated.
    fn advance(&self) {}
}

macro_rules! passes_the_contract {
    ($fixture:path) => {
        passes_the_contract! { $fixture:
            rented_pod_is_listed_once_under_its_tag
            rented_pod_starts_running
            next_plane_finds_the_same_pods
            repeated_returns_leave_the_pod_gone
            missing_pod_cannot_be_returned
            concurrent_rents_create_one_pod_each
            list_is_complete_while_pods_change
            prices_cover_the_offers
            environment_never_appears_in_lists_or_errors
        }
    };
    ($fixture:path: $($story:ident)*) => {
        $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $story() {
                crate::contract::$story(&$fixture().await).await;
            }
        )*
    };
}
pub(super) use passes_the_contract;

const DEPLOYMENT: &str = "0a1b2c3d";
const CANARY: &str = "rmj_canary";

/// Longer than any provider here takes for anything.
const WAIT_MAX: Duration = Duration::from_secs(30);

fn tag(number: usize) -> String {
    PodTag { deployment: DEPLOYMENT, fleet: "gpus", number: &number.to_string() }.to_string()
}

fn order(account: &impl Account, number: usize) -> RentOrder {
    RentOrder {
        machine: format!("gpus-{number}").parse().unwrap(),
        tag: tag(number),
        offer: account.offers().swap_remove(0),
        environment: BTreeMap::from([("REMUDA_TOKEN".to_owned(), CANARY.to_owned())]),
    }
}

/// Our pods in the list.
async fn ours(provider: &dyn Provider) -> Vec<Pod> {
    let pods = provider.list().await.unwrap();
    pods.into_iter()
        .filter(|pod| PodTag::parse(&pod.tag).is_some_and(|tag| tag.deployment == DEPLOYMENT))
        .collect()
}

async fn tags(provider: &dyn Provider) -> Vec<String> {
    let mut tags: Vec<_> = ours(provider).await.into_iter().map(|pod| pod.tag).collect();
    tags.sort();
    tags
}

/// Polls until the condition holds.
async fn wait_until(account: &impl Account, what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    let mut looks = tokio::time::interval(Duration::from_millis(20));
    let looking = async {
        while !is_so().await {
            account.advance();
            looks.tick().await;
        }
    };
    assert!(tokio::time::timeout(WAIT_MAX, looking).await.is_ok(), "not within {WAIT_MAX:?}: {what}");
}

/// Returns all pods, so that a test leaves nothing behind.
async fn clear(account: &impl Account, provider: &dyn Provider) {
    for pod in ours(provider).await {
        provider.return_pod(pod.id).await.unwrap();
    }
    wait_until(account, "all are gone", async || ours(provider).await.is_empty()).await;
}

pub(super) async fn rented_pod_is_listed_once_under_its_tag(account: &impl Account) {
    let provider = account.open();
    let others = provider.list().await.unwrap().len();
    let made = provider.rent(order(account, 1)).await.unwrap();
    assert_eq!(made.tag, tag(1));
    let mut listed = Vec::new();
    wait_until(account, "it is listed", async || {
        listed = ours(&*provider).await;
        !listed.is_empty()
    })
    .await;
    assert_eq!(listed.len(), 1);
    assert_eq!((&listed[0].id, &listed[0].tag), (&made.id, &made.tag));
    assert_eq!(provider.list().await.unwrap().len(), others + 1, "nothing else was made");
    clear(account, &*provider).await;
}

pub(super) async fn rented_pod_starts_running(account: &impl Account) {
    let provider = account.open();
    let made = provider.rent(order(account, 1)).await.unwrap();
    assert!(made.status <= PodStatus::Running, "{made:?}");
    let mut last = made.status;
    wait_until(account, "it runs", async || {
        let listed = ours(&*provider).await;
        let Some(pod) = listed.first() else { return false };
        assert!(pod.status >= last && pod.status <= PodStatus::Running, "{last:?}, then {pod:?}");
        last = pod.status;
        last == PodStatus::Running
    })
    .await;
    clear(account, &*provider).await;
}

pub(super) async fn next_plane_finds_the_same_pods(account: &impl Account) {
    let before = account.open();
    before.rent(order(account, 1)).await.unwrap();
    before.rent(order(account, 2)).await.unwrap();
    wait_until(account, "both are listed", async || ours(&*before).await.len() == 2).await;
    let ids = |pods: Vec<Pod>| pods.into_iter().map(|pod| (pod.id, pod.tag)).collect::<BTreeSet<_>>();
    let known = ids(ours(&*before).await);
    drop(before);
    let next = account.open();
    assert_eq!(ids(ours(&*next).await), known);
    clear(account, &*next).await;
}

pub(super) async fn repeated_returns_leave_the_pod_gone(account: &impl Account) {
    let provider = account.open();
    let first = provider.rent(order(account, 1)).await.unwrap();
    provider.rent(order(account, 2)).await.unwrap();
    wait_until(account, "both are listed", async || ours(&*provider).await.len() == 2).await;
    provider.return_pod(first.id.clone()).await.unwrap();
    let again = provider.return_pod(first.id.clone()).await.map_err(|fault| fault.class);
    assert!(matches!(again, Ok(()) | Err(ProviderErrorClass::NotFound)), "{again:?}");
    wait_until(account, "it is gone", async || tags(&*provider).await == [tag(2)]).await;
    let gone = provider.return_pod(first.id).await.unwrap_err();
    assert_eq!(gone.class, ProviderErrorClass::NotFound);
    assert_eq!(tags(&*provider).await, [tag(2)], "the other one is as it was");
    clear(account, &*provider).await;
}

pub(super) async fn missing_pod_cannot_be_returned(account: &impl Account) {
    let provider = account.open();
    let before = provider.list().await.unwrap();
    for id in ["zzzzzzzzzzzzzz", "remuda-0a1b2c3d-gpus-9", "a.b", "a:b", "a..b"] {
        let id: PodId = id.parse().unwrap();
        assert_eq!(provider.return_pod(id).await.unwrap_err().class, ProviderErrorClass::NotFound);
    }
    assert_eq!(provider.list().await.unwrap().len(), before.len());
}

pub(super) async fn concurrent_rents_create_one_pod_each(account: &impl Account) {
    let provider = account.open();
    let made = join_all((0..8).map(|number| provider.rent(order(account, number)))).await;
    let made: BTreeSet<_> = made.into_iter().map(|pod| pod.unwrap().id).collect();
    assert_eq!(made.len(), 8);
    let expected: Vec<_> = (0..8).map(tag).collect();
    wait_until(account, "all are listed", async || tags(&*provider).await == expected).await;
    join_all(made.into_iter().map(|id| provider.return_pod(id))).await.into_iter().for_each(Result::unwrap);
    wait_until(account, "all are gone", async || ours(&*provider).await.is_empty()).await;
}

pub(super) async fn list_is_complete_while_pods_change(account: &impl Account) {
    let provider = account.open();
    provider.rent(order(account, 0)).await.unwrap();
    wait_until(account, "it is listed", async || ours(&*provider).await.len() == 1).await;
    let comes_and_goes = async {
        for number in 1..6 {
            let pod = provider.rent(order(account, number)).await.unwrap();
            provider.return_pod(pod.id).await.unwrap();
        }
    };
    let looks = async {
        for _ in 0..20 {
            let listed = tags(&*provider).await;
            let once: BTreeSet<_> = listed.iter().collect();
            assert!(listed.contains(&tag(0)) && once.len() == listed.len(), "{listed:?}");
        }
    };
    tokio::join!(comes_and_goes, looks);
    wait_until(account, "the others are gone", async || tags(&*provider).await == [tag(0)]).await;
    clear(account, &*provider).await;
}

pub(super) async fn prices_cover_the_offers(account: &impl Account) {
    let prices = account.open().prices().await.unwrap();
    let offers = account.offers();
    assert!(!prices.is_empty());
    for (offer, price) in prices {
        assert!(offers.contains(&offer), "{offer}");
        assert!(price > Money::ZERO, "{offer} is free");
    }
}

/// Faults: X10.
pub(super) async fn environment_never_appears_in_lists_or_errors(account: &impl Account) {
    let provider = account.open();
    let order = order(account, 1);
    let mut shown = format!("{order:?}");
    shown += &format!("{:?}", provider.rent(order.clone()).await);
    shown += &format!("{:?} {:?} {provider:?}", provider.rent(order).await, provider.list().await);
    assert!(!shown.contains(CANARY), "{shown}");
    clear(account, &*provider).await;
}
