//! Breadth-first search over every state that a model can reach. The first violation found has the shortest trace, which
//! is printed one line per action.
//!
//! Besides the safety rules, which `Model::apply` checks at every transition, each state must be able to end well: from it
//! the *calm run*, in which no further fault happens, has to reach a settled state. The calm run of a state mostly follows
//! states whose calm run is known already, so checking all of them costs about one more transition each.

use std::collections::{HashMap, HashSet};
use std::fmt::{Debug, Write};
use std::time::{Duration, Instant};

use crate::law::Law;

/// A small system, its possible actions and its rules.
pub(super) trait Model {
    type State: Clone;
    type Action: Clone + Debug;

    fn start(&self) -> Self::State;
    /// Everything that can happen next, faults included.
    fn actions(&self, state: &Self::State) -> Vec<Self::Action>;
    /// What happens next without another fault; `None` if the state is settled.
    fn calm_action(&self, state: &Self::State) -> Option<Self::Action>;
    fn apply(&self, state: &Self::State, action: &Self::Action) -> Result<Self::State, BrokenRule>;
    /// Equal for states that behave the same.
    fn fingerprint(&self, state: &Self::State) -> Fingerprint;
    /// The action for people; `state` is the one before it.
    fn describe(&self, state: &Self::State, action: &Self::Action) -> String;
}

/// A rule that a transition violates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct BrokenRule {
    pub(super) law: Law,
    pub(super) what: String,
}

impl BrokenRule {
    pub(super) fn new(law: Law, what: impl Into<String>) -> BrokenRule {
        BrokenRule { law, what: what.into() }
    }
}

/// What a search found.
#[derive(Debug)]
pub(super) struct Exploration {
    pub(super) states: usize,
    pub(super) transitions: usize,
    /// Further transitions of calm runs.
    pub(super) calm_transitions: usize,
    /// The longest calm run before a state that was known to end well.
    pub(super) calm_depth: usize,
    /// The longest shortest way to a state.
    pub(super) depth: usize,
    pub(super) took: Duration,
    pub(super) violation: Option<Counterexample>,
}

/// A violation and the shortest way to it.
#[derive(Debug)]
pub(super) struct Counterexample {
    pub(super) broken: BrokenRule,
    pub(super) trace: Vec<String>,
}

/// Two states with one fingerprint are taken for the same: 128 bits make that improbable for a million states.
pub(super) type Fingerprint = u128;

/// A calm run that has not settled after this many actions is stuck; the longest of a correct core takes 95.
const CALM_ACTIONS_MAX: usize = 120;
/// A model with more states is not small; the search fails instead of running for hours.
const STATES_MAX: usize = 3_000_000;

/// How a state was reached: from which one, by what.
struct Origin<A> {
    parent: usize,
    action: Option<A>,
}

struct Search<'m, M: Model> {
    model: &'m M,
    origins: Vec<Origin<M::Action>>,
    numbers: HashMap<Fingerprint, usize>,
    /// States whose calm run settles.
    ends_well: HashSet<Fingerprint>,
    transitions: usize,
    calm_transitions: usize,
    calm_depth: usize,
    /// The shortest violation of a calm run so far; the search goes on as long as it may find a shorter one.
    found: Option<Counterexample>,
}

/// Explores every reachable state, or all up to the first violation.
pub(super) fn explore<M: Model>(model: &M) -> Exploration {
    let began_at = Instant::now();
    let mut search = Search {
        model,
        origins: Vec::new(),
        numbers: HashMap::new(),
        ends_well: HashSet::new(),
        transitions: 0,
        calm_transitions: 0,
        calm_depth: 0,
        found: None,
    };
    let (depth, violation) = search.run();
    Exploration {
        states: search.origins.len(),
        transitions: search.transitions,
        calm_transitions: search.calm_transitions,
        calm_depth: search.calm_depth,
        depth,
        took: began_at.elapsed(),
        violation,
    }
}

impl<M: Model> Search<'_, M> {
    /// Level by level, so that no shorter way to a state is left when it is found.
    fn run(&mut self) -> (usize, Option<Counterexample>) {
        let start = self.model.start();
        self.add(&start, Origin { parent: 0, action: None });
        let (mut level, mut depth) = (vec![(0, start)], 0);
        while !level.is_empty() {
            let mut next = Vec::new();
            for (number, state) in level {
                if let Err(violation) = self.expand(number, &state, &mut next) {
                    return (depth, Some(violation));
                }
            }
            assert!(
                self.origins.len() <= STATES_MAX,
                "more than {STATES_MAX} states: the model is too large"
            );
            if self.found.as_ref().is_some_and(|found| found.trace.len() <= depth + 1) {
                break;
            }
            level = next;
            depth += 1;
        }
        (depth, self.found.take())
    }

    fn expand(
        &mut self,
        number: usize,
        state: &M::State,
        next: &mut Vec<(usize, M::State)>,
    ) -> Result<(), Counterexample> {
        if self.found.is_none() {
            self.found = self.calm_violation(number, state);
        }
        for action in self.model.actions(state) {
            self.transitions += 1;
            match self.model.apply(state, &action) {
                Ok(after) => {
                    let origin = Origin { parent: number, action: Some(action) };
                    if let Some(number) = self.add(&after, origin) {
                        next.push((number, after));
                    }
                }
                Err(broken) => return Err(self.counterexample(number, &[action], broken)),
            }
        }
        Ok(())
    }

    /// Returns the number of the state if it is new.
    fn add(&mut self, state: &M::State, origin: Origin<M::Action>) -> Option<usize> {
        let number = self.origins.len();
        if self.numbers.contains_key(&self.model.fingerprint(state)) {
            return None;
        }
        self.numbers.insert(self.model.fingerprint(state), number);
        self.origins.push(origin);
        Some(number)
    }

    fn calm_violation(&mut self, number: usize, from: &M::State) -> Option<Counterexample> {
        let (mut state, mut actions, mut passed) = (from.clone(), Vec::new(), Vec::new());
        loop {
            let fingerprint = self.model.fingerprint(&state);
            if self.ends_well.contains(&fingerprint) {
                break;
            }
            passed.push(fingerprint);
            let Some(action) = self.model.calm_action(&state) else { break };
            actions.push(action.clone());
            state = match self.model.apply(&state, &action) {
                Ok(_) if actions.len() >= CALM_ACTIONS_MAX => {
                    let broken = BrokenRule::new(Law::L1, "without another fault it does not settle");
                    return Some(self.counterexample(number, &actions, broken));
                }
                Ok(state) => state,
                Err(broken) => return Some(self.counterexample(number, &actions, broken)),
            };
        }
        self.calm_transitions += actions.len();
        self.calm_depth = self.calm_depth.max(actions.len());
        self.ends_well.extend(passed);
        None
    }

    fn counterexample(&self, number: usize, last: &[M::Action], broken: BrokenRule) -> Counterexample {
        let mut actions = Vec::new();
        let mut at = number;
        while let Some(action) = &self.origins[at].action {
            actions.push(action.clone());
            at = self.origins[at].parent;
        }
        actions.reverse();
        actions.extend_from_slice(last);
        let mut state = self.model.start();
        let mut trace = Vec::new();
        for action in actions {
            trace.push(self.model.describe(&state, &action));
            match self.model.apply(&state, &action) {
                Ok(after) => state = after,
                Err(_) => break,
            }
        }
        Counterexample { broken, trace }
    }
}

impl Counterexample {
    /// One line per action, then what is wrong.
    pub(super) fn report(&self) -> String {
        let mut text = String::new();
        for (number, line) in self.trace.iter().enumerate() {
            let _ = writeln!(text, "{:>4}  {line}", number + 1);
        }
        let _ = write!(text, "      violates {}: {}", self.broken.law, self.broken.what);
        text
    }
}

impl Exploration {
    pub(super) fn summary(&self) -> String {
        format!(
            "{} states, {} transitions, at most {} actions deep; {} transitions of calm runs, at most {} long; {:.1} s",
            self.states,
            self.transitions,
            self.depth,
            self.calm_transitions,
            self.calm_depth,
            self.took.as_secs_f64()
        )
    }
}
