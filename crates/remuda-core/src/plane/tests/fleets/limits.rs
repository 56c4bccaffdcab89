//! Limits that were lowered and prices that changed while machines are busy.

use super::*;

/// The operator changes the settings of the fleet.
fn change(world: &mut Rented, change: impl FnOnce(&mut FleetSettings)) {
    let mut changed = world.story.settings.clone();
    change(&mut changed.fleets[0]);
    world.story.settings = changed.clone();
    world.story.step(PlaneEvent::ReloadSettings(Box::new(changed))).unwrap();
}

/// Machines with one attempt each.
fn busy(machines: usize, configure: impl FnOnce(&mut FleetSettings)) -> (Rented, Vec<JobId>) {
    let mut world = Rented::new(settings(|fleet| {
        fleet.scaling.machines_max = u32::try_from(machines).unwrap();
        configure(fleet);
    }));
    let jobs = world.jobs(machines);
    world.pass(3);
    world.join_all();
    world.pass(3);
    jobs.iter().for_each(|job| world.story.is(*job, "running"));
    (world, jobs)
}

fn count(world: &Rented, phase: RentalPhase) -> usize {
    world.story.plane.rentals().filter(|rental| rental.phase() == phase).count()
}

/// Faults: J15.
#[test]
fn lowered_maximum_drains_busy_machines() {
    let (mut world, jobs) = busy(4, |_| {});
    change(&mut world, |fleet| fleet.scaling.machines_max = 1);
    world.pass(2);
    assert_eq!((count(&world, RentalPhase::Draining), count(&world, RentalPhase::Up)), (3, 1));
    let draining = world.story.plane.rentals().find(|rental| rental.phase() == RentalPhase::Draining);
    let reason = &draining.unwrap().reason;
    assert!(reason.contains("4 machines") && reason.contains("maximum is 1"), "{reason}");
    jobs.iter().for_each(|job| world.story.is(*job, "running"));
    world.pass(700);
    assert_eq!(world.account.len(), 1, "what is not done by the end of the grace runs elsewhere");
}

/// Faults: J15.
#[test]
fn lowered_maximum_takes_starting_and_idle_machines_before_busy_ones() {
    let (mut world, jobs) = busy(2, |fleet| fleet.scaling.machines_min = 2);
    change(&mut world, |fleet| {
        (fleet.scaling.machines_min, fleet.scaling.machines_max) = (4, 4);
    });
    world.pass(3);
    world.join(2).unwrap();
    world.pass(3);
    assert_eq!((count(&world, RentalPhase::Up), count(&world, RentalPhase::Made)), (3, 1));
    change(&mut world, |fleet| {
        (fleet.scaling.machines_min, fleet.scaling.machines_max) = (0, 2);
    });
    world.pass(2);
    let busy: Vec<_> = jobs.iter().map(|job| world.story.plane.jobs.running(*job).unwrap().worker).collect();
    for rental in world.story.plane.rentals() {
        let is_busy = busy.contains(&rental.worker());
        assert_eq!(rental.phase() == RentalPhase::Up, is_busy, "{rental:?}");
    }
}

/// Faults: J15.
#[test]
fn lowered_hourly_budget_drains_busy_machines() {
    let (mut world, _) = busy(3, |fleet| fleet.hour_max = Some(dollars("3")));
    change(&mut world, |fleet| fleet.hour_max = Some(dollars("1.5")));
    world.pass(2);
    assert_eq!((count(&world, RentalPhase::Draining), count(&world, RentalPhase::Up)), (2, 1));
    let draining = world.story.plane.rentals().find(|rental| rental.phase() == RentalPhase::Draining);
    let reason = &draining.unwrap().reason;
    assert!(reason.contains("$3.00 an hour") && reason.contains("$1.50"), "{reason}");
}

/// A raised budget counts at once: no one has to wait for the next day.
#[test]
fn raised_daily_budget_counts_at_once() {
    let mut world = Rented::new(settings(|fleet| {
        (fleet.day_max, fleet.scaling.machines_min) = (Some(dollars("1")), 1);
        fleet.scaling.drain_timeout = Duration::from_secs(60);
    }));
    world.pass(5);
    world.join_all();
    world.pass(2 * 3600);
    assert_eq!((world.account.len(), world.created), (0, 1));
    change(&mut world, |fleet| fleet.day_max = Some(dollars("10")));
    world.pass(10);
    assert_eq!(world.created, 2, "{}", world.held_back());
}

fn today(world: &Rented) -> u64 {
    let settings = &world.story.settings.fleets[0];
    world.story.plane.spent_today(world.story.now, settings).as_micros()
}

/// Faults: J15. A price applies from when the provider reports it; what was spent before stays what it was.
#[test]
fn changed_price_applies_from_then_on() {
    let mut world = Rented::new(settings(|fleet| fleet.scaling.machines_min = 1));
    world.pass(3);
    world.join_all();
    world.pass(3600);
    let before = today(&world);
    world.account[0].price = Some(dollars("60"));
    world.pass(60);
    let after = today(&world);
    assert!((before..before + 1_100_000).contains(&after), "a minute at $60 an hour: {after} after {before}");
    assert_eq!(world.phases(), ["up"]);
    world.story.restart();
    world.account[0].price = Some(dollars("1"));
    world.pass(60);
    let later = today(&world);
    assert!((after..after + 1_100_000).contains(&later), "{later} after {after}");
    world.refuses = Some(ProviderError::new(ProviderErrorClass::Capacity, "none"));
    world.account.clear();
    world.story.hands.clear();
    world.pass(200);
    assert_eq!(world.phases(), Vec::<&str>::new());
    let gone = world.story.plane.fleet(&gpus()).spent.values().copied().sum::<Money>().as_micros();
    assert!((later..later + 1_100_000).contains(&gone), "{gone} after {later}");
}

/// Faults: J15. What works is not taken down because its price rose; above the operator's limit it is drained.
#[test]
fn machine_that_became_dearer_than_allowed_is_drained() {
    let (mut world, jobs) = busy(1, |fleet| fleet.price_max = Some(dollars("2")));
    world.account[0].price = Some(dollars("1.5"));
    world.pass(60);
    assert_eq!(world.phases(), ["up"]);
    world.account[0].price = Some(dollars("2.5"));
    world.pass(60);
    assert_eq!(world.phases(), ["draining"]);
    world.story.is(jobs[0], "running");
}

/// Faults: P18. The provider raised its price: what was agreed is asked for again, not refused for an hour.
#[test]
fn raised_price_of_an_offer_is_asked_for_when_a_machine_costs_more() {
    let mut world = Rented::new(settings(|fleet| fleet.price_max = Some(dollars("3"))));
    world.pass(10);
    world.price = dollars("2");
    world.jobs(1);
    for _ in 0..180 {
        world.pass(1);
        world.join_all();
    }
    assert_eq!(world.phases(), ["up"], "{}", world.held_back());
    assert!(world.created <= 3, "{} machines were needed to learn the price", world.created);
}

#[test]
fn waiting_job_says_that_its_fleet_is_scaled_to_zero() {
    let mut world = Rented::new(settings(|_| {}));
    let order = FleetOrder::Scale { machines: Some(0) };
    world.story.step(PlaneEvent::OrderFleet { fleet: gpus(), order }).unwrap();
    let job = world.jobs(1)[0];
    world.pass(5);
    let why = world.story.why(job);
    assert!(why.contains("scaled to 0 machines"), "{why}");
    assert_eq!(world.created, 0);
}

/// Faults: J4. A machine that comes up while the plane stands still is not given up for it.
#[test]
fn plane_that_was_away_gives_up_no_machine_that_is_coming_up() {
    for away in [30, 600] {
        let mut world = Rented::new(settings(|_| {}));
        world.jobs(1);
        world.pass(5);
        assert_eq!(world.phases(), ["made"]);
        world.story.be_away(away);
        world.pass(5);
        assert_eq!(world.phases(), ["made"], "away for {away} s");
        world.join_all();
        world.pass(5);
        assert_eq!(world.phases(), ["up"], "away for {away} s");
        assert_eq!(world.returned, [""; 0]);
    }
}

/// Faults: J16. What a waiting job is told about a fleet that rents nothing.
#[test]
fn fleet_that_is_scaled_to_zero_or_paused_says_so_in_the_jobs_reason() {
    for (order, told) in [
        (FleetOrder::Scale { machines: Some(0) }, "the fleet is scaled to 0 machines"),
        (FleetOrder::Pause { reason: "stocktaking".to_owned() }, "the fleet is paused: stocktaking"),
    ] {
        let mut world = Rented::new(settings(|_| {}));
        world.pass(3);
        world.story.step(PlaneEvent::OrderFleet { fleet: gpus(), order }).unwrap();
        let job = world.jobs(1)[0];
        world.pass(5);
        let why = world.story.why(job);
        assert!(why.contains(told), "{why}");
    }
}

/// Faults: J3. The provider answers first when our own link is back; the workers are on their way.
#[test]
fn first_list_after_an_outage_proves_no_death() {
    let mut world = Rented::new(settings(|_| {}));
    let jobs = world.jobs(3);
    world.pass(5);
    world.join_all();
    world.pass(60);
    world.story.are(&jobs, "running");
    let lost = || Err(ProviderError::new(ProviderErrorClass::Transient, "timed out"));
    let cut_at = world.story.now;
    for _ in 0..120 {
        world.story.wait(1);
        let calls = std::mem::take(&mut world.story.calls);
        for _ in calls.iter().filter(|(_, call)| matches!(call, ProviderCall::List)) {
            world.say(ProviderEvent::Listed { result: lost() });
        }
    }
    world.say(ProviderEvent::Listed { result: Ok(world.account.clone()) });
    world.story.wait(5);
    world.story.are(&jobs, "running");
    world.pass(60);
    world.story.are(&jobs, "running");
    assert!(jobs.iter().all(|job| world.story.kept.status(*job).attempt == Attempt(1)), "cut at {cut_at}");
}
