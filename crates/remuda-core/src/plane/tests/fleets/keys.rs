//! A provider that refuses the API key: once by mistake, or for good.

use super::*;

fn refused() -> ProviderError {
    ProviderError::new(ProviderErrorClass::Auth, "401 Unauthorized")
}

/// Two idle machines, and one that is being returned. The provider answers the next list with `shows`.
fn returning(shows: Option<Result<Vec<Pod>, ProviderError>>) -> Rented {
    let mut world = Rented::new(settings(|fleet| {
        (fleet.scaling.machines_min, fleet.scaling.machines_max) = (3, 5);
    }));
    world.pass(3);
    world.join_all();
    world.pass(120);
    assert_eq!(world.phases(), ["up"; 3]);
    world.shows = shows;
    let machine = world.story.plane.rentals().next().unwrap().machine.clone();
    let reason = "enough".to_owned();
    world.story.step(PlaneEvent::DrainMachine { machine, reason, within: None }).unwrap();
    world
}

/// Faults: J16.
#[test]
fn single_refusal_of_the_key_stops_nothing() {
    let mut world = returning(None);
    world.say(ProviderEvent::Listed { result: Err(refused()) });
    world.pass(3);
    assert!(!world.returned.is_empty(), "{:?}", world.phases());
    world.pass(20);
    assert_eq!(world.created, 4, "the minimum is three: {}", world.held_back());
    assert_eq!(world.story.plane.fleet_problem(world.story.now, &gpus()), None);
}

/// Faults: J16. Calls that were under way together fail together: that is one refusal, not two.
#[test]
fn calls_refused_together_are_one_refusal() {
    let mut world = returning(None);
    world.say(ProviderEvent::Listed { result: Err(refused()) });
    world.say(ProviderEvent::Priced { result: Err(refused()) });
    world.say(ProviderEvent::Returned { pod: "p9".parse().unwrap(), result: Err(refused()) });
    assert_eq!(world.story.plane.fleet_problem(world.story.now, &gpus()), None);
    world.pass(20);
    assert_eq!((world.returned.is_empty(), world.created), (false, 4), "{}", world.held_back());
}

/// Faults: J16, P9.
#[test]
fn confirmed_refusal_stops_creations_and_no_returns() {
    let mut world = returning(Some(Err(refused())));
    (world.refuses, world.refuses_returns) = (Some(refused()), Some(refused()));
    world.pass(60);
    assert!(!world.returned.is_empty(), "a return is tried whatever else is refused");
    let job = world.jobs(3)[2];
    world.pass(60);
    assert_eq!(world.created, 3, "{}", world.held_back());
    let problem = world.story.plane.fleet_problem(world.story.now, &gpus()).expect("it is refused");
    assert!(problem.contains("401 Unauthorized"), "{problem}");
    assert!(world.held_back().contains("401 Unauthorized"), "{}", world.held_back());
    let why = world.story.why(job);
    assert!(why.contains("401 Unauthorized"), "{why}");
    (world.shows, world.refuses, world.refuses_returns) = (None, None, None);
    world.pass(200);
    assert_eq!(world.story.plane.fleet_problem(world.story.now, &gpus()), None);
    assert_eq!(world.created, 4, "the key works again: {}", world.held_back());
}

/// Faults: J16. An idle fleet says so, too: its next machine would not come.
#[test]
fn refused_key_is_named_before_anything_is_wanted() {
    let mut world = Rented::new(settings(|_| {}));
    world.pass(60);
    world.shows = Some(Err(refused()));
    world.pass(120);
    assert!(world.held_back().contains("401 Unauthorized"), "{}", world.held_back());
}

/// Faults: P9. A key that may list and may not create is no reason to call every second.
#[test]
fn key_that_may_only_read_causes_no_storm_of_creations() {
    let mut world = Rented::new(settings(|_| {}));
    world.refuses = Some(ProviderError::new(ProviderErrorClass::Auth, "403 Forbidden"));
    world.jobs(1);
    let mut requests = 0;
    for _ in 0..600 {
        world.story.wait(1);
        for (_, call) in std::mem::take(&mut world.story.calls) {
            requests += usize::from(matches!(call, ProviderCall::Rent { .. }));
            world.answer(call);
        }
    }
    assert!((3..12).contains(&requests), "{requests} requests in ten minutes");
}
