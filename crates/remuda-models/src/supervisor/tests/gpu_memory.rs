//! Models on cards, whose memory is separate from main memory.

use super::stories::story;
use crate::failure::ModelError;
use crate::spec::Device;
use crate::supervisor::{CopyId, ExitReason, SupervisorEffect, SupervisorEvent};

/// Faults: T8. Idle copies on another device are not evicted: main memory does not help on a card.
#[test]
fn only_copies_on_the_same_card_are_evicted() {
    let mut story = story();
    let card = (Device::Cuda(0), Some(3));
    story.serve("machine", 1, 4);
    story.serve_on(card, "drawing", 1, 2);
    assert_eq!(story.ready(), [CopyId(1), CopyId(2)], "main memory is full, the card's is not");
    story.serve_on(card, "chat", 1, 2);
    assert!(story.has(|it| matches!(it, SupervisorEffect::Quit(CopyId(2)))), "{:?}", story.effects);
    assert!(!story.has(|it| matches!(it, SupervisorEffect::Quit(CopyId(1)))), "{:?}", story.effects);
    assert_eq!(story.started(), []);
    story.tell(SupervisorEvent::Died { copy: CopyId(2), why: ExitReason::Requested });
    story.tell(SupervisorEvent::Reaped(CopyId(2)));
    assert_eq!(story.ready(), [CopyId(3)]);
    let snapshot = story.supervisor.snapshot();
    assert_eq!((snapshot.memory_reserved_bytes, snapshot.memory_limit_bytes), (4, 4));
    let [seen] = &snapshot.cards[..] else { panic!("{snapshot:?}") };
    assert_eq!((seen.device, seen.memory_reserved_bytes, seen.memory_limit_bytes), (card.0, 2, 3));
}

#[test]
fn unservable_request_names_the_full_card() {
    let mut story = story();
    let card = (Device::Cuda(1), Some(3));
    story.serve_on(card, "hangs", 1, 2);
    let hung = story.started().remove(0);
    story.tell(SupervisorEvent::Died { copy: hung, why: ExitReason::Hung(super::stories::seconds(60)) });
    story.serve_on(card, "chat", 1, 2);
    let request = story.submit("chat", 1);
    story.pass(super::stories::seconds(2));
    let Some(Err(ModelError::NoWorkers { why, .. })) = story.answer(request) else { panic!("no answer") };
    assert!(
        why.contains("2 bytes of memory on cuda:1, and 1 of 3 are free; 2 are held by hung copies"),
        "{why}"
    );
}
