//! Writes the last section of `docs/lifecycles.md`: the life of a model copy. Each cell is found by running the code.

use std::path::Path;
use std::time::Duration;

use crate::supervisor::model_copy::{BatchRun, CopyChange, CopyEvent, CopyState, ExitReason, ModelCopy};
use crate::supervisor::{CopyId, RunId};

const HEAD: &str = "\n## Model copy\n
`supervisor/model_copy.rs` of `remuda-models`. Only a ready copy gets work. In brackets: the batch that it had is over or goes to
another copy.\n
";

/// Compares; with `REMUDA_WRITE_DOCS=1` it writes the section instead.
#[test]
fn lifecycle_document_matches_the_code() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/lifecycles.md");
    let section = format!("{HEAD}{}\n", table());
    let file = std::fs::read_to_string(&path).unwrap();
    let (others, written) = file.split_at(file.find("\n## Model copy\n").unwrap_or(file.len()));
    if std::env::var_os("REMUDA_WRITE_DOCS").is_some() {
        return std::fs::write(&path, others.to_owned() + &section).unwrap();
    }
    assert!(
        written == section,
        "docs/lifecycles.md is out of date; write it with\n  REMUDA_WRITE_DOCS=1 cargo test --workspace --lib lifecycle"
    );
}

fn batch() -> CopyEvent {
    let id = RunId(2);
    CopyEvent::Start(BatchRun {
        id,
        since: Duration::ZERO,
        items: vec![],
        streamed_bytes: 0,
        is_stopped: false,
    })
}

fn copy(events: Vec<CopyEvent>) -> ModelCopy {
    let mut copy = ModelCopy::new(CopyId(1), "m".into(), 0, Duration::ZERO);
    events.into_iter().for_each(|event| drop(copy.apply(event)));
    copy
}

/// The events that lead to a state, from those that follow a start.
type Prepare = fn(&dyn Fn(Vec<CopyEvent>) -> Vec<CopyEvent>) -> Vec<CopyEvent>;
type Happen = fn() -> CopyEvent;

fn shown(state: &CopyState) -> &'static str {
    match state {
        CopyState::Draining(Some(_)) => "draining, with a batch",
        CopyState::Loading
        | CopyState::Testing(_)
        | CopyState::Ready
        | CopyState::Busy(_)
        | CopyState::Draining(None)
        | CopyState::Dead(_) => state.name(),
    }
}

fn table() -> String {
    use CopyEvent::{Die, Drain, RunEnded, Test};
    let ready = || vec![Test(RunId(1)), RunEnded(RunId(1))];
    let after = |more: Vec<CopyEvent>| ready().into_iter().chain(more).collect::<Vec<_>>();
    let states: [Prepare; 7] = [
        |_| vec![],
        |_| vec![Test(RunId(1))],
        |after| after(vec![]),
        |after| after(vec![batch()]),
        |after| after(vec![batch(), Drain]),
        |after| after(vec![Drain]),
        |_| vec![Die(ExitReason::Requested)],
    ];
    let events: [(&str, Happen); 6] = [
        ("it is tested", || Test(RunId(1))),
        ("a batch is sent to it", batch),
        ("its test is over", || RunEnded(RunId(1))),
        ("its batch is over", || RunEnded(RunId(2))),
        ("it is drained", || Drain),
        ("it dies", || Die(ExitReason::Requested)),
    ];
    let names = events.map(|(name, _)| name).join(" | ");
    let mut text = format!("| | {names} |\n|---|{}", "---|".repeat(events.len()));
    for begin in states {
        let cells = events.map(|(_, event)| {
            let mut copy = copy(begin(&after));
            let change = copy.apply(event());
            let state = shown(copy.state());
            if matches!(change, CopyChange::Released(_)) {
                format!("{state} (batch)")
            } else {
                state.to_owned()
            }
        });
        text.push_str(&format!("\n| **{}** | {} |", shown(copy(begin(&after)).state()), cells.join(" | ")));
    }
    text
}
