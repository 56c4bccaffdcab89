//! The sentence at the top: what is wrong comes first, and whether a person is needed.

use super::*;
use crate::plane::{Concern, ShellHealth};

impl Story {
    fn summary(&self) -> (Concern, String) {
        let summary = self.plane.summary(self.now, &ShellHealth::default());
        (summary.concern, summary.text)
    }
}

#[test]
fn plane_without_trouble_says_what_it_does() {
    let mut story = Story::new();
    let says = |story: &Story, concern, text: &str| assert_eq!(story.summary(), (concern, text.to_owned()));
    says(&story, Concern::Well, "All well: nothing to do, no worker has joined yet.");
    story.join("a");
    says(&story, Concern::Well, "All well: nothing to do, 1 worker is there.");
    story.submit("s");
    says(&story, Concern::Working, "All well: 1 job running on 1 worker, none waits.");
    story.submit("s");
    story.work_to(4, &["a"]);
    says(&story, Concern::Working, "All well: 1 job running on 1 worker, the oldest wait is 4 s.");
}

#[test]
fn waiting_job_without_any_worker_needs_a_person() {
    let mut story = Story::new();
    story.submit("s");
    assert_eq!(
        story.summary(),
        (Concern::Person, "Attention: 1 job waits, and no worker has joined.".to_owned())
    );
}

#[test]
fn silent_worker_is_named_and_its_jobs_are_counted() {
    let mut story = Story::new();
    story.join("a");
    story.join("b");
    story.join("c");
    let job = story.submit("s");
    story.is(job, "running on a");
    let (b, c) = (story.submit("s"), story.submit("s"));
    story.work_to(20, &["b", "c"]);
    let (concern, text) = story.summary();
    assert_eq!(concern, Concern::Handled, "{text}");
    assert_eq!(text, "Attention: 1 of 3 workers is silent (a), the longest for 20 s.");
    story.work_to(60, &["b", "c"]);
    story.are(&[b, c], "running");
    let (concern, text) = story.summary();
    assert_eq!(concern, Concern::Person, "only a person can start it again: {text}");
    assert_eq!(
        text,
        "Attention: 1 of 3 workers is silent (a), the longest for 1 min; 1 job waits for another try."
    );
}

#[test]
fn what_needs_a_person_comes_before_what_is_handled() {
    let mut story = Story::new();
    story.join("a");
    let mut beat = story.beat_of("a");
    beat.unavailable_reason = Some("ComfyUI does not answer".to_owned());
    story.send("a", beat, true).unwrap();
    assert_eq!(
        story.summary(),
        (Concern::Handled, "Attention: a takes no work: ComfyUI does not answer.".to_owned())
    );
    let shell = ShellHealth { is_disk_full: true, tasks_down: vec!["webhooks"] };
    let summary = story.plane.summary(story.now, &shell);
    assert_eq!(summary.concern, Concern::Person);
    assert_eq!(
        summary.text,
        "Attention: The disk is full, and submissions are refused until there is space. A background task is down \
         (webhooks): restart the plane, its log says why. a takes no work: ComfyUI does not answer."
    );
}
