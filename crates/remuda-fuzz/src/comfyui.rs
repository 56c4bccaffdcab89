//! Frames of ComfyUI's socket, and the JSON of its answers. Besides not panicking:
//!
//! - progress stays between 0 and 1 and never decreases, whatever is received;
//! - a preview or text that is passed on is no larger than its frame;
//! - JSON that a strict parser accepts means the same after sanitizing.

use std::collections::BTreeMap;

use remuda_comfyui::{ComfyuiMessage, ProgressTracker, PromptNode, json};
use serde_json::Value;

/// The prompt of the seeds.
const PROMPT: &str = "p";

/// Each line is a text frame; together they are one run.
pub(crate) fn run_text(bytes: &[u8]) -> bool {
    let text = String::from_utf8_lossy(bytes);
    let messages: Vec<_> = text.lines().map(ComfyuiMessage::from_text).collect();
    follow(&messages);
    if let Ok(value) = serde_json::from_slice::<Value>(bytes) {
        let sanitized = json::sanitize(&text);
        let read = serde_json::from_str::<Value>(&sanitized).expect("sanitizing keeps valid JSON valid");
        assert_eq!(read, value, "sanitizing changed valid JSON");
    }
    // A history entry is read as any JSON, sanitized where it has to be.
    let _ = json::parse::<Value>(bytes);
    messages.iter().any(is_known)
}

pub(crate) fn run_binary(bytes: &[u8]) -> bool {
    let message = ComfyuiMessage::from_binary(bytes);
    match &message {
        ComfyuiMessage::Preview { bytes: image, .. } => assert!(image.len() <= bytes.len()),
        // Each invalid byte becomes a replacement character of three.
        ComfyuiMessage::Text { text, .. } => assert!(text.len() <= 3 * bytes.len()),
        _ => {}
    }
    follow(std::slice::from_ref(&message));
    is_known(&message)
}

fn is_known(message: &ComfyuiMessage) -> bool {
    !matches!(message, ComfyuiMessage::Malformed | ComfyuiMessage::Other { .. })
}

fn follow(messages: &[ComfyuiMessage]) {
    let node = |class: &str, steps| PromptNode { class: class.to_owned(), title: None, steps };
    let nodes = BTreeMap::from([
        ("1".to_owned(), node("EmptyLatentImage", None)),
        ("2".to_owned(), node("KSampler", Some(20.0))),
        ("3".to_owned(), node("SaveImage", None)),
    ]);
    let mut tracker = ProgressTracker::new(PROMPT, &nodes);
    let mut before = 0.0;
    for message in messages {
        tracker.apply(message);
        let fraction = tracker.state().fraction;
        assert!((before..=1.0).contains(&fraction), "progress went from {before} to {fraction}");
        before = fraction;
    }
    let _ = tracker.was_blocked();
}
