use std::collections::BTreeSet;

use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::brake::Silence;
use crate::scale::ScalingDirection;
use crate::settings::Scaling;
use WorkerState::{Active, Error, Spawning, Terminated, Terminating};

/// An hour into the life of the fleet: whatever is not said otherwise has been so from the beginning.
const NOW: Timestamp = at(3600);

const fn at(seconds: u64) -> Timestamp {
    Timestamp::from_millis(seconds * 1000)
}

fn ago(seconds: u64) -> Timestamp {
    NOW.minus(Duration::from_secs(seconds))
}

/// A rented worker in good health that holds nothing.
fn worker(id: &str, state: WorkerState) -> WorkerView {
    WorkerView {
        id: id.parse().unwrap(),
        state,
        since: at(0),
        presence: Presence::Online,
        is_rented: true,
        counts_against_max: state != Terminated,
        price: Money::from_micros(1_000_000),
        is_running: true,
        is_registered: true,
        start_check_passed: true,
        trouble: None,
        is_outdated: false,
        drain_until: None,
        beat_at: Some(NOW),
        attempts: Vec::new(),
        idle_since: None,
        warm: 0,
        metrics_at: Some(NOW),
    }
}

/// An active one that is at work.
fn busy(id: &str, job: u128) -> WorkerView {
    WorkerView { attempts: vec![held(job)], ..worker(id, Active) }
}

fn held(job: u128) -> AttemptView {
    let attempt = Attempt(1);
    AttemptView { job: JobId::from_u128(job), attempt, started_at: ago(10), progressed_at: ago(1) }
}

fn fleet(queued: u32, workers: impl IntoIterator<Item = WorkerView>) -> FleetSnapshot {
    FleetSnapshot {
        queued,
        workers: workers.into_iter().collect(),
        can_rent: true,
        contact_timeout: Some(Duration::from_secs(900)),
        ..FleetSnapshot::default()
    }
}

fn mass_loss() -> MassLossBrake {
    let (mut brake, worker, machine) =
        (MassLossBrake::default(), "lost".parse().unwrap(), "box".parse().unwrap());
    for seconds in [60, 30] {
        let silence = Silence {
            worker: &worker,
            machine: &machine,
            since: ago(90),
            silence_max: Duration::from_secs(15),
            is_rented: false,
        };
        brake.judge(ago(seconds), &silence, || 1, &Settings::default());
    }
    brake
}

/// What the cycle does, one line each; a line may stop where its reason goes into detail.
fn check_with(settings: &Settings, snapshot: &FleetSnapshot, expected: &[&str]) {
    let lines = plan(NOW, snapshot, settings).report().reasons;
    let is_as_expected = lines.len() == expected.len()
        && lines.iter().zip(expected).all(|(line, start)| line.starts_with(start));
    assert!(is_as_expected, "expected {expected:#?}, the cycle says {lines:#?}");
}

fn check(snapshot: &FleetSnapshot, expected: &[&str]) {
    check_with(&Settings::default(), snapshot, expected);
}

#[test]
fn a_healthy_fleet_with_enough_to_do_is_left_alone() {
    check(&fleet(6, [busy("a", 1), busy("b", 2)]), &[]);
    check(&fleet(0, []), &["spawn 2: a capacity of 0 is below the minimum of 2: 2 more wanted"]);
}

#[test]
fn a_worker_is_active_once_running_registered_and_checked() {
    let young = WorkerView { since: ago(200), ..worker("a", Spawning) };
    let with_friends = |worker| fleet(3, [worker, busy("b", 2), busy("c", 3)]);
    check(&with_friends(young.clone()), &["promote a: running, registered and its start check passed"]);
    check(&with_friends(WorkerView { start_check_passed: false, ..young.clone() }), &[]);
    check(&with_friends(WorkerView { is_registered: false, ..young.clone() }), &[]);
    check(&with_friends(WorkerView { is_running: false, ..young.clone() }), &[]);
    let bad = WorkerView { trouble: Some("start check: no GPU".to_owned()), ..young };
    check(&with_friends(bad), &["fail a: start check: no GPU"]);
}

#[test]
fn silence_fails_a_worker_only_while_work_waits() {
    let silent = WorkerView { beat_at: Some(ago(301)), is_rented: false, ..worker("a", Active) };
    let never_heard = WorkerView { beat_at: None, since: ago(301), ..silent.clone() };
    let with_friends = |queued, worker| fleet(queued, [worker, busy("b", 2), busy("c", 3)]);
    check(&with_friends(1, silent.clone()), &["fail a: Heartbeat expired with tasks queued"]);
    check(&with_friends(1, never_heard.clone()), &["fail a: No heartbeat received with tasks queued"]);
    check(&with_friends(0, silent.clone()), &[]);
    check(&with_friends(0, never_heard.clone()), &[]);
    check(&with_friends(1, WorkerView { beat_at: Some(ago(300)), ..silent }), &[]);
    check(&with_friends(1, WorkerView { since: ago(300), ..never_heard }), &[]);
}

#[test]
fn silent_machine_is_given_up_after_its_fleets_contact_timeout() {
    let after = |contact_timeout, seconds| {
        let silent = WorkerView { beat_at: Some(ago(seconds)), presence: Presence::Offline, ..busy("a", 1) };
        FleetSnapshot {
            contact_timeout: Some(Duration::from_secs(contact_timeout)),
            ..fleet(0, [silent, busy("b", 2), busy("c", 3)])
        }
    };
    check(&after(3600, 1200), &[]);
    check(&after(900, 900), &[]);
    check(&after(900, 901), &["fail a: no beat for 15 min 1 s: its machine has stopped itself", "reset"]);
}

#[test]
fn a_stuck_attempt_fails_its_worker_and_all_it_held_goes_back() {
    let stuck = AttemptView { progressed_at: ago(301), ..held(1) };
    let snapshot = fleet(
        0,
        [WorkerView { attempts: vec![held(2), stuck], ..worker("a", Active) }, busy("b", 3), busy("c", 4)],
    );
    let expected = [
        "fail a: Stuck task 00000000-0000-0000-0000-000000000001",
        "reset 00000000-0000-0000-0000-000000000002 attempt 1: worker a has failed",
        "reset 00000000-0000-0000-0000-000000000001 attempt 1: worker a has failed",
    ];
    check(&snapshot, &expected);
}

#[test]
fn silent_worker_is_not_judged_stuck() {
    let stuck = AttemptView { progressed_at: ago(301), ..held(1) };
    let silent =
        WorkerView { attempts: vec![held(2), stuck], presence: Presence::Suspect, ..worker("a", Active) };
    check(&fleet(0, [silent, busy("b", 3)]), &[]);
}

#[test]
fn an_hour_of_video_is_not_stuck_unless_age_is_the_policy() {
    let video = AttemptView { started_at: at(0), progressed_at: ago(1), ..held(1) };
    let snapshot =
        fleet(0, [WorkerView { attempts: vec![video], ..worker("a", Active) }, busy("b", 2), busy("c", 3)]);
    check(&snapshot, &[]);
    let by_age = Settings { stuck_policy: StuckPolicy::Age, ..Settings::default() };
    check_with(&by_age, &snapshot, &["fail a: Stuck task", "reset"]);
}

#[test]
fn stale_readings_are_warned_about_and_nothing_more() {
    let stale = WorkerView { metrics_at: Some(ago(121)), ..busy("a", 1) };
    check(
        &fleet(0, [stale.clone(), busy("b", 2)]),
        &["warn about a: its last VRAM reading is 2 min 1 s old"],
    );
    let silent = WorkerView { presence: Presence::Offline, ..stale };
    check(&fleet(0, [silent, busy("b", 2)]), &[]);
}

#[test]
fn what_was_held_by_a_worker_in_error_goes_back_and_its_machine_too() {
    let failed = WorkerView { attempts: vec![held(1)], ..worker("a", Error) };
    let expected = ["reset", "terminate a: failed: its machine is returned"];
    check(&fleet(0, [failed.clone(), busy("b", 2), busy("c", 3)]), &expected);
    let ours = WorkerView { is_rented: false, ..failed };
    check(&fleet(0, [ours, busy("b", 2), busy("c", 3)]), &["reset"]);
}

#[test]
fn the_idle_above_the_minimum_are_drained_longest_idle_first() {
    let idle = |id, seconds| WorkerView { idle_since: Some(ago(seconds)), ..worker(id, Active) };
    let snapshot = fleet(0, [idle("a", 60), busy("b", 1), idle("c", 720), idle("d", 120)]);
    let expected =
        ["drain c: idle for 12 min: 4 active, 2 wanted", "drain d: idle for 2 min: 4 active, 2 wanted"];
    check(&snapshot, &expected);
    check(&FleetSnapshot { queued: 12, ..snapshot.clone() }, &[]);
    check(&FleetSnapshot { can_rent: false, ..snapshot }, &[]);
}

#[test]
fn a_fixed_worker_and_one_just_promoted_are_not_drained() {
    let fixed = |id| WorkerView { is_rented: false, ..worker(id, Active) };
    let young = WorkerView { since: ago(599), ..worker("d", Active) };
    check(&fleet(0, [fixed("a"), fixed("b"), fixed("c"), young]), &[]);
    let promoted = worker("d", Spawning);
    check(&fleet(0, [fixed("a"), fixed("b"), fixed("c"), promoted]), &["promote d"]);
}

#[test]
fn a_draining_worker_ends_when_it_holds_nothing_or_its_grace_is_over() {
    let draining = |since, attempts| WorkerView { since, attempts, ..worker("a", Terminating) };
    let with_friends = |worker| fleet(0, [worker, busy("b", 2), busy("c", 3)]);
    check(&with_friends(draining(ago(5), vec![])), &["terminate a: drained: it holds no attempts"]);
    check(&with_friends(draining(ago(600), vec![held(1)])), &[]);
    let expected = [
        "reset 00000000-0000-0000-0000-000000000001 attempt 1: worker a still had work 10 min after its drain began",
        "terminate a: it still had work 10 min after its drain began",
    ];
    check(&with_friends(draining(ago(601), vec![held(1)])), &expected);
}

#[test]
fn the_queue_orders_workers_and_those_on_their_way_count() {
    check(&fleet(1, []), &["spawn 2: 1 jobs wait for 0 workers: 2 more wanted"]);
    check(&fleet(15, [busy("a", 1), busy("b", 2)]), &["spawn 3: 15 jobs wait for 2 workers: 3 more wanted"]);
    let spawning = |id| WorkerView { is_registered: false, since: ago(9), ..worker(id, Spawning) };
    let coming = ["c", "d", "e"].map(|id| WorkerView { is_running: false, ..spawning(id) });
    check(&fleet(15, coming.into_iter().chain([busy("a", 1), busy("b", 2)])), &[]);
    let fixed = FleetSnapshot { can_rent: false, ..fleet(1, []) };
    check(
        &fixed,
        &["held back: 1 jobs wait for 0 workers: 2 more wanted, but there is no provider to rent from"],
    );
}

#[test]
fn a_worker_that_failed_this_cycle_is_no_capacity_and_its_job_waits() {
    let silent = WorkerView { beat_at: Some(ago(400)), ..busy("a", 1) };
    let expected = ["fail a", "reset", "spawn 1: 4 jobs wait for 1 workers: 1 more wanted"];
    check(&fleet(3, [silent, busy("b", 2)]), &expected);
}

#[test]
fn machines_not_yet_returned_count_against_the_maximum() {
    let workers = (0..8_u128).map(|n| busy(&format!("busy-{n}"), n));
    let draining = WorkerView { since: ago(5), attempts: vec![held(99)], ..worker("draining", Terminating) };
    let snapshot = fleet(100, workers.chain([draining]));
    let full = "held back: 100 jobs wait for 8 workers: 2 more wanted, but only 1 fit under the maximum: machines being returned";
    check(&snapshot, &["spawn 1", full]);
    let at_maximum = fleet(100, (0..10_u128).map(|n| busy(&format!("busy-{n}"), n)));
    check(
        &at_maximum,
        &["held back: 100 jobs wait for 10 workers, but the maximum of 10 machines is reached"],
    );
}

#[test]
fn nothing_is_ordered_while_creation_fails_and_then_one_at_a_time() {
    let mut creation = CreationBrake::default();
    for _ in 0..3 {
        creation.failed(ago(30), "no such GPU");
    }
    let short = FleetSnapshot { creation, ..fleet(30, [busy("a", 1)]) };
    let braked = "held back: 30 jobs wait for 1 workers: 9 more wanted, but only 0 may be created now: creation brake until ";
    check(&short, &[braked]);
    let mut creation = CreationBrake::default();
    for _ in 0..3 {
        creation.failed(ago(90), "no such GPU");
    }
    let trial = FleetSnapshot { creation, ..short };
    let one = "held back: 30 jobs wait for 1 workers: 9 more wanted, but only 1 may be created now: creation brake: one at a time";
    check(&trial, &["spawn 1", one]);
}

#[test]
fn mass_silence_pauses_all_worker_verdicts() {
    let workers = [
        WorkerView { trouble: Some("Spawning timeout".to_owned()), ..worker("overdue", Spawning) },
        WorkerView { beat_at: Some(ago(400)), ..busy("silent", 1) },
        WorkerView { attempts: vec![held(2)], ..worker("failed", Error) },
        worker("drained", Terminating),
        worker("idle", Active),
        worker("idle-too", Active),
        worker("ready", Spawning),
    ];
    let snapshot = FleetSnapshot { mass_loss: mass_loss(), ..fleet(1, workers) };
    let braked = "held back: no worker is failed, drained or terminated: mass-loss brake, on for 30 s: 1 machine is silent";
    check(&snapshot, &["promote ready", braked]);
}

#[test]
fn a_fleet_that_just_turned_goes_on_as_it_went() {
    let mut grew = ScalingTrend::default();
    grew.record(ago(60), ScalingDirection::Up);
    let idle = FleetSnapshot {
        heading: grew,
        ..fleet(0, [worker("a", Active), worker("b", Active), worker("c", Active)])
    };
    check(
        &idle,
        &[
            "held back: 1 idle machines are kept until 1970-01-01T01:09:00.000Z, because the fleet has just grown",
        ],
    );

    let mut shrank = ScalingTrend::default();
    shrank.record(ago(60), ScalingDirection::Down);
    let short = FleetSnapshot { heading: shrank, ..fleet(9, [busy("a", 1), busy("b", 2)]) };
    check(
        &short,
        &[
            "held back: 9 jobs wait for 2 workers: 1 more wanted, but the fleet shrank recently and may not grow before ",
        ],
    );
    let below_minimum = FleetSnapshot { heading: shrank, ..fleet(9, [busy("a", 1)]) };
    check(&below_minimum, &["spawn 2"]);
}

#[test]
fn the_report_has_the_shape_of_the_seed() {
    let silent = WorkerView { beat_at: Some(ago(400)), ..busy("a", 1) };
    let workers =
        [silent, worker("b", Spawning), worker("c", Terminating), busy("d", 2), worker("gone", Terminated)];
    let report = plan(NOW, &fleet(15, workers), &Settings::default()).report();
    let expected = json!({
        "timestamp": "1970-01-01T01:00:00.000Z",
        "actions": {
            "workers_promoted": 1,
            "workers_failed": 1,
            "workers_spawned": 4,
            "workers_terminated": 1,
            "tasks_reset": 1,
        },
        "status": {
            "queued_tasks": 16,
            "spawning_workers": 4,
            "active_workers": 2,
            "terminating_workers": 0,
            "total_workers": 6,
        },
        "reasons": [
            "promote b: running, registered and its start check passed",
            "fail a: Heartbeat expired with tasks queued",
            "reset 00000000-0000-0000-0000-000000000001 attempt 1: worker a has failed",
            "terminate c: drained: it holds no attempts",
            "spawn 4: 16 jobs wait for 2 workers: 4 more wanted",
        ],
    });
    assert_eq!(serde_json::to_value(&report).unwrap(), expected);
}

fn any_worker() -> impl Strategy<Value = WorkerView> {
    let flags = (any::<bool>(), any::<bool>(), any::<bool>());
    let times = (0_u64..3600, prop::option::of(0_u64..3600), prop::option::of(0_u64..3600));
    let life = (prop::sample::select(&WorkerState::ALL[..]), prop::sample::select(&Presence::ALL[..]));
    let attempts = prop::collection::vec(0_u64..3600, 0..3);
    (flags, times, life, attempts).prop_map(|(flags, (since, running, beat), (state, presence), starts)| {
        WorkerView {
            since: ago(since),
            presence,
            is_rented: flags.0,
            is_running: running.is_some(),
            is_registered: flags.1,
            start_check_passed: flags.2,
            beat_at: beat.map(ago),
            attempts: starts
                .into_iter()
                .map(|start| AttemptView { started_at: ago(start), progressed_at: ago(start / 2), ..held(1) })
                .collect(),
            metrics_at: beat.map(ago),
            ..worker("x", state)
        }
    })
}

/// Any fleet at all, each worker with a name of its own.
fn any_fleet() -> impl Strategy<Value = FleetSnapshot> {
    let brakes = (any::<bool>(), any::<bool>());
    (0_u32..60, prop::collection::vec(any_worker(), 0..14), brakes).prop_map(
        |(queued, mut workers, brakes)| {
            for (n, worker) in workers.iter_mut().enumerate() {
                worker.id = format!("gpu-{n}").parse().unwrap();
            }
            let mass_loss = if brakes.0 { mass_loss() } else { MassLossBrake::default() };
            FleetSnapshot { can_rent: brakes.1, mass_loss, ..fleet(queued, workers) }
        },
    )
}

/// The worker an action moves from one state to another.
fn moved(action: &CycleAction) -> Option<&WorkerId> {
    match action {
        CycleAction::Promote { worker, .. }
        | CycleAction::Fail { worker, .. }
        | CycleAction::Drain { worker, .. }
        | CycleAction::Terminate { worker, .. } => Some(worker),
        CycleAction::Reset { .. } | CycleAction::Spawn { .. } | CycleAction::Warn { .. } => None,
    }
}

/// `should_scale_up` and `calculate_workers_needed` of the seed, letter by letter, with the three differences that
/// `scale` names: an empty fleet is no case of its own, a waiting job wants at least one, and the minimum is kept.
fn documented(queued: u32, capacity: u32, scaling: &Scaling) -> u32 {
    let (queued, capacity) = (f64::from(queued), f64::from(capacity));
    let (min, threshold) = (f64::from(scaling.machines_min), f64::from(scaling.jobs_per_worker));
    let should_scale_up = if capacity == 0.0 { queued > 0.0 } else { queued / capacity > threshold };
    let ideal_workers = min.max((queued / threshold).ceil());
    let needed = if should_scale_up || capacity < min { ideal_workers - capacity } else { 0.0 };
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "small whole numbers")]
    let needed = needed.max(0.0) as u32;
    needed
}

proptest! {
    #[test]
    fn decisions_are_those_of_the_documented_formulas(
        queued in 0_u32..200, busy_count in 0_u32..12, idle_count in 0_u32..12, spawning in 0_u32..6,
        min in 0_u32..8, max in 8_u32..24, per in 1_u32..6,
    ) {
        let scaling = Scaling { machines_min: min, machines_max: max, jobs_per_worker: per, ..Scaling::default() };
        let at_work = (0..busy_count).map(|n| busy(&format!("busy-{n}"), n.into()));
        let idle = (0..idle_count).map(|n| worker(&format!("idle-{n}"), Active));
        let coming = (0..spawning).map(|n| WorkerView {
            is_running: false,
            is_registered: false,
            ..worker(&format!("new-{n}"), Spawning)
        });
        let snapshot = fleet(queued, at_work.chain(idle).chain(coming));
        let plan = plan(NOW, &snapshot, &Settings { scaling: scaling.clone(), ..Settings::default() });
        let (active, capacity) = (busy_count + idle_count, busy_count + idle_count + spawning);
        let ideal = min.max(queued.div_ceil(per)).min(max);
        // What is above the maximum goes first: what is starting, then idle, then busy.
        let over = capacity.saturating_sub(max);
        let given_up = over.min(spawning);
        let over_active = over - given_up;
        let idle_left = idle_count.saturating_sub(over_active);
        let drained = over_active + (active - over_active).saturating_sub(ideal).min(idle_left);
        let staying = capacity - given_up - drained;
        let wanted = documented(queued, staying, &scaling).min(max.saturating_sub(capacity));
        let spawned: u32 = plan.actions.iter().map(|action| match action {
            CycleAction::Spawn { count, .. } => *count,
            _ => 0,
        }).sum();
        let drains = plan.actions.iter().filter(|action| matches!(action, CycleAction::Drain { .. })).count();
        prop_assert_eq!((spawned, drains), (wanted, drained as usize), "{:?}", plan.report().reasons);
        prop_assert!(plan.actions.iter().all(|action| !action.reason().is_empty()));
    }

    #[test]
    fn laws_of_every_cycle(snapshot in any_fleet(), max in 0_u32..14) {
        let scaling = Scaling { machines_max: max, ..Scaling::default() };
        let plan = plan(NOW, &snapshot, &Settings { scaling, ..Settings::default() });
        let movers: Vec<_> = plan.actions.iter().filter_map(moved).collect();
        prop_assert_eq!(movers.iter().collect::<BTreeSet<_>>().len(), movers.len(), "moved twice");
        let rented = snapshot.workers.iter().filter(|it| it.is_rented && it.state != Terminated).count();
        for action in &plan.actions {
            prop_assert!(!action.reason().is_empty());
            match action {
                CycleAction::Fail { .. } | CycleAction::Reset { .. } | CycleAction::Drain { .. } | CycleAction::Terminate { .. } => {
                    prop_assert!(!snapshot.mass_loss.is_on(), "{action} against the brake");
                }
                CycleAction::Spawn { count, .. } => {
                    prop_assert!(snapshot.can_rent && rented + *count as usize <= max as usize);
                }
                CycleAction::Promote { .. } | CycleAction::Warn { .. } => {}
            }
        }
        prop_assert!(!snapshot.mass_loss.is_on() || !plan.held_back.is_empty());
    }
}
