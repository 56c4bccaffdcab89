//! Pods of ours without a record: their age and their cost outlive the plane that found them.

use super::*;

fn orphaned(configure: impl FnOnce(&mut FleetSettings)) -> Rented {
    orphaned_in(settings(configure))
}

fn orphaned_in(settings: Settings) -> Rented {
    let mut world = Rented::new(settings);
    world.account.push(pod("orphan", "remuda-d0d0d0d0-gpus-zzz", PodStatus::Running, "any"));
    world
}

/// Faults: J17, P10.
#[test]
fn orphan_keeps_its_age_over_restarts() {
    let mut world = orphaned(|_| {});
    for _ in 0..60 {
        world.pass(6);
        world.story.restart();
    }
    world.pass(10);
    assert_eq!(world.returned.first().map(String::as_str), Some("orphan"), "six minutes of age");
    assert_eq!(world.account.len(), 0);
}

/// Faults: J17.
#[test]
fn orphan_counts_in_what_the_day_has_cost() {
    let mut world = orphaned(|fleet| fleet.limits.orphan_grace = Duration::from_secs(3600));
    for _ in 0..6 {
        world.pass(300);
        world.story.restart();
    }
    world.pass(10);
    let today = |world: &Rented| {
        let settings = &world.story.settings.fleets[0];
        world.story.plane.spent_today(world.story.now, settings).as_micros()
    };
    assert!((450_000..550_000).contains(&today(&world)), "half an hour at $1: {}", today(&world));
    world.account.clear();
    world.pass(120);
    let kept = today(&world);
    assert!((450_000..550_000).contains(&kept), "and when it is gone: {kept}");
    let window = crate::cost::CostWindow { from: Timestamp::ZERO, until: world.story.now };
    let spent = world.story.plane.spent(&gpus(), window, world.story.now).as_micros();
    assert_eq!(spent, kept);
}

/// Faults: J17. The daily budget pays for orphans, too.
#[test]
fn orphan_uses_up_the_daily_budget() {
    let mut world = orphaned(|fleet| {
        fleet.limits.orphan_grace = Duration::from_secs(24 * 3600);
        (fleet.day_max, fleet.scaling.drain_timeout) = (Some(dollars("1")), Duration::from_secs(60));
    });
    world.pass(3600);
    world.jobs(1);
    world.pass(60);
    assert_eq!(world.created, 0, "{}", world.held_back());
}

/// Faults: P3, D16, J17. Two fleets share an account, and the store is from yesterday: what the list of one shows of the
/// other exists, even if the other's own first lists lack it.
#[test]
fn orphan_in_the_list_of_another_fleet_takes_its_place() {
    let mut settings = settings(|fleet| fleet.scaling.machines_max = 1);
    let mut other = FleetSettings::new("small".parse().unwrap(), true);
    other.scaling = Scaling { machines_min: 0, machines_max: 0, ..Scaling::default() };
    settings.fleets.push(other);
    let mut world = orphaned_in(settings);
    world.story.restart();
    world.jobs(1);
    let shown = ProviderEvent::Listed { result: Ok(world.account.clone()) };
    let fleet = "small".parse().unwrap();
    world.story.step(PlaneEvent::Provider { fleet, news: Box::new(shown) }).unwrap();
    let rents = |world: &Rented| {
        world.story.calls.iter().filter(|(_, call)| matches!(call, ProviderCall::Rent { .. })).count()
    };
    for _ in 0..4 {
        world.say(ProviderEvent::Listed { result: Ok(Vec::new()) });
        world.story.wait(2);
        assert_eq!(rents(&world), 0, "{}", world.held_back());
    }
    world.say(ProviderEvent::Listed { result: Ok(Vec::new()) });
    world.story.wait(2);
    assert_eq!(rents(&world), 1, "five lists of its own lack it: {}", world.held_back());
    let shown = ProviderEvent::Listed { result: Ok(world.account.clone()) };
    let fleet = "small".parse().unwrap();
    world.story.step(PlaneEvent::Provider { fleet, news: Box::new(shown) }).unwrap();
    assert!(world.story.plane.fleet(&gpus()).orphans.is_empty(), "its own lists know better by now");
}

/// Faults: P2, J17. Only lists tell of a machine whose worker has not joined: two of them may be wrong.
#[test]
fn machine_that_has_not_joined_counts_until_five_lists_lack_it() {
    let mut world = Rented::new(settings(|fleet| {
        (fleet.scaling.machines_min, fleet.scaling.machines_max) = (1, 1);
        fleet.limits.list_lag_max = Duration::from_secs(10);
    }));
    world.pass(60);
    assert_eq!(world.phases(), ["made"]);
    for _ in 0..4 {
        world.say(ProviderEvent::Listed { result: Ok(Vec::new()) });
    }
    world.story.wait(1);
    assert_eq!(world.phases(), ["made"], "four lists may be wrong");
    world.say(ProviderEvent::Listed { result: Ok(Vec::new()) });
    world.story.wait(1);
    assert_ne!(world.phases(), ["made"]);
}
