//! The outcome of a batch: parts are answered, retried or failed, and the copy is kept, tested or killed.

use std::sync::Arc;
use std::time::Duration;

use super::model_copy::{BatchRun, CopyChange, CopyEvent, CopyState, ExitReason};
use super::queue::QueuedPart;
use super::{CopyId, RequestId, RunId, Supervisor, SupervisorEffect};
use crate::failure::{InferenceError, ModelError};
use crate::golden;
use crate::request::{ModelAnswer, PartAnswer};

/// How many copies may fail on a part before the part fails.
const FAILURES_MAX: u32 = 2;
/// This many failures in a row are the copy's fault, whatever the input.
const FAILED_IN_ROW_MAX: u32 = 3;

impl Supervisor {
    pub(super) fn done(
        &mut self,
        now: Duration,
        id: CopyId,
        run: RunId,
        outcome: Result<Vec<PartAnswer>, InferenceError>,
    ) {
        let Some(copy) = self.copies.get_mut(&id) else { return };
        let finished = match copy.apply(CopyEvent::RunEnded(run)) {
            CopyChange::Released(finished) => finished,
            CopyChange::Moved => return self.self_test_finished(now, id, outcome),
            // A run that was taken from this copy, or the copy is dead by now.
            CopyChange::Ignored => {
                self.stale += 1;
                return;
            }
        };
        copy.idle_since = now;
        if matches!(copy.state(), CopyState::Draining(_)) {
            self.effects.push(SupervisorEffect::Quit(id));
        }
        match outcome {
            Ok(answers) if answers.len() == finished.items.len() => self.answered(now, id, finished, answers),
            Ok(answers) => {
                let what = format!("{} answers for {} parts", answers.len(), finished.items.len());
                self.failed(now, id, finished, InferenceError::Engine(what));
            }
            Err(failure) => self.failed(now, id, finished, failure),
        }
    }

    fn answered(&mut self, now: Duration, id: CopyId, run: BatchRun, answers: Vec<PartAnswer>) {
        let model = Arc::clone(&self.copies[&id].model);
        let (mut tokens, mut flaws) = (0, Vec::new());
        for (item, answer) in run.items.into_iter().zip(answers) {
            let reference = self.served[&model].config.reference.as_ref();
            if let Some(flaw) = golden::flaw(&item.part, &answer, reference) {
                flaws.push((item, InferenceError::Engine(format!("it answered with {flaw}"))));
                continue;
            }
            tokens += item.part.tokens();
            if let Some(copy) = self.copies.get_mut(&id) {
                copy.answered += 1;
                copy.failed_in_row = 0;
            }
            if !item.streamed.is_prefix_of(&answer) {
                self.fail_diverged(item.request);
                continue;
            }
            let whole = self.requests.get_mut(item.request).and_then(|it| it.answered(item.index, answer));
            if let Some(answer) = whole {
                self.completed(now, &model, item.request, answer);
            }
        }
        let slot = self.copies[&id].slot;
        if let Some(served) = self.served.get_mut(&model).filter(|_| tokens > 0) {
            served.used_at = now;
            served.measured(tokens, now.saturating_sub(run.since));
            served.slots[slot].mark_stable();
        }
        let Some((_, last)) = flaws.last().cloned() else { return };
        for (item, failure) in flaws {
            self.retry_part(id, item, &failure, 1);
        }
        self.recheck(now, id, &last);
    }

    fn completed(&mut self, now: Duration, model: &Arc<str>, request: RequestId, answer: ModelAnswer) {
        let since = self.requests.get(request).map_or(now, |pending| pending.since);
        if let Some(served) = self.served.get_mut(model) {
            served.counters.answered += 1;
            served.counters.took(now.saturating_sub(since));
        }
        self.answer(request, Ok(answer));
    }

    fn failed(&mut self, now: Duration, id: CopyId, run: BatchRun, failure: InferenceError) {
        if let InferenceError::Poisoned(what) = failure {
            let why = ExitReason::Poisoned(what);
            self.effects.push(SupervisorEffect::Kill(id));
            if let Some(copy) = self.copies.get_mut(&id) {
                copy.apply(CopyEvent::Die(why.clone()));
            }
            // The batch killed the copy, so its parts are handled as in flight in a dead one.
            return self.copy_died(now, id, why, run.items);
        }
        let together = run.items.len();
        for item in run.items.into_iter().rev() {
            if matches!(failure, InferenceError::Stopped) {
                self.requeue(item);
            } else {
                self.retry_part(id, item, &failure, together);
            }
        }
        match failure {
            InferenceError::OutOfMemory(_) => {
                self.evict_one_idle(now, id);
                self.recheck(now, id, &failure);
            }
            InferenceError::Engine(_) => self.recheck(now, id, &failure),
            InferenceError::Stopped | InferenceError::Input(_) | InferenceError::Poisoned(_) => {}
        }
    }

    /// After a failed batch every part is retried alone, because the culprit is unknown. A part that failed alone is
    /// retried on one more copy, unless the input is at fault.
    fn retry_part(&mut self, id: CopyId, item: QueuedPart, failure: &InferenceError, together: usize) {
        let failures = item.failures + u32::from(together == 1);
        let is_final =
            failures >= FAILURES_MAX || (together == 1 && matches!(failure, InferenceError::Input(_)));
        if is_final {
            return self.fail_request(item.request, failure.clone());
        }
        self.requeue(QueuedPart { failures, alone: true, avoid: Some(id), ..item });
    }

    pub(super) fn requeue(&mut self, item: QueuedPart) {
        let Some(pending) = self.requests.get_mut(item.request) else { return };
        if let Some(served) = self.served.get_mut(&pending.model) {
            pending.waiting.insert(served.queue.push_front(item));
        }
    }

    /// One part has no answer, so the request fails.
    pub(super) fn fail_request(&mut self, request: RequestId, failure: InferenceError) {
        self.end(request, |model| ModelError::Failed { model, failure });
    }

    /// The second copy's text does not continue the streamed text.
    pub(super) fn fail_diverged(&mut self, request: RequestId) {
        self.end(request, |model| ModelError::Diverged { model });
    }

    fn end(&mut self, request: RequestId, why: impl FnOnce(String) -> ModelError) {
        let Some(pending) = self.requests.get(request) else { return };
        let model = pending.model.to_string();
        if let Some(served) = self.served.get_mut(&pending.model) {
            served.counters.failed += 1;
        }
        self.answer(request, Err(why(model)));
    }

    /// A failure may be caused by the input or by the copy; the golden request tells which.
    fn recheck(&mut self, now: Duration, id: CopyId, failure: &InferenceError) {
        let Some(copy) = self.copies.get_mut(&id) else { return };
        copy.failed += 1;
        copy.failed_in_row += 1;
        let is_too_much = copy.failed_in_row >= FAILED_IN_ROW_MAX;
        if copy.is_ready() && !is_too_much {
            self.self_test(now, id);
        } else if copy.is_usable() {
            self.kill_copy(now, id, ExitReason::Failing(failure.to_string()));
        }
    }

    fn self_test_finished(
        &mut self,
        now: Duration,
        id: CopyId,
        outcome: Result<Vec<PartAnswer>, InferenceError>,
    ) {
        let Some(copy) = self.copies.get_mut(&id) else { return };
        let Some(served) = self.served.get_mut(&copy.model) else { return };
        let known = served.config.reference.as_ref();
        let wrong = match &outcome {
            Ok(answers) => match &answers[..] {
                [answer] => golden::flaw(&served.config.golden, answer, known)
                    .or_else(|| known.and_then(|known| golden::difference(known, answer))),
                several => Some(format!("{} answers instead of one", several.len())),
            },
            Err(InferenceError::Poisoned(what)) => {
                let why = ExitReason::Poisoned(what.clone());
                return self.kill_copy(now, id, why);
            }
            Err(failure) => Some(failure.to_string()),
        };
        if let Some(wrong) = wrong {
            return self.kill_copy(now, id, ExitReason::Wrong(wrong));
        }
        copy.ready_at.get_or_insert(now);
        (copy.tested_at, copy.idle_since) = (now, now);
        served.was_ready = true;
        let first = outcome.ok().and_then(|mut answers| answers.pop()).filter(|_| known.is_none());
        if let Some(answer) = first {
            served.config.reference = Some(answer.clone());
            self.effects.push(SupervisorEffect::StoreReference { model: Arc::clone(&copy.model), answer });
        }
    }

    pub(super) fn cancel(&mut self, request: RequestId) {
        let Some(pending) = self.requests.get(request) else { return };
        if let Some(served) = self.served.get_mut(&pending.model) {
            served.counters.cancelled += 1;
        }
        self.release(request);
    }

    pub(super) fn answer(&mut self, request: RequestId, answer: Result<ModelAnswer, ModelError>) {
        self.release(request);
        self.effects.push(SupervisorEffect::Answer { request, answer });
    }

    /// Removes an ended request: queued parts are dropped, and a run is stopped if no request needs its batch.
    fn release(&mut self, request: RequestId) {
        let Some(pending) = self.requests.remove(request) else { return };
        if let Some(served) = self.served.get_mut(&pending.model) {
            for place in pending.waiting {
                served.queue.remove(place);
            }
        }
        let ours = self.copies.values_mut().filter(|copy| copy.model == pending.model);
        for copy in ours {
            let id = copy.id;
            let Some(run) = copy.run_mut() else { continue };
            let is_wanted = run.items.iter().any(|item| self.requests.is_wanted(item.request));
            if !is_wanted && !run.is_stopped {
                run.is_stopped = true;
                self.effects.push(SupervisorEffect::Stop { copy: id, run: run.id });
            }
        }
    }
}
