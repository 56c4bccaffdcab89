//! Machines that are rented and returned. The account is kept by hand: what is in it, and what its answers are.

mod keys;
mod limits;
mod odd;
mod orphans;

use std::time::Duration;

use super::*;
use crate::fleet::{FleetOrder, FleetSettings};
use crate::money::Money;
use crate::provider::{Pod, PodStatus, ProviderError, ProviderErrorClass, ProviderEvent};
use crate::rental::RentalPhase;
use crate::settings::Scaling;

fn gpus() -> FleetId {
    "gpus".parse().unwrap()
}

fn settings(change: impl FnOnce(&mut FleetSettings)) -> Settings {
    let mut fleet = FleetSettings::new(gpus(), true);
    fleet.scaling = Scaling { machines_min: 0, machines_max: 3, jobs_per_worker: 1, ..Scaling::default() };
    change(&mut fleet);
    Settings { fleets: vec![fleet], ..Settings::default() }
}

/// A story with an account at a provider.
struct Rented {
    story: Story,
    account: Vec<Pod>,
    /// Whether a creation is answered; the pod is made either way.
    loses_answers: bool,
    /// What every creation gets in place of a pod.
    refuses: Option<ProviderError>,
    /// The price of every pod and offer.
    price: Money,
    /// The host of every pod.
    host: Option<String>,
    /// What every return gets.
    refuses_returns: Option<ProviderError>,
    /// What lists show, if that is not the account.
    shows: Option<Result<Vec<Pod>, ProviderError>>,
    returned: Vec<String>,
    created: usize,
    most: usize,
}

impl Rented {
    fn new(settings: Settings) -> Rented {
        let mut story = Story::with(settings);
        story.step(PlaneEvent::NameDeployment("d0d0d0d0".to_owned())).unwrap();
        Rented {
            story,
            account: Vec::new(),
            loses_answers: false,
            refuses: None,
            price: dollars("1"),
            host: None,
            refuses_returns: None,
            shows: None,
            returned: Vec::new(),
            created: 0,
            most: 0,
        }
    }

    fn jobs(&mut self, count: usize) -> Vec<JobId> {
        (0..count).map(|_| self.story.submit("s")).collect()
    }

    /// Time passes; every call is answered at once.
    fn pass(&mut self, seconds: u64) {
        for _ in 0..seconds {
            self.story.wait(1);
            let workers: Vec<_> = self.story.hands.keys().cloned().collect();
            for worker in workers {
                drop(self.story.beat(&worker));
            }
            for (_, call) in std::mem::take(&mut self.story.calls) {
                self.answer(call);
            }
            self.most = self.most.max(self.account.len());
        }
    }

    fn answer(&mut self, call: ProviderCall) {
        let news = match call {
            ProviderCall::Rent { machine, tag, offer } => {
                let result = match &self.refuses {
                    Some(fault) => Err(fault.clone()),
                    None => {
                        self.created += 1;
                        let mut made = pod(&format!("p{}", self.created), &tag, PodStatus::Running, &offer);
                        (made.price, made.host) = (Some(self.price), self.host.clone());
                        self.account.insert(0, made.clone());
                        Ok(made)
                    }
                };
                let lost = ProviderError::new(ProviderErrorClass::Ambiguous, "connection reset");
                ProviderEvent::Rented { machine, result: if self.loses_answers { Err(lost) } else { result } }
            }
            ProviderCall::List => {
                ProviderEvent::Listed { result: self.shows.clone().unwrap_or(Ok(self.account.clone())) }
            }
            ProviderCall::Return { pod } => {
                self.returned.push(pod.to_string());
                if let Some(fault) = self.refuses_returns.clone() {
                    return self.say(ProviderEvent::Returned { pod, result: Err(fault) });
                }
                for gone in self.account.extract_if(.., |it| it.id == pod) {
                    let tag = crate::provider::PodTag::parse(&gone.tag).unwrap();
                    self.story.hands.remove(&format!("{}-{}", tag.fleet, tag.number));
                }
                ProviderEvent::Returned { pod, result: Ok(()) }
            }
            ProviderCall::Price => {
                ProviderEvent::Priced { result: Ok([("any".to_owned(), self.price)].into()) }
            }
            ProviderCall::Bootstrap { machine, .. } => {
                ProviderEvent::Bootstrapped { machine, result: Ok(()) }
            }
        };
        self.say(news);
    }

    fn say(&mut self, news: ProviderEvent) {
        self.story.step(PlaneEvent::Provider { fleet: gpus(), news: Box::new(news) }).unwrap();
    }

    /// The worker of the machine that was rented as the `n`th joins with its machine's token.
    fn join(&mut self, n: usize) -> Result<PlaneAnswer, Refusal> {
        let rental = self.story.plane.rentals().nth(n).expect("it was rented").machine.clone();
        self.join_as(rental.as_str(), JoinProof::MachineToken(rental.clone()))
    }

    fn join_as(&mut self, name: &str, proof: JoinProof) -> Result<PlaneAnswer, Refusal> {
        let join = JoinRequest {
            worker: id(name),
            machine: Some(name.parse().unwrap()),
            fleet: None,
            services: ["exec".parse().unwrap()].into(),
            slots: 1,
            slots_max: None,
            offer: Capabilities::default(),
            incarnation: None,
            stale_after_millis: None,
            nonce: None,
            process: None,
            join_number: 0,
            held: Vec::new(),
        };
        let token_hash = Hash::digest(b"token");
        let answer = self.story.step(PlaneEvent::Join { join: Box::new(join), token_hash, proof })?;
        if let PlaneAnswer::Joined(joined) = &answer {
            let hand = Hand::new(joined.incarnation, joined.term, "token");
            self.story.hands.insert(name.to_owned(), hand);
            self.story.poll(name);
        }
        Ok(answer)
    }

    fn join_all(&mut self) {
        for n in 0..self.story.plane.rentals().count() {
            drop(self.join(n));
        }
    }

    fn phases(&self) -> Vec<&'static str> {
        self.story.plane.rentals().map(|rental| rental.phase().as_str()).collect()
    }

    fn held_back(&self) -> String {
        self.story.plane.preview_cycle(self.story.now).reasons.join("\n")
    }
}

fn dollars(text: &str) -> Money {
    text.parse().unwrap()
}

fn pod(id: &str, tag: &str, status: PodStatus, offer: &str) -> Pod {
    Pod {
        id: id.parse().unwrap(),
        tag: tag.to_owned(),
        status,
        kind: if offer == "any" { String::new() } else { offer.to_owned() },
        place: String::new(),
        host: None,
        price: Some(dollars("1")),
        ssh: None,
        started: String::new(),
    }
}

#[test]
fn what_waits_is_rented_for_worked_off_and_returned() {
    let mut world = Rented::new(settings(|fleet| fleet.scaling.uptime_min = Duration::from_secs(60)));
    let jobs = world.jobs(5);
    world.pass(3);
    assert_eq!((world.created, world.phases()), (3, vec!["made"; 3]), "the maximum is three");
    let why = world.story.why(jobs[0]);
    assert!(why.starts_with("waiting for 3 machines to come up"), "{why}");
    world.join_all();
    world.pass(2);
    assert_eq!(world.phases(), ["up"; 3]);
    for job in jobs {
        world.pass(1);
        world.story.is(job, "running");
        let worker = world.story.plane.jobs.running(job).expect("a worker has it").worker;
        world.story.complete(worker.as_str(), job);
    }
    world.pass(700);
    assert_eq!((world.account.len(), world.phases()), (0, vec![]));
    assert_eq!((world.created, world.most), (3, 3));
    let spent = world.story.plane.fleet(&gpus()).spent;
    assert!(spent.values().copied().sum::<Money>() > dollars("0.3"), "{spent:?}");
}

/// Faults: P1.
#[test]
fn a_creation_whose_answer_was_lost_is_found_by_its_tag_and_not_repeated() {
    let mut world = Rented::new(settings(|_| {}));
    world.loses_answers = true;
    world.jobs(1);
    world.pass(2);
    assert_eq!((world.created, world.phases()), (1, vec!["lost"]));
    world.pass(30);
    assert_eq!((world.created, world.phases()), (1, vec!["made"]));
    world.join(0).unwrap();
    world.pass(2);
    assert_eq!((world.phases(), world.account.len()), (vec!["up"], 1));
}

#[test]
fn a_plane_that_ended_during_a_creation_looks_before_it_creates() {
    let mut world = Rented::new(settings(|_| {}));
    world.jobs(1);
    world.story.wait(1);
    world.answer(ProviderCall::List);
    world.story.wait(1);
    let rent = world.story.calls.iter().any(|(_, call)| matches!(call, ProviderCall::Rent { .. }));
    assert!(rent, "{:?}", world.story.calls);
    world.story.calls.clear();
    world.story.restart();
    assert_eq!(world.phases(), ["lost"]);
    world.pass(500);
    assert_eq!(world.created, 0, "it counts as there until it is proved that it is not");
    world.pass(200);
    assert_eq!(world.created, 1);
}

/// Faults: P3, D16. A store from yesterday, and a first list that lacks what was rented since: one list is no proof.
#[test]
fn a_plane_with_an_old_store_believes_no_single_list() {
    let mut world = Rented::new(settings(|fleet| fleet.scaling.machines_max = 1));
    world.pass(1);
    world.story.restart();
    let tag = format!("remuda-{}-gpus-forgotten", world.story.plane.deployment().unwrap());
    world.account.push(pod("p-forgotten", &tag, PodStatus::Running, "any"));
    world.jobs(1);
    world.shows = Some(Ok(Vec::new()));
    world.pass(2);
    world.shows = None;
    world.pass(30);
    assert_eq!((world.created, world.most), (0, 1), "{}", world.held_back());
}

/// It says nothing about the provider: three of them do not hold back the rest.
#[test]
fn wishes_that_were_lost_with_their_plane_are_no_failures_of_the_provider() {
    let mut world = Rented::new(settings(|fleet| fleet.limits.lost_create_timeout = Duration::from_secs(10)));
    world.jobs(5);
    world.story.wait(1);
    world.answer(ProviderCall::List);
    world.story.wait(1);
    world.story.calls.clear();
    world.story.restart();
    assert_eq!(world.phases(), ["lost"; 3]);
    world.pass(90);
    assert_eq!(world.created, 3, "{}", world.held_back());
}

/// On the line it waits on, without a beat in between.
#[test]
fn a_machine_that_is_up_gets_what_waits_at_once() {
    let mut world = Rented::new(settings(|_| {}));
    let job = world.jobs(1)[0];
    world.pass(3);
    world.join(0).unwrap();
    world.story.wait(2);
    assert_eq!(world.phases(), ["up"]);
    world.story.is(job, "running");
}

/// Faults: P3, P8.
#[test]
fn nothing_follows_from_a_list_that_fails_or_cannot_be_right() {
    let mut world = Rented::new(settings(|fleet| {
        (fleet.scaling.machines_min, fleet.scaling.machines_max) = (3, 5);
    }));
    world.pass(3);
    world.join_all();
    world.pass(120);
    assert_eq!(world.phases(), ["up"; 3]);
    world.shows = Some(Err(ProviderError::new(ProviderErrorClass::Transient, "502")));
    world.pass(3600);
    world.shows = Some(Ok(Vec::new()));
    world.jobs(20);
    world.pass(100);
    assert_eq!((world.phases(), world.created, world.returned.len()), (vec!["up"; 3], 3, 0));
    assert!(
        world.held_back().contains("most expected machines were missing from the provider's last list"),
        "{}",
        world.held_back()
    );
}

/// Faults: P2.
#[test]
fn one_that_is_missing_is_gone_after_two_lists_and_replaced() {
    let mut world = Rented::new(settings(|fleet| fleet.scaling.machines_min = 1));
    world.pass(3);
    world.shows = Some(Ok(Vec::new()));
    world.pass(50);
    assert_eq!((world.created, world.phases()), (1, vec!["made"]), "new pods may be missing for a while");
    world.pass(60);
    assert_eq!(world.created, 2);
}

/// Faults: P7.
#[test]
fn without_capacity_the_next_offer_is_taken() {
    let mut world = Rented::new(settings(|fleet| fleet.offers = vec!["4090".to_owned(), "A6000".to_owned()]));
    world.refuses =
        Some(ProviderError::new(ProviderErrorClass::Capacity, "There are no instances currently available"));
    let job = world.jobs(1)[0];
    world.pass(5);
    assert_eq!(world.phases(), Vec::<&str>::new());
    let why = world.story.why(job);
    assert!(why.contains("every offer is avoided until") && why.contains("no instances"), "{why}");
    world.refuses = None;
    world.pass(60);
    assert_eq!(world.account[0].kind, "4090", "it is asked for again after a minute");
}

/// Faults: P18.
#[test]
fn another_or_a_dearer_machine_than_ordered_goes_back_at_once() {
    for (kind, price) in [("L4", "1"), ("4090", "1.2")] {
        let mut world = Rented::new(settings(|fleet| {
            (fleet.offers, fleet.price_max) = (vec!["4090".to_owned()], Some(dollars("1")));
        }));
        world.jobs(1);
        world.pass(1);
        world.story.wait(2);
        let rent = world.story.calls.iter().find_map(|(_, call)| match call {
            ProviderCall::Rent { machine, tag, .. } => Some((machine.clone(), tag.clone())),
            _ => None,
        });
        let (machine, tag) = rent.unwrap_or_else(|| panic!("{:?}", world.held_back()));
        let wrong = Pod { price: Some(dollars(price)), ..pod("p1", &tag, PodStatus::Running, kind) };
        world.account.push(wrong.clone());
        world.story.calls.clear();
        world.say(ProviderEvent::Rented { machine, result: Ok(wrong) });
        assert_eq!(world.phases(), ["returning"], "{kind} for {price}");
        world.refuses = Some(ProviderError::new(ProviderErrorClass::Capacity, "none"));
        world.pass(60);
        assert_eq!((world.account.len(), world.returned[0].as_str()), (0, "p1"));
    }
}

/// Faults: P4.
#[test]
fn a_return_is_repeated_until_it_is_proved_and_told_about_when_it_takes_long() {
    let mut world = Rented::new(settings(|_| {}));
    world.jobs(1);
    world.pass(3);
    let immortal = world.account.clone();
    let machine = world.story.plane.rentals().next().unwrap().machine.clone();
    let reason = "a person said so".to_owned();
    world.story.step(PlaneEvent::DrainMachine { machine, reason, within: None }).unwrap();
    world.shows = Some(Ok(immortal));
    world.refuses = Some(ProviderError::new(ProviderErrorClass::Capacity, "none"));
    world.pass(700);
    assert!(world.returned.len() > 10, "{:?}", world.returned);
    assert_eq!(world.story.news("machine:alarm").len(), 1);
    assert_eq!(world.phases(), ["returning"]);
    world.shows = None;
    world.pass(40);
    assert_eq!(world.phases(), Vec::<&str>::new(), "its worker never joined: five lists prove it gone");
}

/// Faults: P10, P11.
#[test]
fn a_pod_of_ours_without_a_record_is_returned_after_a_grace_and_others_are_left_alone() {
    let mut world = Rented::new(settings(|_| {}));
    for (id, tag) in [
        ("orphan", "remuda-d0d0d0d0-gpus-zzz"),
        ("left", "remuda-d0d0d0d0-former-zzz"),
        ("theirs", "remuda-ffffffff-gpus-zzz"),
        ("foreign", "my training run"),
    ] {
        world.account.push(pod(id, tag, PodStatus::Running, "any"));
    }
    world.pass(290);
    assert_eq!(world.returned.len(), 0);
    world.pass(60);
    let mut returned = world.returned.clone();
    returned.sort();
    assert_eq!(returned, ["left", "orphan"]);
    assert_eq!(world.account.len(), 2);
}

/// Faults: P15.
#[test]
fn when_nothing_comes_up_creation_stops() {
    let mut world = Rented::new(settings(|_| {}));
    world.jobs(3);
    world.pass(305);
    assert_eq!((world.created, world.returned.len()), (3, 3), "no worker registered within five minutes");
    world.pass(30);
    assert_eq!(world.created, 3, "{}", world.held_back());
    assert!(world.held_back().contains("creation brake"), "{}", world.held_back());
    world.pass(60);
    assert_eq!(world.created, 4, "one trial");
}

/// Faults: M4, M7.
#[test]
fn a_machine_is_known_by_its_token_and_not_wanted_once_given_up() {
    let mut world = Rented::new(settings(|_| {}));
    world.jobs(1);
    world.pass(3);
    let machine = world.story.plane.rentals().next().unwrap().machine.clone();
    let name = machine.as_str();
    let stranger = world.join_as(name, JoinProof::JoinToken).unwrap_err();
    assert_eq!(stranger, Refusal::IdentityUnproven(machine.clone()));
    let other = JoinProof::MachineToken("gpus-other".parse().unwrap());
    assert_eq!(world.join_as(name, other).unwrap_err(), Refusal::IdentityUnproven(machine.clone()));
    world.join(0).unwrap();
    world.join(0).expect("the answer to its first join may have been lost");
    world.pass(2);
    let again = world.join_as(name, JoinProof::MachineToken(machine.clone())).unwrap_err();
    assert_eq!(again, Refusal::IdentityUnproven(machine.clone()), "a join token is used once");
    world.join_as(name, JoinProof::PreviousToken(Hash::digest(b"token"))).unwrap();
    let reason = "enough".to_owned();
    world.story.step(PlaneEvent::Leave { worker: id(name), token_hash: None, reason }).unwrap();
    assert_eq!(world.phases(), ["returning"]);
    let late = world.join_as(name, JoinProof::PreviousToken(Hash::digest(b"token"))).unwrap_err();
    assert_eq!(late, Refusal::MachineRetired(machine.clone()));
    world.pass(90);
    let later = world.join_as(name, JoinProof::MachineToken(machine.clone())).unwrap_err();
    assert_eq!(later, Refusal::MachineRetired(machine), "nor when it is forgotten");
}

#[test]
fn no_more_is_rented_than_the_hour_allows_and_the_day_ends_it() {
    let mut world = Rented::new(settings(|fleet| {
        (fleet.hour_max, fleet.day_max) = (Some(dollars("2")), Some(dollars("5")));
        fleet.scaling.machines_min = 3;
    }));
    world.pass(5);
    assert_eq!(world.created, 2, "{}", world.held_back());
    assert!(world.held_back().contains("$2.00 an hour of $2.00 are in use"), "{}", world.held_back());
    world.join_all();
    world.pass(3 * 3600);
    let spent = world.story.plane.spent_today(world.story.now, &world.story.settings.fleets[0]);
    assert!(spent <= dollars("5") && spent > dollars("4"), "{spent}");
    assert_eq!((world.account.len(), world.created), (0, 2));
    world.pass(3600);
    assert_eq!(world.created, 2, "what was kept for the draining is not spent again");
}

#[test]
fn what_people_order_comes_before_what_the_queue_wants() {
    let mut world = Rented::new(settings(|_| {}));
    let order = |world: &mut Rented, order| {
        world.story.step(PlaneEvent::OrderFleet { fleet: gpus(), order }).unwrap()
    };
    order(&mut world, FleetOrder::Pause { reason: "audit".to_owned() });
    world.jobs(3);
    world.pass(60);
    assert_eq!(world.created, 0);
    assert!(world.held_back().contains("the fleet is paused: audit"), "{}", world.held_back());
    order(&mut world, FleetOrder::Resume);
    order(&mut world, FleetOrder::Scale { machines: Some(1) });
    world.pass(60);
    assert_eq!(world.created, 1);
    order(&mut world, FleetOrder::Scale { machines: None });
    world.pass(5);
    assert_eq!(world.created, 3);
    let unknown = PlaneEvent::OrderFleet { fleet: "other".parse().unwrap(), order: FleetOrder::Resume };
    assert!(matches!(world.story.step(unknown), Err(Refusal::UnknownFleet(_))));
}

#[test]
fn machines_of_old_settings_are_replaced_one_by_one() {
    let mut world = Rented::new(settings(|fleet| fleet.scaling.machines_min = 2));
    world.pass(3);
    world.join_all();
    world.pass(3);
    let mut changed = world.story.settings.clone();
    changed.fleets[0].revision = "new image".to_owned();
    world.story.settings = changed.clone();
    world.story.step(PlaneEvent::ReloadSettings(Box::new(changed))).unwrap();
    let mut fewest = usize::MAX;
    for _ in 0..200 {
        world.pass(1);
        world.join_all();
        let up = world.story.plane.rentals().filter(|rental| rental.phase() == RentalPhase::Up).count();
        fewest = fewest.min(up);
    }
    let revisions: Vec<_> = world.story.plane.rentals().map(|rental| rental.revision.as_str()).collect();
    assert_eq!(revisions, ["new image"; 2]);
    assert_eq!((fewest, world.most, world.created), (2, 3, 4), "never fewer than wanted, one more meanwhile");
}

#[test]
fn a_dropped_line_has_the_provider_asked_and_a_dead_machine_costs_no_lease() {
    let mut world = Rented::new(settings(|_| {}));
    let job = world.jobs(1)[0];
    world.pass(3);
    world.join_all();
    world.pass(3);
    world.story.is(job, "running");
    let name = world.story.plane.rentals().next().unwrap().machine.to_string();
    world.account[0].status = PodStatus::Stopped;
    world.story.poll(&name);
    world.story.drop_line(&name).unwrap();
    world.story.hands.remove(&name);
    world.pass(8);
    world.story.is(job, "queued");
    assert_eq!(world.story.presence(&name), Presence::Online, "its silence was not waited for");
}
