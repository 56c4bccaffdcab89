//! One scenario per test.

use std::sync::Arc;
use std::time::Duration;

use crate::backend::Batching;
use crate::failure::{InferenceError, ModelError};
use crate::request::{AnswerUpdate, FinishReason, GeneratedText, PartAnswer, RequestPart, Sampling};
use crate::spec::Device;
use crate::supervisor::{
    CopyId, ExitReason, RequestId, RunId, ServingConfig, Supervisor, SupervisorEffect, SupervisorEvent,
    SupervisorLimits,
};

/// A supervisor, its clock, and the effects since the last check.
pub(super) struct Story {
    pub(super) supervisor: Supervisor,
    now: Duration,
    pub(super) effects: Vec<SupervisorEffect>,
    requests: u64,
}

pub(super) fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// Memory for four copies of one byte each, and queues of 20 tokens.
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
    pub(super) fn tell(&mut self, event: SupervisorEvent) {
        let effects = self.supervisor.step(self.now, event);
        self.effects.extend(effects);
    }

    pub(super) fn pass(&mut self, time: Duration) {
        self.now += time;
        self.tell(SupervisorEvent::Tick);
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
        self.tell(SupervisorEvent::AddModel(ServingConfig {
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
        self.tell(SupervisorEvent::Submit { request, model: Arc::from(model), parts, deadline: None });
        request
    }

    fn chat(&mut self, model: &str) -> RequestId {
        self.requests += 1;
        let request = RequestId(self.requests);
        let parts = vec![RequestPart::Prompt { tokens: vec![1], sampling: Sampling::default() }];
        self.tell(SupervisorEvent::Submit { request, model: Arc::from(model), parts, deadline: None });
        request
    }

    fn emit(&mut self, (copy, run, _): (CopyId, RunId, usize), text: &str) {
        self.tell(SupervisorEvent::Streamed { copy, run, update: AnswerUpdate::Text(text.to_owned()) });
    }

    /// The text streamed since the last check.
    fn streamed_text(&mut self) -> String {
        let text_of = |effect: &SupervisorEffect| match effect {
            SupervisorEffect::Stream { update: AnswerUpdate::Text(text), .. } => Some(text.clone()),
            _ => None,
        };
        let text = self.effects.iter().filter_map(text_of).collect();
        self.effects.retain(|effect| text_of(effect).is_none());
        text
    }

    /// Finishes a run with this text, whether it was streamed or not.
    fn end_with(&mut self, (copy, run, _): (CopyId, RunId, usize), text: &str) {
        let whole = GeneratedText { text: text.to_owned(), finish: FinishReason::Stop, tokens: 1 };
        self.tell(SupervisorEvent::Finished { copy, run, outcome: Ok(vec![PartAnswer::Text(whole)]) });
    }

    /// A conversation whose copy panicked after `hello` was streamed; another copy has it now.
    fn interrupted(&mut self) -> (RequestId, (CopyId, RunId, usize)) {
        self.serve("m", 2, 1);
        self.ready();
        let request = self.chat("m");
        let first = self.runs().remove(0);
        self.emit(first, "hello");
        assert_eq!(self.streamed_text(), "hello");
        self.tell(SupervisorEvent::Died { copy: first.0, why: ExitReason::Panicked("x".to_owned()) });
        let second = self.runs().remove(0);
        assert_ne!(first.0, second.0);
        self.emit(first, " too late");
        assert_eq!(self.streamed_text(), "", "updates of a dead copy are dropped");
        (request, second)
    }

    /// Copies started since the last check.
    pub(super) fn started(&mut self) -> Vec<CopyId> {
        let starts = |effect: &SupervisorEffect| match effect {
            SupervisorEffect::Start { copy, .. } => Some(*copy),
            _ => None,
        };
        let started = self.effects.iter().filter_map(starts).collect();
        self.effects.retain(|effect| starts(effect).is_none());
        started
    }

    /// Runs sent since the last check, with their numbers of parts.
    fn runs(&mut self) -> Vec<(CopyId, RunId, usize)> {
        let given = |effect: &SupervisorEffect| match effect {
            SupervisorEffect::Run { copy, run, parts } => Some((*copy, *run, parts.len())),
            _ => None,
        };
        let runs = self.effects.iter().filter_map(given).collect();
        self.effects.retain(|effect| given(effect).is_none());
        runs
    }

    pub(super) fn answer(&mut self, request: RequestId) -> Option<Result<usize, ModelError>> {
        let at = self.effects.iter().position(
            |effect| matches!(effect, SupervisorEffect::Answer { request: answered, .. } if *answered == request),
        )?;
        match self.effects.remove(at) {
            SupervisorEffect::Answer { answer, .. } => Some(answer.map(|answer| answer.parts.len())),
            _ => None,
        }
    }

    pub(super) fn has(&self, is_it: impl Fn(&SupervisorEffect) -> bool) -> bool {
        self.effects.iter().any(is_it)
    }

    fn done(&mut self, (copy, run, parts): (CopyId, RunId, usize), answer: &[f32]) {
        let outcome = Ok(vec![PartAnswer::Vector(answer.to_vec()); parts]);
        self.tell(SupervisorEvent::Finished { copy, run, outcome });
    }

    fn fail(&mut self, (copy, run, _): (CopyId, RunId, usize), failure: InferenceError) {
        self.tell(SupervisorEvent::Finished { copy, run, outcome: Err(failure) });
    }

    /// Loads and tests every started copy.
    pub(super) fn ready(&mut self) -> Vec<CopyId> {
        let started = self.started();
        for copy in &started {
            self.tell(SupervisorEvent::Loaded(*copy));
            let proof = self.runs().remove(0);
            self.done(proof, &[1.0, 0.0]);
        }
        started
    }
}

/// Faults: T2.
#[test]
fn copy_gets_no_work_before_it_is_loaded_and_tested() {
    let mut story = story();
    story.serve("m", 1, 1);
    let request = story.submit("m", 1);
    let copy = story.started()[0];
    assert_eq!(story.runs(), []);
    story.tell(SupervisorEvent::Loaded(copy));
    let proof = story.runs();
    assert_eq!(proof.len(), 1, "only the golden request");
    story.done(proof[0], &[1.0, 0.0]);
    let given = story.runs();
    assert_eq!(given.len(), 1);
    story.done(given[0], &[0.0, 1.0]);
    assert_eq!(story.answer(request), Some(Ok(1)));
}

#[test]
fn second_copy_must_answer_like_the_first() {
    let mut story = story();
    story.serve("m", 2, 1);
    let started = story.started();
    for (copy, answer) in started.iter().zip([[1.0, 0.0], [0.6, 0.8]]) {
        story.tell(SupervisorEvent::Loaded(*copy));
        let proof = story.runs().remove(0);
        story.done(proof, &answer);
    }
    assert!(story.has(|it| matches!(it, SupervisorEffect::StoreReference { .. })));
    assert!(story.has(
        |it| matches!(it, SupervisorEffect::Removed { copy, why: ExitReason::Wrong(_), .. } if *copy == started[1])
    ));
    assert!(story.has(|it| matches!(it, SupervisorEffect::Kill(copy) if *copy == started[1])));
}

/// Faults: T1. Parts that shared a batch with a fatal part are not killed with it again.
#[test]
fn parts_of_a_dead_copy_are_retried_alone_and_a_double_killer_is_refused() {
    let mut story = story();
    story.serve("m", 1, 1);
    story.ready();
    let busy = story.submit("m", 1);
    let first = story.runs().remove(0);
    let (killer, innocent) = (story.submit("m", 1), story.submit("m", 1));
    story.done(first, &[1.0, 0.0]);
    assert_eq!(story.answer(busy), Some(Ok(1)));
    let both = story.runs().remove(0);
    assert_eq!(both.2, 2, "one batch");
    story.tell(SupervisorEvent::Died { copy: both.0, why: ExitReason::Panicked("x".to_owned()) });
    story.tell(SupervisorEvent::Reaped(both.0));
    story.ready();
    let alone = story.runs().remove(0);
    assert_eq!(alone.2, 1);
    story.tell(SupervisorEvent::Died { copy: alone.0, why: ExitReason::Panicked("x".to_owned()) });
    let Some(Err(ModelError::Failed { failure: InferenceError::Engine(why), .. })) = story.answer(killer)
    else {
        panic!()
    };
    assert!(why.contains("2 copies died"), "{why}");
    story.tell(SupervisorEvent::Reaped(alone.0));
    story.pass(seconds(1));
    story.ready();
    let last = story.runs().remove(0);
    story.done(last, &[1.0, 0.0]);
    assert_eq!(story.answer(innocent), Some(Ok(1)));
}

/// Faults: T6. Three failures in a row are the copy's fault, although it passes its tests.
#[test]
fn copy_that_fails_on_everything_is_removed() {
    let mut story = story();
    story.serve("m", 1, 1);
    let sick = story.ready()[0];
    for _ in 0..3 {
        story.submit("m", 1);
        let given = story.runs();
        let given = given.into_iter().find(|(copy, _, _)| *copy == sick).unwrap();
        story.fail(given, InferenceError::Engine("x".to_owned()));
        let proof = story.runs();
        if let Some(proof) = proof.into_iter().next() {
            assert_eq!(proof.0, sick);
            let given_meanwhile = story.runs();
            assert_eq!(given_meanwhile, [], "no work until it has passed its test");
            story.done(proof, &[1.0, 0.0]);
        }
    }
    assert!(story.has(
        |it| matches!(it, SupervisorEffect::Removed { copy, why: ExitReason::Failing(_), .. } if *copy == sick)
    ));
}

/// Faults: T5. An answer from a copy that was given up, or to an old run, changes nothing.
#[test]
fn late_answer_is_dropped() {
    let mut story = story();
    story.serve("m", 1, 1);
    story.ready();
    let request = story.submit("m", 1);
    let hung = story.runs().remove(0);
    for _ in 0..40 {
        story.now += seconds(1);
        story.tell(SupervisorEvent::BeaconRead { copy: hung.0, steps: 7 });
    }
    assert!(story.has(|it| matches!(it, SupervisorEffect::Removed { why: ExitReason::Hung(_), .. })));
    story.ready();
    let second = story.runs().remove(0);
    story.done(hung, &[1.0, 0.0]);
    assert_eq!(story.answer(request), None, "the hung copy's answer is dropped");
    story.done(second, &[1.0, 0.0]);
    story.done(second, &[1.0, 0.0]);
    assert_eq!(story.answer(request), Some(Ok(1)));
    assert_eq!(story.supervisor.snapshot().stale, 2);
}

/// Faults: T3. A machine that slept for an hour does not lose its copies.
#[test]
fn gap_between_readings_is_not_silence() {
    let mut story = story();
    story.serve("m", 1, 1);
    let copy = story.ready()[0];
    story.submit("m", 1);
    story.tell(SupervisorEvent::BeaconRead { copy, steps: 7 });
    story.now += seconds(3600);
    story.tell(SupervisorEvent::BeaconRead { copy, steps: 7 });
    assert!(!story.has(|it| matches!(it, SupervisorEffect::Removed { .. })));
}

#[test]
fn full_queue_refuses_with_a_measured_retry_after() {
    let mut story = story();
    story.serve("m", 1, 1);
    story.ready();
    let first = story.submit("m", 10);
    let run = story.runs().remove(0);
    story.now += seconds(2);
    story.done(run, &[1.0, 0.0]);
    assert_eq!(story.answer(first), Some(Ok(1)));
    story.submit("m", 8);
    story.submit("m", 20);
    let refused = story.submit("m", 10);
    let Some(Err(ModelError::Full { retry_after, .. })) = story.answer(refused) else { panic!() };
    assert_eq!(retry_after, seconds(2), "10 tokens at 5 per second");
    let absurd = story.submit("m", 21);
    assert!(matches!(story.answer(absurd), Some(Err(ModelError::Input(_)))), "it would never fit");
}

#[test]
fn least_recently_used_is_evicted_and_returns_on_request() {
    let mut story = story();
    for model in ["old", "new"] {
        story.serve(model, 1, 2);
        story.ready();
    }
    for model in ["old", "new"] {
        story.now += seconds(1);
        let request = story.submit(model, 1);
        let run = story.runs().remove(0);
        story.done(run, &[1.0, 0.0]);
        assert_eq!(story.answer(request), Some(Ok(1)));
    }
    story.serve("third", 1, 1);
    assert_eq!(story.started(), [], "not before the memory is released");
    let old = CopyId(1);
    assert!(
        story.has(|it| matches!(it, SupervisorEffect::Quit(copy) if *copy == old)),
        "{:?}",
        story.effects
    );
    let leaving = story.effects.iter().filter(|it| matches!(it, SupervisorEffect::Quit(_))).count();
    assert_eq!(leaving, 1, "and no other copy");
    story.tell(SupervisorEvent::Died { copy: old, why: ExitReason::Requested });
    assert_eq!(story.started(), []);
    story.tell(SupervisorEvent::Reaped(old));
    assert_eq!(story.ready(), [CopyId(3)]);
    story.pass(seconds(100));
    story.runs();
    assert_eq!(story.started(), [], "an evicted copy stays away");
    let request = story.submit("old", 1);
    assert_eq!(story.answer(request), None, "it waits for the memory of an idle copy");
    assert!(story.has(|it| matches!(it, SupervisorEffect::Quit(_))));
}

/// Faults: T7. A cancelled request does not stop a batch that others need; the last cancellation does.
#[test]
fn run_is_stopped_when_all_its_requests_are_cancelled() {
    let mut story = story();
    story.serve("m", 1, 1);
    story.ready();
    story.submit("m", 8);
    let first = story.runs().remove(0);
    let (a, b) = (story.submit("m", 1), story.submit("m", 1));
    story.done(first, &[1.0, 0.0]);
    let both = story.runs().remove(0);
    story.tell(SupervisorEvent::Cancel(a));
    assert!(!story.has(|it| matches!(it, SupervisorEffect::Stop { .. })));
    story.tell(SupervisorEvent::Cancel(b));
    assert!(story.has(|it| matches!(it, SupervisorEffect::Stop { run, .. } if *run == both.1)));
    story.fail(both, InferenceError::Stopped);
    let next = story.submit("m", 1);
    let run = story.runs().remove(0);
    story.done(run, &[1.0, 0.0]);
    assert_eq!(story.answer(next), Some(Ok(1)), "the copy works as before");
}

/// Faults: T11.
#[test]
fn closing_finishes_what_it_can_and_answers_the_rest_at_the_deadline() {
    let mut story = story();
    story.serve("m", 1, 1);
    story.ready();
    let (first, second) = (story.submit("m", 8), story.submit("m", 8));
    let run = story.runs().remove(0);
    story.tell(SupervisorEvent::Close { until: seconds(10) });
    let refused = story.submit("m", 1);
    assert_eq!(story.answer(refused), Some(Err(ModelError::Closing)));
    story.done(run, &[1.0, 0.0]);
    assert_eq!(story.answer(first), Some(Ok(1)));
    assert_eq!(story.runs().len(), 1, "queued work is started");
    story.pass(seconds(11));
    assert_eq!(story.answer(second), Some(Err(ModelError::Closing)));
    assert!(story.has(|it| matches!(it, SupervisorEffect::Kill(_))));
    story.tell(SupervisorEvent::Died { copy: run.0, why: ExitReason::Requested });
    story.tell(SupervisorEvent::Reaped(run.0));
    assert!(story.supervisor.is_closed());
}

#[test]
fn idle_copies_are_tested_one_at_a_time() {
    let mut story = story();
    story.serve("m", 2, 1);
    story.ready();
    story.pass(seconds(61));
    let proofs = story.runs();
    assert_eq!(proofs.len(), 1, "the other copy stays ready");
    story.done(proofs[0], &[0.0, 1.0]);
    assert!(story.has(|it| matches!(it, SupervisorEffect::Removed { why: ExitReason::Wrong(_), .. })));
}

/// Faults: T8. The copy is healthy; an idle copy is evicted, and the part is retried once.
#[test]
fn out_of_memory_evicts_an_idle_copy_and_retries_once() {
    let mut story = story();
    for model in ["idle", "m"] {
        story.serve(model, 1, 1);
        story.ready();
    }
    let request = story.submit("m", 1);
    for _ in 0..2 {
        assert_eq!(story.answer(request), None);
        let run = story.runs().remove(0);
        story.fail(run, InferenceError::OutOfMemory("x".to_owned()));
        let proof = story.runs().remove(0);
        story.done(proof, &[1.0, 0.0]);
    }
    assert!(story.has(|it| matches!(it, SupervisorEffect::Quit(CopyId(1)))));
    let answer = story.answer(request);
    assert!(
        matches!(answer, Some(Err(ModelError::Failed { failure: InferenceError::OutOfMemory(_), .. }))),
        "{answer:?}"
    );
    assert!(!story.has(|it| matches!(it, SupervisorEffect::Removed { .. })), "no copy died of it");
}

/// Faults: T1.
#[test]
fn stream_continues_where_the_dead_copy_stopped() {
    let mut story = story();
    let (request, second) = story.interrupted();
    for (chunk, delivered) in [("he", ""), ("ll", ""), ("o w", " w"), ("orld", "orld")] {
        story.emit(second, chunk);
        assert_eq!(story.streamed_text(), delivered);
    }
    story.end_with(second, "hello world");
    assert_eq!(story.answer(request), Some(Ok(1)));
}

/// Faults: T1. Noticed while streaming or only at the end.
#[test]
fn diverging_stream_fails() {
    let differs = Some(Err(ModelError::Diverged { model: "m".to_owned() }));
    let mut at_a_word = story();
    let (request, second) = at_a_word.interrupted();
    at_a_word.emit(second, "help");
    assert_eq!(at_a_word.streamed_text(), "");
    assert_eq!(at_a_word.answer(request), differs);
    assert!(at_a_word.has(|it| matches!(it, SupervisorEffect::Stop { run, .. } if *run == second.1)));
    at_a_word.fail(second, InferenceError::Stopped);
    assert_eq!(at_a_word.supervisor.snapshot().models[0].failed, 1);
    let mut at_its_end = story();
    let (request, second) = at_its_end.interrupted();
    at_its_end.emit(second, "he");
    at_its_end.end_with(second, "he");
    assert_eq!(at_its_end.answer(request), differs);
}

/// Faults: T1. Streamed text does not change this.
#[test]
fn stream_that_killed_two_copies_is_not_retried() {
    let mut story = story();
    let (request, second) = story.interrupted();
    story.emit(second, "hello again");
    story.tell(SupervisorEvent::Died { copy: second.0, why: ExitReason::Panicked("x".to_owned()) });
    let answer = story.answer(request);
    let Some(Err(ModelError::Failed { failure: InferenceError::Engine(why), .. })) = answer else { panic!() };
    assert!(why.contains("2 copies died"), "{why}");
    assert_eq!(story.runs(), []);
}
