//! What becomes of a batch: its parts are answered, tried again, or given up; and what that says of the copy.

use std::sync::Arc;
use std::time::Duration;

use super::copy::{Life, Run, Why};
use super::line::Item;
use super::{CopyId, Effect, RequestId, Roster, RunId};
use crate::failure::{Failure, PoolError};
use crate::golden;
use crate::request::{Answer, PartAnswer};

/// How many copies may say that they could not before a part is given up.
const FAILURES_MAX: u32 = 2;
/// So many failures in a row are the copy's, whatever it was given.
const FAILED_IN_ROW_MAX: u32 = 3;

impl Roster {
    pub(super) fn done(
        &mut self,
        now: Duration,
        id: CopyId,
        run: RunId,
        outcome: Result<Vec<PartAnswer>, Failure>,
    ) {
        let Some(copy) = self.copies.get_mut(&id) else { return };
        let (next, finished) = match std::mem::replace(&mut copy.life, Life::Ready) {
            Life::Proving(current) if current == run => return self.proved(now, id, outcome),
            Life::Busy(current) if current.id == run => (Life::Ready, Some(current)),
            Life::Draining(Some(current)) if current.id == run => (Life::Draining(None), Some(current)),
            // Of a run that was taken from it: it was given up, or it is dead by now.
            life @ (Life::Loading
            | Life::Proving(_)
            | Life::Ready
            | Life::Busy(_)
            | Life::Draining(_)
            | Life::Dead(_)) => (life, None),
        };
        copy.life = next;
        let Some(finished) = finished else {
            self.stale += 1;
            return;
        };
        copy.idle_since = now;
        if matches!(copy.life, Life::Draining(_)) {
            self.effects.push(Effect::Quit(id));
        }
        match outcome {
            Ok(answers) if answers.len() == finished.items.len() => self.answered(now, id, finished, answers),
            Ok(answers) => {
                let what = format!("{} answers to {} questions", answers.len(), finished.items.len());
                self.failed(now, id, finished, Failure::Engine(what));
            }
            Err(failure) => self.failed(now, id, finished, failure),
        }
    }

    fn answered(&mut self, now: Duration, id: CopyId, run: Run, answers: Vec<PartAnswer>) {
        let model = Arc::clone(&self.copies[&id].model);
        let (mut tokens, mut flaws) = (0, Vec::new());
        for (item, answer) in run.items.into_iter().zip(answers) {
            let reference = self.served[&model].terms.reference.as_ref();
            if let Some(flaw) = golden::flaw(&item.part, &answer, reference) {
                flaws.push((item, Failure::Engine(format!("it answered with {flaw}"))));
                continue;
            }
            tokens += item.part.tokens();
            if let Some(copy) = self.copies.get_mut(&id) {
                copy.answered += 1;
                copy.failed_in_row = 0;
            }
            if !item.said.begins(&answer) {
                self.differs(item.request);
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
            served.slots[slot].was_of_use();
        }
        let Some((_, last)) = flaws.last().cloned() else { return };
        for (item, failure) in flaws {
            self.try_again(id, item, &failure, 1);
        }
        self.distrust(now, id, &last);
    }

    fn completed(&mut self, now: Duration, model: &Arc<str>, request: RequestId, answer: Answer) {
        let since = self.requests.get(request).map_or(now, |asked| asked.since);
        if let Some(served) = self.served.get_mut(model) {
            served.tally.answered += 1;
            served.tally.took(now.saturating_sub(since));
        }
        self.answer(request, Ok(answer));
    }

    fn failed(&mut self, now: Duration, id: CopyId, run: Run, failure: Failure) {
        if let Failure::Poisoned(what) = failure {
            // Given back first, so that they are buried with the copy as what was in flight in it.
            if let Some(copy) = self.copies.get_mut(&id) {
                copy.life = Life::Busy(run);
            }
            return self.condemn(now, id, Why::Poisoned(what));
        }
        let together = run.items.len();
        for item in run.items.into_iter().rev() {
            if matches!(failure, Failure::Stopped) {
                self.requeue(item);
            } else {
                self.try_again(id, item, &failure, together);
            }
        }
        match failure {
            Failure::OutOfMemory(_) => {
                self.spare_room(now, id);
                self.distrust(now, id, &failure);
            }
            Failure::Engine(_) => self.distrust(now, id, &failure),
            Failure::Stopped | Failure::Input(_) | Failure::Poisoned(_) => {}
        }
    }

    /// Who was in a batch that failed is tried alone, as nobody knows whose fault it was; who failed alone is tried on
    /// one more copy, unless it would fail everywhere.
    fn try_again(&mut self, id: CopyId, item: Item, failure: &Failure, together: usize) {
        let failures = item.failures + u32::from(together == 1);
        let is_final = failures >= FAILURES_MAX || (together == 1 && matches!(failure, Failure::Input(_)));
        if is_final {
            return self.give_up(item.request, failure.clone());
        }
        self.requeue(Item { failures, alone: true, avoid: Some(id), ..item });
    }

    pub(super) fn requeue(&mut self, item: Item) {
        let Some(asked) = self.requests.get_mut(item.request) else { return };
        if let Some(served) = self.served.get_mut(&asked.model) {
            asked.waiting.insert(served.line.push_front(item));
        }
    }

    /// One part of it has no answer, so the whole has none.
    pub(super) fn give_up(&mut self, request: RequestId, failure: Failure) {
        self.end(request, |model| PoolError::Failed { model, failure });
    }

    /// Two texts are not made into one.
    pub(super) fn differs(&mut self, request: RequestId) {
        self.end(request, |model| PoolError::Differs { model });
    }

    fn end(&mut self, request: RequestId, why: impl FnOnce(String) -> PoolError) {
        let Some(asked) = self.requests.get(request) else { return };
        let model = asked.model.to_string();
        if let Some(served) = self.served.get_mut(&asked.model) {
            served.tally.failed += 1;
        }
        self.answer(request, Err(why(model)));
    }

    /// It failed at something. That may have been the something; a question it can answer tells.
    fn distrust(&mut self, now: Duration, id: CopyId, failure: &Failure) {
        let Some(copy) = self.copies.get_mut(&id) else { return };
        copy.failed += 1;
        copy.failed_in_row += 1;
        let is_too_much = copy.failed_in_row >= FAILED_IN_ROW_MAX;
        if copy.is_ready() && !is_too_much {
            self.prove(now, id);
        } else if copy.is_of_use() {
            self.condemn(now, id, Why::Failing(failure.to_string()));
        }
    }

    fn proved(&mut self, now: Duration, id: CopyId, outcome: Result<Vec<PartAnswer>, Failure>) {
        let Some(copy) = self.copies.get_mut(&id) else { return };
        let Some(served) = self.served.get_mut(&copy.model) else { return };
        let known = served.terms.reference.as_ref();
        let wrong = match &outcome {
            Ok(answers) => match &answers[..] {
                [answer] => golden::flaw(&served.terms.golden, answer, known)
                    .or_else(|| known.and_then(|known| golden::difference(known, answer))),
                several => Some(format!("{} answers instead of one", several.len())),
            },
            Err(Failure::Poisoned(what)) => {
                let why = Why::Poisoned(what.clone());
                return self.condemn(now, id, why);
            }
            Err(failure) => Some(failure.to_string()),
        };
        if let Some(wrong) = wrong {
            return self.condemn(now, id, Why::Wrong(wrong));
        }
        copy.life = Life::Ready;
        copy.ready_at.get_or_insert(now);
        (copy.proved_at, copy.idle_since) = (now, now);
        served.was_ready = true;
        let first = outcome.ok().and_then(|mut answers| answers.pop()).filter(|_| known.is_none());
        if let Some(answer) = first {
            served.terms.reference = Some(answer.clone());
            self.effects.push(Effect::Remember { model: Arc::clone(&copy.model), answer });
        }
    }

    pub(super) fn cancel(&mut self, request: RequestId) {
        let Some(asked) = self.requests.get(request) else { return };
        if let Some(served) = self.served.get_mut(&asked.model) {
            served.tally.cancelled += 1;
        }
        self.release(request);
    }

    pub(super) fn answer(&mut self, request: RequestId, answer: Result<Answer, PoolError>) {
        self.release(request);
        self.effects.push(Effect::Answer { request, answer });
    }

    /// Nobody waits for it any more: what waits is dropped, and what runs is stopped if nothing in its batch is wanted.
    fn release(&mut self, request: RequestId) {
        let Some(asked) = self.requests.remove(request) else { return };
        if let Some(served) = self.served.get_mut(&asked.model) {
            for place in asked.waiting {
                served.line.remove(place);
            }
        }
        let ours = self.copies.values_mut().filter(|copy| copy.model == asked.model);
        for copy in ours {
            let id = copy.id;
            let Some(run) = copy.run_mut() else { continue };
            let is_wanted = run.items.iter().any(|item| self.requests.is_wanted(item.request));
            if !is_wanted && !run.is_stopped {
                run.is_stopped = true;
                self.effects.push(Effect::Stop { copy: id, run: run.id });
            }
        }
    }
}
