//! Jobs that no worker could ever run are refused, if that is known.

use super::*;
use crate::fleet::FleetSettings;
use crate::tenant_rules::TenantRule;

fn needs(models: &[&str], classes: &[&str]) -> Requirements {
    let set = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
    Requirements { models: set(models), classes: set(classes), ..Requirements::default() }
}

fn join_with_models(story: &mut Story, name: &str, models: &[&str]) {
    let listed = needs(models, &["Load", "Save"]);
    story.join_with(name, |join| {
        (join.offer.models, join.offer.classes) = (Some(listed.models), Some(listed.classes));
    });
}

fn submit(story: &mut Story, needs: Requirements) -> Result<JobId, Refusal> {
    story.submit_with("s", |it| it.job.needs = needs)
}

fn lacking(models: &[&str], classes: &[&str]) -> Refusal {
    let Requirements { models, classes, .. } = needs(models, classes);
    Refusal::NoCapability { models, classes }
}

#[test]
fn what_no_worker_has_is_refused_and_named() {
    let mut story = Story::new();
    submit(&mut story, needs(&["flux"], &["Any"])).unwrap();
    join_with_models(&mut story, "a", &["sdxl"]);
    join_with_models(&mut story, "b", &["vae"]);
    let refused = submit(&mut story, needs(&["flux", "sdxl"], &["Load", "Upscale"]));
    assert_eq!(refused, Err(lacking(&["flux"], &["Upscale"])));
    let told = refused.unwrap_err().to_string();
    assert!(
        told.starts_with("no worker has model \"flux\" and node class \"Upscale\", and no fleet"),
        "{told}"
    );
    submit(&mut story, needs(&["sdxl"], &["Save"])).unwrap();
    // Each is somewhere, and no worker has both.
    assert_eq!(submit(&mut story, needs(&["sdxl", "vae"], &[])), Err(lacking(&[], &[])));
    // A worker that lists nothing may have anything.
    story.join("c");
    submit(&mut story, needs(&["flux"], &[])).unwrap();
}

/// Faults: X15.
#[test]
fn rules_of_a_tenant_apply_to_its_jobs() {
    let mut settings = Settings::default();
    let rule = TenantRule {
        denied_classes: vec!["Upscale".to_owned()],
        worker_labels: [("pool".to_owned(), "a".to_owned())].into(),
        ..TenantRule::default()
    };
    settings.tenants.own.insert("anna".parse().unwrap(), rule);
    let mut story = Story::with(settings);
    story.join("shared");
    story.join_with("own", |join| {
        join.offer.labels.insert("pool".to_owned(), "a".to_owned());
    });
    let by_anna = |classes: &[&str]| {
        let needs = needs(&[], classes);
        move |it: &mut JobSubmission| (it.job.tenant, it.job.needs) = ("anna".parse().unwrap(), needs)
    };
    let refused = story.submit_with("s", by_anna(&["Load", "Upscale"])).unwrap_err();
    assert!(matches!(&refused, Refusal::ForbiddenClass { class, .. } if class == "Upscale"), "{refused}");
    let first = story.submit_with("s", by_anna(&["Load"])).unwrap();
    let second = story.submit_with("s", by_anna(&["Load"])).unwrap();
    story.complete("own", first);
    story.complete("own", second);
    submit(&mut story, needs(&[], &["Upscale"])).unwrap();
}

#[test]
fn job_that_waits_for_the_capability_is_accepted_and_runs_when_it_comes() {
    let mut story = Story::new();
    join_with_models(&mut story, "a", &["sdxl"]);
    let waits = |it: &mut JobSubmission| {
        it.job.needs = needs(&["flux"], &[]);
        it.job.options.wait_for_capability = true;
    };
    let job = story.submit_with("s", waits).unwrap();
    assert_eq!(story.why(job), "unschedulable: no worker has model flux");
    join_with_models(&mut story, "b", &["flux"]);
    story.complete("b", job);
}

#[test]
fn only_workers_that_may_get_work_count() {
    let mut story = Story::new();
    join_with_models(&mut story, "a", &["sdxl"]);
    story.join_bystander();
    assert!(submit(&mut story, needs(&["flux"], &[])).is_err(), "the bystander does something else");
    story.step(PlaneEvent::Leave { worker: id("a"), token_hash: None, reason: String::new() }).unwrap();
    submit(&mut story, needs(&["flux"], &[])).unwrap();
}

/// Labels, memory and pins are an operator's matter.
#[test]
fn other_needs_never_refuse() {
    let mut story = Story::new();
    join_with_models(&mut story, "a", &["sdxl"]);
    let needs = Requirements { pin: Some(id("z")), vram_bytes: 1 << 40, ..needs(&["sdxl"], &[]) };
    submit(&mut story, needs).unwrap();
}

#[test]
fn fleet_that_may_bring_it_is_waited_for() {
    let check = |change: fn(&mut FleetSettings), is_taken: bool| {
        let mut fleet = FleetSettings::new("gpus".parse().unwrap(), true);
        change(&mut fleet);
        let mut story = Story::with(Settings { fleets: vec![fleet], ..Settings::default() });
        join_with_models(&mut story, "a", &["sdxl"]);
        let service = "exec".parse().unwrap();
        assert_eq!(story.plane.may_gain_capabilities(&service), is_taken);
        assert_eq!(submit(&mut story, needs(&["flux"], &[])).is_ok(), is_taken);
    };
    check(|_| {}, true);
    check(|fleet| fleet.can_rent = false, true);
    check(|fleet| fleet.scaling.machines_max = 0, false);
    check(|fleet| fleet.services = ["comfyui".parse().unwrap()].into(), false);
}

/// Machines of a fleet are of one kind: more of those that lack it would not help.
#[test]
fn fleet_whose_workers_lack_it_is_not_waited_for() {
    let fleet = FleetSettings::new("gpus".parse().unwrap(), false);
    let mut story = Story::with(Settings { fleets: vec![fleet], ..Settings::default() });
    let listed = needs(&["sdxl"], &["Load"]);
    story.join_with("a", |join| {
        join.fleet = Some("gpus".parse().unwrap());
        (join.offer.models, join.offer.classes) = (Some(listed.models), Some(listed.classes));
    });
    assert_eq!(submit(&mut story, needs(&["flux"], &[])), Err(lacking(&["flux"], &[])));
}
