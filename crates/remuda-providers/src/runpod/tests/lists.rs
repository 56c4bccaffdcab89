use super::*;

fn page(ids: &[&str], next: &Value) -> Answer {
    let pods: Vec<_> = ids.iter().map(|id| with(ready(), &json!({ "id": id, "name": id }))).collect();
    let has_next = !next.is_null();
    Answer::json(200, &json!({ "pods": pods, "pagination": { "nextCursor": next, "hasNextPage": has_next } }))
}

async fn listed(answers: &Answers) -> Result<Vec<String>, ProviderErrorClass> {
    let pods = runpod(answers).list().await.map_err(|fault| fault.class)?;
    Ok(pods.into_iter().map(|pod| pod.id.to_string()).collect())
}

#[tokio::test]
async fn list_reads_all_pages_and_has_every_pod_once() {
    let terminated = with(ready(), &json!({ "id": "gone", "status": "TERMINATED" }));
    let last = json!({ "pods": [terminated], "pagination": { "nextCursor": null, "hasNextPage": false } });
    let answers = Answers::start([
        page(&["c", "b"], &json!("1")),
        page(&["b", "a"], &json!("2")),
        Answer::json(200, &last),
    ])
    .await;
    assert_eq!(listed(&answers).await.unwrap(), ["a", "b", "c"]);
    let queries: Vec<_> = answers.requests().into_iter().map(|request| request.query).collect();
    assert_eq!(queries, ["limit=500", "limit=500&cursor=1", "limit=500&cursor=2"]);
    let none = Answers::start([page(&[], &Value::Null)]).await;
    assert_eq!(listed(&none).await.unwrap(), [""; 0], "an account may be empty");
}

/// Faults: P3.
#[tokio::test]
async fn possibly_incomplete_list_is_an_error() {
    let more_but_where = json!({ "pods": [], "pagination": { "nextCursor": null, "hasNextPage": true } });
    let unpaged = json!({ "pods": [ready()] });
    let nameless =
        json!({ "pods": [with(ready(), &json!({ "name": null }))], "pagination": { "hasNextPage": false } });
    let odd_id =
        json!({ "pods": [with(ready(), &json!({ "id": "../x" }))], "pagination": { "hasNextPage": false } });
    for answers in [
        vec![page(&["a"], &json!("1")), page(&["b"], &json!("1"))],
        vec![page(&["a"], &json!("1")), page(&["b"], &json!("2")), page(&["b"], &json!("1"))],
        vec![page(&["a"], &json!(""))],
        vec![Answer::json(200, &more_but_where)],
        vec![Answer::json(200, &unpaged.clone())],
        vec![Answer::json(200, &nameless)],
        vec![Answer::json(200, &odd_id)],
        vec![Answer::json(200, &json!({ "pagination": { "hasNextPage": false } }))],
        vec![Answer::json(200, &json!({ "pods": null, "pagination": { "hasNextPage": false } }))],
        vec![Answer::json(200, &json!([]))],
        vec![Answer::text(200, "<html>maintenance</html>")],
        vec![Answer::text(200, "")],
        vec![page(&["a"], &json!("1")), Answer::text(502, "<html>")],
    ] {
        let (shown, pages) = (format!("{answers:?}"), answers.len());
        let answers = Answers::start(answers).await;
        assert_eq!(listed(&answers).await, Err(ProviderErrorClass::Transient), "{shown}");
        assert_eq!(answers.requests().len(), pages, "{shown}");
    }
    let answers = Answers::start([Answer::json(200, &unpaged)]).await;
    let settings = RunPodSettings { allows_unpaged: true, ..settings(&answers.url) };
    assert_eq!(RunPodProvider::new(settings, http()).unwrap().list().await.unwrap().len(), 1);
}

#[tokio::test]
async fn endless_list_is_an_error() {
    let answers = Answers::start((0..50).map(|n| page(&["a"], &json!(n.to_string())))).await;
    assert_eq!(listed(&answers).await, Err(ProviderErrorClass::Transient));
    assert_eq!(answers.requests().len(), 40);
}
