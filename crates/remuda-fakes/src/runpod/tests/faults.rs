//! Every pod fault does what its description says.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::harness::{begin, order, plain, seen};
use crate::runpod::{FakeRunpodOptions, RunpodFault, RunpodFaults};

/// A lost answer or an error, with and without a pod.
#[tokio::test]
async fn a_creation_whose_answer_is_lost_may_have_made_a_pod_or_not() {
    for (fault, status, made) in [
        (RunpodFault::Create500, Some(500), 1),
        (RunpodFault::CreateReset, None, 1),
        (RunpodFault::CreateHang, None, 1),
        (RunpodFault::Refuse500, Some(500), 0),
        (RunpodFault::RefuseReset, None, 0),
        (RunpodFault::RefuseHang, None, 0),
    ] {
        let client = plain().await;
        client.fake.control().strike_next(fault);
        let request = client.request(reqwest::Method::POST, "/pods").json(&order("p"));
        let answer = seen(request).await.ok();
        assert_eq!(answer.as_ref().map(|answer| answer.status), status, "{fault}");
        assert_eq!(client.names().await.len(), made, "{fault}");
        assert_eq!(client.fake.ledger().names["p"].pods, made as u32, "{fault}");
        assert_eq!(client.fake.struck()[fault.name()], 1);
    }
}

#[tokio::test]
async fn one_order_can_make_two_pods_of_one_name() {
    let client = plain().await;
    client.made_with(RunpodFault::Double).await;
    assert_eq!(client.names().await, ["p", "p"]);
    let ledger = client.fake.ledger();
    assert_eq!((ledger.names["p"].orders, ledger.names["p"].pods), (1, 2));
    assert_eq!(ledger.made_twice(), ["p"]);
}

#[tokio::test]
async fn money_pools_and_machines_can_be_wanting() {
    let client = plain().await;
    client.fake.control().strike_next(RunpodFault::NoCredit);
    assert_eq!(client.create("p").await.status, 402);
    assert_eq!(client.create("p").await.status, 201);

    client.fake.control().set_faults(RunpodFaults::none().with(RunpodFault::Denied, 1.0));
    assert_eq!(client.create("p").await.status, 403);
    client.fake.control().set_faults(RunpodFaults::none().with(RunpodFault::Denied, 1e-9));
    assert_eq!(client.create("p").await.status, 403, "this pool, ever after");
    let mut other = order("p");
    other["gpu"]["id"] = json!("NVIDIA L4");
    assert_eq!(client.post("/pods", &other).await.status, 201, "another pool");
    client.fake.control().set_faults(RunpodFaults::none());
    assert_eq!(client.create("p").await.status, 201);
}

#[tokio::test]
async fn capacity_runs_dry_for_one_kind_and_comes_back_after_a_while() {
    let client = plain().await;
    client.fake.control().strike_next(RunpodFault::NoCapacity);
    let refused = client.create("p").await;
    assert_eq!(refused.status, 400);
    assert!(refused.body["detail"].as_str().unwrap().contains("no longer any instances"));
    assert_eq!(client.create("p").await.status, 400, "still");
    let mut other = order("p");
    other["cloud"] = json!("COMMUNITY");
    assert_eq!(client.post("/pods", &other).await.status, 201, "another cloud");
    client.pass(300);
    assert_eq!(client.create("p").await.status, 201);
}

/// A status that goes step by step, and one that never ends.
#[tokio::test]
async fn a_pod_can_go_step_by_step_and_stop_at_any() {
    let client = plain().await;
    client.fake.control().strike_next(RunpodFault::Stepwise);
    let made = client.create("p").await.body;
    assert_eq!((&made["status"], &made["runtime"]), (&json!("PROVISIONING"), &json!({})));
    assert_eq!((&made["startedAt"], &made["actions"]), (&Value::Null, &json!(["start", "terminate"])));
    let id = made["id"].as_str().unwrap();
    client.pass(10);
    assert_eq!(client.pod(id).await["status"], "STARTING");
    assert_eq!(client.act(id, "restart").await.status, 409);
    client.pass(28);
    let pod = client.pod(id).await;
    assert_eq!(pod["status"], "RUNNING");
    assert!(pod["runtime"]["uptime"].is_u64());

    for (fault, status) in [(RunpodFault::NeverStarts, "STARTING"), (RunpodFault::NeverReady, "RUNNING")] {
        let id = client.made_with(fault).await;
        client.pass(86_400);
        let pod = client.pod(&id).await;
        assert_eq!((&pod["status"], &pod["runtime"]), (&json!(status), &Value::Null));
    }
    let id = client.made_with(RunpodFault::PullError).await;
    client.pass(60);
    let pod = client.pod(&id).await;
    assert_eq!((&pod["status"], &pod["cost"]), (&json!("ERROR"), &json!(0.0)));
}

#[tokio::test]
async fn an_image_can_take_minutes() {
    let client = plain().await;
    let id = client.made_with(RunpodFault::ColdPull).await;
    client.pass(119);
    assert_eq!(client.pod(&id).await["runtime"], Value::Null);
    client.pass(780 - 119);
    assert_ne!(client.pod(&id).await["runtime"], Value::Null);
}

#[tokio::test]
async fn ssh_can_come_late_come_wrong_or_never_come() {
    let client = plain().await;
    let id = client.made_with(RunpodFault::LateSsh).await;
    client.pass(28);
    let pod = client.pod(&id).await;
    assert_ne!(pod["runtime"], Value::Null);
    assert_eq!(pod["ssh"]["direct"], Value::Null);
    client.pass(90);
    assert_ne!(client.pod(&id).await["ssh"]["direct"], Value::Null);

    let id = client.made_with(RunpodFault::StalePort).await;
    client.pass(28);
    let stale = client.pod(&id).await["ssh"]["direct"]["port"].clone();
    client.pass(90);
    assert_ne!(client.pod(&id).await["ssh"]["direct"]["port"], stale);

    let id = client.made_with(RunpodFault::NoSsh).await;
    client.pass(86_400);
    assert_eq!(client.pod(&id).await["ssh"]["direct"], Value::Null);
    assert_ne!(client.pod(&id).await["ssh"]["proxy"], Value::Null);
}

#[tokio::test]
async fn a_port_of_ours_is_where_ssh_direct_points() {
    let client = begin(FakeRunpodOptions { ssh_port: Some(2222), ..FakeRunpodOptions::default() }).await;
    let id = client.made("p").await;
    client.pass(28);
    let direct = client.pod(&id).await["ssh"]["direct"].clone();
    assert_eq!((&direct["host"], &direct["port"]), (&json!("127.0.0.1"), &json!(2222)));
}

#[tokio::test]
async fn runtime_can_be_missing_once() {
    let client = plain().await;
    let id = client.made("p").await;
    client.pass(28);
    client.fake.control().strike_next(RunpodFault::Flicker);
    let pod = client.pod(&id).await;
    assert_eq!((&pod["status"], &pod["runtime"]), (&json!("RUNNING"), &Value::Null));
    assert_ne!(client.pod(&id).await["runtime"], Value::Null);
}

#[tokio::test]
async fn a_container_that_crashes_again_and_again_never_gets_old() {
    let client = plain().await;
    let id = client.made_with(RunpodFault::CrashLoop).await;
    client.pass(28);
    let mut uptimes = Vec::new();
    for _ in 0..60 {
        client.pass(1);
        let pod = client.pod(&id).await;
        assert_eq!(pod["status"], "RUNNING");
        uptimes.push(pod["runtime"]["uptime"].as_u64().unwrap());
    }
    assert!(uptimes.windows(2).filter(|pair| pair[1] < pair[0]).count() >= 2, "{uptimes:?}");
    assert!(uptimes.iter().all(|uptime| *uptime <= 20), "{uptimes:?}");
    assert!(client.fake.ledger().gpu_seconds > 80.0, "and it is paid for");
}

/// A pod whose GPU was taken back cannot start again.
#[tokio::test]
async fn a_pod_can_exit_or_vanish_by_itself() {
    let client = plain().await;
    let id = client.made_with(RunpodFault::Preempted).await;
    client.pass(600);
    let pod = client.pod(&id).await;
    assert_eq!((&pod["status"], &pod["cost"]), (&json!("EXITED"), &json!(0.0)));
    let refused = client.act(&id, "start").await;
    assert_eq!(refused.status, 400);
    assert!(refused.body["detail"].as_str().unwrap().starts_with("There are not enough free GPUs"));
    assert_eq!(client.fake.ledger().left_over().len(), 1, "it is still there");
    client.delete(&id).await;

    let id = client.made_with(RunpodFault::Vanish).await;
    client.pass(600);
    assert_eq!(client.get(&format!("/pods/{id}")).await.status, 404);
    assert!(client.fake.ledger().left_over().is_empty());
}

#[tokio::test]
async fn a_person_can_do_it_to_a_pod_at_once() {
    let client = plain().await;
    let ids = [client.made("a").await, client.made("b").await, client.made("c").await];
    client.pass(100);
    assert!(client.fake.control().exit(&ids[0]));
    assert_eq!(client.pod(&ids[0]).await["status"], "EXITED");
    assert!(client.fake.control().vanish(&ids[1]));
    assert_eq!(client.names().await, ["c", "a"]);
    assert!(client.fake.control().crash(&ids[2]));
    assert_eq!(client.pod(&ids[2]).await["runtime"]["uptime"], 0);
    assert!(!client.fake.control().exit("nobody"));
}

/// The answer to a deletion and its effect differ.
#[tokio::test]
async fn a_deletion_can_say_one_thing_and_do_another() {
    for (fault, status, left) in [
        (RunpodFault::DeleteLate, 204, 1),
        (RunpodFault::DeleteIgnored, 204, 1),
        (RunpodFault::Delete500Done, 500, 0),
        (RunpodFault::Delete500, 500, 1),
        (RunpodFault::Delete404, 404, 1),
    ] {
        let client = plain().await;
        let id = client.made("p").await;
        client.fake.control().strike_next(fault);
        assert_eq!(client.delete(&id).await.status, status, "{fault}");
        assert_eq!(client.names().await.len(), left, "{fault}");
        assert_eq!(client.fake.ledger().left_over().len(), left, "{fault}");
        client.pass(120);
        let late = usize::from(left == 1 && fault != RunpodFault::DeleteLate);
        assert_eq!(client.names().await.len(), late, "{fault}");
        client.delete(&id).await;
        assert_eq!(client.fake.ledger().alive, 0, "{fault}");
    }
}

/// Another GPU than ordered, above the catalog price, or without a price.
#[tokio::test]
async fn what_comes_and_what_it_costs_can_differ_from_the_order() {
    let client = plain().await;
    let id = client.made_with(RunpodFault::CostZero).await;
    assert_eq!(client.pod(&id).await["cost"], 0.0);
    client.pass(3600);
    assert_eq!(client.fake.ledger().cost, 0.69, "and it is paid for");

    let id = client.made_with(RunpodFault::CostExited).await;
    client.act(&id, "stop").await;
    assert_eq!(client.pod(&id).await["cost"], 0.69);

    let id = client.made_with(RunpodFault::WrongGpu).await;
    assert_ne!(client.pod(&id).await["gpu"]["id"], "NVIDIA GeForce RTX 4090");

    let id = client.made_with(RunpodFault::Dearer).await;
    assert_eq!(client.pod(&id).await["cost"], 1.035);
}

/// All faults at once, and the ledger is still correct.
#[tokio::test]
async fn with_all_faults_at_once_no_pod_is_missing_from_the_books() {
    let mut faults = RunpodFaults::none();
    faults.set_from("all=0.1").unwrap();
    // Once it happens, nothing of this kind is created any more.
    faults.set(RunpodFault::Denied, 0.0);
    let client = begin(FakeRunpodOptions {
        faults,
        seed: 3,
        requests_per_minute: None,
        ..FakeRunpodOptions::default()
    })
    .await;
    for number in 0..300 {
        let request = client.request(reqwest::Method::POST, "/pods").json(&order(&format!("p{number}")));
        let answer = seen(request).await;
        client.get("/pods").await;
        if let Some(id) = answer.ok().and_then(|answer| answer.body["id"].as_str().map(str::to_owned))
            && number % 2 == 0
        {
            client.delete(&id).await;
        }
        client.pass(60);
    }
    let struck: BTreeSet<String> = client.fake.struck().into_keys().collect();
    assert!(struck.len() > 38, "{struck:?}");
    client.fake.control().set_faults(RunpodFaults::none());
    client.pass(700);
    let listed = client.get("/pods").await.body["pods"].as_array().unwrap().clone();
    let books: BTreeSet<String> =
        client.fake.ledger().pods.into_iter().filter(|it| it.deleted.is_none()).map(|it| it.id).collect();
    let listed: BTreeSet<String> = listed.iter().map(|pod| pod["id"].as_str().unwrap().to_owned()).collect();
    assert_eq!(listed, books);
    assert!(listed.len() > 10);
}
