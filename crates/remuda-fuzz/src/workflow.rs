//! A workflow as a client submits it. Besides not panicking:
//!
//! - what was accepted is accepted again, with the same hashes: a worker parses what the plane stored;
//! - the text that is stored holds no key;
//! - reading it as an input graph and writing that back changes no hash;
//! - a workflow within the limits has no more nodes than they allow.

use remuda_core::workflow::{InputGraph, Workflow, WorkflowLimits};
use serde_json::value::RawValue;

/// Small, so that inputs of a few kilobytes reach them.
const LIMITS: WorkflowLimits =
    WorkflowLimits { depth_max: 16, nodes_max: 64, values_max: 2048, bytes_max: 32 << 10 };

pub(crate) fn run(bytes: &[u8]) -> bool {
    let Ok(text) = serde_json::from_slice::<Box<RawValue>>(bytes) else { return false };
    let Ok(workflow) = Workflow::parse(text, &LIMITS) else { return false };
    let facts = workflow.facts();
    assert!(facts.nodes <= LIMITS.nodes_max, "{} nodes were accepted", facts.nodes);

    let again = parse_again(workflow.text());
    assert_eq!(again.facts(), facts, "the stored text has other hashes than the submitted one");
    let (_, keys, _) = again.into_parts();
    assert!(keys.is_empty(), "the stored text still holds keys");

    let Some(graph) = InputGraph::read(workflow.text()) else { return true };
    let written = parse_again(&graph.write());
    assert_eq!(written.facts().workflow_hash, facts.workflow_hash, "an unchanged graph has another hash");
    assert_eq!(written.facts().shape, facts.shape, "an unchanged graph has another shape");
    true
}

fn parse_again(text: &RawValue) -> Workflow {
    Workflow::parse(text.to_owned(), &LIMITS).expect("what was accepted once is accepted again")
}
