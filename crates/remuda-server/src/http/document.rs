//! Writes `docs/http.md` from the route table and the table of error codes, and checks that it is true: every listed
//! route answers, every error code is listed, and the examples are accepted.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::Path;
use std::{env, fs};

use axum::http::StatusCode;
use serde_json::{Value, json};

use super::error::ERROR_CODES;
use super::routes;
use crate::serve::Serving;
use remuda_config::ResolvedConfig;

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

*Generated from `crates/remuda-server/src/http`: the routes, the error codes and `document.rs`. To write it, run
`REMUDA_WRITE_DOCS=1 cargo test -p remuda-server document`.*

JSON over HTTP/1.1, by default on `http://127.0.0.1:8288`. On loopback you need no token until you create one. Any other
address needs TLS and tokens, unless you pass `--insecure`; see [security.md](security.md). Times are UTC, as in
`2026-11-15T12:03:10.042Z`.

`GET /openapi.json` describes every API here for tools, in OpenAPI 3.0: parameters, bodies, answers, errors, examples.
`GET /remuda/v1/openapi.json` is its native part.

## Tokens

Once there are tokens, every request carries one, except those for `/health`:

- `Authorization: Bearer rmd_…`, for programs;
- `Authorization: Basic …`, with any user name and the token as the password, for browsers;
- `Sec-WebSocket-Protocol: remuda, remuda.token.rmd_…`, for WebSockets opened by a page.

Tokens are never read from the address or from a cookie. A client sees the jobs of its own tenant; any other job is `404`.
The table of routes at the end says which role may call what. A blob is found by its hash alone: anyone with a token who
knows the hash can read it, and hashes cannot be guessed.

Requests from pages of another origin are refused, WebSockets included, and so are requests for an unknown host name. Allow
them with `http.allowed_origins` and `http.allowed_hosts`.

## Submit a job

"#;

const AFTER_SUBMISSION: &str = r#"
The answer is `201` with `{"id": "…", "created": true}` once the job is stored; from then on it is never lost. Only
`workflow` is required. It may be any JSON object; a ComfyUI graph is recognised as one and checked as ComfyUI would check it: a graph
without a valid output is refused (422 `invalid_workflow`, with ComfyUI's `error` and `node_errors` in `detail`); if some outputs are
valid, those run, and the answer has the `node_errors` of the others.

| field | meaning |
|---|---|
| `workflow` | what to run; the worker gets it byte for byte |
| `tenant` | the owner of the job (`default`); workers are shared fairly between tenants, and each has [quotas](configuration.md#quotas-of-each-tenant) |
| `priority` | -128 to 127, higher runs first (0); a waiting job counts as one higher for each `queue.priority_ageing` (5 min) |
| `service` | what runs it; by default `comfyui` for a graph, `exec` for anything else |
| `needs` | what a worker must have: `labels`, `models`, `classes`, `vram_bytes`; the only worker allowed (`pin`), workers never allowed (`excluded`); models and node classes of a graph are added |
| `deadline_seconds` | fail the job if it has not ended by then |
| `wait_for_capability` | `true`: accept the job even if no worker has its models and node classes and no fleet could bring them; it waits. Otherwise such a job is refused (422 `no_capability`) |
| `attempts_max` | failures of its own before the job has failed; by default as configured |
| `retry_delay_seconds` | a fixed delay before every retry, instead of a growing one |
| `preferred` | workers to choose first while they are free |
| `start_limit_seconds` | if the service has not begun an attempt within this time, it is tried elsewhere |
| `node_limit_seconds` | an attempt that makes no progress for this long has failed |
| `include_outputs` | ids of nodes whose outputs you want; the others are not fetched |
| `attachments` | files by name, `{"photo.png": "blake3:…"}`: inputs of the graph with that name use the file |
| `webhook` | `{"url": "https://…", "secret": "…"}`: called when the job has ended; see [failover.md](failover.md#webhooks) |
| `idempotency_key` | the same key of the same tenant is the same job: `200` and its id; also as the header `Idempotency-Key` |
| `labels` | for your own use; shown with the job |
| `metadata` | up to 4096 bytes of JSON, on every event of the job |

Then follow it, read it, fetch its result, or cancel it:

```sh
curl -N "$REMUDA_URL/remuda/v1/events?job=$JOB&after=0"
curl "$REMUDA_URL/remuda/v1/jobs/$JOB"
curl "$REMUDA_URL/remuda/v1/jobs/$JOB/result"
curl "$REMUDA_URL/remuda/v1/jobs/$JOB/why"
curl -X POST -d '{"reason": "no longer needed"}' "$REMUDA_URL/remuda/v1/jobs/$JOB/cancel"
```

A job is `queued`, `running`, `completed`, `failed` or `cancelled`, and `reason` always says why. While it runs, `progress`
has `value` (0 to 1), `nodes_done`, `nodes_total`, `current_node`, `current_node_class`, `step`, `steps` and `message`, and
`outputs` has the outputs so far, in the form they will have in the result. Both come from the worker and are dropped with
the attempt.

## Errors

Every error has the same form: a code for programs and a message for people.

```json
{ "error": { "code": "queue_full", "message": "…" } }
```

"#;

const AFTER_ERRORS: &str = r#"
## Events

`GET /remuda/v1/events` is a stream of server-sent events. Each has a rising number as its `id`. A client that reconnects with
the header `Last-Event-ID`, or with `?after=`, misses no event that is still stored. Without either, the stream begins now.

```text
id: 42
event: job:retrying
data: {"seq":42,"at":"2026-11-15T12:03:10.042Z","name":"job:retrying","job":"…","worker":"gpu-7","tenant":"anna","detail":{…}}
```

Filters: `?name=job:failed` for one name, `?name=job` for all names with that prefix; `?job=`, `?tenant=`, `?worker=`;
`?metadata.user=anna` for metadata given at submission (`metadata.order.customer=7` reaches deeper; all filters must match).

`job:progress` and `job:preview` are not stored: they have no number and may be dropped. A `job:preview` says where to fetch the
newest preview of a running job (`{"job", "attempt", "media", "url", "size_bytes"}`); the preview is gone when the attempt ends.
A client that is too slow gets an event `gap`, then the stored events it missed. A `gap` with a `generation` says that the
store lost events, as after a restored backup: read again what you need. `caught_up` follows once all stored
events were sent.

Events named `client:*` are about workers: the names are kept for compatibility with earlier orchestrators.

## Write a worker in any language

A worker sends heartbeats and gets orders in the answers. [`examples/worker.py`](../examples/worker.py) is a complete worker;
these are its messages.

**Join** with `POST /remuda/v1/workers`:

"#;

const AFTER_JOIN: &str = r#"
If the plane has tokens, send one of a worker or an admin. The answer has `incarnation`, `token` and `term`, which go into every
beat, and the intervals `beat_idle_millis`, `beat_busy_millis` and `lease_millis`. Joining under a known name replaces that
worker. `machine` and `fleet` say where the worker runs. `stale_after_millis` is how long it may be silent while it holds
nothing (1 s to 1 day; the answer has intervals to match). `slots: 0` means that it cannot work yet; `slots_max` (at most
4096) is then the most that its beats will report. The worker of a rented machine joins with its machine's join token, and
joins again with the `token` it got; `machine_retired` (410) and `identity_unproven` (403) tell it to stop for good.

**Beat** with `POST /remuda/v1/workers/{id}/beat?wait=25` and `Authorization: Bearer TOKEN`:

"#;

const AFTER_BEAT: &str = r#"
- `seq` rises with every beat. `held` names everything the worker has; the plane gives an attempt that is not named to another
  worker. `step` rises with every sign of progress; an attempt whose step stands still is stuck.
- `finished` is repeated in every beat until a reply has it in `settled`. `outcome` is `completed` (with `result`),
  `failed` (with `cause`, which is `job`, `worker` or `service`, and `message`), `cancelled` or `rejected` (never begun).
- Send `slots`, `offer` and `metrics` when they change. `unavailable_reason` says why the worker gets no jobs, `check`
  (`{"passed", "problem", "gpu"}`) is the result of the worker's start check, and `draining: true` asks for no more work.

The plane holds the request for up to `wait` seconds and answers at once if it has orders:

```text
{
  "term": 3,
  "start":   [{ "job": "…", "attempt": 1, "service": "exec", "service_job_id": "…", "workflow": {…}, "keys": {…} }],
  "cancel":  [{ "job": "…", "attempt": 1, "reason": "…" }],
  "settled": [{ "job": "…", "attempt": 1, "refused": "…" }],
  "drain": true,
  "beat_again": true
}
```

- Everything but `term` may be absent. `term` goes into the next beat; with `beat_again` send that at once.
- `keys` were taken out of the workflow's `extra_data` and are never stored.
- A repeated start order is the same order. Forget a settled attempt, also if its report was `refused`.
- After `drain` no new work comes: finish, then leave.
- Previews are optional: `PUT /remuda/v1/workers/{id}/preview?job=…&attempt=…` with the token and a JPEG, PNG or WebP of at
  most 1 MiB. After the attempt has ended they are refused (`409`).
- `404 unknown_worker`: join again and name what is `held`. `403` or `410`: stop, another worker has this name. No answer:
  continue working and retry; the lease (30 s by default) is how long an attempt may go unnamed.

**Leave** with `DELETE /remuda/v1/workers/{id}` and the token: what the worker still holds goes to others at once.

## Blobs: input and output files

A blob is named by its content, `blake3:` and 64 hex digits, and stored next to the database. Workflows and results refer to
blobs by that string, anywhere in the JSON.

```sh
curl --data-binary @photo.png "$REMUDA_URL/remuda/v1/blobs"          # {"hash": "blake3:…", "size_bytes": 48213}
curl -T photo.png "$REMUDA_URL/remuda/v1/blobs/$HASH"                # the same, when the hash is known
curl -o photo.png "$REMUDA_URL/remuda/v1/blobs/$HASH?name=photo.png"
```

- `201` or `200` means that the blob is complete and synced. Sending it again changes nothing, so retry freely. `HEAD` says
  whether it exists; `PUT` of an existing blob is answered at once, and the connection is closed if much of the body is left.
  Content that does not match its hash is not stored.
- Blobs may be larger than other bodies (`blobs.bytes_max`) and take as long as they need while data keeps coming
  (`blobs.upload_idle_timeout`). Resume a download with `Range`.
- They are served as attachments, never as pages. `?name=` sets the file name, and the type for known image, video, audio,
  text and JSON extensions; anything else is `application/octet-stream`.
- A blob is kept while an unfinished job refers to it, and for `retention` plus a day after it was last sent, read, or named by
  a job at its submission or completion.

## Comfy API v2

`/api/v2` is the official API for running ComfyUI workflows; point its clients here (`COMFY_BASE_URL=http://127.0.0.1:8288`).
`GET /openapi.json` is its document, with these additions:

- a submission also takes `priority`, `tenant`, `deadline_seconds`, `labels`, `metadata` (up to 16 texts), `webhook` and `wait_for_capability`, as above;
- `GET /api/v2/jobs` lists jobs, newest first, filtered by `metadata[key]=value`;
- with the header `Remuda-Resume: 1` each `status` event has an id, and `Last-Event-ID` replays what was missed.

A key in `extra_data` goes to the worker with its job and is never stored: after a restart of the plane it is gone. Errors have
the form and codes of that API: `{"error": {"code", "message", "details"}}`.

## ComfyUI's own API

Stock clients and the stock web interface see one ComfyUI at the plane's address; every route is also served below `/api`.
`remuda serve --ui` (or `up --ui`) serves the web interface, if `comfyui-frontend-package` is installed. Differences from a
single server:

- A prompt is a job: it is stored before it is acknowledged, waits for a worker that can run it, and is retried elsewhere when
  its server dies (`execution_start` then comes again, and the end comes once). `/history` survives restarts; entries deleted
  there are hidden, and the jobs stay.
- The client's `prompt_id` (a lower-case UUID) is kept; the same id with the same graph is the same prompt. A negative
  `number` and `front` go before all other prompts of the tenant, the oldest first.
- Outputs are named as one server would have named them: `ComfyUI_00001_.png`, then `ComfyUI_00002_.png`, for each prefix and
  tenant, whatever server wrote them. Files of jobs from other APIs have the `subfolder` `<job>/<node>`. When a message names a
  file, `/view` has it. `preview=` and `channel=` return the original: the plane decodes no outputs.
- Uploads belong to the tenant and are copied to the server that runs a graph which names them. `/upload/mask` needs no
  server: the plane puts the alpha channel of the mask into the image. It reads PNG and JPEG of at most 64 MiB and 33
  million pixels each, two masks at a time.
- `/object_info` merges all servers: every node class is offered, and a server that has it gets the job. Keys keep the order of
  the servers. Graphs are checked against it with ComfyUI's own errors ([comfyui.md](comfyui.md) has the differences);
  `"wait_for_capability": true` beside `prompt` accepts a prompt whose models or node classes no worker has.
- Several prompts run at once. `/queue` lists all of the tenant; with `?client_id=` those of that client come first, and
  `/interrupt?client_id=` stops only these.
- The WebSocket sends events of the client's own prompts, every preview of them, and texts of nodes. A client that reconnects with its `clientId` learns which node runs,
  and how prompts ended meanwhile. All sockets with one `clientId` get the same events; one that does not read is closed.
- `/internal/logs` has one line for each event of the tenant's prompts, not the output of a server: that concerns all tenants.
  `/internal/files/{type}` lists the tenant's own files. An error that no node raised has `""` as its node.
- Settings and saved workflows are stored per tenant. What only a server knows (scripts of custom nodes, for example) comes
  from a server started with `remuda up`; otherwise the answer is empty.

## OpenAI's API

`/v1` serves OpenAI's clients (`base_url="http://127.0.0.1:8288/v1"`) with models of the plane's own process or of the fleet's
workers: embeddings, chat, images. A token of the plane is the API key. Errors have OpenAI's form, `{"error": {"message",
"type", "param", "code"}}`; see [models.md](models.md).

## Routes
"#;

/// One row for each status: its codes, then what to do about each.
fn error_table() -> String {
    let mut text = "| status | code | what to do |\n|---|---|---|\n".to_owned();
    for it in ERROR_CODES {
        writeln!(text, "| {} | `{}` | {} |", it.status.as_u16(), it.code, it.remedy).unwrap();
    }
    text
}

fn route_table() -> String {
    let mut text = "\n| method | path | what it does | access |\n|---|---|---|---|\n".to_owned();
    for route in routes::all() {
        let mut summary = route.summary.to_owned();
        if !route.query.is_empty() {
            let query: Vec<_> = route.query.iter().map(|name| format!("`{name}`")).collect();
            write!(summary, "; query: {}", query.join(", ")).unwrap();
        }
        if let Some(example) = route.body.example() {
            write!(summary, "; body: `{example}`").unwrap();
        }
        writeln!(text, "| `{}` | `{}` | {summary} | {} |", route.method, route.path, route.access.as_str())
            .unwrap();
    }
    text
}

fn document() -> String {
    let mut text = HEAD.to_owned();
    writeln!(text, "```sh\ncurl -X POST http://127.0.0.1:8288/remuda/v1/jobs -d '{SUBMISSION}'\n```")
        .unwrap();
    text.push_str(AFTER_SUBMISSION);
    text.push_str(&error_table());
    text.push_str(AFTER_ERRORS);
    writeln!(text, "```json\n{JOIN}\n```").unwrap();
    text.push_str(AFTER_JOIN);
    let beat = format!(
        "{{\n  \"incarnation\": 1, \"seq\": 8, \"term\": 3,\n  \"held\": [{HELD}],\n  \"finished\": [{FINISHED}]\n}}"
    );
    writeln!(text, "```json\n{beat}\n```").unwrap();
    text.push_str(AFTER_BEAT);
    text.push_str(&route_table());
    text
}

const WRITE: &str = "REMUDA_WRITE_DOCS=1 cargo test -p remuda-server document";

#[test]
fn document_matches_the_route_table() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/http.md");
    let text = document();
    if env::var_os("REMUDA_WRITE_DOCS").is_some() {
        fs::write(&path, text).unwrap();
        return;
    }
    let written = fs::read_to_string(&path).unwrap_or_default();
    assert!(written == text, "docs/http.md is not up to date; write it with: {WRITE}");
}

/// Every `ApiError::new(status, "code", …)` in the sources, as (file, code).
fn used_codes() -> Vec<(String, String)> {
    let mut folders = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("src/http")];
    let mut codes = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            if path.extension().is_none_or(|it| it != "rs") || path.ends_with("document.rs") {
                continue;
            }
            let source = fs::read_to_string(&path).unwrap();
            for part in source.split("ApiError::new(").skip(1) {
                let Some((_, after)) = part.split_once(',') else { continue };
                let code = after.trim_start().strip_prefix('"').and_then(|it| it.split_once('"'));
                codes.extend(code.map(|(code, _)| (path.display().to_string(), code.to_owned())));
            }
        }
    }
    codes
}

#[test]
fn every_error_code_is_in_the_table_once() {
    let used = used_codes();
    assert!(used.len() > 30, "only {} codes found: does this test still read the sources?", used.len());
    for (file, code) in used {
        assert!(ERROR_CODES.iter().any(|it| it.code == code), "{file}: {code} is not in ERROR_CODES");
    }
    let listed: BTreeSet<(StatusCode, &str)> = ERROR_CODES.iter().map(|it| (it.status, it.code)).collect();
    assert_eq!(listed.len(), ERROR_CODES.len(), "a code is listed twice with the same status");
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
        let mut resolved = ResolvedConfig::defaults(folder.path().to_path_buf());
        resolved.serve.listen.set_port(0);
        let serving = Serving::start(&resolved).await.unwrap();
        let url = format!("http://{}", serving.address);
        let http = remuda_net::http_client::client_builder().build().unwrap();
        Plane { serving, url, http, _folder: folder }
    }

    async fn post(&self, path: &str, token: &str, body: String) -> (u16, Value) {
        let request = self.http.post(format!("{}{path}", self.url)).bearer_auth(token);
        let response = request.header("content-type", "application/json").body(body).send().await.unwrap();
        (response.status().as_u16(), response.json().await.unwrap())
    }
}

#[tokio::test]
async fn every_listed_route_answers() {
    let plane = Plane::start().await;
    for route in routes::all() {
        let path = route.path;
        let id = if path.contains("/jobs/") { "0193e7a0-5b1c-7d52-9c7e-0a4b6f0e2d11" } else { "missing" };
        let filled = path
            .replace("{id}", id)
            .replace("{worker}", "missing")
            .replace("{hash}", &format!("blake3:{}", "0".repeat(64)))
            .replace("{shape}", &"0".repeat(64))
            .replace("{name}", "orchestrator_status");
        assert!(!filled.contains('{'), "{path} has a parameter that this test does not fill in");
        let request = plane.http.request(route.method.parse().unwrap(), format!("{}{filled}", plane.url));
        let response = request.send().await.unwrap();
        let status = response.status().as_u16();
        assert_ne!(status, 405, "{} {path}", route.method);
        if status == 404 {
            let text = response.text().await.unwrap();
            assert!(!text.contains("there is nothing at"), "{} {path}: {text}", route.method);
        }
    }
    plane.serving.stop().await.unwrap();
}

#[tokio::test]
async fn examples_of_the_document_are_accepted() {
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
