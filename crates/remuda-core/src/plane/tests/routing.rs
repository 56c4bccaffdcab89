//! Which job goes first, and to whom.

use super::*;

/// Submits (priority, tenant, shape), lets them wait, lets one worker do it all, and compares the order.
fn check(mut story: Story, jobs: &[(i8, &str, &str)], waits: u64, expected: &[usize]) {
    let ids: Vec<_> = jobs
        .iter()
        .map(|(priority, tenant, shape)| {
            let change = |it: &mut JobSubmission| {
                (it.job.priority, it.job.tenant) = (*priority, tenant.parse().unwrap());
            };
            story.submit_with(shape, change).unwrap()
        })
        .collect();
    story.to(waits);
    story.join("a");
    let mut order = Vec::new();
    while let Some(job) = story.hand("a").held.keys().next().copied() {
        order.push(ids.iter().position(|id| *id == job).unwrap());
        story.complete("a", job);
    }
    assert_eq!(order, expected);
}

#[test]
fn priority_goes_first_then_tenants_take_turns_then_age() {
    let jobs = [
        (0, "x", "s"),
        (0, "x", "s"),
        (0, "y", "s"),
        (5, "x", "s"),
        (0, "y", "s"),
        (-1, "z", "s"),
        (0, "x", "s"),
    ];
    check(Story::new(), &jobs, 0, &[3, 0, 2, 1, 4, 6, 5]);
}

#[test]
fn a_free_worker_may_prefer_what_it_has_warm_until_the_oldest_has_waited_a_minute() {
    let jobs = [(9, "x", "warm"), (0, "x", "cold"), (0, "x", "warm"), (0, "x", "cold"), (0, "x", "warm")];
    check(Story::new(), &jobs, 59, &[0, 2, 4, 1, 3]);
    check(Story::new(), &jobs, 60, &[0, 1, 2, 3, 4]);
}

#[test]
fn the_look_ahead_for_warm_work_is_bounded() {
    let jobs =
        [(9, "x", "warm"), (0, "x", "s"), (0, "x", "t"), (0, "x", "u"), (0, "x", "v"), (0, "x", "warm")];
    let near_sighted = Story::with(Settings { look_ahead: 3, ..Settings::default() });
    check(near_sighted, &jobs, 0, &[0, 1, 2, 5, 3, 4]);
}

#[test]
fn a_job_goes_to_whom_is_warm_then_fastest_then_least_loaded() {
    let mut story = Story::new();
    ["slow", "warm"].iter().for_each(|worker| story.join(worker));
    let (slow, quick) = (story.submit("s"), story.submit("s"));
    story.work_to(5, &["slow", "warm"]);
    story.complete("warm", quick);
    story.work_to(25, &["slow", "warm"]);
    story.complete("slow", slow);
    story.join("cold");
    let job = story.submit("s");
    story.is(job, "running on warm, attempt 1");
    let job = story.submit("s");
    story.is(job, "running on slow, attempt 1");
    let job = story.submit("s");
    story.is(job, "running on cold, attempt 1");
}

#[test]
fn the_least_loaded_gets_the_next_one() {
    let mut story = Story::new();
    for worker in ["a", "b"] {
        story.join_with(worker, |join| join.slots = 2);
    }
    let jobs = ["s", "t", "u", "v"].map(|shape| story.submit(shape));
    for (job, worker) in jobs.iter().zip(["a", "b", "a", "b"]) {
        story.is(*job, &format!("running on {worker}, attempt 1"));
    }
}

#[test]
fn a_job_runs_only_where_everything_it_needs_is() {
    let mut story = Story::new();
    let listed = |models: &[&str]| Some(models.iter().map(|&model| model.to_owned()).collect());
    story.join_with("flux", |join| join.offer.models = listed(&["flux.safetensors"]));
    story.join_with("sdxl", |join| join.offer.models = listed(&["sdxl.safetensors"]));
    let needs = Requirements { models: ["sdxl.safetensors".to_owned()].into(), ..Requirements::default() };
    let (first, second) = (
        story.submit_with("s", |it| it.job.needs = needs.clone()).unwrap(),
        story.submit_with("s", |it| it.job.needs = needs.clone()).unwrap(),
    );
    story.is(first, "running on sdxl, attempt 1");
    story.is(second, "queued");
    let pinned = story.submit_with("s", |it| it.job.needs.pin = Some(id("flux"))).unwrap();
    story.is(pinned, "running on flux, attempt 1");
    let offer =
        Capabilities { models: listed(&["flux.safetensors", "sdxl.safetensors"]), ..Capabilities::default() };
    story.complete("flux", pinned);
    let beat = Beat { offer: Some(offer), ..story.beat_of("flux") };
    story.send("flux", beat, false).unwrap();
    story.is(second, "running on flux, attempt 1");
}

#[test]
fn a_worker_with_slots_to_spare_gets_as_much_as_it_can_take() {
    let mut story = Story::new();
    let jobs: Vec<_> = (0..5).map(|_| story.submit("s")).collect();
    story.join_with("a", |join| (join.slots, join.slots_max) = (3, Some(5)));
    story.are(&jobs[..3], "running on a, attempt 1");
    story.are(&jobs[3..], "queued");
    let beat = Beat { slots: Some(5), ..story.beat_of("a") };
    story.send("a", beat, false).unwrap();
    story.are(&jobs, "running on a, attempt 1");
}

#[test]
fn retry_does_not_wait_for_a_worker_that_takes_no_work() {
    let mut story = Story::with(Settings { max_failures_before_block: 9, ..Settings::default() });
    ["a", "b"].iter().for_each(|worker| story.join(worker));
    let sick = Beat { unavailable_reason: Some("its service is sick".to_owned()), ..story.beat_of("b") };
    story.send("b", sick, false).unwrap();
    let job = story.submit("s");
    story.is(job, "running on a, attempt 1");
    story.fail("a", job, Cause::Service);
    story.work_to(30, &["a"]);
    story.is(job, "running on a, attempt 2");
    let other = story.submit("t");
    story.is(other, "queued");
    assert!(story.why(other).contains("1 is sick (its service is sick)"));
}
