//! What looks like proof and is none. Each of these was found by a world of the simulator.

use super::*;

/// Faults: P2.
#[test]
fn a_pod_that_was_just_made_is_not_gone_because_neither_lists_nor_its_return_know_it() {
    let mut world = Rented::new(settings(|fleet| fleet.scaling.machines_min = 1));
    world.pass(3);
    let machine = world.story.plane.rentals().next().unwrap().machine.clone();
    world
        .story
        .step(PlaneEvent::DrainMachine { machine, reason: "enough".to_owned(), within: None })
        .unwrap();
    world.refuses = Some(ProviderError::new(ProviderErrorClass::Capacity, "none"));
    world.shows = Some(Ok(Vec::new()));
    world.pass(40);
    assert_eq!(world.phases(), ["returning"], "it counts until it could have been seen");
    world.pass(60);
    assert_eq!(world.phases(), Vec::<&str>::new());
}

/// Faults: P2, P10.
#[test]
fn unknown_pod_counts_until_five_lists_lack_it() {
    let mut both = settings(|fleet| {
        (fleet.scaling.machines_max, fleet.hour_max) = (2, Some(dollars("1.5")));
    });
    both.fleets.push(FleetSettings { id: "others".parse().unwrap(), ..both.fleets[0].clone() });
    both.fleets[1].scaling.machines_max = 0;
    let mut world = Rented::new(both);
    world.account.push(pod("orphan", "remuda-d0d0d0d0-gpus-zzz", PodStatus::Running, "any"));
    world.pass(3);
    world.jobs(5);
    world.pass(3);
    assert_eq!(world.created, 0, "it costs as much as any other: {}", world.held_back());
    for _ in 0..4 {
        world.say(ProviderEvent::Listed { result: Ok(Vec::new()) });
    }
    world.pass(1);
    assert_eq!(world.created, 0, "nothing but lists tells of it, and four may be wrong");
    world.account.clear();
    let other: FleetId = "others".parse().unwrap();
    for _ in 0..90 {
        world.pass(1);
        let news = Box::new(ProviderEvent::Listed { result: Ok(Vec::new()) });
        world.story.step(PlaneEvent::Provider { fleet: other.clone(), news }).unwrap();
    }
    assert_eq!(world.created, 1, "what another fleet lists in between does not count");
}

/// Faults: P10, P18.
#[test]
fn unknown_pod_without_price_costs_as_its_kind() {
    let mut world = Rented::new(settings(|fleet| {
        (fleet.scaling.machines_max, fleet.hour_max) = (2, Some(dollars("1.5")));
    }));
    let silent = Pod { price: None, ..pod("orphan", "remuda-d0d0d0d0-gpus-zzz", PodStatus::Running, "any") };
    world.account.push(silent);
    world.pass(3);
    world.jobs(5);
    world.pass(3);
    assert_eq!(world.created, 0, "{}", world.held_back());
}

/// Faults: P2, P10.
#[test]
fn orphan_grace_survives_flaky_lists() {
    let mut world = Rented::new(settings(|_| {}));
    world.account.push(pod("orphan", "remuda-d0d0d0d0-gpus-zzz", PodStatus::Running, "any"));
    world.pass(10);
    for _ in 0..40 {
        for _ in 0..3 {
            world.say(ProviderEvent::Listed { result: Ok(Vec::new()) });
        }
        world.pass(10);
    }
    assert_eq!(world.returned, ["orphan"]);
}

/// Faults: M6.
#[test]
fn a_worker_gets_nothing_before_it_has_said_that_it_can_work() {
    let mut world = Rented::new(settings(|_| {}));
    let job = world.jobs(1)[0];
    world.pass(3);
    let rental = world.story.plane.rentals().next().unwrap().machine.clone();
    let join = JoinRequest {
        worker: id(rental.as_str()),
        machine: Some(rental.clone()),
        fleet: None,
        services: ["exec".parse().unwrap()].into(),
        slots: 1,
        slots_max: None,
        offer: Capabilities::default(),
        incarnation: None,
        held: Vec::new(),
        nonce: None,
        process: None,
        join_number: 0,
        stale_after_millis: None,
    };
    let token_hash = Hash::digest(b"token");
    let proof = JoinProof::MachineToken(rental);
    world.story.step(PlaneEvent::Join { join: Box::new(join), token_hash, proof }).unwrap();
    world.story.wait(5);
    assert_eq!(world.phases(), ["made"], "it may be loading its models");
    world.story.is(job, "queued");
}

/// Faults: M5.
#[test]
fn a_host_that_gave_a_bad_machine_does_not_speak_against_one_that_works_there() {
    let mut world = Rented::new(settings(|fleet| fleet.scaling.machines_min = 2));
    world.pass(3);
    world.account.iter_mut().for_each(|pod| pod.host = Some("host-1".to_owned()));
    world.join(0).unwrap();
    world.pass(60);
    assert_eq!(world.phases(), ["up", "made"]);
    world.refuses = Some(ProviderError::new(ProviderErrorClass::Capacity, "none"));
    world.pass(400);
    assert_eq!(world.phases(), ["up"], "no worker registered on the other");
}

/// Faults: M4, P10.
#[test]
fn worker_of_retired_machine_is_told_to_stop() {
    let mut world = Rented::new(settings(|_| {}));
    let machine: MachineId = "gpus-before".parse().unwrap();
    let join = JoinRequest {
        worker: id("gpus-before"),
        machine: Some(machine.clone()),
        fleet: Some(gpus()),
        services: ["exec".parse().unwrap()].into(),
        slots: 1,
        slots_max: None,
        offer: Capabilities::default(),
        incarnation: None,
        held: Vec::new(),
        nonce: None,
        process: None,
        join_number: 0,
        stale_after_millis: None,
    };
    let token_hash = Hash::digest(b"new");
    let proof = JoinProof::PreviousToken(Hash::digest(b"token"));
    let refusal = world.story.step(PlaneEvent::Join { join: Box::new(join), token_hash, proof }).unwrap_err();
    assert_eq!(refusal, Refusal::MachineRetired(machine), "its pod is swept up: nothing must be begun there");
}

/// Faults: P7, P15.
#[test]
fn money_that_was_counted_for_one_offer_does_not_pay_for_a_dearer_one() {
    let mut world = Rented::new(settings(|fleet| {
        (fleet.scaling.machines_min, fleet.hour_max) = (2, Some(dollars("2.5")));
        fleet.offers = vec!["cheap".to_owned(), "dear".to_owned()];
    }));
    world.pass(2);
    let prices = [("cheap".to_owned(), dollars("1")), ("dear".to_owned(), dollars("2"))].into();
    world.say(ProviderEvent::Priced { result: Ok(prices) });
    world.pass(3);
    world.join(0).unwrap();
    world.pass(320);
    let kinds: Vec<_> = world.account.iter().map(|pod| pod.kind.as_str()).collect();
    assert_eq!(
        kinds,
        ["cheap"],
        "no worker registered on the second, and an expensive one beside the first exceeds the budget"
    );
}

/// Faults: P15.
#[test]
fn a_trial_that_fails_is_not_followed_by_another_in_the_same_cycle() {
    let mut world = Rented::new(settings(|_| {}));
    world.jobs(3);
    world.pass(400);
    assert_eq!(world.created, 4, "three came to nothing, one is tried: {}", world.held_back());
    world.pass(300);
    assert_eq!((world.created, world.account.len()), (4, 0), "it came to nothing, too");
    assert!(world.held_back().contains("creation brake until"), "{}", world.held_back());
}

/// Faults: P8.
#[test]
fn a_price_that_a_budget_waits_for_is_asked_for_again_soon() {
    let mut world = Rented::new(settings(|fleet| fleet.hour_max = Some(dollars("2"))));
    world.jobs(1);
    world.story.wait(1);
    world.story.calls.clear();
    world.say(ProviderEvent::Listed { result: Ok(Vec::new()) });
    world
        .say(ProviderEvent::Priced { result: Err(ProviderError::new(ProviderErrorClass::Transient, "502")) });
    world.story.wait(30);
    assert!(world.held_back().contains("is unknown, and a budget is set"), "{}", world.held_back());
    world.pass(60);
    assert_eq!(world.created, 1);
}

#[test]
fn a_machine_that_never_comes_up_ends_with_the_money_of_the_day() {
    let mut world = Rented::new(settings(|fleet| {
        (fleet.scaling.machines_min, fleet.day_max) = (1, Some(dollars("0.5")));
        fleet.scaling.spawning_timeout = Duration::from_secs(7200);
    }));
    world.pass(3000);
    assert_eq!((world.created, world.account.len()), (1, 0), "{}", world.held_back());
    let spent = world.story.plane.spent_today(world.story.now, &world.story.settings.fleets[0]);
    assert!(spent <= dollars("0.5"), "{spent}");
}

#[test]
fn a_fleet_that_was_taken_out_of_the_settings_gives_back_what_it_has() {
    for restarts in [false, true] {
        let mut world = Rented::new(settings(|fleet| fleet.scaling.machines_min = 2));
        world.pass(3);
        world.join_all();
        world.pass(3);
        assert_eq!(world.phases(), ["up"; 2]);
        world.story.settings = Settings::default();
        if restarts {
            world.story.restart();
        } else {
            world.story.step(PlaneEvent::ReloadSettings(Box::default())).unwrap();
        }
        world.pass(180);
        assert_eq!(
            (world.account.len(), world.phases(), world.created),
            (0, vec![], 2),
            "restarts: {restarts}"
        );
    }
}

/// Faults: M5, P16. A host that once gave a bad machine, and the provider gives no other: a trial finds out.
#[test]
fn host_that_was_bad_once_is_not_avoided_for_ever() {
    let mut world = Rented::new(settings(|fleet| {
        (fleet.scaling.machines_min, fleet.scaling.machines_max) = (1, 1);
    }));
    world.host = Some("host-1".to_owned());
    world.pass(400);
    assert!(world.created > 1, "no worker registered on the first");
    for _ in 0..30 * 60 {
        world.pass(1);
        world.join_all();
    }
    assert_eq!(world.phases(), ["up"], "after {} machines: {}", world.created, world.held_back());
}
