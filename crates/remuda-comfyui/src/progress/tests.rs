use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::PreparedPrompt;

const ID: &str = "650e620b-4bff-450a-a9b5-939aa9c02c3e";

/// Three nodes, the second with six steps: a total weight of eight.
fn progress() -> ProgressTracker {
    let graph = json!({
        "1": {"class_type": "EmptyImage", "inputs": {}},
        "2": {"class_type": "KSampler", "inputs": {"steps": 6}, "_meta": {"title": "Draw it"}},
        "3": {"class_type": "SaveImage", "inputs": {}},
    });
    let prompt = PreparedPrompt::from_trusted(&graph, &json!({}), ID, "c");
    ProgressTracker::new(prompt.id(), prompt.nodes())
}

fn message(text: &str) -> ComfyuiMessage {
    let (kind, data) = text.split_once(' ').unwrap_or((text, "{}"));
    let mut data: serde_json::Value = serde_json::from_str(data).unwrap();
    if data.get("prompt_id").is_none() {
        data["prompt_id"] = json!(ID);
    }
    ComfyuiMessage::from_text(&json!({"type": kind, "data": data}).to_string())
}

/// After each message: the fraction in eighths and the phase, or a dash if nothing changed.
fn check(story: &[(&str, &str)]) {
    let mut progress = progress();
    for (sent, expected) in story {
        let step = progress.apply(&message(sent));
        let change = step.map(|step| format!("{:.2} {}", step.fraction * 8.0, step.phase));
        assert_eq!(change.as_deref().unwrap_or("-"), *expected, "{sent}");
    }
}

#[test]
fn progress_rises_with_the_steps() {
    check(&[
        ("execution_start", "0.00 started"),
        (r#"execution_cached {"nodes": []}"#, "-"),
        (r#"progress_state {"nodes": {"1": {"value": 0, "max": 1, "state": "running"}}}"#, "-"),
        (r#"executing {"node": "1"}"#, "0.00 EmptyImage"),
        (
            r#"progress_state {"nodes": {"1": {"value": 1, "max": 1, "state": "finished"}}}"#,
            "1.00 EmptyImage",
        ),
        (r#"executing {"node": "2"}"#, "1.00 Draw it"),
        (r#"progress {"node": "2", "value": 1, "max": 6}"#, "2.00 Draw it 1/6"),
        (
            r#"progress_state {"nodes": {"1": {"state": "finished"}, "2": {"value": 5, "max": 6, "state": "running"}}}"#,
            "6.00 Draw it 5/6",
        ),
        (r#"executing {"node": "3"}"#, "6.00 SaveImage"),
        (r#"executed {"node": "3", "output": {}}"#, "7.00 SaveImage"),
        ("execution_success", "8.00 finishing"),
        (r#"executing {"node": null}"#, "-"),
    ]);
}

#[test]
fn cached_nodes_are_done_from_the_start() {
    check(&[
        (r#"execution_cached {"nodes": ["1", "2"]}"#, "7.00 "),
        (r#"executing {"node": "3"}"#, "7.00 SaveImage"),
    ]);
}

#[test]
fn progress_without_node_states_follows_executing_messages() {
    check(&[
        (r#"executing {"node": "1"}"#, "0.00 EmptyImage"),
        (r#"executing {"node": "2"}"#, "1.00 Draw it"),
        (r#"executing {"node": "2"}"#, "-"),
        (r#"executing {"node": "3"}"#, "7.00 SaveImage"),
    ]);
}

#[test]
fn message_without_prompt_id_is_applied() {
    check(&[
        (r#"executing {"node": "2", "prompt_id": null}"#, "0.00 Draw it"),
        (r#"executing {"node": "99", "prompt_id": null}"#, "-"),
        (r#"executing {"node": null, "prompt_id": null}"#, "-"),
        (r#"progress {"node": "2", "value": 3, "max": 6}"#, "3.00 Draw it 3/6"),
    ]);
}

/// Faults: W5, W6.
#[test]
fn late_repeated_or_foreign_messages_change_nothing() {
    check(&[
        (r#"progress {"node": "2", "value": 3, "max": 6}"#, "3.00 Draw it 3/6"),
        (r#"progress {"node": "2", "value": 3, "max": 6}"#, "-"),
        (r#"progress {"node": "2", "value": 6, "max": 6, "prompt_id": "other"}"#, "-"),
        (r#"execution_success {"prompt_id": "other"}"#, "-"),
        (r#"progress {"node": "2", "value": 1, "max": 0}"#, "-"),
        (r#"progress {"node": "99", "value": 1, "max": 2}"#, "-"),
        ("status {}", "-"),
    ]);
}

#[test]
fn nodes_created_at_run_time_belong_to_their_creator() {
    check(&[
        (r#"progress_state {"nodes": {"2": {"value": 0, "max": 1, "state": "running"}}}"#, "-"),
        (r#"executing {"node": "2.0.0.1"}"#, "0.00 Draw it"),
        (r#"progress {"node": "2.0.0.1", "value": 1, "max": 4}"#, "0.00 Draw it 1/4"),
        (r#"progress_state {"nodes": {"2.0.0.1": {"value": 1, "max": 1, "state": "finished"}}}"#, "-"),
    ]);
}

/// Faults: J14.
#[test]
fn run_that_its_workflow_blocked_is_told_from_one_whose_outputs_were_lost() {
    let blocked = |messages: &[&str]| {
        let mut progress = progress();
        messages.iter().for_each(|text| drop(progress.apply(&message(text))));
        progress.was_blocked()
    };
    let error = |kind: &str| {
        format!(
            r#"execution_error {{"node_id": "3", "exception_type": "{kind}", "exception_message": "no"}}"#
        )
    };
    let (start, success) = ("execution_start {}", "execution_success {}");
    let executing = r#"executing {"node": "3"}"#;
    let executed = r#"executed {"node": "3", "output": {}}"#;
    assert!(!blocked(&[]) && !blocked(&[&error("ValueError")]));
    assert!(blocked(&[&error("ExecutionBlocked")]), "with a message");
    assert!(blocked(&[start, executing, success]), "without a message the node ran and shows nothing");
    assert!(!blocked(&[start, success]), "answered from a cache whose outputs are gone");
    assert!(!blocked(&[start, executing, executed, success]), "an output was announced: it is lost");
    assert!(!blocked(&[executing, success]), "the beginning was not heard");
}

proptest! {
    /// Faults: W5.
    #[test]
    fn progress_never_decreases(
        sent in prop::collection::vec((0..7u8, 0..5u8, -2.0..20.0f64, -1.0..10.0f64), 0..40)
    ) {
        let mut progress = progress();
        let mut before = 0.0;
        for (kind, node, value, max) in sent {
            let text = match kind {
                0 => "execution_start".to_owned(),
                1 => format!(r#"execution_cached {{"nodes": ["{node}"]}}"#),
                2 => format!(r#"executing {{"node": "{node}"}}"#),
                3 => format!(r#"progress {{"node": "{node}", "value": {value}, "max": {max}}}"#),
                4 => format!(r#"progress_state {{"nodes": {{"{node}": {{"value": {value}, "max": {max}, "state": "running"}}}}}}"#),
                5 => format!(r#"executed {{"node": "{node}", "output": {{}}}}"#),
                _ => format!(r#"progress {{"node": "{node}.0.1", "value": {value}, "max": {max}}}"#),
            };
            if let Some(step) = progress.apply(&message(&text)) {
                prop_assert!(step.fraction >= before && (0.0..=1.0).contains(&step.fraction), "{before} {step:?}");
                before = step.fraction;
            }
        }
    }
}

#[test]
fn state_names_the_running_node_and_its_steps() {
    let mut progress = progress();
    assert_eq!((progress.state().nodes_total, progress.state().node), (3, None));
    for sent in [
        r#"execution_cached {"nodes": ["1"]}"#,
        r#"executing {"node": "2"}"#,
        r#"progress {"node": "2", "value": 4, "max": 6}"#,
    ] {
        progress.apply(&message(sent));
    }
    let standing = progress.state();
    assert_eq!((standing.nodes_done, standing.node, standing.class), (1, Some("2"), Some("KSampler")));
    assert_eq!((standing.steps, standing.phase), (Some((4, 6)), "Draw it 4/6"));
    progress.apply(&message(r#"executing {"node": "3"}"#));
    assert_eq!((progress.state().node, progress.state().steps), (Some("3"), None));
}
