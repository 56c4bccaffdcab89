//! Answers whose copy ends after their first words are out: another begins them anew, and whoever listens does not notice.

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;
use std::time::{Duration, Instant};

use remuda_models::request::{Chat, Message, Sampling};
use remuda_models::{
    Answer, Call, Failure, ModelSnapshot, PartAnswer, Piece, PoolError, PoolSettings, Request, Ticket,
};
use rustix::process::Signal;

use super::herd::{Herd, KINDS, LONG, chat, herd_with, kill, settings, wait_until};

/// One copy of a model called `chat`.
pub(crate) fn chatting(settings: PoolSettings, kind: &str) -> Herd {
    let herd = herd_with(settings);
    herd.pool.add(herd.spec("chat", &format!("text_to_text\n{kind}"))).unwrap();
    herd
}

pub(crate) fn say(herd: &Herd, text: &str) -> Ticket {
    ask(herd, chat(text))
}

pub(crate) fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
}

fn ask(herd: &Herd, request: Request) -> Ticket {
    herd.pool.call("chat", request, Call { deadline: Some(Instant::now() + LONG) }).unwrap()
}

fn model(herd: &Herd) -> ModelSnapshot {
    herd.pool.snapshot().models.remove(0)
}

/// All that is heard until nothing more comes.
async fn hear(ticket: &mut Ticket, said: &mut String) {
    while let Some(piece) = ticket.piece().await {
        let Piece::Text(text) = piece else { panic!("{piece:?}") };
        said.push_str(&text);
    }
}

/// What was heard of an answer, and what became of it.
fn listen(mut ticket: Ticket) -> (String, Result<Answer, PoolError>) {
    block_on(async {
        let mut said = String::new();
        hear(&mut ticket, &mut said).await;
        (said, ticket.answer().await)
    })
}

fn text(answer: Result<Answer, PoolError>) -> String {
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
        let herd = chatting(settings(), kind);
        let (said, answer) = listen(say(&herd, &format!("hel!once {end} lo")));
        assert_eq!((said.as_str(), text(answer).as_str()), ("hello", "hello"), "{kind}, {end}");
        let model = model(&herd);
        assert_eq!((model.moved, model.answered, model.failed), (1, 1, 0), "{model:#?}");
    }
}

/// Faults: T1. From outside, while it says nothing.
#[test]
fn a_stream_outlives_a_process_that_is_killed() {
    let herd = chatting(settings(), KINDS[1]);
    let mut ticket = say(&herd, "hel!once hang lo");
    block_on(async {
        let mut said = String::new();
        while said != "hel" {
            let Some(Piece::Text(text)) = ticket.piece().await else { panic!("{said}") };
            said.push_str(&text);
        }
        kill(model(&herd).copies[0].pid.unwrap(), Signal::KILL);
        hear(&mut ticket, &mut said).await;
        assert_eq!(said, "hello");
        assert_eq!(text(ticket.answer().await), "hello");
    });
    assert_eq!(model(&herd).deaths["exited"], 1);
}

/// Faults: T4. What a hung thread says once it goes on is heard by nobody.
#[test]
fn a_stream_outlives_a_copy_that_hangs() {
    for kind in KINDS {
        let herd = chatting(PoolSettings { stall_max: Duration::from_millis(300), ..settings() }, kind);
        let (said, answer) = listen(say(&herd, "hel!once hang lo"));
        assert_eq!((said.as_str(), text(answer).as_str()), ("hello", "hello"), "{kind}");
        assert_eq!(model(&herd).deaths["hung"], 1);
    }
}

/// An engine that fails in the middle and is well otherwise.
#[test]
fn a_stream_outlives_a_failure() {
    for kind in KINDS {
        let herd = chatting(settings(), kind);
        let (said, answer) = listen(say(&herd, "hel!once fail lo"));
        assert_eq!((said.as_str(), text(answer).as_str()), ("hello", "hello"), "{kind}");
        assert!(model(&herd).deaths.is_empty());
    }
}

/// What is left to chance is drawn once for all copies, and anew for the next request.
#[test]
fn chance_draws_the_same_for_whoever_goes_on() {
    for kind in KINDS {
        let herd = chatting(settings(), kind);
        let (said, answer) = listen(say(&herd, "drawn: !chance !once panic and so on"));
        assert_eq!(text(answer), said, "{kind}");
        let (other, _) = listen(say(&herd, "drawn: !chance !once panic and so on"));
        assert_ne!(said, other, "{kind}");
        let messages = vec![Message { role: "user".to_owned(), content: "drawn: !chance".to_owned() }];
        let seeded = Chat { messages, sampling: Sampling { seed: Some(7), ..Sampling::default() } };
        assert_eq!(text(ask(&herd, Request::TextToText(seeded)).wait()), "drawn: 7");
    }
}

/// Faults: T1. Two texts are never made into one.
#[test]
fn an_answer_that_is_begun_anew_and_becomes_another_fails_and_says_so() {
    for kind in KINDS {
        let herd = chatting(settings(), kind);
        let (said, answer) = listen(say(&herd, "I am !stray !once panic and so on"));
        let failed = answer.unwrap_err();
        assert_eq!(failed, PoolError::Differs { model: "chat".to_owned() });
        assert!(failed.to_string().contains("another text"), "{failed}");
        assert!(said.starts_with("I am ") && !said.contains("so on"), "{kind}: {said}");
        assert_eq!(listen(say(&herd, "well")).0, "well");
        let model = model(&herd);
        assert_eq!((model.failed, model.answered), (1, 1), "{model:#?}");
    }
}

/// Faults: T1. Who has heard nothing is not bound to what was said.
#[test]
fn who_waits_for_the_whole_alone_gets_the_whole() {
    for kind in KINDS {
        let herd = chatting(settings(), kind);
        let busy = say(&herd, "!busy 100000");
        wait_until("at work", || {
            let model = model(&herd);
            if model.copies[0].state == "busy" { Ok(()) } else { Err(format!("{model:#?}")) }
        });
        block_on(async {
            let mut answer = pin!(say(&herd, "I am !stray !once panic and so on").answer());
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
        let herd = chatting(settings(), kind);
        let (said, answer) = listen(say(&herd, "hel!panic"));
        let Err(PoolError::Failed { failure: Failure::Engine(why), .. }) = answer else { panic!() };
        assert!(why.contains("2 copies died at it"), "{why}");
        assert_eq!(said, "hel", "{kind}: once");
        assert_eq!(listen(say(&herd, "well")).0, "well");
        assert_eq!(model(&herd).deaths["panicked"], 2);
    }
}
