//! Writes `docs/lifecycles.md`: every life as a table of states and events. Each cell is found by running the code,
//! so the document cannot drift.

use std::path::Path;

use crate::agent::tests::{attempt_table, condition_table};
use crate::job::tests::life_table;
use crate::machine::WorkerState;
use crate::plane::PlaneAnswer;
use crate::plane::tests::{Story, id};
use crate::refusal::Refusal;

mod breakers;
mod machines;

const HEAD: &str = "# Lifecycles

*Written by tests that run the code (`lifecycles.rs` in `crates/remuda-core/src`, `supervisor/tests/lifecycle.rs` in
`crates/remuda-models/src`); edit those instead.*

Rows are states, columns are what can happen, and a cell is the state afterwards. *In italics*: refused, and nothing
has changed. Times are those of the default settings.
";

/// The last section, which a test of `remuda-models` writes: the core does not know that crate.
const MODEL_COPY: &str = "\n## Model copy\n";

/// Compares; with `REMUDA_WRITE_DOCS=1` it writes the document instead.
#[test]
#[expect(clippy::disallowed_methods, reason = "the document is compared with the file")]
fn document_matches_the_code() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/lifecycles.md");
    let text = document();
    let file = std::fs::read_to_string(&path).unwrap_or_default();
    let (written, model_copy) = file.split_at(file.find(MODEL_COPY).unwrap_or(file.len()));
    if std::env::var_os("REMUDA_WRITE_DOCS").is_some() {
        return std::fs::write(&path, text + model_copy).unwrap();
    }
    assert!(
        written == text,
        "docs/lifecycles.md is out of date; write it with\n  REMUDA_WRITE_DOCS=1 cargo test --workspace --lib lifecycle"
    );
}

fn document() -> String {
    let (events, rows) = attempt_table();
    let (conditions, service) = condition_table();
    let parts = [
        (
            "Job",
            "`job.rs`. The fence (job, attempt, incarnation) decides who may end an attempt.",
            life_table(),
        ),
        (
            "Worker: life",
            "`worker/life.rs`, `cycle.rs`. Changed by operators, by the worker and by the control cycle.",
            worker_life(),
        ),
        (
            "Worker: presence",
            "`plane/presence.rs`. Moved by what is heard from the worker, or not heard; a worker is suspect before it is offline, and a suspect one \
             gets nothing new. What an offline worker held is taken elsewhere, once there is proof that messages arrive.",
            worker_presence(),
        ),
        (
            "Block",
            "`block.rs`, here with `max_failures_before_block = 2`. A worker and a workflow are kept apart, then one trial decides.",
            breakers::blocks(),
        ),
        (
            "Quarantine",
            "`quarantine.rs`. A tenant's shape that fails on three distinct workers runs one job at a time until one succeeds; a trial that takes its worker down makes the next one wait.",
            breakers::quarantine(),
        ),
        (
            "Machine",
            "`rental.rs`. A rented machine counts against maximum and budget from the request until the provider's lists prove it gone.",
            machines::machine(),
        ),
        (
            "Creation brake",
            "`brake.rs`. Machines that fail one after another stop renting for a while, then one at a time shows whether it works again.",
            machines::creation_brake(),
        ),
        (
            "Mass-loss brake",
            "`brake.rs`. The plane's view of one silent, busy worker. Without proof that messages arrive, its verdict waits: the brake is on.",
            machines::mass_loss_brake(),
        ),
        (
            "Attempt inside a worker",
            "`agent.rs`. The agent's action is in brackets. A finished attempt is reported in every beat until the \
             plane has settled it.",
            table(&events, &rows),
        ),
        (
            "Service",
            "`agent/condition.rs`. A service as the agent of its worker sees it; the remedy that follows is in brackets.",
            table(&conditions, &service),
        ),
    ];
    let parts = parts.map(|(name, what, table)| format!("\n## {name}\n\n{what}\n\n{table}\n"));
    format!("{HEAD}{}", parts.concat())
}

fn table(events: &[&str], rows: &[(&str, Vec<String>)]) -> String {
    let mut text = format!("| | {} |\n|---|{}", events.join(" | "), "---|".repeat(events.len()));
    for (state, cells) in rows {
        text.push_str(&format!("\n| **{state}** | {} |", cells.join(" | ")));
    }
    text
}

type Done = Result<(), Refusal>;
type StateRow<W> = (&'static str, fn() -> W);
type EventRow<W> = (&'static str, fn(&mut W) -> Done);

/// Every state against every event, each in a world of its own.
fn cross<W>(states: &[StateRow<W>], events: &[EventRow<W>], shown: impl Fn(&W) -> String) -> String {
    let rows: Vec<_> = states
        .iter()
        .map(|(name, begin)| {
            assert!(name.starts_with(&shown(&begin())), "{name} begins as {}", shown(&begin()));
            let cells = events.iter().map(|(_, happens)| {
                let mut world = begin();
                match happens(&mut world) {
                    Ok(()) => shown(&world),
                    Err(refusal) => refused(&refusal),
                }
            });
            (*name, cells.collect())
        })
        .collect();
    table(&events.iter().map(|(name, _)| *name).collect::<Vec<_>>(), &rows)
}

fn refused(refusal: &Refusal) -> String {
    format!("*{}*", format!("{refusal:?}").split([' ', '{', '(']).next().unwrap_or_default())
}

fn done<T>(answer: Result<T, Refusal>) -> Done {
    answer.map(|_| ())
}

/// A worker as a plane finds it in its store.
fn stored(state: WorkerState) -> Story {
    let mut story = Story::new();
    story.join("a");
    story.kept.workers.get_mut(&id("a")).expect("it has joined").state = state;
    story.restart();
    story
}

fn worker_life() -> String {
    let shown = |story: &Story| story.plane.worker(&id("a")).expect("it has joined").state().to_string();
    cross(
        &[
            ("spawning", || stored(WorkerState::Spawning)),
            ("active", || stored(WorkerState::Active)),
            ("terminating", || stored(WorkerState::Terminating)),
            ("terminated", || stored(WorkerState::Terminated)),
            ("error", || stored(WorkerState::Error)),
        ],
        &[
            ("join", |story| {
                story.join("a");
                Ok(())
            }),
            ("beat", |story| done(story.beat("a"))),
            ("beat: draining", |story| {
                let mut beat = story.beat_of("a");
                beat.draining = true;
                done(story.send("a", beat, false))
            }),
            ("drain", |story| done::<PlaneAnswer>(story.drain("a"))),
            ("leave", |story| {
                story.leave("a");
                Ok(())
            }),
            ("holds nothing (control cycle)", |story| {
                story.to(30);
                Ok(())
            }),
            ("silent for 5 min, no job waits (control cycle)", |story| silent_beside_others(story, 331)),
            ("silent for 5 min, a job waits (control cycle)", |story| {
                story.submit_with("s", |it| it.job.service = "other".parse().unwrap())?;
                silent_beside_others(story, 331)
            }),
        ],
        shown,
    )
}

fn idle() -> Story {
    let mut story = Story::new();
    story.join("a");
    story
}

fn busy() -> Story {
    let mut story = idle();
    story.submit("s");
    story.poll("a");
    story
}

fn wait(story: &mut Story, seconds: u64) -> Done {
    story.wait(seconds);
    Ok(())
}

/// Another worker beats every five seconds meanwhile: messages arrive.
fn silent_beside_others(story: &mut Story, seconds: u64) -> Done {
    story.join("b");
    for _ in 0..=seconds / 5 {
        story.wait(5);
        story.beat("b")?;
    }
    wait(story, 1)
}

fn worker_presence() -> String {
    cross(
        &[
            ("online, idle", idle),
            ("online, busy", busy),
            ("suspect, idle", || {
                let mut story = idle();
                story.wait(45);
                story
            }),
            ("suspect, busy", || {
                let mut story = busy();
                story.wait(15);
                story
            }),
            ("offline", || {
                let mut story = idle();
                story.wait(90);
                story
            }),
        ],
        &[
            ("beat", |story| done(story.beat("a"))),
            ("join", |story| {
                story.join("a");
                Ok(())
            }),
            ("connection dropped", |story| done(story.drop_line("a"))),
            ("leave", |story| {
                story.leave("a");
                Ok(())
            }),
            ("connection dropped, silent 8 s", |story| {
                story.drop_line("a")?;
                wait(story, 8)
            }),
            ("silent 15 s", |story| wait(story, 15)),
            ("silent 30 s", |story| wait(story, 30)),
            ("silent 45 s", |story| wait(story, 45)),
            ("silent 90 s", |story| wait(story, 90)),
            ("silent 30 s, another worker beats all the time", |story| silent_beside_others(story, 30)),
            ("the plane was paused for 90 s", |story| {
                story.be_away(90);
                Ok(())
            }),
        ],
        |story| story.presence("a").to_string(),
    )
}
