//! Answers whose copy ends after their first words are out: another begins them anew, and whoever listens does not notice.

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;
use std::time::{Duration, Instant};

use remuda_models::request::{Chat, ChatMessage, Sampling};
use remuda_models::{
    AnswerUpdate, CallOptions, InferenceError, ModelAnswer, ModelError, ModelPoolSettings, ModelRequest,
    ModelSnapshot, PartAnswer, PendingAnswer,
};
use rustix::process::Signal;

use super::fixture::{KINDS, LONG, PoolFixture, chat, herd_with, kill, settings, wait_until};

/// One copy of a model called `chat`.
pub(crate) fn chatting(settings: ModelPoolSettings, kind: &str) -> PoolFixture {
    let fixture = herd_with(settings);
    fixture.pool.add(fixture.spec("chat", &format!("text_to_text\n{kind}"))).unwrap();
    fixture
}

pub(crate) fn say(fixture: &PoolFixture, text: &str) -> PendingAnswer {
    ask(fixture, chat(text))
}

pub(crate) fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
}

fn ask(fixture: &PoolFixture, request: ModelRequest) -> PendingAnswer {
    fixture.pool.call("chat", request, CallOptions { deadline: Some(Instant::now() + LONG) }).unwrap()
}

fn model(fixture: &PoolFixture) -> ModelSnapshot {
    fixture.pool.snapshot().models.remove(0)
}

/// All that is heard until nothing more comes.
async fn hear(pending: &mut PendingAnswer, said: &mut String) {
    while let Some(piece) = pending.next_update().await {
        let AnswerUpdate::Text(text) = piece else { panic!("{piece:?}") };
        said.push_str(&text);
    }
}

/// What was heard of an answer, and what became of it.
fn listen(mut pending: PendingAnswer) -> (String, Result<ModelAnswer, ModelError>) {
    block_on(async {
        let mut said = String::new();
        hear(&mut pending, &mut said).await;
        (said, pending.answer().await)
    })
}

fn text(answer: Result<ModelAnswer, ModelError>) -> String {
    match answer.unwrap().parts.pop() {
        Some(PartAnswer::Text(whole)) => whole.text,
        other => panic!("{other:?}"),
    }
}

/// Faults: T1.
#[test]
fn a_stream_outlives_the_copy_that_began_it() {
    let ends = [(KINDS[0], "panic"), (KINDS[1], "panic"), (KINDS[1], "exit")];
    for (kind, end) in ends {
        let fixture = chatting(settings(), kind);
        let (said, answer) = listen(say(&fixture, &format!("hel!once {end} lo")));
        assert_eq!((said.as_str(), text(answer).as_str()), ("hello", "hello"), "{kind}, {end}");
        let model = model(&fixture);
        assert_eq!((model.moved, model.answered, model.failed), (1, 1, 0), "{model:#?}");
    }
}

/// Faults: T1. From outside, while it says nothing.
#[test]
fn a_stream_outlives_a_process_that_is_killed() {
    let fixture = chatting(settings(), KINDS[1]);
    let mut pending = say(&fixture, "hel!once hang lo");
    block_on(async {
        let mut said = String::new();
        while said != "hel" {
            let Some(AnswerUpdate::Text(text)) = pending.next_update().await else { panic!("{said}") };
            said.push_str(&text);
        }
        kill(model(&fixture).copies[0].pid.unwrap(), Signal::KILL);
        hear(&mut pending, &mut said).await;
        assert_eq!(said, "hello");
        assert_eq!(text(pending.answer().await), "hello");
    });
    assert_eq!(model(&fixture).deaths["exited"], 1);
}

/// Faults: T4. What a hung thread says once it goes on is heard by nobody.
#[test]
fn a_stream_outlives_a_copy_that_hangs() {
    for kind in KINDS {
        let fixture =
            chatting(ModelPoolSettings { stall_max: Duration::from_millis(300), ..settings() }, kind);
        let (said, answer) = listen(say(&fixture, "hel!once hang lo"));
        assert_eq!((said.as_str(), text(answer).as_str()), ("hello", "hello"), "{kind}");
        assert_eq!(model(&fixture).deaths["hung"], 1);
    }
}

/// An engine that fails in the middle and is well otherwise.
#[test]
fn a_stream_outlives_a_failure() {
    for kind in KINDS {
        let fixture = chatting(settings(), kind);
        let (said, answer) = listen(say(&fixture, "hel!once fail lo"));
        assert_eq!((said.as_str(), text(answer).as_str()), ("hello", "hello"), "{kind}");
        assert!(model(&fixture).deaths.is_empty());
    }
}

/// What is left to chance is drawn once for all copies, and anew for the next request.
#[test]
fn chance_draws_the_same_for_whoever_goes_on() {
    for kind in KINDS {
        let fixture = chatting(settings(), kind);
        let (said, answer) = listen(say(&fixture, "drawn: !chance !once panic and so on"));
        assert_eq!(text(answer), said, "{kind}");
        let (other, _) = listen(say(&fixture, "drawn: !chance !once panic and so on"));
        assert_ne!(said, other, "{kind}");
        let messages = vec![ChatMessage { role: "user".to_owned(), content: "drawn: !chance".to_owned() }];
        let seeded = Chat { messages, sampling: Sampling { seed: Some(7), ..Sampling::default() } };
        assert_eq!(text(ask(&fixture, ModelRequest::TextToText(seeded)).wait()), "drawn: 7");
    }
}

/// Faults: T1. Two texts are never made into one.
#[test]
fn an_answer_that_is_begun_anew_and_becomes_another_fails_and_says_so() {
    for kind in KINDS {
        let fixture = chatting(settings(), kind);
        let (said, answer) = listen(say(&fixture, "I am !stray !once panic and so on"));
        let failed = answer.unwrap_err();
        assert_eq!(failed, ModelError::Diverged { model: "chat".to_owned() });
        assert!(failed.to_string().contains("another text"), "{failed}");
        assert!(said.starts_with("I am ") && !said.contains("so on"), "{kind}: {said}");
        assert_eq!(listen(say(&fixture, "well")).0, "well");
        let model = model(&fixture);
        assert_eq!((model.failed, model.answered), (1, 1), "{model:#?}");
    }
}

/// Faults: T1. Who has heard nothing is not bound to what was said.
#[test]
fn who_waits_for_the_whole_alone_gets_the_whole() {
    for kind in KINDS {
        let fixture = chatting(settings(), kind);
        let busy = say(&fixture, "!busy 100000");
        wait_until("at work", || {
            let model = model(&fixture);
            if model.copies[0].state == "busy" { Ok(()) } else { Err(format!("{model:#?}")) }
        });
        block_on(async {
            let mut answer = pin!(say(&fixture, "I am !stray !once panic and so on").answer());
            assert!(poll_fn(|context| Poll::Ready(answer.as_mut().poll(context).is_pending())).await);
            drop(busy);
            assert!(text(answer.await).ends_with("and so on"), "{kind}");
        });
    }
}

/// Faults: T1. The words that are out do not make a request that kills any better.
#[test]
fn a_stream_that_kills_copy_after_copy_is_stopped() {
    for kind in KINDS {
        let fixture = chatting(settings(), kind);
        let (said, answer) = listen(say(&fixture, "hel!panic"));
        let Err(ModelError::Failed { failure: InferenceError::Engine(why), .. }) = answer else { panic!() };
        assert!(why.contains("2 copies died at it"), "{why}");
        assert_eq!(said, "hel", "{kind}: once");
        assert_eq!(listen(say(&fixture, "well")).0, "well");
        assert_eq!(model(&fixture).deaths["panicked"], 2);
    }
}
