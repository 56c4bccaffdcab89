use serde_json::json;

use super::*;

const ID: &str = "056f5c2a-a9c5-4f60-9b92-8ad2a8b4e5a1";

fn prompt() -> PreparedPrompt {
    PreparedPrompt::from_trusted(&json!({"1": {"class_type": "A"}}), &json!({}), ID, "c")
}

/// The failure for an answer.
fn refused_with(status: u16, body: &str) -> ServiceFailure {
    match judge(StatusCode::from_u16(status).unwrap(), body.as_bytes(), &prompt()) {
        PromptAnswer::Final(SubmitOutcome::Refused(failure)) => failure,
        other => panic!("{other:?}"),
    }
}

fn prompt_error(kind: &str, message: &str, details: &str) -> String {
    json!({"error": {"type": kind, "message": message, "details": details, "extra_info": {}}, "node_errors": {}}).to_string()
}

/// A server's answer with one error of one node.
fn node_error(class: &str, error: &str) -> String {
    format!(
        r#"{{"error": {{"type": "prompt_outputs_failed_validation", "message": "Prompt outputs failed validation", "details": "", "extra_info": {{}}}},
            "node_errors": {{"1": {{"errors": [{error}], "dependent_outputs": ["4"], "class_type": "{class}"}}}}}}"#
    )
}

const NO_MODEL: &str = r#"{"type": "value_not_in_list", "message": "Value not in list", "details": "ckpt_name: 'v1-5.safetensors' not in []",
    "extra_info": {"input_name": "ckpt_name", "input_config": [[], {"tooltip": "x"}], "received_value": "v1-5.safetensors"}}"#;
const NO_SAMPLER: &str = r#"{"type": "value_not_in_list", "message": "Value not in list", "details": "sampler_name: 'nope' not in ['euler']",
    "extra_info": {"input_name": "sampler_name", "received_value": "nope"}}"#;
const NO_IMAGE: &str = r#"{"type": "custom_validation_failed", "message": "Custom validation failed for node",
    "details": "image - Invalid image file: missing.png", "extra_info": {"input_name": "image"}}"#;
const TOO_SMALL: &str = r#"{"type": "value_smaller_than_min", "message": "Value 0 smaller than min of 1", "details": "width",
    "extra_info": {"input_name": "width", "received_value": 0}}"#;

#[test]
fn missing_models_and_classes_are_the_servers_fault() {
    for body in [
        node_error("CheckpointLoaderSimple", NO_MODEL),
        prompt_error(
            "invalid_prompt",
            "Cannot execute because node NoSuchNode does not exist.",
            "Node ID '#1'",
        ),
        prompt_error(
            "missing_node_type",
            "Node 'NoSuchNode' not found. The custom node may not be installed.",
            "Node ID '#1'",
        ),
    ] {
        assert_eq!(refused_with(400, &body).fault, ServiceFault::Missing, "{body}");
    }
}

/// Faults: J6.
#[test]
fn missing_input_file_is_the_jobs_fault_and_may_be_elsewhere() {
    let failure = refused_with(400, &node_error("LoadImage", NO_IMAGE));
    assert_eq!(failure.fault, ServiceFault::Node);
    assert_eq!(failure.node.unwrap().exception.as_deref(), Some("custom_validation_failed"));
}

#[test]
fn invalid_graph_is_the_graphs_fault() {
    for body in [
        node_error("KSampler", NO_SAMPLER),
        node_error("EmptyImage", TOO_SMALL),
        node_error("Both", &format!("{NO_MODEL}, {TOO_SMALL}")),
        node_error("None", ""),
        prompt_error(
            "invalid_prompt",
            "Cannot execute because a node is missing the class_type property.",
            "Node ID '#1'",
        ),
        prompt_error("prompt_no_outputs", "Prompt has no outputs", ""),
        prompt_error("prompt_outputs_failed_validation", "Prompt outputs failed validation", ""),
        "<html>Bad Request</html>".to_owned(),
    ] {
        assert_eq!(refused_with(400, &body).fault, ServiceFault::Graph, "{body}");
    }
    assert_eq!(refused_with(413, "Maximum request body size 104857600 exceeded.").fault, ServiceFault::Graph);
}

#[test]
fn refusal_names_node_class_and_input() {
    let failure = refused_with(400, &node_error("CheckpointLoaderSimple", NO_MODEL));
    assert_eq!(
        failure.message,
        "node 1 (CheckpointLoaderSimple), input ckpt_name: Value not in list: ckpt_name: 'v1-5.safetensors' not in []"
    );
    let failure = refused_with(
        400,
        &prompt_error("invalid_prompt", "Cannot execute because node X does not exist.", "Node ID '#1'"),
    );
    assert_eq!(
        failure.message,
        "ComfyUI refused the workflow: Cannot execute because node X does not exist. Node ID '#1'"
    );
    let many = refused_with(400, &node_error("Many", &[TOO_SMALL; 7].join(",")));
    assert!(many.message.ends_with("; and 3 more"), "{}", many.message);
}

#[test]
fn only_a_complete_acceptance_counts() {
    let ok = format!(r#"{{"prompt_id": "{ID}", "number": 62, "node_errors": {{}}}}"#);
    assert!(matches!(
        judge(StatusCode::OK, ok.as_bytes(), &prompt()),
        PromptAnswer::Final(SubmitOutcome::Accepted)
    ));
    for (status, body) in
        [(200, "<html>"), (200, "{}"), (202, ""), (500, "Server got itself in trouble"), (502, ""), (504, "")]
    {
        let verdict = judge(StatusCode::from_u16(status).unwrap(), body.as_bytes(), &prompt());
        assert!(
            matches!(verdict, PromptAnswer::Final(SubmitOutcome::Unconfirmed(_))),
            "{status} {body}: {verdict:?}"
        );
    }
}

#[test]
fn partial_acceptance_or_foreign_id_is_withdrawn() {
    let half = format!(
        r#"{{"prompt_id": "{ID}", "number": 62, "node_errors": {{"3": {{"errors": [{TOO_SMALL}], "class_type": "SaveImage"}}}}}}"#
    );
    let other = r#"{"prompt_id": "theirs", "number": 1, "node_errors": []}"#.to_owned();
    for (body, taken, fault) in [(half, ID, ServiceFault::Graph), (other, "theirs", ServiceFault::Missing)] {
        match judge(StatusCode::OK, body.as_bytes(), &prompt()) {
            PromptAnswer::Withdraw { id, failure } => assert_eq!((&*id, failure.fault), (taken, fault)),
            verdict @ PromptAnswer::Final(_) => panic!("{verdict:?}"),
        }
    }
}

#[test]
fn refusal_by_a_proxy_is_not_the_jobs_fault() {
    for status in [301, 401, 403, 404, 405, 429] {
        assert_eq!(refused_with(status, "no").fault, ServiceFault::Lost, "{status}");
    }
}
