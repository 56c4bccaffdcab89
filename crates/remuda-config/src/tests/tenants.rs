//! Quotas under `[quota]` and `[[tenant]]`.

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
    ] {
        let error = fixture().file(text).load().unwrap_err().to_string();
        assert!(error.contains(expected), "{text}: {error}");
    }
}
