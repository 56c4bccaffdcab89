//! Quotas under `[quota]`, and quotas and rules under `[[tenant]]`.

use super::*;

#[test]
fn section_of_a_tenant_replaces_what_it_names_and_keeps_the_rest() {
    let text = "[quota]\nopen_jobs_max = 50\n[[tenant]]\nname = 'batch'\nsubmissions_per_second = 7\n";
    let resolved = fixture().file(text).load().unwrap();
    let batch = resolved.settings.quota_of(&"batch".parse().unwrap());
    let anna = resolved.settings.quota_of(&"anna".parse().unwrap());
    assert_eq!((batch.open_jobs_max, batch.submissions_per_second), (50, 7));
    assert_eq!((anna.open_jobs_max, anna.submissions_per_second), (50, 0));
    let shown = show(&resolved, false);
    let line = |name: &str| shown.lines().find(|line| line.starts_with(name)).unwrap().to_owned();
    assert!(line("tenant.batch.submissions_per_second").ends_with("remuda.toml:5"), "{shown}");
    assert!(line("tenant.batch.open_jobs_max").ends_with("remuda.toml:2"), "{shown}");
}

#[test]
fn section_of_a_tenant_is_checked() {
    for (text, expected) in [
        ("[[tenant]]\nopen_jobs_max = 5", "has no `name`"),
        ("[[tenant]]\nname = 'a'\nopen_job_max = 5", "did you mean `open_jobs_max`?"),
        ("[[tenant]]\nname = 'a'\nopen_jobs_max = 0", "from 1 to"),
        ("[[tenant]]\nname = 'a'\n[[tenant]]\nname = 'a'", "has a section already"),
        ("[tenant]\nname = 'a'", "write `[[tenant]]`"),
        ("[[tenant]]\nname = 'a b'", "a name"),
        ("[[tenant]]\nname = '*'\nopen_jobs_max = 5", "under `[quota]`"),
        ("[[tenant]]\nname = '*'\n[[tenant]]\nname = '*'", "has a section already"),
        ("[tenants]\ndenied_classes = ['*/Execute*']", "rules of a tenant are under `[[tenant]]`"),
        ("[tenants]", "rules of a tenant are under `[[tenant]]`"),
    ] {
        let error = fixture().file(text).load().unwrap_err().to_string();
        assert!(error.contains(expected), "{text}: {error}");
    }
}

/// Faults: X15.
#[test]
fn section_of_a_tenant_holds_its_rules_beside_its_quota() {
    let text = "[[tenant]]\nname = '*'\ndenied_classes = ['Execute*']\n[[tenant]]\nname = 'anna'\nopen_jobs_max = 7\n\
                allowed_classes = ['KSampler', 'Save Image (a/b)']\nworker_labels = { pool = 'a' }\n";
    let resolved = fixture().file(text).load().unwrap();
    let rules = &resolved.settings.tenants;
    let anna = &rules.own[&"anna".parse().unwrap()];
    assert_eq!(rules.every.denied_classes, ["Execute*"]);
    assert_eq!(anna.allowed_classes, ["KSampler", "Save Image (a/b)"]);
    assert_eq!(anna.worker_labels["pool"], "a");
    assert_eq!(resolved.settings.quota_of(&"anna".parse().unwrap()).open_jobs_max, 7);
    let shown = show(&resolved, false);
    let line = |name: &str| shown.lines().find(|line| line.starts_with(name)).unwrap().to_owned();
    assert!(line("tenant.anna.worker_labels").ends_with("remuda.toml:8"), "{shown}");
    assert!(line("tenant.*.denied_classes").contains("Execute*"), "{shown}");
    assert!(!shown.contains("tenant.*.open_jobs_max"), "{shown}");
}

/// A rule that is ignored would permit what it forbids.
#[test]
fn older_spelling_of_rules_is_refused_from_every_source() {
    let expected = "rules of a tenant are under `[[tenant]]`";
    let by_flag = fixture().flag("tenants.denied_classes", "*/Execute*", "--set");
    let by_variable = fixture().variable("REMUDA_TENANTS_DENIED_CLASSES", "*/Execute*");
    for fixture in [by_flag, by_variable] {
        let error = fixture.load().unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
}
