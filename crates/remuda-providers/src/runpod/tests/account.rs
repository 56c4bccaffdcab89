//! A whole account at the fake: the contract, and every fault of the API.

use remuda_core::provider::{Pod, PodStatus};

use super::super::RunPodOffer;
use super::*;
use crate::contract::{Account, passes_the_contract};
use crate::provider::Provider;
use remuda_fakes::runpod::{FakeRunpod, FakeRunpodOptions, RunpodFault, RunpodFaults};

const OFFER: &str = "NVIDIA GeForce RTX 4090/SECURE";

struct Fixture {
    fake: FakeRunpod,
    runpod: RunPodProvider,
}

impl Account for Fixture {
    fn open(&self) -> Box<dyn Provider> {
        Box::new(RunPodProvider::new(settings(&self.fake.url()), http()).unwrap())
    }

    fn offers(&self) -> Vec<String> {
        self.runpod.offers()
    }

    fn advance(&self) {
        self.fake.control().advance(Duration::from_secs(5));
    }
}

/// An account with foreign pods and a simulated clock.
async fn fixture() -> Fixture {
    let options = FakeRunpodOptions {
        foreign: 2,
        manual_time: true,
        requests_per_minute: None,
        ..FakeRunpodOptions::default()
    };
    let fake = FakeRunpod::start(options).await.unwrap();
    let quick = RunPodSettings { create_max: Duration::from_millis(500), ..settings(&fake.url()) };
    let runpod = RunPodProvider::new(quick, http()).unwrap();
    Fixture { fake, runpod }
}

passes_the_contract!(fixture);

impl Fixture {
    async fn rent(&self, tag: &str) -> Result<Pod, ProviderErrorClass> {
        self.runpod.rent(order(tag, OFFER)).await.map_err(|fault| fault.class)
    }

    async fn list(&self) -> Result<Vec<Pod>, ProviderErrorClass> {
        self.runpod.list().await.map_err(|fault| fault.class)
    }

    /// The listed pods with this name.
    async fn named(&self, tag: &str) -> Vec<Pod> {
        self.list().await.unwrap().into_iter().filter(|pod| pod.tag == tag).collect()
    }

    fn strike(&self, fault: RunpodFault) {
        self.fake.control().strike_next(fault);
    }

    fn advance(&self, seconds: u64) {
        self.fake.control().advance(Duration::from_secs(seconds));
    }

    /// How many creations were requested under this name, and how many pods were created.
    fn books(&self, tag: &str) -> (u32, u32) {
        let named = self.fake.ledger().names.get(tag).copied().unwrap_or_default();
        (named.orders, named.pods)
    }
}

/// Faults: P1.
#[tokio::test]
async fn creation_without_an_answer_is_ambiguous() {
    for (fault, made) in [
        (RunpodFault::Create500, 1),
        (RunpodFault::CreateReset, 1),
        (RunpodFault::CreateHang, 1),
        (RunpodFault::Refuse500, 0),
        (RunpodFault::RefuseReset, 0),
        (RunpodFault::RefuseHang, 0),
    ] {
        let fixture = fixture().await;
        fixture.strike(fault);
        assert_eq!(fixture.rent(TAG).await.unwrap_err(), ProviderErrorClass::Ambiguous, "{fault}");
        assert_eq!(fixture.fake.struck()[fault.name()], 1);
        assert_eq!(fixture.books(TAG), (1, made), "{fault}: requested once");
        assert_eq!(fixture.named(TAG).await.len(), made as usize, "{fault}: a list tells");
    }
}

/// Faults: P6, P7, P9.
#[tokio::test]
async fn refused_creation_has_a_reason_and_creates_nothing() {
    for (fault, class) in [
        (RunpodFault::NoCapacity, ProviderErrorClass::Capacity),
        (RunpodFault::NoCredit, ProviderErrorClass::Billing),
        (RunpodFault::Denied, ProviderErrorClass::Denied),
        (RunpodFault::Unauthorized, ProviderErrorClass::Auth),
        (RunpodFault::Html403, ProviderErrorClass::Auth),
        (RunpodFault::Html502, ProviderErrorClass::Ambiguous),
        (RunpodFault::RateLimited, ProviderErrorClass::RateLimited),
    ] {
        let fixture = fixture().await;
        fixture.strike(fault);
        assert_eq!(fixture.rent(TAG).await.unwrap_err(), class, "{fault}");
        assert_eq!(fixture.fake.struck()[fault.name()], 1);
        assert_eq!(fixture.books(TAG).1, 0, "{fault}");
    }
    let fixture = fixture().await;
    let nonsense = fixture.runpod.rent(order(TAG, "NVIDIA GeForce 256")).await.unwrap_err();
    assert_eq!(nonsense.class, ProviderErrorClass::Invalid, "{nonsense}");
}

/// Faults: P7.
#[tokio::test]
async fn capacity_is_per_offer() {
    let fixture = fixture().await;
    fixture.strike(RunpodFault::NoCapacity);
    let (first, second) = ("NVIDIA GeForce RTX 4090@EU-RO-1", "NVIDIA L4@EU-RO-1");
    assert_eq!(fixture.runpod.rent(order(TAG, first)).await.unwrap_err().class, ProviderErrorClass::Capacity);
    assert_eq!(fixture.runpod.rent(order(TAG, first)).await.unwrap_err().class, ProviderErrorClass::Capacity);
    let pod = fixture.runpod.rent(order(TAG, second)).await.unwrap();
    assert_eq!((pod.kind.as_str(), pod.place.as_str()), ("NVIDIA L4", "EU-RO-1"));
    fixture.advance(301);
    assert!(fixture.runpod.rent(order("remuda-0a1b2c3d-gpus-2", first)).await.is_ok());
}

/// Faults: P6.
#[tokio::test]
async fn rate_limit_is_respected_without_further_calls() {
    let options =
        FakeRunpodOptions { manual_time: true, requests_per_minute: Some(3), ..FakeRunpodOptions::default() };
    let fake = FakeRunpod::start(options).await.unwrap();
    let runpod = RunPodProvider::new(settings(&fake.url()), http()).unwrap();
    let mut results = Vec::new();
    for _ in 0..10 {
        results.push(runpod.list().await.map(|_| ()).map_err(|fault| (fault.class, fault.wait.is_some())));
    }
    assert_eq!(results[..3], [Ok(()), Ok(()), Ok(())]);
    assert!(
        results[3..].iter().all(|result| *result == Err((ProviderErrorClass::RateLimited, true))),
        "{results:?}"
    );
    assert_eq!(fake.requests()["GET /v2/pods"], 3, "none was made only to be refused");
}

/// Faults: P3.
#[tokio::test]
async fn broken_list_is_an_error_and_repeated_pods_are_not() {
    let fixture = fixture().await;
    fixture.rent(TAG).await.unwrap();
    let control = fixture.fake.control();
    for (fault, class) in [
        (RunpodFault::BadCursor, ProviderErrorClass::Transient),
        (RunpodFault::NoArray, ProviderErrorClass::Transient),
        (RunpodFault::Html502, ProviderErrorClass::Transient),
        (RunpodFault::Html403, ProviderErrorClass::Auth),
        (RunpodFault::Unauthorized, ProviderErrorClass::Auth),
    ] {
        control.set_faults(RunpodFaults::none().with(fault, 1.0));
        assert_eq!(fixture.list().await.unwrap_err(), class, "{fault}");
        control.set_faults(RunpodFaults::none());
        assert_eq!(fixture.named(TAG).await.len(), 1, "{fault}: and the next is as it should be");
    }
    fixture.strike(RunpodFault::Duplicate);
    assert_eq!(fixture.named(TAG).await.len(), 1);
    fixture.strike(RunpodFault::RateLimited);
    assert_eq!(fixture.list().await.unwrap_err(), ProviderErrorClass::RateLimited);
}

#[tokio::test]
async fn pods_with_one_name_are_all_listed() {
    let fixture = fixture().await;
    fixture.strike(RunpodFault::Double);
    let made = fixture.rent(TAG).await.unwrap();
    let listed = fixture.named(TAG).await;
    assert_eq!(listed.len(), 2, "which of them to keep is not decided here");
    assert!(listed.iter().any(|pod| pod.id == made.id));
}

/// Faults: P5.
#[tokio::test]
async fn return_reports_acceptance_and_the_list_its_effect() {
    for (fault, result, is_gone) in [
        (None, Ok(()), true),
        (Some(RunpodFault::DeleteIgnored), Ok(()), false),
        (Some(RunpodFault::DeleteLate), Ok(()), false),
        (Some(RunpodFault::Delete500), Err(ProviderErrorClass::Ambiguous), false),
        (Some(RunpodFault::Delete500Done), Err(ProviderErrorClass::Ambiguous), true),
        (Some(RunpodFault::Delete404), Err(ProviderErrorClass::NotFound), false),
        (Some(RunpodFault::Unauthorized), Err(ProviderErrorClass::Auth), false),
        (Some(RunpodFault::Html502), Err(ProviderErrorClass::Ambiguous), false),
    ] {
        let fixture = fixture().await;
        let pod = fixture.rent(TAG).await.unwrap();
        fault.into_iter().for_each(|fault| fixture.strike(fault));
        let returned = fixture.runpod.return_pod(pod.id.clone()).await.map_err(|fault| fault.class);
        assert_eq!(returned, result, "{fault:?}");
        assert_eq!(fixture.named(TAG).await.is_empty(), is_gone, "{fault:?}");
        if is_gone {
            let again = fixture.runpod.return_pod(pod.id).await.unwrap_err();
            assert_eq!(again.class, ProviderErrorClass::NotFound, "{fault:?}");
        }
    }
}

#[tokio::test]
async fn pod_runs_only_with_a_runtime() {
    let fixture = fixture().await;
    let options = RunPodSettings { ports: vec!["22/tcp".to_owned()], ..settings(&fixture.fake.url()) };
    let runpod = RunPodProvider::new(options, http()).unwrap();
    let made = runpod.rent(order(TAG, OFFER)).await.unwrap();
    assert!(made.status < PodStatus::Running, "{made:?}");
    fixture.advance(600);
    let [pod] = fixture.named(TAG).await.try_into().unwrap();
    assert_eq!(pod.status, PodStatus::Running);
    assert_eq!(pod.ssh.as_ref().map(|ssh| ssh.user.as_str()), Some("root"));
    assert_eq!(Some(pod.price.unwrap()), runpod.prices().await.unwrap().get(OFFER).copied());
    fixture.strike(RunpodFault::Flicker);
    assert_eq!(fixture.named(TAG).await[0].status, PodStatus::Starting);
    fixture.fake.control().exit(pod.id.as_str());
    let [stopped] = fixture.named(TAG).await.try_into().unwrap();
    assert_eq!((stopped.status, stopped.ssh), (PodStatus::Stopped, None));
}

#[tokio::test]
async fn failed_start_is_explained_in_the_log() {
    let fixture = fixture().await;
    fixture.strike(RunpodFault::PullError);
    let pod = fixture.rent(TAG).await.unwrap();
    fixture.advance(1200);
    assert_eq!(fixture.named(TAG).await[0].status, PodStatus::Failed);
    let log = fixture.runpod.system_log(&pod.id).await.unwrap();
    assert!(!log.is_empty());
}

#[tokio::test]
async fn pod_without_a_price_is_not_free() {
    let fixture = fixture().await;
    fixture.strike(RunpodFault::CostZero);
    assert_eq!(fixture.rent(TAG).await.unwrap().price, None);
    fixture.strike(RunpodFault::WrongGpu);
    let other = fixture.rent("remuda-0a1b2c3d-gpus-2").await.unwrap();
    assert_ne!(other.kind, OFFER.parse::<RunPodOffer>().unwrap().gpu, "the delivered kind is reported");
}
