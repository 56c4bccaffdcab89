//! Verdicts on silent workers that must not hurt the innocent (rows J1 to J5), and that the dead are still found.

use super::*;

/// `count` workers, each alone on its machine and busy, beating on time until second 10.
fn busy_fleet(count: usize) -> (Story, Vec<String>, Vec<JobId>) {
    let mut story = Story::new();
    let names: Vec<_> = (0..count).map(|n| format!("w{n:02}")).collect();
    names.iter().for_each(|name| story.join(name));
    let jobs = names.iter().map(|_| story.submit("s")).collect();
    story.work_to(10, &refs(&names));
    story.news("");
    (story, names, jobs)
}

fn refs(names: &[String]) -> Vec<&str> {
    names.iter().map(String::as_str).collect()
}

/// Workers with nothing to do that could take everything.
fn join_spare(story: &mut Story, count: usize) -> Vec<String> {
    let names: Vec<_> = (0..count).map(|n| format!("spare{n:02}")).collect();
    names.iter().for_each(|name| story.join_with(name, |join| join.slots = 100));
    story.news("");
    names
}

fn moved(story: &Story, jobs: &[JobId], dead: &[String]) -> usize {
    let is_on_dead = |job: &&JobId| {
        let state = story.kept.state(**job);
        dead.iter().any(|name| state.starts_with(&format!("running on {name},")))
    };
    jobs.len() - jobs.iter().filter(is_on_dead).count()
}

/// Faults: J1.
#[test]
fn poll_that_its_own_agent_ends_is_no_suspicion() {
    let (mut story, names, jobs) = busy_fleet(5);
    for second in (12..120).step_by(2) {
        story.to(second);
        for name in &names {
            story.drop_line(name).unwrap();
            assert_eq!(story.presence(name), Presence::Online, "the next beat is on its way");
            story.hand(name).held.values_mut().for_each(|held| held.step += 1);
            story.poll(name);
            // The end of an older poll may be noticed late.
            let seq = story.hand(name).seq - 1;
            story.step(PlaneEvent::ConnectionDropped { worker: id(name), seq }).unwrap();
        }
    }
    story.are(&jobs, "running");
    assert_eq!(story.news("client:state"), [""; 0]);
    assert_eq!(story.plane.refusals.old_beats, 0, "nothing was refused either");
}

/// Faults: J1.
#[test]
fn agent_that_hangs_up_and_beats_on_time_is_never_suspect() {
    let mut story = Story::new();
    story.join("idle");
    story.join("busy");
    let job = story.submit_with("s", |it| it.job.needs.excluded = [id("idle")].into()).unwrap();
    story.news("");
    for second in 1..=300 {
        story.to(second);
        for (name, interval) in [("idle", 30), ("busy", 5)] {
            match second % interval {
                0 => story.poll(name),
                1 => drop(story.drop_line(name)),
                _ => {}
            }
            story.hand(name).held.values_mut().for_each(|held| held.step += 1);
            assert_eq!(story.presence(name), Presence::Online, "{name} at {second} s");
        }
    }
    story.is(job, "running on busy, attempt 1");
    assert_eq!(story.news("client:state"), [""; 0]);
}

/// Faults: A2, J1.
#[test]
fn killed_worker_gets_no_new_work_and_is_suspect_before_silence_shows_it() {
    let mut story = Story::new();
    story.join("a");
    story.join("b");
    let job = story.submit_with("s", |it| it.job.needs.excluded = [id("b")].into()).unwrap();
    story.work_to(20, &["a", "b"]);
    story.drop_line("a").unwrap();
    story.drop_line("b").unwrap();
    let waiting = story.submit("s");
    story.is(waiting, "queued");
    assert!(story.why(waiting).contains("2 are silent"), "{}", story.why(waiting));
    story.to(28);
    assert_eq!((story.presence("a"), story.presence("b")), (Presence::Suspect, Presence::Online));
    story.poll("b");
    story.is(waiting, "running on b");
    story.is(job, "running on a");
}

/// Faults: J2.
#[test]
fn dead_machines_are_found_however_many_die_and_their_jobs_move_in_time() {
    for (fleet, dead) in [(10, 1), (10, 3), (10, 6), (50, 15), (50, 30), (50, 49), (3, 2)] {
        let (mut story, names, jobs) = busy_fleet(fleet);
        let spare = join_spare(&mut story, 1);
        let living: Vec<_> = names[dead..].iter().chain(&spare).map(String::as_str).collect();
        story.work_to(39, &living);
        assert_eq!(
            moved(&story, &jobs[..dead], &names[..dead]),
            0,
            "{dead} of {fleet}: before their lease ran out"
        );
        story.work_to(55, &living);
        assert_eq!(moved(&story, &jobs, &names[..dead]), fleet, "{dead} of {fleet}: lease and 15 s");
        for name in &names[..dead] {
            assert_eq!(story.presence(name), Presence::Offline, "{dead} of {fleet}");
        }
        assert_eq!(story.news("fleet:"), [""; 0], "{dead} of {fleet}: others were heard");
    }
}

/// Faults: J2.
#[test]
fn verdicts_of_a_mass_loss_are_paced() {
    let (mut story, names, jobs) = busy_fleet(32);
    let spare = join_spare(&mut story, 1);
    story.work_to(39, &refs(&spare));
    let mut before = 0;
    let mut counts = Vec::new();
    for second in 40..=50 {
        story.to(second);
        refs(&spare).iter().for_each(|name| story.poll(name));
        let now = moved(&story, &jobs, &names);
        counts.push(now - before);
        before = now;
    }
    assert!(counts.iter().all(|count| *count <= 8), "{counts:?}");
    assert_eq!(before, 32, "{counts:?}");
}

/// Faults: J2.
#[test]
fn fleet_whose_processes_all_died_is_offline_and_not_braked() {
    let (mut story, names, jobs) = busy_fleet(5);
    names.iter().for_each(|name| drop(story.drop_line(name).unwrap()));
    story.to(45);
    for name in &names {
        assert_eq!(story.presence(name), Presence::Offline, "every connection was closed by its end");
    }
    story.are(&jobs, "queued");
    assert_eq!(story.news("fleet:"), [""; 0]);
}

/// Faults: J2, N5.
#[test]
fn fleet_that_fell_silent_without_a_word_is_offline_in_time_and_its_jobs_move_when_a_worker_joins() {
    let (mut story, names, jobs) = busy_fleet(3);
    story.to(105);
    for name in &names {
        assert_eq!(story.presence(name), Presence::Offline, "90 s without a beat");
    }
    story.are(&jobs, "running");
    assert_eq!(story.news("fleet:"), ["fleet:brake"]);
    story.restart();
    let spare = join_spare(&mut story, 1);
    story.work_to(155, &refs(&spare));
    story.are(&jobs, "running on spare00, attempt 2");
}

/// Faults: J3, N5.
#[test]
fn plane_that_is_cut_off_for_two_minutes_requeues_nothing() {
    for fleet in [1, 2, 3, 10] {
        let (mut story, names, jobs) = busy_fleet(fleet);
        let idle = join_spare(&mut story, 2);
        story.to(130);
        story.are(&jobs, "running");
        // They return one after the other.
        for name in names.iter().chain(&idle) {
            story.poll(name);
            story.wait(1);
        }
        let all: Vec<_> = names.iter().chain(&idle).map(String::as_str).collect();
        let then = story.now.as_millis() / 1000;
        story.work_to(then + 60, &all);
        for (job, name) in jobs.iter().zip(&names) {
            story.is(*job, &format!("running on {name}, attempt 1"));
            assert_eq!(story.presence(name), Presence::Online);
            assert_eq!(story.plane.worker(&id(name)).unwrap().counts.went_stale, 0, "it was not their fault");
        }
        let news = story.news("fleet:");
        assert_eq!(news, ["fleet:brake", "fleet:brake_released"], "{fleet}");
    }
}

/// Faults: J3. An idle worker beats so rarely that it may miss nothing of a short cut; its beat proves nothing yet.
#[test]
fn cut_that_an_idle_worker_did_not_notice_costs_no_busy_worker_its_job() {
    for returns_after in [1, 4, 9, 14] {
        let (mut story, names, jobs) = busy_fleet(3);
        let idle = join_spare(&mut story, 1);
        story.to(49);
        // The cut is over: the idle one beats as it would have anyway, the others when their requests have timed out.
        story.poll(&idle[0]);
        story.to(49 + returns_after);
        names.iter().for_each(|name| story.poll(name));
        let all: Vec<_> = names.iter().chain(&idle).map(String::as_str).collect();
        story.work_to(120, &all);
        for (job, name) in jobs.iter().zip(&names) {
            story.is(*job, &format!("running on {name}, attempt 1"));
        }
    }
}

/// Faults: J3. When the cut is over, the ends of the requests that timed out meanwhile arrive before the next beats.
#[test]
fn ends_of_old_requests_after_a_cut_prove_no_death() {
    // While the silent workers are suspect, and when they are offline.
    for cut in [60, 130] {
        let (mut story, names, jobs) = busy_fleet(4);
        story.to(cut);
        names.iter().for_each(|name| drop(story.drop_line(name).unwrap()));
        story.wait(3);
        story.are(&jobs, "running");
        names.iter().for_each(|name| story.poll(name));
        story.work_to(cut + 70, &refs(&names));
        for (job, name) in jobs.iter().zip(&names) {
            story.is(*job, &format!("running on {name}, attempt 1"));
        }
    }
}

/// Faults: J2. Only idle workers are left, which beat every 30 s: they are asked to beat before the lease has run out.
#[test]
fn idle_survivors_prove_in_time_that_the_others_are_dead() {
    let (mut story, names, jobs) = busy_fleet(5);
    let idle = join_spare(&mut story, 2);
    story.work_to(10, &refs(&names));
    for second in 11..=55 {
        story.to(second);
        for name in refs(&idle) {
            let is_asked = story.plane.worker(&id(name)).unwrap().line != crate::worker::WorkerLine::Polling;
            if is_asked || second % 30 == 0 {
                story.poll(name);
            }
        }
    }
    assert_eq!(moved(&story, &jobs, &names), 5);
    assert_eq!(story.news("fleet:"), [""; 0]);
}

/// Faults: J3.
#[test]
fn worker_that_died_during_a_cut_is_found_after_it() {
    let (mut story, names, jobs) = busy_fleet(4);
    story.to(100);
    let living = refs(&names[1..]);
    living.iter().for_each(|name| story.poll(name));
    story.work_to(110, &living);
    story.is(jobs[0], "running on w00, attempt 1");
    story.work_to(160, &living);
    assert_eq!(moved(&story, &jobs, &names[..1]), 4);
    assert_eq!(story.presence("w00"), Presence::Offline);
}

/// Faults: J4.
#[test]
fn frozen_plane_holds_its_absence_against_no_worker() {
    for away in [2, 31, 90, 600] {
        let (mut story, names, jobs) = busy_fleet(3);
        story.be_away(away);
        // What was closed while the plane stood still is noticed first.
        names.iter().for_each(|name| drop(story.drop_line(name)));
        story.wait(4);
        names.iter().for_each(|name| story.poll(name));
        let then = story.now.as_millis() / 1000;
        story.work_to(then + 60, &refs(&names));
        for (job, name) in jobs.iter().zip(&names) {
            story.is(*job, &format!("running on {name}, attempt 1"));
        }
        let told = story.news("");
        assert!(!told.iter().any(|it| it.starts_with("fleet:") || it.starts_with("worker:")), "{told:?}");
    }
}

/// Faults: J5.
#[test]
fn machine_with_eight_workers_is_one_loss() {
    let mut story = Story::new();
    let names: Vec<_> = (0..8).map(|n| format!("w{n:02}")).collect();
    for name in &names {
        story.join_with(name, |join| join.machine = Some("big".parse().unwrap()));
    }
    let jobs: Vec<_> = names.iter().map(|_| story.submit("s")).collect();
    let spare = join_spare(&mut story, 2);
    let all: Vec<_> = names.iter().chain(&spare).map(String::as_str).collect();
    story.work_to(10, &all);
    story.news("");
    story.work_to(46, &refs(&spare));
    assert_eq!(moved(&story, &jobs, &names), 8);
    assert_eq!(story.news("fleet:"), [""; 0]);
}
