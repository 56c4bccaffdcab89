//! Answers that come piece by piece, deadlines, and callers who leave.

use std::time::{Duration, Instant};

use remuda_models::request::{Finish, Generated};
use remuda_models::{Call, PartAnswer, Piece, PoolError, Request};

use super::anew::{block_on, chatting, say};
use super::herd::{KINDS, herd, settings};

#[test]
fn pieces_come_in_order_and_make_up_the_answer() {
    for kind in KINDS {
        let herd = chatting(settings(), kind);
        block_on(async {
            let mut ticket = say(&herd, "hello");
            let mut said = String::new();
            while let Some(piece) = ticket.piece().await {
                let Piece::Text(text) = piece else { panic!("{piece:?}") };
                said.push_str(&text);
            }
            let answer = ticket.answer().await.unwrap();
            assert_eq!(said, "hello");
            let whole = Generated { text: said, finish: Finish::Stop, tokens: 5 };
            assert_eq!(answer.parts, [PartAnswer::Text(whole)]);
        });
    }
}

/// Faults: T7. Running work that nobody waits for stops within a step, and what waits is dropped at once.
#[test]
fn whoever_drops_a_ticket_frees_what_it_took() {
    for kind in KINDS {
        let herd = herd();
        herd.embedding(1, kind);
        let running = herd.ask("!busy 100000");
        herd.until("busy", |model| model.copies[0].state == "busy");
        let waiting = herd.ask("waits");
        assert_eq!(herd.model().queue_parts, 1);
        drop(waiting);
        assert_eq!(herd.model().queue_parts, 0, "at once");
        drop(running);
        herd.until("free again", |model| model.copies[0].state == "ready");
        let model = herd.model();
        assert_eq!((model.cancelled, model.deaths.len()), (2, 0), "{model:#?}");
        herd.embed("well").unwrap();
    }
}

#[test]
fn a_deadline_ends_the_wait_and_the_work() {
    for kind in KINDS {
        let herd = herd();
        herd.embedding(1, kind);
        let request = Request::TextEmbedding { texts: vec!["!busy 100000".to_owned()] };
        let terms = Call { deadline: Some(Instant::now() + Duration::from_millis(100)) };
        let late = herd.pool.call("embed", request, terms).unwrap().wait();
        assert_eq!(late, Err(PoolError::Deadline { model: "embed".to_owned() }));
        herd.embed("well").unwrap();
        assert!(herd.model().deaths.is_empty());
    }
}
