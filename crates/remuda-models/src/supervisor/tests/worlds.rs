//! Randomised worlds: copies load, answer, fail, hang and die in any order, requests come and go, time jumps, and the
//! laws hold after every step.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use super::laws;
use crate::backend::Batching;
use crate::failure::{InferenceError, LoadError};
use crate::request::{AnswerUpdate, FinishReason, GeneratedText, PartAnswer, RequestPart, Sampling};
use crate::spec::Device;
use crate::supervisor::served_model::ServingConfig;
use crate::supervisor::streamed::StreamedText;
use crate::supervisor::{
    CopyId, ExitReason, RequestId, RunId, Supervisor, SupervisorEffect, SupervisorEvent, SupervisorLimits,
};

/// A small, fast generator; the same seed gives the same world.
struct Dice(u64);

impl Dice {
    fn below(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % sides
    }

    fn pick<T: Clone>(&mut self, from: &[T]) -> Option<T> {
        if from.is_empty() { None } else { from.get(self.below(from.len() as u64) as usize).cloned() }
    }
}

/// The outside of the supervisor: copies that carry out effects sooner or later, or die instead.
#[derive(Default)]
struct Worlds {
    now: Duration,
    loading: BTreeSet<CopyId>,
    running: BTreeMap<CopyId, Running>,
    leaving: BTreeSet<CopyId>,
    dead: BTreeSet<CopyId>,
    pending: BTreeSet<RequestId>,
    answered: BTreeSet<RequestId>,
    received: BTreeMap<RequestId, String>,
    steps: u64,
    prints: bool,
}

#[derive(Clone, Copy)]
struct Running {
    run: RunId,
    parts: usize,
    /// How much of a streamed answer was emitted.
    emitted: Option<usize>,
}

/// The answer to every conversation in these worlds.
const ANSWER: &str = "Repeated text is delivered once.";

impl Running {
    fn right(self) -> Vec<PartAnswer> {
        let text = GeneratedText { text: ANSWER.to_owned(), finish: FinishReason::Stop, tokens: 7 };
        let answer = self.emitted.map_or(PartAnswer::Vector(vec![1.0, 0.0]), |_| PartAnswer::Text(text));
        vec![answer; self.parts]
    }
}

fn terms(model: &str, copies: u32, memory_bytes: u64) -> ServingConfig {
    ServingConfig {
        model: Arc::from(model),
        copies,
        device: if model == "c" { Device::Cuda(0) } else { Device::Cpu },
        device_bytes: (model == "c").then_some(5),
        memory_bytes,
        batching: Batching { tokens_max: 8, parts_max: 3, pads: model == "a" },
        stall_max: Duration::from_secs(3),
        load_stall_max: Duration::from_secs(6),
        golden: RequestPart::Tokens(vec![0]),
        reference: None,
    }
}

fn limits() -> SupervisorLimits {
    SupervisorLimits {
        memory_bytes: 10,
        queue_tokens_max: 60,
        queue_bytes_max: 1000,
        deaths_max: 4,
        crash_loop_pause: Duration::from_secs(60),
        copy_wait_max: Duration::from_secs(1),
        maintenance_every: Duration::from_secs(60),
        idle_max: Some(Duration::from_secs(300)),
    }
}

impl Worlds {
    fn carry_out(&mut self, effects: &[SupervisorEffect]) -> Result<(), String> {
        for effect in effects {
            match effect {
                SupervisorEffect::Start { copy, .. } => drop(self.loading.insert(*copy)),
                SupervisorEffect::Run { copy, run, parts } => {
                    let emitted = matches!(*parts[0], RequestPart::Prompt { .. }).then_some(0);
                    self.running.insert(*copy, Running { run: *run, parts: parts.len(), emitted });
                }
                SupervisorEffect::Stream { request, update: AnswerUpdate::Text(text) } => {
                    let received = self.received.entry(*request).or_default();
                    received.push_str(text);
                    if !ANSWER.starts_with(&**received) {
                        return Err(format!("{request:?} received {received:?}"));
                    }
                }
                SupervisorEffect::Quit(copy) | SupervisorEffect::Kill(copy) => {
                    self.leaving.insert(*copy);
                }
                SupervisorEffect::Answer { request, .. } if !self.answered.insert(*request) => {
                    return Err(format!("{request:?} was answered twice"));
                }
                SupervisorEffect::Stream { .. }
                | SupervisorEffect::Answer { .. }
                | SupervisorEffect::Stop { .. } => {}
                SupervisorEffect::Removed { .. } => {}
                SupervisorEffect::StoreReference { .. } | SupervisorEffect::Escalate { .. } => {}
            }
        }
        Ok(())
    }

    fn event(&mut self, dice: &mut Dice) -> SupervisorEvent {
        let (loading, running): (Vec<_>, Vec<_>) =
            (self.loading.iter().copied().collect(), self.running.keys().copied().collect());
        let everyone: Vec<_> = loading.iter().chain(&running).copied().collect();
        match dice.below(15) {
            0..=2 => self.submit(dice),
            3 => dice
                .pick(&self.pending.iter().copied().collect::<Vec<_>>())
                .map_or(SupervisorEvent::Tick, SupervisorEvent::Cancel),
            4..=5 => dice.pick(&loading).map_or(SupervisorEvent::Tick, |copy| {
                self.loading.remove(&copy);
                SupervisorEvent::Loaded(copy)
            }),
            6..=8 => dice.pick(&running).map_or(SupervisorEvent::Tick, |copy| self.done(copy, dice)),
            9 => {
                let dying =
                    if dice.below(3) == 0 { everyone } else { self.leaving.iter().copied().collect() };
                dice.pick(&dying).map_or(SupervisorEvent::Tick, |copy| self.dies(copy, dice))
            }
            10 => dice.pick(&self.dead.iter().copied().collect::<Vec<_>>()).map_or(
                SupervisorEvent::Tick,
                |copy| {
                    self.dead.remove(&copy);
                    SupervisorEvent::Reaped(copy)
                },
            ),
            11..=12 => dice.pick(&running).map_or(SupervisorEvent::Tick, |copy| self.says(copy, dice)),
            13 => {
                self.steps += dice.below(2);
                let steps = self.steps;
                dice.pick(&everyone)
                    .map_or(SupervisorEvent::Tick, |copy| SupervisorEvent::BeaconRead { copy, steps })
            }
            _ => {
                let longest = if dice.below(20) == 0 { 90_000 } else { 1_500 };
                self.now += Duration::from_millis(dice.below(longest));
                SupervisorEvent::Tick
            }
        }
    }

    fn submit(&mut self, dice: &mut Dice) -> SupervisorEvent {
        let request = RequestId(self.pending.len() as u64 + 1);
        self.pending.insert(request);
        let mut parts: Vec<_> =
            (0..dice.below(5)).map(|_| RequestPart::Tokens(vec![1; dice.below(6) as usize])).collect();
        if dice.below(3) == 0 {
            parts = vec![RequestPart::Prompt { tokens: vec![1; 3], sampling: Sampling::default() }];
        }
        let model = Arc::from(["a", "b", "c"][dice.below(3) as usize]);
        let deadline = (dice.below(3) == 0).then(|| self.now + Duration::from_millis(dice.below(5_000)));
        SupervisorEvent::Submit { request, model, parts, deadline }
    }

    fn says(&mut self, copy: CopyId, dice: &mut Dice) -> SupervisorEvent {
        let Some(running) = self.running.get_mut(&copy) else { return SupervisorEvent::Tick };
        let Some(emitted) = &mut running.emitted else { return SupervisorEvent::Tick };
        let next = (*emitted + 1 + dice.below(6) as usize).min(ANSWER.len());
        let text = ANSWER[std::mem::replace(emitted, next)..next].to_owned();
        SupervisorEvent::Streamed { copy, run: running.run, update: AnswerUpdate::Text(text) }
    }

    fn done(&mut self, copy: CopyId, dice: &mut Dice) -> SupervisorEvent {
        let running = self.running[&copy];
        let run = running.run;
        self.running.remove(&copy);
        // Late answers to older runs happen as well.
        let run = if dice.below(10) == 0 { RunId(run.0.saturating_sub(1)) } else { run };
        let outcome = match dice.below(12) {
            0 => Err(InferenceError::Engine("x".to_owned())),
            1 => Err(InferenceError::OutOfMemory("x".to_owned())),
            2 => Err(InferenceError::Stopped),
            3 => Err(InferenceError::Input("x".to_owned())),
            4 => Err(InferenceError::Poisoned("x".to_owned())),
            5 => Ok(vec![PartAnswer::Vector(vec![])]),
            _ => Ok(running.right()),
        };
        SupervisorEvent::Finished { copy, run, outcome }
    }

    fn dies(&mut self, copy: CopyId, dice: &mut Dice) -> SupervisorEvent {
        self.loading.remove(&copy);
        self.running.remove(&copy);
        let was_told = self.leaving.remove(&copy);
        self.dead.insert(copy);
        let load = LoadError::Memory { need_bytes: 1, free_bytes: 0, hint: String::new() };
        let why = match dice.below(3) {
            _ if was_told => ExitReason::Requested,
            0 => ExitReason::Panicked("x".to_owned()),
            1 => ExitReason::Load(load),
            _ => ExitReason::Exited("x".to_owned()),
        };
        SupervisorEvent::Died { copy, why }
    }

    /// All copies carry out their effects without faults until nothing is left to do.
    fn calm(&mut self, supervisor: &mut Supervisor, break_it: Sabotage) -> Result<(), String> {
        for _ in 0..4_000 {
            let event = if let Some(copy) = self.dead.pop_first() {
                SupervisorEvent::Reaped(copy)
            } else if let Some(copy) = self.leaving.pop_first() {
                self.loading.remove(&copy);
                self.running.remove(&copy);
                self.dead.insert(copy);
                SupervisorEvent::Died { copy, why: ExitReason::Requested }
            } else if let Some(copy) = self.loading.pop_first() {
                SupervisorEvent::Loaded(copy)
            } else if let Some((copy, running)) = self.running.pop_first() {
                SupervisorEvent::Finished { copy, run: running.run, outcome: Ok(running.right()) }
            } else if supervisor.is_closed() {
                return Ok(());
            } else {
                self.now = supervisor.wake_at(self.now);
                SupervisorEvent::Tick
            };
            self.step(supervisor, event, break_it)?;
        }
        Err("it never becomes idle".to_owned())
    }

    fn step(
        &mut self,
        supervisor: &mut Supervisor,
        event: SupervisorEvent,
        break_it: Sabotage,
    ) -> Result<(), String> {
        if self.prints {
            println!("{:?} {event:?}", self.now);
        }
        let effects = supervisor.step(self.now, event);
        break_it(supervisor);
        let broken = laws::broken(supervisor).or_else(|| laws::misrouted(supervisor, &effects));
        let carried_out = self.carry_out(&effects);
        broken.map_or(carried_out, Err).map_err(|broken| format!("{broken}, at {:?}", self.now))
    }
}

type Sabotage = fn(&mut Supervisor);

/// Prints every step if `prints` is set.
fn live(seed: u64, break_it: Sabotage, prints: bool) -> Result<(), String> {
    let mut dice = Dice(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
    let mut world = Worlds { prints, ..Worlds::default() };
    let mut supervisor = Supervisor::new(limits());
    for (model, copies, bytes) in [("a", 2, 3), ("b", 1, 5), ("c", 3, 2)] {
        world.step(&mut supervisor, SupervisorEvent::AddModel(terms(model, copies, bytes)), break_it)?;
    }
    for _ in 0..600 {
        let event = world.event(&mut dice);
        world.step(&mut supervisor, event, break_it)?;
    }
    let until = world.now + Duration::from_secs(5);
    world.step(&mut supervisor, SupervisorEvent::Close { until }, break_it)?;
    world.calm(&mut supervisor, break_it)?;
    let unanswered = supervisor.requests.len();
    let held: u64 = supervisor.memory.devices().map(|device| supervisor.memory.reserved_bytes(device)).sum();
    if unanswered > 0 || held > 0 {
        return Err(format!("{unanswered} requests were never answered, {held} bytes were never released"));
    }
    Ok(())
}

/// Faults: T1, T2, T4, T6, T7, T8, T10, T11.
#[test]
fn laws_hold_in_every_world() {
    for seed in 1..=100 {
        if let Err(broken) = live(seed, |_| {}, false) {
            live(seed, |_| {}, true).unwrap_err();
            panic!("world {seed}: {broken}");
        }
    }
}

/// A law that never fails proves nothing.
#[test]
fn saboteurs_are_caught() {
    let saboteurs: [(&str, Sabotage); 5] = [
        ("releases memory early", |supervisor| {
            let dead = supervisor.copies.values().find(|copy| copy.is_dead()).map(|copy| copy.id);
            dead.map(|copy| supervisor.memory.release(copy));
        }),
        ("loses parts in flight", |supervisor| {
            for copy in supervisor.copies.values_mut() {
                copy.run_mut().map(|run| run.items.pop());
            }
        }),
        ("forgets streamed text", |supervisor| {
            for run in supervisor.copies.values_mut().filter_map(|copy| copy.run_mut()) {
                run.streamed_bytes = 0;
                run.items.iter_mut().for_each(|item| item.streamed = StreamedText::default());
            }
        }),
        ("keeps dead copies in their slots", |supervisor| {
            let dead = supervisor.copies.values().find(|copy| copy.is_dead());
            let Some((model, slot, id)) = dead.map(|copy| (Arc::clone(&copy.model), copy.slot, copy.id))
            else {
                return;
            };
            if let Some(served) = supervisor.served.get_mut(&model) {
                served.slots[slot].copy = Some(id);
            }
        }),
        ("dispatches nothing", |supervisor| {
            use crate::supervisor::model_copy::{CopyEvent, CopyState};
            for copy in supervisor.copies.values_mut() {
                if let CopyState::Testing(run) = *copy.state() {
                    copy.apply(CopyEvent::RunEnded(run));
                }
            }
        }),
    ];
    for (what, saboteur) in saboteurs {
        let caught = (1..=40).any(|seed| live(seed, saboteur, false).is_err());
        assert!(caught, "no law caught the saboteur that {what}");
    }
}
