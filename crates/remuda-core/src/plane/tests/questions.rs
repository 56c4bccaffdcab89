//! What people are told: why a job waits, what happened, in which order; and that asking changes nothing.

use super::*;

#[test]
fn every_reason_to_wait_has_its_sentence() {
    let mut story = Story::new();
    let job = story.submit("s");
    assert_eq!(story.why(job), "unschedulable: no worker has joined");
    story.join_bystander();
    story.join("a");
    story.is(job, "running on a, attempt 1");
    let next = story.submit("t");
    story.submit("t");
    assert_eq!(story.why(next), "all 1 matching workers are busy; 1 other jobs wait too (fair share)");
    let other = story.submit_with("t", |it| it.job.service = "comfyui".parse().unwrap()).unwrap();
    assert_eq!(story.why(other), "unschedulable: no worker offers service comfyui");
    story.poll("a");
    story.work_to(20, &["a"]);
    assert_eq!(story.why(job), "running on a for 20 s, 0 % done, last progress 0 ms ago");
    story.fail("a", job, Cause::Service);
    assert!(story.why(job).starts_with("retry at 1970-01-01T00:00:2"), "{}", story.why(job));
    story.beat_to(200, &["z"]);
    assert_eq!(
        story.why(job),
        "no matching worker is ready: 1 is gone; next: start a worker that can run it"
    );
}

#[test]
fn a_missing_model_class_label_or_memory_is_named() {
    let mut story = Story::new();
    story.join_with("a", |join| {
        (join.offer.models, join.offer.classes) = (Some(BTreeSet::new()), Some(BTreeSet::new()));
        join.offer.vram_bytes = Some(8 << 30);
    });
    let needs: [(Requirements, &str); 4] = [
        (
            Requirements { models: ["flux".to_owned()].into(), ..Requirements::default() },
            "no worker has model flux",
        ),
        (
            Requirements { classes: ["KSampler".to_owned()].into(), ..Requirements::default() },
            "no worker has node class KSampler",
        ),
        (
            Requirements { vram_bytes: 24 << 30, ..Requirements::default() },
            "no worker fits; the first one has 8192 MiB of VRAM, 24576 MiB are needed",
        ),
        (
            Requirements { labels: [("zone".to_owned(), "eu".to_owned())].into(), ..Requirements::default() },
            "no worker fits; the first one lacks label zone=eu",
        ),
    ];
    for (needs, reason) in needs {
        let submitted = story.submit_with("s", |it| {
            (it.job.needs, it.job.options.wait_for_capability) = (needs, true);
        });
        assert_eq!(story.why(submitted.unwrap()), format!("unschedulable: {reason}"));
    }
}

#[test]
fn the_whole_story_of_a_job_can_be_told() {
    let mut story = Story::new();
    story.join("a");
    let job = story.submit("s");
    story.join("b");
    story.fail("a", job, Cause::Service);
    story.to(0);
    let why = story.plane.explain(story.now, job).unwrap();
    assert_eq!((why.state, why.failures, why.infra_failures), ("queued", 0, 1));
    assert_eq!((why.attempts[0].worker.as_str(), why.attempts[0].message.as_str()), ("a", "boom"));
    assert_eq!(why.service_job_id, Some(job.service_job_id(Attempt(1))));
    let passed_over: Vec<_> = why.candidates.iter().map(|it| it.passed_over.as_deref()).collect();
    assert_eq!(passed_over, [Some("is blocked for it until 1970-01-01T00:01:00.000Z"), None]);
    story.to(2);
    story.complete("b", job);
    assert!(story.plane.explain(story.now, job).is_none(), "it has left memory");
    let told = Plane::explain_ended(job, story.kept.status(job));
    assert_eq!((told.state, told.reason.as_str()), ("completed", "completed by b in attempt 2"));
}

#[test]
fn asking_changes_nothing() {
    let mut story = Story::new();
    story.join("a");
    let (job, waiting) = (story.submit("s"), story.submit("s"));
    story.fail("a", job, Cause::Service);
    story.to(30);
    let before = format!("{:?}", story.plane);
    for second in [30, 61, 90, 5000] {
        for job in [job, waiting] {
            assert!(story.plane.explain(secs(second), job).is_some());
        }
        story.plane.preview_cycle(secs(second));
        story.plane.wake_at();
    }
    assert_eq!(format!("{:?}", story.plane), before);
    let step = story.plane.step(story.now, PlaneEvent::Flush);
    assert!(step.records.is_empty() && step.effects.is_empty());
}

#[test]
fn events_come_in_one_order_and_carry_what_was_said_at_submission() {
    let mut story = Story::new();
    story.join("a");
    let metadata = detail([("user", "ada".into())]);
    let job = story
        .submit_with("s", |it| (it.job.metadata, it.job.tenant) = (metadata.clone(), "t".parse().unwrap()))
        .unwrap();
    story.join("b");
    story.fail("a", job, Cause::Service);
    story.restart();
    ["a", "b"].iter().for_each(|worker| story.poll(worker));
    story.to(5);
    story.complete("b", job);
    let about: Vec<_> = story.kept.events.iter().filter(|it| it.job == Some(job)).collect();
    let names: Vec<_> = about.iter().map(|it| it.kind.as_str()).collect();
    assert_eq!(
        names,
        [
            "job:queued",
            "job:started",
            "client:blocked_workflow",
            "job:retrying",
            "job:started",
            "job:completed"
        ]
    );
    for event in &about {
        assert_eq!((&event.metadata, event.tenant.as_ref().unwrap().as_str()), (&metadata, "t"));
    }
    let seqs: Vec<_> = story.kept.events.iter().map(|it| it.seq.0).collect();
    assert!(seqs.iter().copied().eq(1..=seqs.len() as u64), "no gap, over the restart too: {seqs:?}");
}

#[test]
fn the_plane_says_when_it_will_wake_and_what_for() {
    let mut story = Story::new();
    assert_eq!(story.plane.wake_at().1, "to notice a pause of the plane itself");
    story.join("a");
    story.to(29);
    story.poll("a");
    story.now = Timestamp::from_millis(29_500);
    story.step(PlaneEvent::Tick).unwrap();
    assert_eq!(story.plane.wake_at(), (secs(30), "the control cycle is due".to_owned()));
}
