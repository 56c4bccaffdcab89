//! A whole account at the stand-in: the contract, and every way in which it lets its client down.

use remuda_core::provider::{Pod, PodStatus};

use super::super::Offer;
use super::*;
use crate::Provider;
use crate::contract::{Account, passes_the_contract};
use remuda_fakes::runpod::{Fake, Fault, Faults, Options};

const OFFER: &str = "NVIDIA GeForce RTX 4090/SECURE";

struct Place {
    fake: Fake,
    runpod: RunPod,
}

impl Account for Place {
    fn open(&self) -> Box<dyn Provider> {
        Box::new(RunPod::new(settings(&self.fake.url()), http()).unwrap())
    }

    fn offers(&self) -> Vec<String> {
        self.runpod.offers()
    }

    fn pass(&self) {
        self.fake.control().advance(Duration::from_secs(5));
    }
}

/// With pods of somebody else in it, and time that goes by hand.
async fn place() -> Place {
    let options = Options { foreign: 2, manual_time: true, requests_per_minute: None, ..Options::default() };
    let fake = Fake::start(options).await.unwrap();
    let quick = RunPodSettings { create_max: Duration::from_millis(500), ..settings(&fake.url()) };
    let runpod = RunPod::new(quick, http()).unwrap();
    Place { fake, runpod }
}

passes_the_contract!(place);

impl Place {
    async fn rent(&self, tag: &str) -> Result<Pod, ProviderErrorClass> {
        self.runpod.rent(order(tag, OFFER)).await.map_err(|fault| fault.class)
    }

    async fn list(&self) -> Result<Vec<Pod>, ProviderErrorClass> {
        self.runpod.list().await.map_err(|fault| fault.class)
    }

    /// Pods of this name, as the list has them.
    async fn named(&self, tag: &str) -> Vec<Pod> {
        self.list().await.unwrap().into_iter().filter(|pod| pod.tag == tag).collect()
    }

    fn strike(&self, fault: Fault) {
        self.fake.control().strike_next(fault);
    }

    fn pass(&self, seconds: u64) {
        self.fake.control().advance(Duration::from_secs(seconds));
    }

    /// How many creations were asked for under this name, and how many pods were made.
    fn books(&self, tag: &str) -> (u32, u32) {
        let named = self.fake.ledger().names.get(tag).copied().unwrap_or_default();
        (named.orders, named.pods)
    }
}

/// Faults: P1.
#[tokio::test]
async fn a_creation_without_an_answer_is_in_doubt_whether_or_not_it_was_made() {
    for (fault, made) in [
        (Fault::Create500, 1),
        (Fault::CreateReset, 1),
        (Fault::CreateHang, 1),
        (Fault::Refuse500, 0),
        (Fault::RefuseReset, 0),
        (Fault::RefuseHang, 0),
    ] {
        let place = place().await;
        place.strike(fault);
        assert_eq!(place.rent(TAG).await.unwrap_err(), ProviderErrorClass::Ambiguous, "{fault}");
        assert_eq!(place.fake.struck()[fault.name()], 1);
        assert_eq!(place.books(TAG), (1, made), "{fault}: asked for once");
        assert_eq!(place.named(TAG).await.len(), made as usize, "{fault}: a list tells");
    }
}

/// Faults: P6, P7, P9.
#[tokio::test]
async fn a_refused_creation_says_why_and_makes_nothing() {
    for (fault, class) in [
        (Fault::NoCapacity, ProviderErrorClass::Capacity),
        (Fault::NoCredit, ProviderErrorClass::Billing),
        (Fault::Denied, ProviderErrorClass::Denied),
        (Fault::Unauthorized, ProviderErrorClass::Auth),
        (Fault::Html403, ProviderErrorClass::Auth),
        (Fault::Html502, ProviderErrorClass::Ambiguous),
        (Fault::RateLimited, ProviderErrorClass::RateLimited),
    ] {
        let place = place().await;
        place.strike(fault);
        assert_eq!(place.rent(TAG).await.unwrap_err(), class, "{fault}");
        assert_eq!(place.fake.struck()[fault.name()], 1);
        assert_eq!(place.books(TAG).1, 0, "{fault}");
    }
    let place = place().await;
    let nonsense = place.runpod.rent(order(TAG, "NVIDIA GeForce 256")).await.unwrap_err();
    assert_eq!(nonsense.class, ProviderErrorClass::Invalid, "{nonsense}");
}

/// Faults: P7.
#[tokio::test]
async fn capacity_is_of_one_offer_and_the_next_may_have_it() {
    let place = place().await;
    place.strike(Fault::NoCapacity);
    let (first, second) = ("NVIDIA GeForce RTX 4090@EU-RO-1", "NVIDIA L4@EU-RO-1");
    assert_eq!(place.runpod.rent(order(TAG, first)).await.unwrap_err().class, ProviderErrorClass::Capacity);
    assert_eq!(place.runpod.rent(order(TAG, first)).await.unwrap_err().class, ProviderErrorClass::Capacity);
    let pod = place.runpod.rent(order(TAG, second)).await.unwrap();
    assert_eq!((pod.kind.as_str(), pod.place.as_str()), ("NVIDIA L4", "EU-RO-1"));
    place.pass(301);
    assert!(place.runpod.rent(order("remuda-0a1b2c3d-gpus-2", first)).await.is_ok());
}

/// Faults: P6.
#[tokio::test]
async fn a_rate_limit_is_kept_to_without_asking_again() {
    let options = Options { manual_time: true, requests_per_minute: Some(3), ..Options::default() };
    let fake = Fake::start(options).await.unwrap();
    let runpod = RunPod::new(settings(&fake.url()), http()).unwrap();
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
async fn a_list_that_goes_wrong_is_a_fault_and_one_that_repeats_itself_is_not() {
    let place = place().await;
    place.rent(TAG).await.unwrap();
    let control = place.fake.control();
    for (fault, class) in [
        (Fault::BadCursor, ProviderErrorClass::Transient),
        (Fault::NoArray, ProviderErrorClass::Transient),
        (Fault::Html502, ProviderErrorClass::Transient),
        (Fault::Html403, ProviderErrorClass::Auth),
        (Fault::Unauthorized, ProviderErrorClass::Auth),
    ] {
        control.set_faults(Faults::none().with(fault, 1.0));
        assert_eq!(place.list().await.unwrap_err(), class, "{fault}");
        control.set_faults(Faults::none());
        assert_eq!(place.named(TAG).await.len(), 1, "{fault}: and the next is as it should be");
    }
    place.strike(Fault::Duplicate);
    assert_eq!(place.named(TAG).await.len(), 1);
    place.strike(Fault::RateLimited);
    assert_eq!(place.list().await.unwrap_err(), ProviderErrorClass::RateLimited);
}

#[tokio::test]
async fn pods_of_one_name_are_all_listed() {
    let place = place().await;
    place.strike(Fault::Double);
    let made = place.rent(TAG).await.unwrap();
    let listed = place.named(TAG).await;
    assert_eq!(listed.len(), 2, "which of them to keep is not decided here");
    assert!(listed.iter().any(|pod| pod.id == made.id));
}

/// Faults: P5.
#[tokio::test]
async fn a_return_says_what_was_heard_and_a_list_what_became_of_it() {
    for (fault, result, is_gone) in [
        (None, Ok(()), true),
        (Some(Fault::DeleteIgnored), Ok(()), false),
        (Some(Fault::DeleteLate), Ok(()), false),
        (Some(Fault::Delete500), Err(ProviderErrorClass::Ambiguous), false),
        (Some(Fault::Delete500Done), Err(ProviderErrorClass::Ambiguous), true),
        (Some(Fault::Delete404), Err(ProviderErrorClass::NotFound), false),
        (Some(Fault::Unauthorized), Err(ProviderErrorClass::Auth), false),
        (Some(Fault::Html502), Err(ProviderErrorClass::Ambiguous), false),
    ] {
        let place = place().await;
        let pod = place.rent(TAG).await.unwrap();
        fault.into_iter().for_each(|fault| place.strike(fault));
        let returned = place.runpod.give_back(pod.id.clone()).await.map_err(|fault| fault.class);
        assert_eq!(returned, result, "{fault:?}");
        assert_eq!(place.named(TAG).await.is_empty(), is_gone, "{fault:?}");
        if is_gone {
            let again = place.runpod.give_back(pod.id).await.unwrap_err();
            assert_eq!(again.class, ProviderErrorClass::NotFound, "{fault:?}");
        }
    }
}

#[tokio::test]
async fn a_pod_runs_only_once_it_has_a_runtime_and_shows_where_it_answers() {
    let place = place().await;
    let options = RunPodSettings { ports: vec!["22/tcp".to_owned()], ..settings(&place.fake.url()) };
    let runpod = RunPod::new(options, http()).unwrap();
    let made = runpod.rent(order(TAG, OFFER)).await.unwrap();
    assert!(made.status < PodStatus::Running, "{made:?}");
    place.pass(600);
    let [pod] = place.named(TAG).await.try_into().unwrap();
    assert_eq!(pod.status, PodStatus::Running);
    assert_eq!(pod.ssh.as_ref().map(|ssh| ssh.user.as_str()), Some("root"));
    assert_eq!(Some(pod.price.unwrap()), runpod.prices().await.unwrap().get(OFFER).copied());
    place.strike(Fault::Flicker);
    assert_eq!(place.named(TAG).await[0].status, PodStatus::Starting);
    place.fake.control().exit(pod.id.as_str());
    let [stopped] = place.named(TAG).await.try_into().unwrap();
    assert_eq!((stopped.status, stopped.ssh), (PodStatus::Stopped, None));
}

#[tokio::test]
async fn a_pod_that_cannot_start_says_why_in_its_log() {
    let place = place().await;
    place.strike(Fault::PullError);
    let pod = place.rent(TAG).await.unwrap();
    place.pass(1200);
    assert_eq!(place.named(TAG).await[0].status, PodStatus::Failed);
    let log = place.runpod.system_log(&pod.id).await.unwrap();
    assert!(!log.is_empty());
}

#[tokio::test]
async fn a_pod_without_a_price_is_not_free() {
    let place = place().await;
    place.strike(Fault::CostZero);
    assert_eq!(place.rent(TAG).await.unwrap().price, None);
    place.strike(Fault::WrongGpu);
    let other = place.rent("remuda-0a1b2c3d-gpus-2").await.unwrap();
    assert_ne!(other.kind, OFFER.parse::<Offer>().unwrap().gpu, "what was delivered is told");
}
