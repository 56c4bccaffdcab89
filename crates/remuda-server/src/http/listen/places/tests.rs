//! Stories about who gets a place.

use remuda_config::ResolvedConfig;

use super::shares::UNPROVEN_MAX;
use super::*;

fn places(clients: usize, workers: usize, per_address: usize) -> ConnectionPlaces {
    let mut serve = ResolvedConfig::defaults("/nowhere".into()).serve;
    (serve.connections_max, serve.worker_connections_max) = (clients, workers);
    serve.access.connections_per_address_max = per_address;
    ConnectionPlaces::new(&serve)
}

fn address(last: u32) -> IpAddr {
    IpAddr::V4(std::net::Ipv4Addr::from_bits((10 << 24) + last))
}

fn worker(number: u32) -> ConnectionClass {
    ConnectionClass::Worker(Some(Hash::digest(&number.to_le_bytes())))
}

/// Faults: C20, X13.
#[test]
fn idle_flood_of_one_address_closes_its_own_connections() {
    let places = places(4, 4, 5000);
    let honest = places.enter(address(1));
    let flood: Vec<_> = (0..3 * UNPROVEN_MAX).map(|_| places.enter(address(2))).collect();
    assert!(!honest.end.is_cut(), "a single connection is not the one to go");
    let cut = flood.iter().filter(|place| place.end.is_cut()).count();
    assert_eq!(cut, 2 * UNPROVEN_MAX + 1);
    assert!(flood[..cut].iter().all(|place| place.end.is_cut()), "the oldest go first");
    let status = places.status();
    assert_eq!(status["without_request"], json!({ "open": UNPROVEN_MAX, "max": UNPROVEN_MAX }));
    assert_eq!(status["refused"]["without_request"], json!(cut));
    honest.claim(worker(1)).unwrap();
}

/// Faults: C20, X13.
#[test]
fn clients_never_take_the_places_of_workers_and_admins() {
    let places = places(3, 2, 0);
    let clients: Vec<_> = (0..4).map(|n| places.enter(address(n))).collect();
    let claimed: Vec<_> = clients.iter().map(|place| place.claim(ConnectionClass::Client)).collect();
    assert_eq!(claimed, [Ok(()), Ok(()), Ok(()), Err(NoPlace::Clients)]);
    let answer = ApiError::from(NoPlace::Clients);
    assert_eq!((answer.status.as_u16(), answer.code), (503, "connections_full"));
    assert_eq!(places.status()["refused"]["clients"], 1);

    let (first, second, third) =
        (places.enter(address(9)), places.enter(address(9)), places.enter(address(9)));
    first.claim(worker(1)).unwrap();
    second.claim(worker(2)).unwrap();
    assert_eq!(third.claim(worker(3)), Err(NoPlace::Workers));
    third.claim(ConnectionClass::Admin).unwrap();
    clients[3].claim(ConnectionClass::Admin).unwrap();

    clients[0].leave();
    clients[0].leave();
    assert_eq!(places.enter(address(9)).claim(ConnectionClass::Client), Ok(()));
    assert_eq!(places.status()["clients"]["open"], 3);
}

/// Faults: X13.
#[test]
fn clients_of_an_address_are_limited_and_its_workers_are_not() {
    let places = places(100, 100, 2);
    let [a, b, c] = [1, 1, 1].map(|n| places.enter(address(n)));
    a.claim(ConnectionClass::Client).unwrap();
    b.claim(ConnectionClass::Client).unwrap();
    assert_eq!(c.claim(ConnectionClass::Client), Err(NoPlace::OfAddress));
    places.enter(address(2)).claim(ConnectionClass::Client).unwrap();
    let workers: Vec<_> = (0..10).map(|n| (n, places.enter(address(1)))).collect();
    for (number, place) in &workers {
        place.claim(worker(*number)).unwrap();
    }
    c.claim(worker(11)).unwrap();
    a.leave();
    places.enter(address(1)).claim(ConnectionClass::Client).unwrap();
}

/// Faults: X13. A hostile worker cannot take the places of the others.
#[test]
fn connections_of_one_worker_are_limited() {
    let places = places(4, 1000, 0);
    let greedy: Vec<_> = (0..=PER_WORKER_MAX).map(|_| places.enter(address(1))).collect();
    let refused = greedy.iter().filter(|place| place.claim(worker(1)).is_err()).count();
    assert_eq!(refused, 1);
    places.enter(address(1)).claim(worker(2)).unwrap();
}

/// Faults: X13. An invented credential is known as such only when the plane has looked for its worker.
#[test]
fn disproved_worker_gives_its_place_back() {
    let places = places(4, 1, 0);
    let liar = places.enter(address(1));
    liar.claim(worker(1)).unwrap();
    liar.disprove();
    places.enter(address(2)).claim(worker(2)).unwrap();
    assert_eq!(places.status()["without_request"]["open"], 1);
    liar.leave();
    assert_eq!(places.status()["without_request"]["open"], 0);
}

/// Faults: C20. Too few open files shrink every share, and none to nothing.
#[test]
fn shares_fit_the_limit_of_open_files() {
    let serve = ResolvedConfig::defaults("/nowhere".into()).serve;
    let carried = |files| ConnectionShares::new(&serve, files);
    assert!(carried(None).workers >= 10_000, "5,000 workers with two connections each");
    assert!(carried(Some(20_000)) == carried(None), "a hard limit of 20,000 is enough for the defaults");
    let few = carried(Some(1024));
    assert!(few.total() <= 512 + 8 && few.workers > few.clients && few.clients > 0, "{few:?}");
    assert!(carried(Some(16)).admins > 0);
}
