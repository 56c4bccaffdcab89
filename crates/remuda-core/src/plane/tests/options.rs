//! What a job may ask for beyond its workflow, and what operators say for shapes.

use super::*;
use crate::affinity::Affinity;
use crate::event_kind::EventKind;
use crate::options::{Webhook, WebhookSecret};
use crate::service::ServiceState;
use crate::webhook::{DeliveryResult, WebhookDelivery};
use crate::wire::ServiceStatus;

fn seconds(seconds: u64) -> Option<Duration> {
    Some(Duration::from_secs(seconds))
}

impl Story {
    fn submit_so(&mut self, name: &str, change: impl FnOnce(&mut JobOptions)) -> JobId {
        self.submit_with(name, |it| change(&mut it.job.options)).unwrap()
    }

    fn set_affinity(&mut self, name: &str, preferred: &[&str], excluded: &[&str]) {
        let names = |names: &[&str]| names.iter().map(|name| id(name)).collect();
        let affinity = Affinity { preferred: names(preferred), excluded: names(excluded) };
        self.step(PlaneEvent::SetAffinity { shape: shape(name), affinity }).unwrap();
    }

    /// What the worker's service says of everything the worker holds.
    fn service_says(&mut self, name: &str, status: ServiceState) {
        let note = ServiceStatus { status, submitted_millis_ago: None, checked_millis_ago: None };
        self.hand(name).held.values_mut().for_each(|held| held.service = Some(note.clone()));
        self.poll(name);
    }
}

#[test]
fn fixed_retry_delay_does_not_grow() {
    let settings = Settings { max_failures_before_block: 9, infra_failures_max: 9, ..Settings::default() };
    let mut story = Story::with(settings);
    story.join("a");
    let job = story.submit_so("s", |it| it.retry_delay = seconds(20));
    for round in 1..=4 {
        story.is(job, &format!("running on a, attempt {round}"));
        let at = story.now.as_millis() / 1000;
        story.fail("a", job, Cause::Service);
        story.beat_to(at + 19, &["a"]);
        story.is(job, "queued");
        story.beat_to(at + 20, &["a"]);
    }
}

#[test]
fn a_preferred_worker_is_chosen_while_it_is_free_and_others_take_the_job_otherwise() {
    let mut story = Story::new();
    for worker in ["a", "b", "c"] {
        story.join(worker);
    }
    let likes = |it: &mut JobOptions| it.preferred = [id("c"), id("nobody")].into();
    let (first, second) = (story.submit_so("s", likes), story.submit_so("s", likes));
    story.is(first, "running on c");
    story.is(second, "running on a");
    story.complete("c", first);
    // Asked for by the shape of it: the job's own wish comes first.
    story.set_affinity("s", &["b"], &[]);
    let (own, of_shape) = (story.submit_so("s", likes), story.submit("s"));
    story.is(own, "running on c");
    story.is(of_shape, "running on b");
}

/// A job is assigned to its preferred worker if that one is free at the same moment.
#[test]
fn a_job_that_waited_goes_to_the_worker_it_prefers_when_all_become_free_at_once() {
    let mut story = Story::new();
    story.set_affinity("s", &["b"], &["a", "b"]);
    story.join("a");
    story.join("b");
    let job = story.submit("s");
    story.is(job, "queued");
    story.set_affinity("s", &["b"], &[]);
    story.is(job, "running on b");
}

#[test]
fn who_is_excluded_by_an_affinity_never_runs_it_and_why_says_so() {
    let mut story = Story::new();
    story.join("a");
    story.set_affinity("s", &["a"], &["a"]);
    let job = story.submit("s");
    story.beat_to(120, &["a"]);
    story.is(job, "queued");
    let why = "unschedulable: an affinity excludes every matching worker for its shape";
    assert_eq!(story.why(job), why);
    let candidate = &story.plane.explain(story.now, job).unwrap().candidates[0];
    assert_eq!(candidate.passed_over.as_deref(), Some("is excluded for this shape by an affinity"));
    let other = story.submit("t");
    story.is(other, "running on a");
    story.complete("a", other);
    story.restart();
    story.beat_to(125, &["a"]);
    story.is(job, "queued");
    story.step(PlaneEvent::RemoveAffinity { shape: shape("s") }).unwrap();
    story.is(job, "running on a");
    let again = story.step(PlaneEvent::RemoveAffinity { shape: shape("s") });
    assert!(matches!(again, Err(Refusal::NothingToRemove { .. })), "{again:?}");
    story.restart();
    assert_eq!(story.plane.affinities().iter().count(), 0);
}

#[test]
fn start_limit_moves_job_without_block() {
    let mut story = Story::new();
    story.join("a");
    story.join("b");
    let job = story.submit_so("s", |it| it.start_limit = seconds(7));
    story.is(job, "running on a");
    story.service_says("a", ServiceState::Pending);
    story.beat_to(6, &["a", "b"]);
    story.is(job, "running on a");
    story.beat_to(7, &["a", "b"]);
    story.is(job, "queued");
    let try_ = &story.kept.status(job).attempts[0];
    assert_eq!(try_.cause, Some(Cause::Service));
    assert_eq!(try_.message, "not started within its start limit of 7 s on worker a");
    story.beat_to(9, &["a", "b"]);
    story.is(job, "running on b, attempt 2");
    assert!(story.kept.blocks.is_empty(), "it says nothing of the pair");
    story.service_says("b", ServiceState::Running);
    story.work_to(60, &["a", "b"]);
    story.is(job, "running on b, attempt 2");
}

#[test]
fn a_node_limit_counts_from_the_last_progress_once_it_has_begun() {
    let mut story = Story::with(Settings { attempts_max: 1, ..Settings::default() });
    story.join("a");
    let job = story.submit_so("s", |it| it.node_limit = seconds(6));
    story.service_says("a", ServiceState::Pending);
    story.beat_to(30, &["a"]);
    story.is(job, "running on a");
    story.service_says("a", ServiceState::Running);
    story.work_to(60, &["a"]);
    story.is(job, "running on a");
    let stood_still_at = story.now;
    story.beat_to(65, &["a"]);
    story.is(job, "running on a");
    story.beat_to(66, &["a"]);
    story.is(job, "failed: no progress within its node limit of 6 s on worker a");
    assert_eq!(story.kept.status(job).failures, 1, "its own attempts pay for its own measure");
    assert!(story.now.since(stood_still_at) <= Duration::from_secs(6));
    assert!(story.hand("a").held.is_empty(), "and the worker was told to stop");
}

#[test]
fn a_block_at_threshold_three_comes_with_the_third_failure_and_says_what_failed() {
    let mut story = Story::with(Settings { max_failures_before_block: 3, ..Settings::default() });
    story.join("a");
    story.join_busy("y");
    let metadata = detail([("user", "ada".into())]);
    let fail = |story: &mut Story| {
        let job = story.submit_with("s", |it| {
            (it.job.metadata, it.job.workflow_hash) = (metadata.clone(), shape("s"));
        });
        story.fail("a", job.clone().unwrap(), Cause::Service);
        story.cancel(job.clone().unwrap()).unwrap();
        job.unwrap()
    };
    for second in [10, 20] {
        fail(&mut story);
        assert_eq!(story.news("client:"), Vec::<String>::new());
        story.work_to(second, &["a", "y"]);
    }
    let job = fail(&mut story);
    assert_eq!(story.news("client:"), ["client:blocked_workflow a"]);
    let event = story.kept.events.iter().rfind(|it| it.kind == EventKind::ClientBlocked).unwrap();
    assert_eq!((event.job, &event.metadata), (Some(job), &metadata));
    assert_eq!(
        (&event.detail["failures"], &event.detail["until"]),
        (&3.into(), &"1970-01-01T00:01:20.000Z".into())
    );
    let accepted = &story.kept.jobs[&job].0;
    assert_eq!(event.detail["workflow_hash"], accepted.workflow_hash.to_string());
    assert_eq!(event.detail["shape"], accepted.shape.to_string());
    // Nobody submits anything, and the job that failed is gone.
    story.work_to(80, &["a", "y"]);
    assert_eq!(story.news("client:"), ["client:unblocked_workflow a"]);
    let event = story.kept.events.iter().rfind(|it| it.kind == EventKind::ClientUnblocked).unwrap();
    assert_eq!(event.detail["failures"], 3);
}

#[test]
fn who_was_only_counted_is_not_let_go() {
    let mut story = Story::with(Settings { max_failures_before_block: 3, ..Settings::default() });
    story.join("a");
    let job = story.submit("s");
    story.fail("a", job, Cause::Service);
    story.beat_to(5, &["a"]);
    story.complete("a", job);
    assert_eq!(story.news("client:"), Vec::<String>::new());
    assert!(story.kept.blocks.is_empty());
}

#[test]
fn many_jobs_pinned_to_a_busy_worker_do_not_delay_one_for_an_idle_one() {
    let mut story = Story::new();
    story.join("a");
    let long = story.submit_with("s", |it| it.job.needs.pin = Some(id("a"))).unwrap();
    let pinned: Vec<_> =
        (0..150).map(|_| story.submit_with("s", |it| it.job.needs.pin = Some(id("a"))).unwrap()).collect();
    let free = story.submit("s");
    story.join("b");
    story.is(long, "running on a");
    story.is(free, "running on b");
    story.are(&pinned, "queued");
}

#[test]
fn outputs_that_are_wanted_are_named_in_the_order() {
    let mut story = Story::new();
    story.join("a");
    story.hand("a").is_deaf = true;
    let job = story.submit_so("s", |it| it.include_outputs = ["9".to_owned()].into());
    let start = story.beat("a").unwrap().start;
    assert_eq!((start[0].job, &start[0].include_outputs), (job, &["9".to_owned()].into()));
}

#[test]
fn the_news_of_an_end_lie_on_the_shelf_with_the_end_and_go_when_they_were_taken() {
    let mut story = Story::new();
    story.join("a");
    let secret = Some(WebhookSecret::new("hush".to_owned()));
    let webhook = Webhook { url: "http://example.org".to_owned(), secret };
    let hook = |it: &mut JobOptions| it.webhook = Some(webhook.clone());
    let (done, cancelled) = (story.submit_so("s", hook), story.submit_so("s", hook));
    assert_eq!(story.kept.on(Collection::Webhook).count(), 0, "nothing has ended");
    story.complete("a", done);
    story.cancel(cancelled).unwrap();
    let news: Vec<WebhookDelivery> =
        story.kept.on(Collection::Webhook).map(|it| serde_json::from_str(it.body.get()).unwrap()).collect();
    let told: Vec<_> = news.iter().map(|it| (it.job, it.body.get().contains("\"job:completed\""))).collect();
    assert_eq!(told, [(done, true), (cancelled, false)]);
    for (news, problem) in news.into_iter().zip([None, Some("it said 500".to_owned())]) {
        let WebhookDelivery { job, tenant, metadata, .. } = news;
        story
            .step(PlaneEvent::WebhookSettled(Box::new(DeliveryResult {
                job,
                tenant,
                metadata,
                tries: 3,
                problem,
            })))
            .unwrap();
    }
    assert_eq!(story.kept.on(Collection::Webhook).count(), 0);
    assert_eq!(story.news("webhook:"), ["webhook:delivered", "webhook:given_up"]);
}

#[test]
fn whether_a_worker_can_be_used_is_told_whenever_it_changes() {
    let mut story = Story::new();
    story.join("a");
    story.to(91);
    let states: Vec<_> = story
        .kept
        .events
        .iter()
        .filter(|it| it.kind == EventKind::ClientState)
        .map(|it| (it.detail["presence"].as_str().unwrap(), it.detail["available"].as_bool().unwrap()))
        .collect();
    assert_eq!(states, [("online", true), ("suspect", false), ("offline", false)]);
}
