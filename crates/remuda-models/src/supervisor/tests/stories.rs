//! One thing at a time.

use std::sync::Arc;
use std::time::Duration;

use crate::backend::Batching;
use crate::failure::{InferenceError, ModelError};
use crate::request::{AnswerUpdate, FinishReason, GeneratedText, PartAnswer, RequestPart, Sampling};
use crate::spec::Device;
use crate::supervisor::{
    CopyId, ExitReason, PoolEffect, PoolEvent, RequestId, RunId, ServingConfig, Supervisor, SupervisorLimits,
};

/// A supervisor, its clock, and what it decided since somebody looked.
pub(super) struct Story {
    pub(super) supervisor: Supervisor,
    now: Duration,
    pub(super) effects: Vec<PoolEffect>,
    requests: u64,
}

pub(super) fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// Room for four copies of one byte each, and for 20 tokens in a line.
pub(super) fn story() -> Story {
    let limits = SupervisorLimits {
        memory_bytes: 4,
        queue_tokens_max: 20,
        queue_bytes_max: 1 << 20,
        deaths_max: 5,
        crash_loop_pause: seconds(60),
        copy_wait_max: seconds(1),
        maintenance_every: seconds(60),
        idle_max: None,
    };
    Story { supervisor: Supervisor::new(limits), now: Duration::ZERO, effects: Vec::new(), requests: 0 }
}

impl Story {
    pub(super) fn tell(&mut self, event: PoolEvent) {
        let effects = self.supervisor.step(self.now, event);
        self.effects.extend(effects);
    }

    pub(super) fn pass(&mut self, time: Duration) {
        self.now += time;
        self.tell(PoolEvent::Tick);
    }

    pub(super) fn serve(&mut self, model: &str, copies: u32, memory_bytes: u64) {
        self.serve_on((Device::Cpu, None), model, copies, memory_bytes);
    }

    pub(super) fn serve_on(
        &mut self,
        (device, device_bytes): (Device, Option<u64>),
        model: &str,
        copies: u32,
        memory_bytes: u64,
    ) {
        self.tell(PoolEvent::AddModel(ServingConfig {
            model: Arc::from(model),
            copies,
            device,
            device_bytes,
            memory_bytes,
            batching: Batching::packed(8),
            stall_max: seconds(30),
            load_stall_max: seconds(120),
            golden: RequestPart::Tokens(vec![0]),
            reference: None,
        }));
    }

    pub(super) fn submit(&mut self, model: &str, tokens: usize) -> RequestId {
        self.requests += 1;
        let request = RequestId(self.requests);
        let parts = vec![RequestPart::Tokens(vec![1; tokens])];
        self.tell(PoolEvent::Submit { request, model: Arc::from(model), parts, deadline: None });
        request
    }

    fn chat(&mut self, model: &str) -> RequestId {
        self.requests += 1;
        let request = RequestId(self.requests);
        let parts = vec![RequestPart::Prompt { tokens: vec![1], sampling: Sampling::default() }];
        self.tell(PoolEvent::Submit { request, model: Arc::from(model), parts, deadline: None });
        request
    }

    fn emit(&mut self, (copy, run, _): (CopyId, RunId, usize), text: &str) {
        self.tell(PoolEvent::Streamed { copy, run, update: AnswerUpdate::Text(text.to_owned()) });
    }

    /// What was heard since the last look.
    fn heard(&mut self) -> String {
        let heard = |effect: &PoolEffect| match effect {
            PoolEffect::Stream { update: AnswerUpdate::Text(text), .. } => Some(text.clone()),
            _ => None,
        };
        let text = self.effects.iter().filter_map(heard).collect();
        self.effects.retain(|effect| heard(effect).is_none());
        text
    }

    /// The whole answer, said or not.
    fn end_with(&mut self, (copy, run, _): (CopyId, RunId, usize), text: &str) {
        let whole = GeneratedText { text: text.to_owned(), finish: FinishReason::Stop, tokens: 1 };
        self.tell(PoolEvent::Finished { copy, run, outcome: Ok(vec![PartAnswer::Text(whole)]) });
    }

    /// A conversation of which `hello` was heard when its copy panicked; it is another's now.
    fn interrupted(&mut self) -> (RequestId, (CopyId, RunId, usize)) {
        self.serve("m", 2, 1);
        self.ready();
        let request = self.chat("m");
        let first = self.given().remove(0);
        self.emit(first, "hello");
        assert_eq!(self.heard(), "hello");
        self.tell(PoolEvent::Died { copy: first.0, why: ExitReason::Panicked("x".to_owned()) });
        let second = self.given().remove(0);
        assert_ne!(first.0, second.0);
        self.emit(first, " from beyond");
        assert_eq!(self.heard(), "", "the dead are not heard");
        (request, second)
    }

    /// Who was started since the last look.
    pub(super) fn started(&mut self) -> Vec<CopyId> {
        let starts = |effect: &PoolEffect| match effect {
            PoolEffect::Start { copy, .. } => Some(*copy),
            _ => None,
        };
        let started = self.effects.iter().filter_map(starts).collect();
        self.effects.retain(|effect| starts(effect).is_none());
        started
    }

    /// What was given to whom, with how many parts.
    fn given(&mut self) -> Vec<(CopyId, RunId, usize)> {
        let given = |effect: &PoolEffect| match effect {
            PoolEffect::Run { copy, run, parts } => Some((*copy, *run, parts.len())),
            _ => None,
        };
        let runs = self.effects.iter().filter_map(given).collect();
        self.effects.retain(|effect| given(effect).is_none());
        runs
    }

    pub(super) fn answer(&mut self, request: RequestId) -> Option<Result<usize, ModelError>> {
        let at = self.effects.iter().position(
            |effect| matches!(effect, PoolEffect::Answer { request: answered, .. } if *answered == request),
        )?;
        match self.effects.remove(at) {
            PoolEffect::Answer { answer, .. } => Some(answer.map(|answer| answer.parts.len())),
            _ => None,
        }
    }

    pub(super) fn has(&self, is_it: impl Fn(&PoolEffect) -> bool) -> bool {
        self.effects.iter().any(is_it)
    }

    fn done(&mut self, (copy, run, parts): (CopyId, RunId, usize), answer: &[f32]) {
        let outcome = Ok(vec![PartAnswer::Vector(answer.to_vec()); parts]);
        self.tell(PoolEvent::Finished { copy, run, outcome });
    }

    fn fail(&mut self, (copy, run, _): (CopyId, RunId, usize), failure: InferenceError) {
        self.tell(PoolEvent::Finished { copy, run, outcome: Err(failure) });
    }

    /// Loads and proves everybody who was started.
    pub(super) fn ready(&mut self) -> Vec<CopyId> {
        let started = self.started();
        for copy in &started {
            self.tell(PoolEvent::Loaded(*copy));
            let proof = self.given().remove(0);
            self.done(proof, &[1.0, 0.0]);
        }
        started
    }
}

/// Faults: T2.
#[test]
fn nobody_is_given_work_before_it_is_loaded_and_has_proved_itself() {
    let mut story = story();
    story.serve("m", 1, 1);
    let request = story.submit("m", 1);
    let copy = story.started()[0];
    assert_eq!(story.given(), []);
    story.tell(PoolEvent::Loaded(copy));
    let proof = story.given();
    assert_eq!(proof.len(), 1, "only the question it has to know");
    story.done(proof[0], &[1.0, 0.0]);
    let given = story.given();
    assert_eq!(given.len(), 1);
    story.done(given[0], &[0.0, 1.0]);
    assert_eq!(story.answer(request), Some(Ok(1)));
}

#[test]
fn the_second_copy_has_to_answer_as_the_first_did() {
    let mut story = story();
    story.serve("m", 2, 1);
    let started = story.started();
    for (copy, answer) in started.iter().zip([[1.0, 0.0], [0.6, 0.8]]) {
        story.tell(PoolEvent::Loaded(*copy));
        let proof = story.given().remove(0);
        story.done(proof, &answer);
    }
    assert!(story.has(|it| matches!(it, PoolEffect::StoreReference { .. })));
    assert!(story.has(
        |it| matches!(it, PoolEffect::Removed { copy, why: ExitReason::Wrong(_), .. } if *copy == started[1])
    ));
    assert!(story.has(|it| matches!(it, PoolEffect::Kill(copy) if *copy == started[1])));
}

/// Faults: T1. Who was in a batch with what kills is not killed with it again.
#[test]
fn parts_of_a_dead_copy_are_tried_alone_and_only_the_one_that_kills_twice_is_refused() {
    let mut story = story();
    story.serve("m", 1, 1);
    story.ready();
    let busy = story.submit("m", 1);
    let first = story.given().remove(0);
    let (killer, innocent) = (story.submit("m", 1), story.submit("m", 1));
    story.done(first, &[1.0, 0.0]);
    assert_eq!(story.answer(busy), Some(Ok(1)));
    let both = story.given().remove(0);
    assert_eq!(both.2, 2, "one batch");
    story.tell(PoolEvent::Died { copy: both.0, why: ExitReason::Panicked("x".to_owned()) });
    story.tell(PoolEvent::Reaped(both.0));
    story.ready();
    let alone = story.given().remove(0);
    assert_eq!(alone.2, 1);
    story.tell(PoolEvent::Died { copy: alone.0, why: ExitReason::Panicked("x".to_owned()) });
    let Some(Err(ModelError::Failed { failure: InferenceError::Engine(why), .. })) = story.answer(killer)
    else {
        panic!()
    };
    assert!(why.contains("2 copies died"), "{why}");
    story.tell(PoolEvent::Reaped(alone.0));
    story.pass(seconds(1));
    story.ready();
    let last = story.given().remove(0);
    story.done(last, &[1.0, 0.0]);
    assert_eq!(story.answer(innocent), Some(Ok(1)));
}

/// Faults: T6. Three failures in a row are the copy's, though it answers what it has to know.
#[test]
fn a_copy_that_fails_at_everything_is_not_the_least_busy_for_long() {
    let mut story = story();
    story.serve("m", 1, 1);
    let sick = story.ready()[0];
    for _ in 0..3 {
        story.submit("m", 1);
        let given = story.given();
        let given = given.into_iter().find(|(copy, _, _)| *copy == sick).unwrap();
        story.fail(given, InferenceError::Engine("x".to_owned()));
        let proof = story.given();
        if let Some(proof) = proof.into_iter().next() {
            assert_eq!(proof.0, sick);
            let given_meanwhile = story.given();
            assert_eq!(given_meanwhile, [], "nothing until it has proved itself");
            story.done(proof, &[1.0, 0.0]);
        }
    }
    assert!(story.has(
        |it| matches!(it, PoolEffect::Removed { copy, why: ExitReason::Failing(_), .. } if *copy == sick)
    ));
}

/// Faults: T5. An answer of a copy that was given up, or to a run that is over, changes nothing.
#[test]
fn a_late_answer_is_dropped() {
    let mut story = story();
    story.serve("m", 1, 1);
    story.ready();
    let request = story.submit("m", 1);
    let hung = story.given().remove(0);
    for _ in 0..40 {
        story.now += seconds(1);
        story.tell(PoolEvent::BeaconRead { copy: hung.0, steps: 7 });
    }
    assert!(story.has(|it| matches!(it, PoolEffect::Removed { why: ExitReason::Hung(_), .. })));
    story.ready();
    let second = story.given().remove(0);
    story.done(hung, &[1.0, 0.0]);
    assert_eq!(story.answer(request), None, "it is not believed");
    story.done(second, &[1.0, 0.0]);
    story.done(second, &[1.0, 0.0]);
    assert_eq!(story.answer(request), Some(Ok(1)));
    assert_eq!(story.supervisor.snapshot().stale, 2);
}

/// Faults: T3. A machine that slept for an hour finds its copies where they were.
#[test]
fn a_long_time_in_which_nobody_looked_is_not_a_copys_silence() {
    let mut story = story();
    story.serve("m", 1, 1);
    let copy = story.ready()[0];
    story.submit("m", 1);
    story.tell(PoolEvent::BeaconRead { copy, steps: 7 });
    story.now += seconds(3600);
    story.tell(PoolEvent::BeaconRead { copy, steps: 7 });
    assert!(!story.has(|it| matches!(it, PoolEffect::Removed { .. })));
}

#[test]
fn a_full_line_refuses_with_a_hint_of_the_measured_pace() {
    let mut story = story();
    story.serve("m", 1, 1);
    story.ready();
    let first = story.submit("m", 10);
    let run = story.given().remove(0);
    story.now += seconds(2);
    story.done(run, &[1.0, 0.0]);
    assert_eq!(story.answer(first), Some(Ok(1)));
    story.submit("m", 8);
    story.submit("m", 20);
    let refused = story.submit("m", 10);
    let Some(Err(ModelError::Full { retry_after, .. })) = story.answer(refused) else { panic!() };
    assert_eq!(retry_after, seconds(2), "10 tokens at 5 a second");
    let absurd = story.submit("m", 21);
    assert!(matches!(story.answer(absurd), Some(Err(ModelError::Input(_)))), "it would never fit");
}

#[test]
fn the_longest_unused_makes_room_and_comes_back_when_somebody_asks() {
    let mut story = story();
    for model in ["old", "new"] {
        story.serve(model, 1, 2);
        story.ready();
    }
    for model in ["old", "new"] {
        story.now += seconds(1);
        let request = story.submit(model, 1);
        let run = story.given().remove(0);
        story.done(run, &[1.0, 0.0]);
        assert_eq!(story.answer(request), Some(Ok(1)));
    }
    story.serve("third", 1, 1);
    assert_eq!(story.started(), [], "not before the room is really there");
    let old = CopyId(1);
    assert!(story.has(|it| matches!(it, PoolEffect::Quit(copy) if *copy == old)), "{:?}", story.effects);
    let leaving = story.effects.iter().filter(|it| matches!(it, PoolEffect::Quit(_))).count();
    assert_eq!(leaving, 1, "and nobody else");
    story.tell(PoolEvent::Died { copy: old, why: ExitReason::Requested });
    assert_eq!(story.started(), []);
    story.tell(PoolEvent::Reaped(old));
    assert_eq!(story.ready(), [CopyId(3)]);
    story.pass(seconds(100));
    story.given();
    assert_eq!(story.started(), [], "what made room rests");
    let request = story.submit("old", 1);
    assert_eq!(story.answer(request), None, "it waits for room that somebody idle makes");
    assert!(story.has(|it| matches!(it, PoolEffect::Quit(_))));
}

/// Faults: T7. In a batch that others wait for, one who leaves changes nothing; when the last leaves, it is stopped.
#[test]
fn a_run_is_stopped_when_nobody_wants_any_of_it() {
    let mut story = story();
    story.serve("m", 1, 1);
    story.ready();
    story.submit("m", 8);
    let first = story.given().remove(0);
    let (a, b) = (story.submit("m", 1), story.submit("m", 1));
    story.done(first, &[1.0, 0.0]);
    let both = story.given().remove(0);
    story.tell(PoolEvent::Cancel(a));
    assert!(!story.has(|it| matches!(it, PoolEffect::Stop { .. })));
    story.tell(PoolEvent::Cancel(b));
    assert!(story.has(|it| matches!(it, PoolEffect::Stop { run, .. } if *run == both.1)));
    story.fail(both, InferenceError::Stopped);
    let next = story.submit("m", 1);
    let run = story.given().remove(0);
    story.done(run, &[1.0, 0.0]);
    assert_eq!(story.answer(next), Some(Ok(1)), "the copy is as good as before");
}

/// Faults: T11.
#[test]
fn closing_finishes_what_it_can_and_answers_the_rest_at_the_deadline() {
    let mut story = story();
    story.serve("m", 1, 1);
    story.ready();
    let (first, second) = (story.submit("m", 8), story.submit("m", 8));
    let run = story.given().remove(0);
    story.tell(PoolEvent::Close { until: seconds(10) });
    let refused = story.submit("m", 1);
    assert_eq!(story.answer(refused), Some(Err(ModelError::Closing)));
    story.done(run, &[1.0, 0.0]);
    assert_eq!(story.answer(first), Some(Ok(1)));
    assert_eq!(story.given().len(), 1, "what waited is begun");
    story.pass(seconds(11));
    assert_eq!(story.answer(second), Some(Err(ModelError::Closing)));
    assert!(story.has(|it| matches!(it, PoolEffect::Kill(_))));
    story.tell(PoolEvent::Died { copy: run.0, why: ExitReason::Requested });
    story.tell(PoolEvent::Reaped(run.0));
    assert!(story.supervisor.is_closed());
}

#[test]
fn idle_copies_are_asked_what_they_have_to_know_one_at_a_time() {
    let mut story = story();
    story.serve("m", 2, 1);
    story.ready();
    story.pass(seconds(61));
    let proofs = story.given();
    assert_eq!(proofs.len(), 1, "somebody stays at hand");
    story.done(proofs[0], &[0.0, 1.0]);
    assert!(story.has(|it| matches!(it, PoolEffect::Removed { why: ExitReason::Wrong(_), .. })));
}

/// Faults: T8. The copy is well; somebody who has nothing to do makes room, and the part is tried once more.
#[test]
fn out_of_memory_at_work_evicts_the_longest_unused_and_tries_once_more() {
    let mut story = story();
    for model in ["idle", "m"] {
        story.serve(model, 1, 1);
        story.ready();
    }
    let request = story.submit("m", 1);
    for _ in 0..2 {
        assert_eq!(story.answer(request), None);
        let run = story.given().remove(0);
        story.fail(run, InferenceError::OutOfMemory("x".to_owned()));
        let proof = story.given().remove(0);
        story.done(proof, &[1.0, 0.0]);
    }
    assert!(story.has(|it| matches!(it, PoolEffect::Quit(CopyId(1)))));
    let answer = story.answer(request);
    assert!(
        matches!(answer, Some(Err(ModelError::Failed { failure: InferenceError::OutOfMemory(_), .. }))),
        "{answer:?}"
    );
    assert!(!story.has(|it| matches!(it, PoolEffect::Removed { .. })), "nobody died of it");
}

/// Faults: T1.
#[test]
fn a_conversation_goes_on_where_its_copy_fell_silent() {
    let mut story = story();
    let (request, second) = story.interrupted();
    for (said, heard) in [("he", ""), ("ll", ""), ("o w", " w"), ("orld", "orld")] {
        story.emit(second, said);
        assert_eq!(story.heard(), heard);
    }
    story.end_with(second, "hello world");
    assert_eq!(story.answer(request), Some(Ok(1)));
}

/// Faults: T1. Whether it is seen at a word or only at the end.
#[test]
fn a_conversation_that_becomes_another_is_ended() {
    let differs = Some(Err(ModelError::Diverged { model: "m".to_owned() }));
    let mut at_a_word = story();
    let (request, second) = at_a_word.interrupted();
    at_a_word.emit(second, "help");
    assert_eq!(at_a_word.heard(), "");
    assert_eq!(at_a_word.answer(request), differs);
    assert!(at_a_word.has(|it| matches!(it, PoolEffect::Stop { run, .. } if *run == second.1)));
    at_a_word.fail(second, InferenceError::Stopped);
    assert_eq!(at_a_word.supervisor.snapshot().models[0].failed, 1);
    let mut at_its_end = story();
    let (request, second) = at_its_end.interrupted();
    at_its_end.emit(second, "he");
    at_its_end.end_with(second, "he");
    assert_eq!(at_its_end.answer(request), differs);
}

/// Faults: T1. Words that are out change nothing about that.
#[test]
fn a_conversation_at_which_two_copies_died_is_not_given_to_a_third() {
    let mut story = story();
    let (request, second) = story.interrupted();
    story.emit(second, "hello again");
    story.tell(PoolEvent::Died { copy: second.0, why: ExitReason::Panicked("x".to_owned()) });
    let answer = story.answer(request);
    let Some(Err(ModelError::Failed { failure: InferenceError::Engine(why), .. })) = answer else { panic!() };
    assert!(why.contains("2 copies died"), "{why}");
    assert_eq!(story.given(), []);
}
