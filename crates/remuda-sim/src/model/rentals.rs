//! A fleet of one machine and its provider: the intent to rent it is stored, the pod is created once, and one that nothing
//! records is returned. Calls are made in order, one at a time, as the program does.
//!
//! | fault | |
//! |---|---|
//! | answer lost | the pod is created, and the plane hears that the outcome is unknown |
//! | not made | the plane hears the same, and no pod is created |
//! | made later | the plane hears the same, and the pod is created at any time within `lost_create_timeout` |
//! | answer late | the pod is created, and the answer comes at any later time |
//! | list lags | a pod younger than `list_lag_max` is missing |
//! | call fails | a list or a return fails |
//! | crash | the plane dies before or after the call under way is made, and starts again |

use std::collections::VecDeque;
use std::time::Duration;

use remuda_core::id::{FleetId, PodId};
use remuda_core::money::Money;
use remuda_core::plane::{Plane, PlaneEffect, PlaneEvent};
use remuda_core::provider::{Pod, PodStatus, ProviderCall, ProviderError, ProviderErrorClass, ProviderEvent};
use remuda_core::record::Record;
use remuda_core::rental::RentalPhase;
use remuda_core::settings::fleet::{FleetSettings, RentalLimits};
use remuda_core::settings::{Scaling, Settings};
use remuda_core::time::Timestamp;

use super::fingerprint::{Shared, fingerprint};
use super::search::{BrokenRule, Fingerprint, Model};
use crate::law::Law;
use crate::store::Store;

/// Time moves from one list to the next.
const QUANTUM: Duration = Duration::from_secs(30);
const BEGIN: u64 = 1_000_000_000;
const DEPLOYMENT: &str = "d0d0d0d0";

pub(super) struct Rentals {
    /// Faults altogether, and crashes of the plane among them.
    pub(super) faults: u8,
    pub(super) crashes: u8,
    /// In quanta.
    pub(super) horizon: u64,
    pub(super) sabotage: Option<RentalSabotage>,
    settings: Settings,
    /// How late the provider may be, whatever a sabotage makes the plane believe.
    limits: RentalLimits,
    fleet: FleetId,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RentalSabotage {
    /// A pod is created before its intent is stored.
    CreateBeforeIntent,
    /// A creation with an unknown outcome is repeated.
    CreateAgain,
    /// Lists prove that a pod was not created, however soon after the call.
    TrustEarlyLists,
}

#[derive(Clone, Debug)]
pub(super) struct RentalState {
    now: u64,
    plane: Shared<Plane>,
    store: Shared<Store>,
    /// Records that a sabotage leaves for the next commit.
    unstored: Vec<Record>,
    calls: VecDeque<ProviderCall>,
    /// The answer of the call under way, on its way.
    late_answer: Option<Box<ProviderEvent>>,
    /// A creation that the provider still has to carry out, and until when it may.
    creation: Option<(String, u64)>,
    pods: Vec<ModelPod>,
    faults: u8,
    crashes: u8,
    print: Fingerprint,
}

#[derive(Clone, Debug)]
struct ModelPod {
    tag: String,
    created_at: u64,
    is_returned: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RentalAction {
    PlaneTimer,
    CallSucceeds,
    AnswerLost,
    NotMade,
    MadeLater,
    AnswerLate,
    AnswerArrives,
    CreationHappens,
    ListLags,
    CallFails,
    PlaneCrashes { is_call_made: bool },
    TimePasses,
}

use RentalAction as Do;

impl Rentals {
    pub(super) fn new(faults: u8, crashes: u8, horizon: u64, sabotage: Option<RentalSabotage>) -> Rentals {
        let fleet: FleetId = "gpus".parse().expect("a valid name");
        let mut own = FleetSettings::new(fleet.clone(), true);
        own.scaling = Scaling { machines_min: 1, machines_max: 1, ..Scaling::default() };
        own.limits = RentalLimits {
            list_every: QUANTUM,
            list_lag_max: QUANTUM * 2,
            lost_create_timeout: QUANTUM * 6,
            orphan_grace: QUANTUM * 4,
            // The pods of this model never finish starting: what they run is not its subject.
            image_pull_timeout: Duration::from_secs(24 * 3600),
            ..RentalLimits::default()
        };
        let limits = own.limits;
        if sabotage == Some(RentalSabotage::TrustEarlyLists) {
            (own.limits.lost_create_timeout, own.limits.list_lag_max) = (Duration::ZERO, Duration::ZERO);
        }
        // The plane is stepped once in a quantum: that is no absence.
        let settings = Settings { fleets: vec![own], plane_stall_max: QUANTUM * 2, ..Settings::default() };
        Rentals { faults, crashes, horizon, sabotage, settings, limits, fleet }
    }

    fn step(&self, state: &mut RentalState, event: PlaneEvent) -> Result<(), BrokenRule> {
        let now = Timestamp::from_millis(state.now);
        let step = state.plane.change(|plane| plane.step(now, event));
        let mut records = step.records;
        if self.sabotage == Some(RentalSabotage::CreateBeforeIntent) {
            records = std::mem::replace(&mut state.unstored, records);
        }
        state.store.change(|store| records.into_iter().for_each(|record| store.apply(record)));
        for effect in step.effects {
            if let PlaneEffect::CallProvider { call, .. } = effect {
                state.calls.push_back(call);
            }
        }
        state.plane.check_indexes().map_err(|what| BrokenRule::new(Law::S12, what))
    }

    fn answer(&self, state: &mut RentalState, news: ProviderEvent) -> Result<(), BrokenRule> {
        self.step(state, PlaneEvent::Provider { fleet: self.fleet.clone(), news: Box::new(news) })
    }

    /// Makes the call under way as it should be.
    fn carry_out(&self, state: &mut RentalState, call: &ProviderCall) -> Result<ProviderEvent, BrokenRule> {
        Ok(match call {
            ProviderCall::Rent { machine, tag, .. } => {
                let pod = create(state, tag)?;
                ProviderEvent::Rented { machine: machine.clone(), result: Ok(pod) }
            }
            ProviderCall::List => ProviderEvent::Listed { result: Ok(list(state, |_| true)) },
            ProviderCall::Return { pod } => {
                if let Some(index) = state.pods.iter().position(|it| pod_id(&it.tag) == *pod) {
                    state.pods[index].is_returned = true;
                }
                ProviderEvent::Returned { pod: pod.clone(), result: Ok(()) }
            }
            ProviderCall::Price => {
                ProviderEvent::Priced { result: Ok([("any".to_owned(), Money::default())].into()) }
            }
            ProviderCall::Bootstrap { machine, .. } => {
                ProviderEvent::Bootstrapped { machine: machine.clone(), result: Ok(()) }
            }
        })
    }

    /// S5: what is asked of the provider is stored.
    fn check_intent(&self, state: &RentalState, call: &ProviderCall) -> Result<(), BrokenRule> {
        let ProviderCall::Rent { machine, tag, .. } = call else { return Ok(()) };
        if state.store.machine(machine.as_str()).is_none() {
            return Err(BrokenRule::new(Law::S5, format!("{tag} is rented, and the intent is not stored")));
        }
        Ok(())
    }

    fn act(&self, state: &mut RentalState, action: RentalAction) -> Result<(), BrokenRule> {
        match action {
            Do::PlaneTimer => return self.step(state, PlaneEvent::Tick),
            Do::TimePasses => {
                state.now += QUANTUM.as_millis() as u64;
                return Ok(());
            }
            Do::AnswerArrives => {
                let Some(news) = state.late_answer.take() else { return Ok(()) };
                return self.answer(state, *news);
            }
            Do::CreationHappens => {
                let Some((tag, _)) = state.creation.take() else { return Ok(()) };
                return create(state, &tag).map(drop);
            }
            Do::PlaneCrashes { is_call_made } => return self.crash(state, is_call_made),
            _ => {}
        }
        let Some(call) = state.calls.pop_front() else { return Ok(()) };
        self.check_intent(state, &call)?;
        state.faults -= u8::from(action != Do::CallSucceeds);
        let news = match (action, &call) {
            (Do::AnswerLost, ProviderCall::Rent { machine, .. }) => {
                self.carry_out(state, &call)?;
                if self.sabotage == Some(RentalSabotage::CreateAgain) {
                    self.carry_out(state, &call)?;
                }
                ProviderEvent::Rented { machine: machine.clone(), result: Err(unknown()) }
            }
            (Do::NotMade, ProviderCall::Rent { machine, .. }) => {
                ProviderEvent::Rented { machine: machine.clone(), result: Err(unknown()) }
            }
            (Do::MadeLater, ProviderCall::Rent { machine, tag, .. }) => {
                let until = state.now + self.limits.lost_create_timeout.as_millis() as u64;
                state.creation = Some((tag.clone(), until));
                ProviderEvent::Rented { machine: machine.clone(), result: Err(unknown()) }
            }
            (Do::AnswerLate, _) => {
                state.late_answer = Some(Box::new(self.carry_out(state, &call)?));
                return Ok(());
            }
            (Do::ListLags, _) => {
                let (now, lag) = (state.now, self.limits.list_lag_max.as_millis() as u64);
                ProviderEvent::Listed { result: Ok(list(state, |pod| now - pod.created_at >= lag)) }
            }
            (Do::CallFails, ProviderCall::Return { pod }) => {
                ProviderEvent::Returned { pod: pod.clone(), result: Err(transient()) }
            }
            (Do::CallFails, _) => ProviderEvent::Listed { result: Err(transient()) },
            _ => self.carry_out(state, &call)?,
        };
        self.answer(state, news)
    }

    /// The plane dies; the call under way is made or not, and its answer is lost in any case.
    fn crash(&self, state: &mut RentalState, is_call_made: bool) -> Result<(), BrokenRule> {
        (state.faults, state.crashes) = (state.faults - 1, state.crashes - 1);
        if let Some(call) = state.calls.pop_front().filter(|_| is_call_made) {
            self.check_intent(state, &call)?;
            self.carry_out(state, &call)?;
        }
        state.calls.clear();
        state.unstored.clear();
        state.late_answer = None;
        let term = state.store.change(Store::lead);
        let now = Timestamp::from_millis(state.now);
        state.plane = Shared::new(Plane::restore(self.settings.clone(), term, now, state.store.restore()));
        Ok(())
    }

    fn is_timer_due(state: &RentalState) -> bool {
        state.plane.wake_at().0.as_millis() <= state.now
    }

    /// One pod, one record that names it, and nothing under way.
    fn is_settled(&self, state: &RentalState) -> bool {
        let mut alive = state.pods.iter().filter(|pod| !pod.is_returned);
        let (Some(pod), None) = (alive.next(), alive.next()) else { return false };
        let mut rentals = state.plane.rentals();
        let (Some(rental), None) = (rentals.next(), rentals.next()) else { return false };
        rental.phase() == RentalPhase::Made && rental.pod().is_some_and(|it| it.id == pod_id(&pod.tag))
    }

    fn due_action(&self, state: &RentalState) -> Option<RentalAction> {
        let creation_is_due = state.creation.as_ref().is_some_and(|(_, until)| *until <= state.now);
        match () {
            () if creation_is_due => Some(Do::CreationHappens),
            () if state.late_answer.is_none() && !state.calls.is_empty() => Some(Do::CallSucceeds),
            () if Rentals::is_timer_due(state) => Some(Do::PlaneTimer),
            () => None,
        }
    }
}

impl Model for Rentals {
    type State = RentalState;
    type Action = RentalAction;

    fn start(&self) -> RentalState {
        let mut store = Store::default();
        let term = store.lead();
        let now = Timestamp::from_millis(BEGIN);
        let plane = Plane::restore(self.settings.clone(), term, now, store.restore());
        let mut state = RentalState {
            now: BEGIN,
            plane: Shared::new(plane),
            store: Shared::new(store),
            unstored: Vec::new(),
            calls: VecDeque::new(),
            late_answer: None,
            creation: None,
            pods: Vec::new(),
            faults: self.faults,
            crashes: self.crashes,
            print: 0,
        };
        let named = PlaneEvent::NameDeployment(DEPLOYMENT.to_owned());
        self.step(&mut state, named).expect("nothing is wrong at the start");
        state.update_print();
        state
    }

    fn actions(&self, state: &RentalState) -> Vec<RentalAction> {
        let is_over = self.is_settled(state) && state.creation.is_none() && state.calls.is_empty();
        let horizon = BEGIN + self.horizon * QUANTUM.as_millis() as u64;
        if state.now >= horizon || is_over && state.faults == 0 {
            return Vec::new();
        }
        let due = self.due_action(state);
        let mut actions = vec![due.unwrap_or(Do::TimePasses)];
        let add = |actions: &mut Vec<_>, action, is_possible: bool| {
            if is_possible && !actions.contains(&action) {
                actions.push(action);
            }
        };
        let call = state.calls.front().filter(|_| state.late_answer.is_none());
        add(&mut actions, Do::PlaneTimer, Rentals::is_timer_due(state));
        add(&mut actions, Do::CallSucceeds, call.is_some());
        add(&mut actions, Do::AnswerArrives, state.late_answer.is_some());
        add(&mut actions, Do::CreationHappens, state.creation.is_some());
        if state.faults > 0 {
            let is_rent = matches!(call, Some(ProviderCall::Rent { .. }));
            add(&mut actions, Do::AnswerLost, is_rent);
            add(&mut actions, Do::NotMade, is_rent);
            add(&mut actions, Do::MadeLater, is_rent && state.creation.is_none());
            add(&mut actions, Do::AnswerLate, call.is_some());
            add(&mut actions, Do::ListLags, matches!(call, Some(ProviderCall::List)));
            let can_fail = matches!(call, Some(ProviderCall::List | ProviderCall::Return { .. }));
            add(&mut actions, Do::CallFails, can_fail);
            let can_crash = state.crashes > 0;
            add(&mut actions, Do::PlaneCrashes { is_call_made: false }, can_crash);
            add(&mut actions, Do::PlaneCrashes { is_call_made: true }, can_crash && call.is_some());
        }
        actions
    }

    fn calm_action(&self, state: &RentalState) -> Option<RentalAction> {
        if state.late_answer.is_some() {
            return Some(Do::AnswerArrives);
        }
        if state.creation.is_some() {
            return Some(Do::CreationHappens);
        }
        let due = self.due_action(state);
        due.or_else(|| (!self.is_settled(state)).then_some(Do::TimePasses))
    }

    fn apply(&self, state: &RentalState, action: &RentalAction) -> Result<RentalState, BrokenRule> {
        let mut after = state.clone();
        self.act(&mut after, *action)?;
        after.update_print();
        Ok(after)
    }

    fn fingerprint(&self, state: &RentalState) -> Fingerprint {
        state.print
    }

    fn describe(&self, state: &RentalState, action: &RentalAction) -> String {
        let call = match state.calls.front() {
            Some(ProviderCall::Rent { tag, .. }) => format!("rent {tag}"),
            Some(ProviderCall::Return { pod }) => format!("return {pod}"),
            Some(call) => format!("{call:?}"),
            None => String::new(),
        };
        let what = match action {
            Do::PlaneTimer => "timer of the plane".to_owned(),
            Do::CallSucceeds => format!("{call}: done"),
            Do::AnswerLost => format!("{call}: DONE, AND THE ANSWER IS LOST"),
            Do::NotMade => format!("{call}: NOT DONE, AND THE ANSWER IS LOST"),
            Do::MadeLater => format!("{call}: TO BE DONE LATER, AND THE ANSWER IS LOST"),
            Do::AnswerLate => format!("{call}: done, THE ANSWER IS LATE"),
            Do::AnswerArrives => "the late answer arrives".to_owned(),
            Do::CreationHappens => "the provider creates the pod after all".to_owned(),
            Do::ListLags => format!("{call}: NEW PODS ARE MISSING"),
            Do::CallFails => format!("{call}: FAILS"),
            Do::PlaneCrashes { is_call_made } => {
                let made = if *is_call_made { format!(" after the call ({call})") } else { String::new() };
                format!("THE PLANE CRASHES{made} and starts again")
            }
            Do::TimePasses => format!("{} s pass", QUANTUM.as_secs()),
        };
        format!("{:>4} s  {what}", (state.now - BEGIN) / 1000)
    }
}

impl RentalState {
    fn update_print(&mut self) {
        let under_way = (&self.calls, &self.late_answer, &self.creation, &self.unstored);
        let rest = (self.now, &self.plane, &self.store, &self.pods, self.faults, self.crashes);
        self.print = fingerprint(&(under_way, rest));
    }
}

/// S5 and S8: a pod comes into being.
fn create(state: &mut RentalState, tag: &str) -> Result<Pod, BrokenRule> {
    if state.pods.iter().any(|pod| pod.tag == tag) {
        return Err(BrokenRule::new(Law::S5, format!("{tag} is created twice")));
    }
    if let Some(other) = state.pods.iter().find(|pod| !pod.is_returned) {
        let what = format!("{tag} is created beside {}, and one machine is allowed", other.tag);
        return Err(BrokenRule::new(Law::S8, what));
    }
    let made = ModelPod { tag: tag.to_owned(), created_at: state.now, is_returned: false };
    let shown = shown(&made);
    state.pods.push(made);
    Ok(shown)
}

fn list(state: &RentalState, is_shown: impl Fn(&ModelPod) -> bool) -> Vec<Pod> {
    state.pods.iter().filter(|pod| !pod.is_returned && is_shown(pod)).map(shown).collect()
}

fn shown(pod: &ModelPod) -> Pod {
    Pod {
        id: pod_id(&pod.tag),
        tag: pod.tag.clone(),
        status: PodStatus::Starting,
        kind: String::new(),
        place: String::new(),
        host: None,
        price: None,
        ssh: None,
        started: String::new(),
    }
}

fn pod_id(tag: &str) -> PodId {
    format!("pod-of-{tag}").parse().expect("a valid name")
}

fn unknown() -> ProviderError {
    ProviderError::new(ProviderErrorClass::Ambiguous, "no answer")
}

fn transient() -> ProviderError {
    ProviderError::new(ProviderErrorClass::Transient, "503")
}
