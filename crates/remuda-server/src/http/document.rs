//! Writes `docs/http.md` from the list of routes, and checks that the list is the truth: every route in it answers,
//! every route there is stands in it, and what the document tells people to send is taken.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use super::ROUTES;
use super::access::who;
use crate::serve::Serving;
use remuda_config::Resolved;

const SUBMISSION: &str = r#"{
  "workflow": { "scene": "a wild horse at dawn", "steps": 8 },
  "tenant": "anna",
  "priority": 5,
  "deadline_seconds": 600,
  "idempotency_key": "order-4711",
  "metadata": { "user": "anna@example.org" }
}"#;

const JOIN: &str =
    r#"{ "worker": "gpu-7", "services": ["exec"], "slots": 1, "offer": { "labels": { "gpu": "a100" } } }"#;

const HELD: &str = r#"{ "job": "0193e7a0-5b1c-7d52-9c7e-0a4b6f0e2d11", "attempt": 1, "progress": 0.4, "step": 12, "phase": "decoding" }"#;

const FINISHED: &str = r#"{ "job": "0193e7a0-5b1c-7d52-9c7e-0a4b6f0e2d12", "attempt": 1, "outcome": "completed", "result": { "picture": "a.png" } }"#;

const HEAD: &str = r#"# HTTP

*Written by a test from `crates/remuda/src/http/document.rs` and the list of routes in `http.rs`; edit those instead.*

JSON over HTTP/1.1, by default on `http://127.0.0.1:8288`. On loopback nobody needs a token until there is one; other
addresses need TLS and tokens, unless `--insecure` says that the network itself keeps strangers out: see
[security.md](security.md). Times are UTC, as `2026-11-15T12:03:10.042Z`.

## Tokens

Where there are tokens, every request but those for `/health` carries one:

- `Authorization: Bearer rmd_…`, as programs do it;
- `Authorization: Basic …`, with any user name and the token as the password: what a browser asks for by itself;
- `Sec-WebSocket-Protocol: remuda, remuda.token.rmd_…`, for sockets opened by a page.

Never in the address and never in a cookie. A client sees the jobs of its tenant and hears of no others (`404`). The table
of routes at the end says who may ask for what. Blobs are found by their hash alone: whoever has seen the content, or was
told the hash, can read it, and nobody can guess one.

A page of another origin is refused, also when it opens a socket, and so is a request by a name that is not ours
(`http.allowed_origins`, `http.allowed_hosts`).

## Submit a job

"#;

const AFTER_SUBMISSION: &str = r#"
The answer is `201` with `{"id": "…", "created": true}` once the job is stored for good: from then on it is never lost.
Only `workflow` is required; it may be any JSON object, and a ComfyUI graph is recognised as one.

| field | meaning |
|---|---|
| `workflow` | what to run; handed to the worker byte for byte |
| `tenant` | whose job it is (`default`); workers are shared fairly between tenants |
| `priority` | -128 to 127, higher goes first (0) |
| `service` | what runs it; by default `comfyui` for a graph, `exec` for anything else |
| `needs` | what a worker must have: `labels`, `models`, `classes`, `vram_bytes`; who alone will do (`pin`), and who never (`excluded`); models and node classes of a graph are added |
| `deadline_seconds` | fail it if it has not ended by then |
| `attempts_max` | failures of its own before it has failed; by default as configured |
| `retry_delay_seconds` | waits so long before every retry, instead of longer each time |
| `preferred` | workers to choose first while they are free; others take the job otherwise |
| `start_limit_seconds` | an attempt that its service has not begun so long after it was handed out is tried elsewhere |
| `node_limit_seconds` | an attempt that was begun and makes no progress for so long has failed |
| `include_outputs` | ids of nodes whose outputs are wanted; the others are not brought home |
| `attachments` | files by name, `{"photo.png": "blake3:…"}`: where that name is an input of the graph, the file takes its place |
| `webhook` | `{"url": "https://…", "secret": "…"}`: whom to tell how it ended; see [failover.md](failover.md#webhooks) |
| `idempotency_key` | the same key of the same tenant is the same job: `200` and its id; also as the header `Idempotency-Key` |
| `labels` | for your own use; shown with the job |
| `metadata` | up to 4096 bytes of JSON, on every event of the job |

Then follow it, look at it, take its result:

```sh
curl -N "$REMUDA_URL/remuda/v1/events?job=$JOB&after=0"
curl "$REMUDA_URL/remuda/v1/jobs/$JOB"
curl "$REMUDA_URL/remuda/v1/jobs/$JOB/result"
curl "$REMUDA_URL/remuda/v1/jobs/$JOB/why"
curl -X POST -d '{"reason": "not wanted any more"}' "$REMUDA_URL/remuda/v1/jobs/$JOB/cancel"
```

A job is `queued`, `running`, `completed`, `failed` or `cancelled`, and its `reason` always says why it is where it is.
While it runs, `progress` says how far it is (`value` from 0 to 1, `nodes_done`, `nodes_total`, `current_node`,
`current_node_class`, `step`, `steps`, `message`) and `outputs` has what it has put out so far, each as it will stand in the
result; both are as its worker tells them, and go with the attempt.

## Errors

Whatever goes wrong has one form, with a word for programs and a sentence for people:

```json
{ "error": { "code": "queue_full", "message": "…" } }
```

| status | codes | what to do |
|---|---|---|
| 400 | `bad_request`, `malformed` | mend the request: it could not be read |
| 401 | `no_token`, `wrong_token` | send a token that is good; a worker sends what it was given when it joined |
| 403 | `wrong_token`, `forbidden`, `origin_not_allowed`, `host_not_allowed`, `identity_unproven` | it is not yours to ask: the message says what is missing |
| 404 | `not_found`, `unknown_worker` | nothing is there; a worker that is unknown joins again |
| 405 | `wrong_method` | see the routes below |
| 409 | `no_admin`, `last_admin`, `ambiguous` | about tokens: the message says which comes first |
| 409 | `ended`, `refused`, `stale_beat`, `key_conflict` | it came too late, or the key belongs to another job: read what is there now |
| 408 | `too_slow` | send the body again, without pauses |
| 410 | `replaced`, `machine_retired` | a newer worker has this name, or its machine is being returned: stop |
| 413 | `too_large` | send less, or raise the limit that is named |
| 416 | `range_not_satisfiable` | ask for a range that lies within the blob: `Content-Range` has its size |
| 422 | `invalid`, `invalid_workflow`, `hash_mismatch` | mend the content: it was read and cannot be taken |
| 429 | `queue_full`, `too_many_requests`, `too_many_connections`, `too_many_streams`, `too_many_uploads`, `locked_out` | come back after `Retry-After` seconds |
| 500 | `internal` | a bug in Remuda: please report it |
| 501 | `not_implemented` | no server of the fleet can do it: the message says what is missing |
| 503, 507 | `overloaded`, `stopping`, `store_unavailable`, `store_full` | nothing was stored; come back after `Retry-After` seconds |

## Events

`GET /remuda/v1/events` is a stream of server-sent events. Each has a number as its `id`, which only rises; whoever comes
back with the header `Last-Event-ID`, or `?after=`, misses nothing that is still stored. Without either it begins now.

```text
id: 42
event: job:retrying
data: {"seq":42,"at":"2026-11-15T12:03:10.042Z","name":"job:retrying","job":"…","worker":"gpu-7","tenant":"anna","detail":{…}}
```

`?name=job:failed` picks a name, `?name=job` all that begin with it; `?job=`, `?tenant=` and `?worker=` pick by whom it is about, and
`?metadata.user=anna` by what was given at submission (`metadata.order.customer=7` looks deeper; several must all hold). `job:progress` and `job:preview` are live only: they
have no number and may be dropped. A `job:preview` says where the newest picture of a running job can be looked at
(`{"job", "attempt", "media", "url", "size_bytes"}`); it is gone when the attempt is over. A follower that is too slow gets an event `gap`, and then what was stored meanwhile. When all that
was stored has been told, an event `caught_up` says so.

## The wire: a worker in any language

Beat up, orders down. [`examples/worker.py`](../examples/worker.py) is a complete worker; these are its messages.

**Join** with `POST /remuda/v1/workers`:

"#;

const AFTER_JOIN: &str = r#"
Where tokens are needed, a worker's or an admin's is sent with it. The answer has `incarnation`, `token` and `term`, which go into every beat, and the intervals `beat_idle_millis`,
`beat_busy_millis` and `lease_millis`. Who joins under a name that is known takes its place. `machine` and `fleet` say where it
is, `stale_after_millis` how long it may be silent while it holds nothing (1 s to 1 day; told back, with beats to match), and `slots: 0`
that it cannot work yet. A rented machine's worker joins with the token its machine was given, and again with the `token` it got;
`machine_retired` (410) and `identity_unproven` (403) tell it to stop for good.

**Beat** with `POST /remuda/v1/workers/{id}/beat?wait=25` and `Authorization: Bearer TOKEN`:

"#;

const AFTER_BEAT: &str = r#"
- `seq` rises with every beat. `held` names everything the worker has: what it does not name, it does not have, and
  the plane gives it to another. `step` rises with every sign of work; an attempt whose step stands still is stuck.
- `finished` is sent again with every beat until a reply has it in `settled`. `outcome` is `completed` (with `result`),
  `failed` (with `cause`, which is `job`, `worker` or `service`, and `message`), `cancelled` or `rejected` (never begun).
- `slots`, `offer` and `metrics` may be sent when they change; `unavailable_reason` says why there are no slots, `check` (`{"passed",
  "problem", "gpu"}`) what a worker found when it tried its machine; `draining: true` asks for no more work.

The line stays open for up to `wait` seconds and is answered at once if there is something to say:

```text
{
  "term": 3,
  "start":   [{ "job": "…", "attempt": 1, "service": "exec", "service_job_id": "…", "workflow": {…} }],
  "cancel":  [{ "job": "…", "attempt": 1, "reason": "…" }],
  "settled": [{ "job": "…", "attempt": 1, "verdict": "recorded" }],
  "drain": true,
  "beat_again": true
}
```

- Everything but `term` may be absent. `term` goes into the next beat; with `beat_again` that is due at once.
- An order to start that comes again is the same order. A settled attempt may be forgotten, whatever the verdict.
- After `drain` no new work comes: finish, then leave.
- A worker may show how far an attempt is: `PUT /remuda/v1/workers/{id}/preview?job=…&attempt=…` with its token and a JPEG, PNG
  or WebP of at most 1 MiB, now and then. Nothing depends on it; once the attempt is over it is refused (`409`).
- `404 unknown_worker`: join again, with what is `held`. `403` or `410`: stop, another has this name. No answer: go on
  working and try again; the lease (30 s by default) is how long an attempt may go unnamed.

**Leave** with `DELETE /remuda/v1/workers/{id}` and the token: what is still held goes to others at once.

## Blobs: the files that jobs take and give

A file is named by its content, `blake3:` and 64 hex digits, and kept beside the store. Workflows and results name blobs by
that string, wherever in the JSON it stands.

```sh
curl --data-binary @photo.png "$REMUDA_URL/remuda/v1/blobs"          # {"hash": "blake3:…", "size_bytes": 48213}
curl -T photo.png "$REMUDA_URL/remuda/v1/blobs/$HASH"                # the same, when the hash is known
curl -o photo.png "$REMUDA_URL/remuda/v1/blobs/$HASH?name=photo.png"
```

- A blob that was answered with `201` or `200` is whole and synced. Sending it again changes nothing, so whoever did not
  hear the answer sends it again. `HEAD` tells whether it is there; `PUT` of one that is there is answered at once, and the
  line is closed if the rest of the body is long. A body that is something else than its name says stores nothing.
- Blobs may be larger than other bodies (`blobs.bytes_max`) and take as long as they need, as long as they keep coming
  (`blobs.upload_idle_timeout`). A cut download goes on with `Range`.
- They are served as attachments, never as pages; `?name=` gives a file name and the type of a known picture, film,
  sound, text or JSON, anything else is `application/octet-stream`.
- A blob is kept while an unfinished job names it, and for `retention` and a day after it was last sent, read, or named by
  a job when that was submitted or completed. Then it is cleared away.

## Comfy API v2

`/api/v2` is the official API for running ComfyUI workflows; point its clients here (`COMFY_BASE_URL=http://127.0.0.1:8288`).
`GET /openapi.json` is its whole document, with what is added to it:

- a submission also takes `priority`, `tenant`, `deadline_seconds`, `labels`, `metadata` (up to 16 texts) and `webhook`, as above;
- `GET /api/v2/jobs` lists jobs, newest first, by `metadata[key]=value` if you like;
- with the header `Remuda-Resume: 1` each `status` event has an id, and `Last-Event-ID` tells again what was missed.

A key in `extra_data` goes to the worker with its job and is never stored: a plane that is started again has forgotten it.
Errors there have the form and the codes of that API: `{"error": {"code", "message", "details"}}`.

## ComfyUI's own API

Stock clients and the stock web interface find one ComfyUI here, at the address of the plane; every route of it stands also
under `/api`. `remuda serve --ui` (or `up --ui`) serves the web interface itself, where `comfyui-frontend-package` is
installed. What differs from one server, because it is a fleet:

- A prompt is a job, with everything that follows from that: it is stored before it is acknowledged, waits for a worker that
  can run it, and is tried elsewhere when its server dies (then its `execution_start` comes again, and its end comes once).
  `/history` survives restarts; what is deleted there is hidden there, and the job stays.
- The client's `prompt_id` (a lower-case UUID) is kept; the same id with the same graph is the same prompt. `number` below
  zero and `front` go before all others of the tenant, the oldest first.
- Outputs are told under the `subfolder` `<job>/<node>`, so that two servers' `ComfyUI_00001_.png` stay two. When a message
  names a file, `/view` has it. `preview=` and `channel=` give the original: the plane decodes no pictures.
- Uploads belong to the tenant and are brought to whichever server runs a graph that names them. `/upload/mask` is done by a
  server, as a small job.
- `/object_info` is merged: what any server has is offered, and who has it gets the job.
- The socket tells a client's own prompts. Whoever comes back with its `clientId` hears which node runs, and how those ended
  that ended meanwhile. All sockets of one `clientId` hear the same; one that does not read is closed and holds up nobody.
- Settings and saved workflows are kept for the tenant. What only a server can say (scripts of custom nodes, for one) is read
  from one of those that were started with `remuda up`; elsewhere the answer is an empty one.

## OpenAI's API

`/v1` answers OpenAI's clients (`base_url="http://127.0.0.1:8288/v1"`) with models of the plane's own process or of the fleet's
workers: embeddings, chat, pictures. A plane's token is their API key. Errors there have OpenAI's form, `{"error": {"message",
"type", "param", "code"}}`; [models.md](models.md) has what is taken, what is refused, and who answers.

## Routes
"#;

fn document() -> String {
    let mut text = HEAD.to_owned();
    writeln!(text, "```sh\ncurl -X POST http://127.0.0.1:8288/remuda/v1/jobs -d '{SUBMISSION}'\n```")
        .unwrap();
    text.push_str(AFTER_SUBMISSION);
    writeln!(text, "```json\n{JOIN}\n```").unwrap();
    text.push_str(AFTER_JOIN);
    let beat = format!(
        "{{\n  \"incarnation\": 1, \"seq\": 8, \"term\": 3,\n  \"held\": [{HELD}],\n  \"finished\": [{FINISHED}]\n}}"
    );
    writeln!(text, "```json\n{beat}\n```").unwrap();
    text.push_str(AFTER_BEAT);
    text.push_str("\n| method | path | what it does | who may |\n|---|---|---|---|\n");
    for (method, path, meaning) in ROUTES {
        let who = who(method, path).as_str();
        writeln!(text, "| `{method}` | `{path}` | {meaning} | {who} |").unwrap();
    }
    text
}

#[test]
fn the_document_says_what_the_routes_say() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/http.md");
    let text = document();
    if fs::read_to_string(&path).ok().as_ref() != Some(&text) {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
        panic!("docs/http.md was not up to date; regenerated, commit it");
    }
}

/// The router cannot be asked what it has, but its source can be read.
#[test]
fn every_route_of_the_router_is_in_the_list() {
    let sources = [
        include_str!("../http.rs"),
        include_str!("openai.rs"),
        include_str!("comfy_v2.rs"),
        include_str!("comfyui.rs"),
    ]
    .join(" ");
    let words = sources.split_whitespace().collect::<Vec<_>>().join(" ").replace("( ", "(");
    let routes =
        words.split(".route(\"").skip(1).filter_map(|route| route.split(" .").next()?.split_once('"'));
    let mut found = BTreeSet::new();
    for (path, handlers) in routes {
        for (word, method) in
            [("get(", "GET"), ("head(", "HEAD"), ("post(", "POST"), ("put(", "PUT"), ("delete(", "DELETE")]
        {
            if handlers.contains(word) {
                found.insert((method, path));
            }
        }
    }
    let listed: BTreeSet<_> = ROUTES.iter().map(|(method, path, _)| (*method, *path)).collect();
    assert_eq!(found, listed);
}

#[test]
fn every_code_is_told_in_the_document() {
    let sources = [
        include_str!("access.rs"),
        include_str!("access/guard.rs"),
        include_str!("access/origin.rs"),
        include_str!("access/tokens.rs"),
        include_str!("access/revocation.rs"),
        include_str!("blobs.rs"),
        include_str!("body.rs"),
        include_str!("events.rs"),
        include_str!("jobs.rs"),
        include_str!("preview.rs"),
        include_str!("error.rs"),
        include_str!("workers.rs"),
    ];
    let codes = sources.iter().flat_map(|source| source.split("StatusCode::")).filter_map(|part| {
        let (_, after) = part.split_once(',')?;
        after.trim_start().strip_prefix('"')?.split_once('"').map(|(code, _)| code)
    });
    let document = document();
    let untold: BTreeSet<_> = codes.filter(|code| !document.contains(&format!("`{code}`"))).collect();
    assert!(untold.is_empty(), "the table of errors says nothing of {untold:?}");
}

struct Plane {
    serving: Serving,
    url: String,
    http: reqwest::Client,
    _folder: tempfile::TempDir,
}

impl Plane {
    async fn start() -> Plane {
        let folder = tempfile::tempdir().unwrap();
        let mut resolved = Resolved::defaults(folder.path().to_path_buf());
        resolved.serve.listen.set_port(0);
        let serving = Serving::start(&resolved).await.unwrap();
        let url = format!("http://{}", serving.address);
        let http = remuda_net::http_client::client().build().unwrap();
        Plane { serving, url, http, _folder: folder }
    }

    async fn post(&self, path: &str, token: &str, body: String) -> (u16, Value) {
        let request = self.http.post(format!("{}{path}", self.url)).bearer_auth(token);
        let response = request.header("content-type", "application/json").body(body).send().await.unwrap();
        (response.status().as_u16(), response.json().await.unwrap())
    }
}

#[tokio::test]
async fn every_route_of_the_list_is_there() {
    let plane = Plane::start().await;
    for (method, path, _) in ROUTES {
        let id = if path.contains("/jobs/") { "0193e7a0-5b1c-7d52-9c7e-0a4b6f0e2d11" } else { "nobody" };
        let filled = path
            .replace("{id}", id)
            .replace("{worker}", "nobody")
            .replace("{hash}", &format!("blake3:{}", "0".repeat(64)))
            .replace("{shape}", &"0".repeat(64))
            .replace("{name}", "orchestrator_status");
        assert!(!filled.contains('{'), "{path} has a part that this test does not fill in");
        let request = plane.http.request(method.parse().unwrap(), format!("{}{filled}", plane.url));
        let response = request.send().await.unwrap();
        let status = response.status().as_u16();
        assert_ne!(status, 405, "{method} {path}");
        if status == 404 {
            let text = response.text().await.unwrap();
            assert!(!text.contains("there is nothing at"), "{method} {path}: {text}");
        }
    }
    plane.serving.stop().await.unwrap();
}

#[tokio::test]
async fn the_examples_in_the_document_are_taken() {
    let plane = Plane::start().await;
    let (status, joined) = plane.post("/remuda/v1/workers", "", JOIN.to_owned()).await;
    assert_eq!(status, 201, "{joined}");
    let parsed = |text: &str| serde_json::from_str::<Value>(text).unwrap();
    let beat = json!({
        "incarnation": joined["incarnation"], "seq": 8, "term": joined["term"],
        "held": [parsed(HELD)], "finished": [parsed(FINISHED)],
    });
    let token = joined["token"].as_str().unwrap();
    let (status, reply) = plane.post("/remuda/v1/workers/gpu-7/beat?wait=25", token, beat.to_string()).await;
    assert_eq!(status, 200, "{reply}");
    assert_eq!(reply["settled"].as_array().map(Vec::len), Some(1), "{reply}");
    for expected in [201, 200] {
        let (status, accepted) = plane.post("/remuda/v1/jobs", "", SUBMISSION.to_owned()).await;
        assert_eq!(status, expected, "{accepted}");
    }
    plane.serving.stop().await.unwrap();
}
