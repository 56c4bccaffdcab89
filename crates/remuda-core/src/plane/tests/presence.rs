//! Who is heard, who is doubted, who is gone, and how that is remembered: with the defaults, in virtual time.

use super::*;
use crate::fleet::FleetSettings;
use crate::wire::StartCheck;

fn lasts(story: &Story, name: &str) -> (u64, u64) {
    let worker = story.plane.worker(&id(name)).expect("it has joined");
    let settings = story.plane.settings();
    (worker.beat_idle(settings).as_secs(), worker.stale_after(settings).as_secs())
}

/// Faults: A2, M1.
#[test]
fn an_idle_worker_whose_line_drops_gets_no_work_and_is_stale_after_90_seconds() {
    let mut story = Story::new();
    story.join("a");
    story.work_to(100, &["a"]);
    story.news("");
    story.drop_line("a").unwrap();
    assert_eq!(story.presence("a"), Presence::Online);
    let job = story.submit("s");
    story.is(job, "queued");
    story.to(189);
    assert_eq!((story.presence("a"), story.news("machine:")), (Presence::Suspect, Vec::new()));
    story.to(190);
    assert_eq!(
        (story.presence("a"), story.news("machine:")),
        (Presence::Offline, vec!["machine:state a".to_owned()])
    );
    let worker = story.plane.worker(&id("a")).unwrap();
    assert_eq!(
        (worker.watch.seen_at(), worker.counts.went_stale),
        (secs(100), 1),
        "a verdict is no sign of life"
    );
    assert_eq!(story.kept.workers[&id("a")].seen_at, secs(100));
}

/// Faults: A2.
#[test]
fn a_busy_worker_whose_line_drops_is_judged_by_its_lease() {
    let mut story = Story::new();
    story.join("a");
    story.join("b");
    let job = story.submit("s");
    story.work_to(100, &["a", "b"]);
    story.is(job, "running on a, attempt 1");
    story.drop_line("a").unwrap();
    story.beat_to(108, &["b"]);
    assert_eq!(story.presence("a"), Presence::Suspect, "a beat is missing, and its line was closed");
    story.beat_to(129, &["b"]);
    story.is(job, "running on a, attempt 1");
    story.beat_to(135, &["b"]);
    story.is(job, "running on b, attempt 2");
    assert_eq!(story.presence("a"), Presence::Offline);
}

#[test]
fn a_line_that_drops_between_two_beats_costs_nothing() {
    let mut story = Story::new();
    story.join("a");
    let job = story.submit("s");
    story.work_to(50, &["a"]);
    story.drop_line("a").unwrap();
    story.poll("a");
    assert_eq!(story.presence("a"), Presence::Online);
    story.work_to(400, &["a"]);
    story.is(job, "running on a, attempt 1");
}

#[test]
fn silence_is_measured_as_the_worker_its_fleet_or_the_plane_says() {
    let mut fleet = FleetSettings::new("slow".parse().unwrap(), false);
    fleet.stale_after = Some(Duration::from_secs(600));
    let mut story = Story::with(Settings { fleets: vec![fleet], ..Settings::default() });
    story.join("plain");
    story.join_with("of-fleet", |join| join.fleet = Some("slow".parse().unwrap()));
    for (name, millis) in [("own", 30_000), ("hasty", 1), ("patient", u64::MAX)] {
        story.join_with(name, |join| {
            join.fleet = Some("slow".parse().unwrap());
            join.stale_after_millis = Some(millis);
        });
    }
    let all = |story: &Story| ["plain", "of-fleet", "own", "hasty", "patient"].map(|name| lasts(story, name));
    assert_eq!(all(&story), [(30, 90), (30, 600), (10, 30), (0, 1), (30, 86_400)]);
    story.restart();
    assert_eq!(all(&story), [(30, 90), (30, 600), (10, 30), (0, 1), (30, 86_400)]);
    // Only one in a while, or the brake would think it is our own link.
    let gone = |story: &Story, name| story.presence(name) == Presence::Offline;
    story.beat_to(29, &["plain", "of-fleet", "hasty", "patient"]);
    assert!(!gone(&story, "own"));
    story.beat_to(35, &["plain", "of-fleet", "hasty", "patient"]);
    assert!(gone(&story, "own"));
}

#[test]
fn join_reply_contains_silence_limit() {
    let mut story = Story::new();
    let join = r#"{"worker":"a","services":["exec"],"stale_after_millis":6000}"#;
    let join = Box::new(serde_json::from_str(join).unwrap());
    let event = PlaneEvent::Join { join, token_hash: Hash::digest(b"t"), proof: JoinProof::JoinToken };
    let Ok(PlaneAnswer::Joined(joined)) = story.step(event) else { panic!("anyone may join") };
    assert_eq!((joined.stale_after_millis, joined.beat_idle_millis), (6000, 2000));
}

/// Faults: N4.
#[test]
fn a_beat_that_was_overtaken_by_its_workers_goodbye_does_not_revive_it() {
    let mut story = Story::new();
    story.join("a");
    let late = story.beat_of("a");
    let token_hash = Some(Hash::digest(b"token"));
    story.step(PlaneEvent::Leave { worker: id("a"), token_hash, reason: "stopped".to_owned() }).unwrap();
    assert_eq!(story.send("a", late, false).unwrap_err(), Refusal::UnknownWorker(id("a")));
    assert_eq!(story.presence("a"), Presence::Offline);
    story.join("a");
    assert_eq!(story.presence("a"), Presence::Online);
}

/// Faults: A3, N4.
#[test]
fn late_beat_of_old_incarnation_revives_no_worker() {
    let mut story = Story::new();
    story.join("a");
    let late = story.beat_of("a");
    story.join("a");
    story.to(200);
    assert_eq!(story.presence("a"), Presence::Offline);
    let token_hash = Hash::digest(b"token");
    let beat = PlaneEvent::Beat { worker: id("a"), token_hash, beat: Box::new(late), long_poll: false };
    let refused = Refusal::StaleIncarnation { current: Incarnation(2) };
    assert_eq!(story.step(beat).unwrap_err(), refused);
    assert_eq!(story.presence("a"), Presence::Offline);
    assert_eq!(story.plane.worker(&id("a")).unwrap().watch.seen_at(), secs(0));
}

/// The machine is up as long as one of the two is.
#[test]
fn flapping_alert_is_hourly_across_restarts() {
    let mut story = Story::new();
    story.join_bystander();
    let machine: MachineId = "box".parse().unwrap();
    story.join_with("a", |join| join.machine = Some("box".parse().unwrap()));
    story.join_with("b", |join| join.machine = Some("box".parse().unwrap()));
    let mut told = Vec::new();
    for round in 1..=8 {
        // Longer than a lease between them: one at a time is no mass loss.
        story.beat_to(round * 400 - 200, &["b", "z"]);
        if round > 4 {
            story.beat_to(round * 400 - 50, &["z"]);
            told.extend(story.news("machine:un"));
        } else {
            told.extend(story.news("worker:un"));
        }
        story.restart();
        story.poll("a");
        story.poll("b");
        story.poll("z");
    }
    assert_eq!(told, ["worker:unreliable a", "machine:unreliable"]);
    let worker = story.plane.worker(&id("a")).unwrap();
    assert_eq!((worker.counts.went_stale, worker.reliability.summary(story.now).hour.went_stale), (8, 8));
    let summary = story.plane.machine_reliability(&machine).unwrap().summary(story.now);
    assert_eq!(summary.hour.went_stale, 4, "while b was heard, the machine was");
    assert!(summary.hour.uptime > worker.reliability.summary(story.now).hour.uptime);
    assert_eq!(story.plane.unreliable_workers(story.now).collect::<Vec<_>>(), [&id("a"), &id("b")]);
    assert_eq!(story.plane.unreliable_machines(story.now).collect::<Vec<_>>(), [&machine]);
}

#[test]
fn a_machine_is_remembered_as_long_as_any_of_its_workers() {
    let mut story = Story::new();
    for machine in ["old", "new"] {
        story.join_with("a", |join| join.machine = Some(machine.parse().unwrap()));
    }
    assert_eq!(story.news("machine:"), ["machine:state a", "machine:state", "machine:state a"]);
    story.work_to(100, &["a"]);
    let kept =
        |story: &Story| story.kept.on(Collection::Reliability).map(|it| it.id.clone()).collect::<Vec<_>>();
    assert_eq!(kept(&story), ["new"]);
    story.leave("a");
    story.to(30 * 3600);
    assert_eq!(kept(&story), [""; 0]);
    assert!(story.plane.machine_reliability(&"new".parse().unwrap()).is_none());
}

/// Faults: M5.
#[test]
fn what_a_worker_found_out_about_its_machine_is_kept() {
    let mut story = Story::new();
    story.join("a");
    let problem = "the GPU does not compute".to_owned();
    let check = StartCheck { passed: false, problem, gpu: "A100".to_owned() };
    let beat = Beat { check: Some(check.clone()), ..story.beat_of("a") };
    story.send("a", beat, false).unwrap();
    story.restart();
    assert_eq!(story.plane.worker(&id("a")).unwrap().check, Some(check));
}
