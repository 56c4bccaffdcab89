//! Streamed answers, deadlines, and cancelled requests.

use std::time::{Duration, Instant};

use remuda_models::request::{FinishReason, GeneratedText};
use remuda_models::{AnswerUpdate, CallOptions, ModelError, ModelRequest, PartAnswer};

use super::fixture::{KINDS, fixture, settings};
use super::resumed_streams::{block_on, chatting, say};

#[test]
fn updates_arrive_in_order_and_form_the_answer() {
    for kind in KINDS {
        let fixture = chatting(settings(), kind);
        block_on(async {
            let mut pending = say(&fixture, "hello");
            let mut streamed = String::new();
            while let Some(piece) = pending.next_update().await {
                let AnswerUpdate::Text(text) = piece else { panic!("{piece:?}") };
                streamed.push_str(&text);
            }
            let answer = pending.answer().await.unwrap();
            assert_eq!(streamed, "hello");
            let whole = GeneratedText { text: streamed, finish: FinishReason::Stop, tokens: 5 };
            assert_eq!(answer.parts, [PartAnswer::Text(whole)]);
        });
    }
}

/// Faults: T7. Cancelled work stops within one step, and queued parts are removed at once.
#[test]
fn dropping_a_pending_answer_frees_its_copy_and_queue() {
    for kind in KINDS {
        let fixture = fixture();
        fixture.embedding(1, kind);
        let running = fixture.ask("!busy 100000");
        fixture.until("busy", |model| model.copies[0].state == "busy");
        let waiting = fixture.ask("waits");
        assert_eq!(fixture.model().queue_parts, 1);
        drop(waiting);
        assert_eq!(fixture.model().queue_parts, 0, "at once");
        drop(running);
        fixture.until("free again", |model| model.copies[0].state == "ready");
        let model = fixture.model();
        assert_eq!((model.cancelled, model.deaths.len()), (2, 0), "{model:#?}");
        fixture.embed("well").unwrap();
    }
}

#[test]
fn deadline_ends_the_wait_and_the_work() {
    for kind in KINDS {
        let fixture = fixture();
        fixture.embedding(1, kind);
        let request = ModelRequest::TextEmbedding { texts: vec!["!busy 100000".to_owned()] };
        let terms = CallOptions { deadline: Some(Instant::now() + Duration::from_millis(100)) };
        let late = fixture.pool.call("embed", request, terms).unwrap().wait();
        assert_eq!(late, Err(ModelError::Deadline { model: "embed".to_owned() }));
        fixture.embed("well").unwrap();
        assert!(fixture.model().deaths.is_empty());
    }
}
