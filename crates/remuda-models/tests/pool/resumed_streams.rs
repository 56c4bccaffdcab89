//! Streams whose copy ends after the first words: another copy repeats the answer, and the listener does not notice.

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;
use std::time::{Duration, Instant};

use remuda_models::request::{Chat, ChatMessage, Sampling};
use remuda_models::{
    AnswerHandle, AnswerUpdate, CallOptions, InferenceError, ModelAnswer, ModelError, ModelPoolSettings,
    ModelRequest, ModelSnapshot, PartAnswer,
};
use rustix::process::Signal;

use super::fixture::{KINDS, LONG, PoolFixture, chat, fixture_with, kill, settings, wait_until};

/// One copy of a model called `chat`.
pub(crate) fn chatting(settings: ModelPoolSettings, kind: &str) -> PoolFixture {
    let fixture = fixture_with(settings);
    fixture.pool.add(fixture.spec("chat", &format!("text_to_text\n{kind}"))).unwrap();
    fixture
}

pub(crate) fn say(fixture: &PoolFixture, text: &str) -> AnswerHandle {
    ask(fixture, chat(text))
}

pub(crate) fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
}

fn ask(fixture: &PoolFixture, request: ModelRequest) -> AnswerHandle {
    fixture.pool.call("chat", request, CallOptions { deadline: Some(Instant::now() + LONG) }).unwrap()
}

fn model(fixture: &PoolFixture) -> ModelSnapshot {
    fixture.pool.snapshot().models.remove(0)
}

/// Collects the text until the stream ends.
async fn collect(pending: &mut AnswerHandle, streamed: &mut String) {
    while let Some(piece) = pending.next_update().await {
        let AnswerUpdate::Text(text) = piece else { panic!("{piece:?}") };
        streamed.push_str(&text);
    }
}

/// The streamed text, and the answer.
fn listen(mut pending: AnswerHandle) -> (String, Result<ModelAnswer, ModelError>) {
    block_on(async {
        let mut streamed = String::new();
        collect(&mut pending, &mut streamed).await;
        (streamed, pending.answer().await)
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
fn stream_survives_the_death_of_its_copy() {
    let ends = [(KINDS[0], "panic"), (KINDS[1], "panic"), (KINDS[1], "exit")];
    for (kind, end) in ends {
        let fixture = chatting(settings(), kind);
        let (streamed, answer) = listen(say(&fixture, &format!("hel!once {end} lo")));
        assert_eq!((streamed.as_str(), text(answer).as_str()), ("hello", "hello"), "{kind}, {end}");
        let model = model(&fixture);
        assert_eq!((model.moved, model.answered, model.failed), (1, 1, 0), "{model:#?}");
    }
}

/// Faults: T1. Killed from outside while it is silent.
#[test]
fn stream_survives_a_killed_process() {
    let fixture = chatting(settings(), KINDS[1]);
    let mut pending = say(&fixture, "hel!once hang lo");
    block_on(async {
        let mut streamed = String::new();
        while streamed != "hel" {
            let Some(AnswerUpdate::Text(text)) = pending.next_update().await else { panic!("{streamed}") };
            streamed.push_str(&text);
        }
        kill(model(&fixture).copies[0].pid.unwrap(), Signal::KILL);
        collect(&mut pending, &mut streamed).await;
        assert_eq!(streamed, "hello");
        assert_eq!(text(pending.answer().await), "hello");
    });
    assert_eq!(model(&fixture).deaths["exited"], 1);
}

/// Faults: T4. Text that a hung thread emits after it resumes is dropped.
#[test]
fn stream_survives_a_hung_copy() {
    for kind in KINDS {
        let fixture =
            chatting(ModelPoolSettings { stall_max: Duration::from_millis(300), ..settings() }, kind);
        let (streamed, answer) = listen(say(&fixture, "hel!once hang lo"));
        assert_eq!((streamed.as_str(), text(answer).as_str()), ("hello", "hello"), "{kind}");
        assert_eq!(model(&fixture).deaths["hung"], 1);
    }
}

/// An engine error in the middle of the answer of a healthy copy.
#[test]
fn stream_survives_an_engine_error() {
    for kind in KINDS {
        let fixture = chatting(settings(), kind);
        let (streamed, answer) = listen(say(&fixture, "hel!once fail lo"));
        assert_eq!((streamed.as_str(), text(answer).as_str()), ("hello", "hello"), "{kind}");
        assert!(model(&fixture).deaths.is_empty());
    }
}

/// A random seed is chosen once for all copies, and again for the next request.
#[test]
fn second_copy_uses_the_same_random_seed() {
    for kind in KINDS {
        let fixture = chatting(settings(), kind);
        let (streamed, answer) = listen(say(&fixture, "drawn: !chance !once panic and so on"));
        assert_eq!(text(answer), streamed, "{kind}");
        let (other, _) = listen(say(&fixture, "drawn: !chance !once panic and so on"));
        assert_ne!(streamed, other, "{kind}");
        let messages = vec![ChatMessage { role: "user".to_owned(), content: "drawn: !chance".to_owned() }];
        let seeded = Chat { messages, sampling: Sampling { seed: Some(7), ..Sampling::default() } };
        assert_eq!(text(ask(&fixture, ModelRequest::TextToText(seeded)).wait()), "drawn: 7");
    }
}

/// Faults: T1. Two different texts are never joined.
#[test]
fn diverging_stream_fails_with_a_reason() {
    for kind in KINDS {
        let fixture = chatting(settings(), kind);
        let (streamed, answer) = listen(say(&fixture, "I am !stray !once panic and so on"));
        let failed = answer.unwrap_err();
        assert_eq!(failed, ModelError::Diverged { model: "chat".to_owned() });
        assert!(failed.to_string().contains("a different text"), "{failed}");
        assert!(streamed.starts_with("I am ") && !streamed.contains("so on"), "{kind}: {streamed}");
        assert_eq!(listen(say(&fixture, "well")).0, "well");
        let model = model(&fixture);
        assert_eq!((model.failed, model.answered), (1, 1), "{model:#?}");
    }
}

/// Faults: T1. A caller that has received no text is not bound to the first copy's text.
#[test]
fn caller_without_stream_gets_the_second_text() {
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

/// Faults: T1. Streamed text does not exempt a request that kills copies.
#[test]
fn stream_that_kills_two_copies_is_stopped() {
    for kind in KINDS {
        let fixture = chatting(settings(), kind);
        let (streamed, answer) = listen(say(&fixture, "hel!panic"));
        let Err(ModelError::Failed { failure: InferenceError::Engine(why), .. }) = answer else { panic!() };
        assert!(why.contains("2 copies died"), "{why}");
        assert_eq!(streamed, "hel", "{kind}: once");
        assert_eq!(listen(say(&fixture, "well")).0, "well");
        assert_eq!(model(&fixture).deaths["panicked"], 2);
    }
}
