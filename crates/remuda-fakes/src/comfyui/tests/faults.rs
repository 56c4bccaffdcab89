//! Every fault does what its description says.

use std::time::Duration;

use serde_json::{Value, json};

use super::harness::{begin, picture, sleep, through};
use crate::comfyui::{Fault, Faults, Options};

/// A graph that requests a fault itself.
fn magic(fault: &str) -> Value {
    through(1, &json!({"class_type": "RemudaFault", "inputs": {"image": ["1", 0], "fault": fault}}))
}

fn always(fault: Fault) -> Options {
    Options { faults: Faults::none().with(fault, 1.0), ..Options::default() }
}

#[tokio::test]
async fn completion_or_everything_can_be_kept_from_a_client() {
    let client = begin(Options::default()).await;
    let mut ear = client.listen().await;
    client.submit(&magic("drop-completion")).await;
    let heard = ear.hear_until("status(0)").await;
    assert_eq!(heard[heard.len() - 2..], ["executing(3)", "status(0)"]);
    client.submit(&magic("drop-all-messages")).await;
    assert_eq!(ear.hear_until("status(0)").await, ["status(1)", "status(1)", "status(0)"]);
}

#[tokio::test]
async fn sockets_are_cut_in_the_middle_of_a_run() {
    let client = begin(always(Fault::DropSockets)).await;
    let mut ear = client.listen().await;
    let id = client.submit(&picture(1)).await;
    while let Some(message) = ear.raw().await {
        assert!(!message.is_close(), "cut, not closed");
    }
    assert_eq!(client.ended(&id).await["status"]["status_str"], "success");
    client.until(|counts| counts.sockets_open == 0).await;
}

#[tokio::test]
async fn a_half_open_socket_says_nothing_and_stays() {
    let client = begin(Options::default()).await;
    let _ear = client.listen().await;
    client.fake.control().strike_next(Fault::HalfOpen);
    let id = client.submit(&picture(1)).await;
    client.ended(&id).await;
    assert_eq!(client.fake.counts().sockets_open, 1);
    let mut second = client.listen().await;
    client.submit(&picture(2)).await;
    assert_eq!(second.hear_out().await.last().unwrap(), "executing(null)", "a new socket is well");
}

#[tokio::test]
async fn a_slow_reader_holds_up_everyone_until_it_reads() {
    let client = begin(Options { trouble: Duration::from_millis(20), ..Options::default() }).await;
    let mut ear = client.listen().await;
    client.fake.control().hold_messages(true);
    let id = client.submit(&picture(1)).await;
    client.ended(&id).await;
    client.fake.control().hold_messages(false);
    assert_eq!(ear.hear_out().await.last().unwrap(), "executing(null)");
    client.submit(&magic("slow-reader")).await;
    assert_eq!(ear.hear_out().await.last().unwrap(), "executing(null)");
}

#[tokio::test]
async fn a_prompt_that_hangs_hears_no_interrupt_and_a_restart_helps() {
    let client = begin(Options::default()).await;
    let mut ear = client.listen().await;
    let id = client.submit(&magic("hang")).await;
    ear.hear_until("executing(2)").await;
    client.post("/interrupt", &json!({})).await.unwrap();
    let waiting = client.submit(&picture(1)).await;
    assert_eq!(client.json("/queue").await["queue_running"][0][1], id);
    assert_eq!(client.json(&format!("/api/jobs/{waiting}")).await["status"], "pending");
    client.fake.restart().await;
    assert_eq!(client.json("/prompt").await["exec_info"]["queue_remaining"], 0);
    let after = client.submit(&picture(1)).await;
    client.ended(&after).await;
}

#[tokio::test]
async fn a_death_in_the_middle_comes_back_by_itself_where_asked() {
    let client = begin(Options { revive: Some(Duration::from_millis(1)), ..always(Fault::Die) }).await;
    let id = uuid::Uuid::new_v4().to_string();
    // The answer may be lost with the server.
    let _ = client.try_submit(&picture(1), &id).await;
    client.fake.died().await;
    client.until(|counts| counts.lives == 2).await;
    client.fake.control().set_faults(Faults::none());
    assert_eq!(client.json(&format!("/history/{id}")).await, json!({}));
    client.fake.control().strike_next(Fault::Restart);
    let _ = client.try_submit(&picture(2), &id).await;
    client.until(|counts| counts.lives == 3).await;
    client.submit(&picture(3)).await;
}

#[tokio::test]
async fn errors_of_the_gpu_and_the_disk_are_told_in_their_own_words() {
    let client = begin(Options::default()).await;
    let words = [("oom", "out of memory"), ("cuda", "CUDA error: an illegal"), ("disk", "[Errno 28]")];
    for (fault, words) in words {
        let id = client.submit(&magic(fault)).await;
        let entry = client.ended(&id).await;
        let error = entry["status"]["messages"][2][1]["exception_message"].as_str().unwrap().to_owned();
        assert!(error.contains(words), "{error}");
    }
    client.fake.control().set_faults(Faults::none().with(Fault::Cuda, 1.0));
    for _ in 0..2 {
        let id = client.submit(&picture(9)).await;
        assert_eq!(client.ended(&id).await["status"]["status_str"], "error", "also where it could be cached");
    }
}

#[tokio::test]
async fn a_dead_executor_runs_nothing_while_http_answers() {
    let client = begin(Options::default()).await;
    let mut ear = client.listen().await;
    client.submit(&magic("executor-dead")).await;
    ear.hear_until("executing(2)").await;
    client.submit(&picture(1)).await;
    assert_eq!(client.json("/prompt").await["exec_info"]["queue_remaining"], 2);
    client.post("/free", &json!({"free_memory": true})).await.unwrap();
    assert_eq!(client.fake.counts().executions.len(), 1);
}

#[tokio::test]
async fn a_lost_answer_hides_a_prompt_that_runs_and_a_refusal_one_that_does_not() {
    let client = begin(always(Fault::LostSubmitAnswer)).await;
    let id = uuid::Uuid::new_v4().to_string();
    client.try_submit(&picture(1), &id).await.unwrap_err();
    client.ended(&id).await;
    client.fake.control().set_faults(Faults::none().with(Fault::RefuseSubmit, 1.0));
    let (status, _) = client.try_submit(&picture(1), &id).await.unwrap();
    assert_eq!((status, client.fake.counts().prompts_accepted), (500, 1));
}

#[tokio::test]
async fn a_duplicate_runs_twice_and_the_counts_know() {
    let client = begin(always(Fault::Duplicate)).await;
    let id = client.submit(&picture(1)).await;
    client.until(|counts| counts.successes.get(&id) == Some(&2)).await;
    let counts = client.fake.counts();
    assert_eq!((counts.ran_twice(), counts.faults["duplicate"]), (vec![id.as_str()], 1));
}

#[tokio::test]
async fn foreign_prompts_run_first() {
    let client = begin(always(Fault::ForeignPrompts)).await;
    let id = client.submit(&picture(1)).await;
    client.ended(&id).await;
    assert_eq!(client.json("/history").await.as_object().unwrap().len(), 3);
}

#[tokio::test]
async fn outputs_can_be_missing_short_empty_or_no_json() {
    let client = begin(Options::default()).await;
    let name = |entry: &Value| entry["outputs"]["3"]["images"][0]["filename"].as_str().unwrap().to_owned();
    let id = client.submit(&magic("missing-output")).await;
    let missing = name(&client.ended(&id).await);
    assert_eq!(client.get(&format!("/view?filename={missing}")).await.0, 404);
    let id = client.submit(&magic("short-output")).await;
    let short = client.bytes(&format!("/view?filename={}", name(&client.ended(&id).await))).await;
    assert!(short.starts_with(b"\x89PNG") && !short.windows(4).any(|four| four == b"IEND"));
    let id = client.submit(&magic("empty-outputs")).await;
    assert_eq!(client.ended(&id).await["outputs"], json!({}));
    client.fake.control().strike_next(Fault::Nan);
    let id = client.submit(&picture(5)).await;
    client.until(|counts| counts.successes.contains_key(&id)).await;
    client.until_text(&format!("/history/{id}"), "[NaN]").await;
}

#[tokio::test]
async fn history_can_be_cleared_by_someone() {
    let client = begin(Options::default()).await;
    let mut ear = client.listen().await;
    let before = client.submit(&picture(1)).await;
    client.ended(&before).await;
    ear.hear_out().await;
    client.submit(&magic("history-cleared")).await;
    ear.hear_out().await;
    assert_eq!(client.json("/history").await, json!({}));
}

#[tokio::test]
async fn someone_else_can_interrupt() {
    let client = begin(always(Fault::InterruptedBySomeone)).await;
    let id = client.submit(&picture(1)).await;
    let entry = client.ended(&id).await;
    assert_eq!(entry["status"]["messages"][2][0], "execution_interrupted");
}

#[tokio::test]
async fn a_prompt_can_look_cached_although_it_is_new() {
    let client = begin(Options { speed: 0.001, ..always(Fault::Cached) }).await;
    let mut ear = client.listen().await;
    let id = client.submit(&sleep(3600.0, 5)).await;
    let heard = ear.hear_out().await;
    assert_eq!(heard[2..5], ["execution_start", "execution_cached", "executed(3)"]);
    assert!(client.ended(&id).await["outputs"]["3"]["images"][0].is_object());
}

#[tokio::test]
async fn garbage_and_huge_previews_come_in_between() {
    let client = begin(Options::default()).await;
    let mut ear = client.listen().await;
    client.submit(&magic("garbage-frames")).await;
    let heard = ear.hear_out().await;
    assert!(heard.iter().any(|word| word.starts_with("not JSON")), "{heard:?}");
    ear.hear_until("execution_success").await;
    client.submit(&magic("huge-preview")).await;
    let heard = ear.hear_until("execution_success").await;
    assert!(heard.contains(&"binary(1)".to_owned()), "{heard:?}");
}

#[tokio::test]
async fn slow_runs_and_slow_answers_take_longer() {
    let client =
        begin(Options { speed: 100.0, trouble: Duration::from_millis(30), ..Options::default() }).await;
    let before = std::time::Instant::now();
    client.fake.control().strike_next(Fault::Slow);
    let id = client.submit(&sleep(0.3, 3)).await;
    client.ended(&id).await;
    assert!(before.elapsed() >= Duration::from_millis(30), "ten times 3 ms");
    client.fake.control().slow_http(Duration::from_millis(30));
    let before = std::time::Instant::now();
    client.json("/prompt").await;
    assert!(before.elapsed() >= Duration::from_millis(30));
}

#[tokio::test]
async fn one_seed_breaks_the_same_prompts_again() {
    let mut stories = Vec::new();
    for _ in 0..2 {
        let faults = Faults::none().with(Fault::Oom, 0.4).with(Fault::RefuseSubmit, 0.2);
        let client = begin(Options { faults, seed: 42, ..Options::default() }).await;
        let mut story = Vec::new();
        for color in 0..20 {
            let id = uuid::Uuid::new_v4().to_string();
            let (status, _) = client.try_submit(&picture(color), &id).await.unwrap();
            let outcome = if status == 200 {
                client.ended(&id).await["status"]["status_str"].clone()
            } else {
                Value::Null
            };
            story.push((status, outcome));
        }
        stories.push(story);
    }
    assert_eq!(stories[0], stories[1]);
    assert!(
        stories[0].iter().any(|(status, _)| *status == 500)
            && stories[0].iter().any(|(_, end)| end == "error")
    );
}

#[tokio::test]
async fn a_server_is_broken_over_http() {
    let client = begin(Options::default()).await;
    let (status, told) = client.post("/fake/faults", &json!({"oom": 1.0})).await.unwrap();
    assert_eq!((status, told.contains("\"oom\":1.0")), (200, true), "{told}");
    let id = client.submit(&picture(1)).await;
    assert_eq!(client.ended(&id).await["status"]["status_str"], "error");
    client.post("/fake/faults", &json!({})).await.unwrap();
    let id = client.submit(&picture(1)).await;
    assert_eq!(client.ended(&id).await["status"]["status_str"], "success");
    let (status, told) = client.post("/fake/faults", &json!({"melt": 1})).await.unwrap();
    assert_eq!((status, told.contains("drop-completion")), (400, true), "{told}");
    client.post("/fake/clear-history", &json!({})).await.unwrap();
    assert_eq!(client.json("/history").await, json!({}));
    // The connection ends with the server.
    let _ = client.post("/fake/kill", &json!({})).await;
    client.fake.died().await;
    client.fake.restart().await;
    assert_eq!(client.json("/fake").await["lives"], 2);
}

#[tokio::test]
async fn a_graph_can_ask_for_several_faults_and_not_for_unknown_ones() {
    let client = begin(Options::default()).await;
    let id = client.submit(&magic("nan, empty-outputs")).await;
    assert_eq!(client.ended(&id).await["outputs"], json!({}));
    let (status, text) = client.try_submit(&magic("melt"), &uuid::Uuid::new_v4().to_string()).await.unwrap();
    assert!(
        status == 400 && text.contains("custom_validation_failed") && text.contains("drop-completion"),
        "{text}"
    );
}

#[tokio::test]
async fn whatever_strikes_a_restart_helps() {
    let client = begin(Options { trouble: Duration::from_millis(5), ..Options::default() }).await;
    for (fault, name, _) in Fault::ALL {
        client.fake.control().strike_next(*fault);
        let id = uuid::Uuid::new_v4().to_string();
        // Some of them suppress the answer.
        let _ = client.try_submit(&sleep(1.0, 3), &id).await;
        client.until(|counts| counts.faults.contains_key(*name)).await;
        client.fake.restart().await;
        let after = client.submit(&picture(1)).await;
        assert_eq!(client.ended(&after).await["status"]["status_str"], "success", "{name}");
    }
}
