//! One tenant at its limit is refused with the reason, and no other notices.

use super::*;
use crate::refusal::QuotaKind;
use crate::settings::quota::TenantQuota;

fn story(quota: TenantQuota) -> Story {
    Story::with(Settings { quota, ..Settings::default() })
}

fn submit(story: &mut Story, tenant: &str, zone: &str) -> Result<JobId, Refusal> {
    story.submit_with("s", |it| {
        it.job.tenant = tenant.parse().unwrap();
        it.job.needs.labels = [("zone".to_owned(), zone.to_owned())].into();
    })
}

/// Which quota, its limit, how much is used, and after how many milliseconds to come back.
#[track_caller]
fn refused(answer: Result<JobId, Refusal>) -> (QuotaKind, u64, u64, u128) {
    match answer {
        Err(Refusal::QuotaExceeded { quota, limit, current, retry_after, .. }) => {
            (quota, limit, current, retry_after.map_or(0, |wait| wait.as_millis()))
        }
        other => panic!("expected a refusal for a quota, not {other:?}"),
    }
}

/// Faults: J19.
#[test]
fn open_jobs_are_counted_by_tenant_and_freed_when_they_end() {
    let mut story = story(TenantQuota { open_jobs_max: 2, ..TenantQuota::default() });
    let first = submit(&mut story, "x", "eu").unwrap();
    submit(&mut story, "x", "eu").unwrap();
    let refusal = submit(&mut story, "x", "eu").unwrap_err();
    assert_eq!(
        refusal.to_string(),
        "tenant x has 2 unfinished jobs and may have 2 (quota.open_jobs_max): cancel some or wait until some have ended; \
         try again in 5 s"
    );
    submit(&mut story, "y", "eu").unwrap();
    story.restart();
    assert_eq!(refused(submit(&mut story, "x", "eu")), (QuotaKind::OpenJobs, 2, 2, 5000));
    story.cancel(first).unwrap();
    submit(&mut story, "x", "eu").unwrap();
}

/// Faults: J19.
#[test]
fn submissions_are_limited_by_rate_with_a_burst() {
    let quota = TenantQuota { submissions_per_second: 2, submissions_burst: 3, ..TenantQuota::default() };
    let mut story = story(quota);
    story.to(10);
    for _ in 0..3 {
        submit(&mut story, "x", "eu").unwrap();
    }
    assert_eq!(refused(submit(&mut story, "x", "eu")), (QuotaKind::SubmissionRate, 2, 3, 500));
    submit(&mut story, "y", "eu").unwrap();
    story.to(11);
    submit(&mut story, "x", "eu").unwrap();
    submit(&mut story, "x", "eu").unwrap();
    assert_eq!(refused(submit(&mut story, "x", "eu")), (QuotaKind::SubmissionRate, 2, 3, 500));
}

/// Faults: J19.
#[test]
fn distinct_needs_of_open_jobs_are_limited_and_known_ones_still_accepted() {
    let mut story = story(TenantQuota { distinct_needs_max: 2, ..TenantQuota::default() });
    let eu = submit(&mut story, "x", "eu").unwrap();
    submit(&mut story, "x", "us").unwrap();
    assert_eq!(refused(submit(&mut story, "x", "asia")), (QuotaKind::DistinctNeeds, 2, 2, 5000));
    submit(&mut story, "x", "us").unwrap();
    submit(&mut story, "y", "asia").unwrap();
    story.cancel(eu).unwrap();
    submit(&mut story, "x", "asia").unwrap();
}

#[test]
fn tenant_with_a_quota_of_its_own_is_held_to_that() {
    let own = TenantQuota { open_jobs_max: 1, ..TenantQuota::default() };
    let mut story = Story::with(Settings {
        quota: TenantQuota { open_jobs_max: 0, ..TenantQuota::default() },
        tenant_quotas: [("x".parse().unwrap(), own)].into(),
        ..Settings::default()
    });
    submit(&mut story, "x", "eu").unwrap();
    assert_eq!(refused(submit(&mut story, "x", "eu")), (QuotaKind::OpenJobs, 1, 1, 5000));
    assert_eq!(refused(submit(&mut story, "y", "eu")), (QuotaKind::OpenJobs, 0, 0, 5000));
}

/// The answer to a repeated submission is not a new job.
#[test]
fn repeated_submission_needs_no_room() {
    let mut story = story(TenantQuota { open_jobs_max: 1, submissions_burst: 1, ..TenantQuota::default() });
    let keyed = |it: &mut JobSubmission| {
        let fingerprint = Hash::digest(b"body");
        it.job.key = Some(crate::record::IdempotencyKey { key: "k".to_owned(), fingerprint });
    };
    let job = story.submit_with("s", keyed).unwrap();
    assert_eq!(story.submit_with("s", keyed), Ok(job));
}

fn submit_with_token(story: &mut Story, token: &str) -> Result<JobId, Refusal> {
    story.submit_with("s", |it| {
        (it.job.tenant, it.job.token) = ("x".parse().unwrap(), Some(token.parse().unwrap()));
    })
}

/// Faults: J19. Tokens are often given to different people or programs of one tenant.
#[test]
fn open_jobs_of_a_token_are_counted_over_restarts_and_leave_other_tokens_alone() {
    let mut story = story(TenantQuota { token_open_jobs_max: 2, ..TenantQuota::default() });
    let first = submit_with_token(&mut story, "t1").unwrap();
    submit_with_token(&mut story, "t1").unwrap();
    let refusal = submit_with_token(&mut story, "t1").unwrap_err();
    assert_eq!(
        refusal.to_string(),
        "this token of tenant x has 2 unfinished jobs and may have 2 (quota.token_open_jobs_max): cancel some or wait until \
         some have ended; try again in 5 s"
    );
    submit_with_token(&mut story, "t2").unwrap();
    submit(&mut story, "x", "eu").unwrap();
    story.restart();
    assert_eq!(refused(submit_with_token(&mut story, "t1")), (QuotaKind::TokenOpenJobs, 2, 2, 5000));
    story.cancel(first).unwrap();
    submit_with_token(&mut story, "t1").unwrap();
}

/// Faults: J19.
#[test]
fn submissions_of_a_token_are_limited_by_rate() {
    let mut story = story(TenantQuota {
        token_submissions_per_second: 2,
        submissions_burst: 3,
        ..TenantQuota::default()
    });
    story.to(10);
    for _ in 0..3 {
        submit_with_token(&mut story, "t1").unwrap();
    }
    assert_eq!(refused(submit_with_token(&mut story, "t1")), (QuotaKind::TokenSubmissionRate, 2, 3, 500));
    submit_with_token(&mut story, "t2").unwrap();
    story.to(11);
    submit_with_token(&mut story, "t1").unwrap();
}

/// Faults: J19, B8. Waiting helps only when something was cleared away, so no time is named.
#[test]
fn tenant_that_has_stored_its_share_may_store_no_more() {
    let mut story = story(TenantQuota { stored_bytes_max: 100, ..TenantQuota::default() });
    let stored = |story: &mut Story, tenant: &str, stored_bytes: u64| {
        story.submit_with("s", |it| {
            (it.job.tenant, it.stored_bytes) = (tenant.parse().unwrap(), stored_bytes);
        })
    };
    stored(&mut story, "x", 98).unwrap();
    let refusal = stored(&mut story, "x", 99).unwrap_err();
    assert_eq!(
        refusal.to_string(),
        "tenant x has stored 99 bytes of files, workflows and results and may store 100 (quota.stored_bytes_max): delete \
         assets, or wait until what is old is cleared away (`retention`)"
    );
    stored(&mut story, "y", 0).unwrap();
    assert_eq!(refused(Err(refusal)), (QuotaKind::StoredBytes, 100, 99, 0));
    let room = |stored| TenantQuota { stored_bytes_max: 100, ..TenantQuota::default() }.storage_room(stored);
    assert_eq!((room(0), room(99), room(1000)), (Some(100), Some(1), Some(0)));
    assert_eq!(TenantQuota::default().storage_room(u64::MAX), None);
}
