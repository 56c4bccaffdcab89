use super::*;

/// Faults: P5.
#[tokio::test]
async fn return_reports_whether_it_was_accepted() {
    let said = |status: u16| Answer::json(status, &json!({ "title": "No", "detail": "x" }));
    let answers = Answers::start([
        Answer::text(204, ""),
        said(404),
        said(409),
        said(500),
        said(403),
        Answer::text(200, "{}"),
    ])
    .await;
    let runpod = runpod(&answers);
    let mut results = Vec::new();
    for _ in 0..6 {
        results.push(runpod.return_pod(id("k3v9x2m7q1z8ab")).await.map_err(|fault| fault.class));
    }
    let no = |class| Err::<(), _>(class);
    assert_eq!(
        results,
        [
            Ok(()),
            no(ProviderErrorClass::NotFound),
            no(ProviderErrorClass::Conflict),
            no(ProviderErrorClass::Ambiguous),
            no(ProviderErrorClass::Auth),
            Ok(())
        ]
    );
    let requests = answers.requests();
    assert_eq!(
        (requests[0].method.as_str(), requests[0].path.as_str()),
        ("DELETE", "/v2/pods/k3v9x2m7q1z8ab")
    );
    let fault = runpod.return_pod(id("a.b:c")).await.unwrap_err();
    assert_eq!(fault.class, ProviderErrorClass::NotFound, "and the API is not called");
}

/// Faults: P6.
#[tokio::test]
async fn no_call_is_made_when_the_rate_limit_is_used_up() {
    let whole = json!({ "pods": [], "pagination": { "nextCursor": null, "hasNextPage": false } });
    let last = Answer::json(200, &whole).with("ratelimit", r#""minute";r=0;t=40, "hour";r=7;t=1800"#);
    let answers = Answers::start([last]).await;
    let spent = runpod(&answers);
    assert!(spent.list().await.is_ok(), "the last one was answered");
    for _ in 0..3 {
        let fault = spent.rent(order(TAG, "NVIDIA L4")).await.unwrap_err();
        assert_eq!(fault.class, ProviderErrorClass::RateLimited);
        assert!(fault.wait > Some(Duration::from_secs(38)) && fault.wait <= Some(Duration::from_secs(40)));
    }
    assert_eq!(answers.requests().len(), 1);

    let limited = json!({ "title": "Too Many", "detail": "rate limit exceeded for the minute window" });
    let refused = Answer::json(429, &limited).with("retry-after", "17");
    let answers = Answers::start([refused]).await;
    let refused = runpod(&answers);
    let faults = [refused.list().await.unwrap_err(), refused.list().await.unwrap_err()];
    for fault in faults {
        assert_eq!(fault.class, ProviderErrorClass::RateLimited);
        assert!(fault.wait > Some(Duration::from_secs(15)) && fault.wait <= Some(Duration::from_secs(17)));
    }
    assert_eq!(answers.requests().len(), 1, "the second was not sent");
}
