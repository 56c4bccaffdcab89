//! The routes of the native API.

use super::super::access::tokens;
use super::super::routes::{Route, route};
use super::super::{
    affinities, blobs, dashboard, events, jobs, live, me, openai, openapi, preview, reload, workers,
};
use super::{
    alerts, audit, blocks, cost, cycles, fleets, health, machines, metrics, overview, quarantine, status,
    workflows,
};

pub(in crate::http) const ROUTES: &[Route] = &[
    route!(POST "/remuda/v1/jobs", Client, jobs::submit, "Submit a job; 201 with its id, 200 if the idempotency key is known" => 201 "Submitted", 200 "Submitted")
        .body("SubmitRequest", r#"{"workflow": {"scene": "a wild horse at dawn"}, "priority": 5}"#)
        .headers(&["Idempotency-Key"])
        .errors(&["malformed", "invalid_workflow", "no_capability", "tenant_rule", "key_conflict", "queue_full", "quota_exceeded"]),
    route!(GET "/remuda/v1/jobs", Client, jobs::list, "List jobs, newest first, a page at a time" => 200 "JobPage")
        .query(&["state", "tenant", "worker", "shape", "search", "before", "limit"]),
    route!(GET "/remuda/v1/jobs/{id}", Client, jobs::one, "One job: its request, state, reason, progress and result" => 200 "NativeJob")
        .errors(&["lost_in_restore"]),
    route!(GET "/remuda/v1/jobs/{id}/why", Client, jobs::why, "The job's history: every attempt, and every worker that was passed over, with the reason" => 200 "JobHistory")
        .errors(&["lost_in_restore"]),
    route!(GET "/remuda/v1/jobs/{id}/workflow", Client, jobs::workflow, "The workflow exactly as it was submitted" => 200 "WorkflowObject")
        .errors(&["lost_in_restore"]),
    route!(GET "/remuda/v1/jobs/{id}/result", Client, jobs::result, "The result alone" => 200 "AnyJson")
        .errors(&["lost_in_restore"]),
    route!(GET "/remuda/v1/jobs/{id}/preview", Client, preview::get, "The newest preview of a running job, as an attachment; not stored" => 200 "image/*"),
    route!(POST "/remuda/v1/jobs/{id}/cancel", Client, jobs::cancel, "Cancel a job in any state that is not final" => 200 "CancelledJob")
        .audited("job.cancel")
        .optional_body("ReasonRequest", r#"{"reason": "no longer needed"}"#)
        .errors(&["ended", "lost_in_restore"]),
    route!(POST "/remuda/v1/jobs/{id}/retry", Client, jobs::retry, "Run an ended job again, as a new job that names it (`options.retry_of`)" => 201 "RetriedJob")
        .audited("job.retry")
        .errors(&["refused", "invalid_workflow", "no_capability", "tenant_rule", "queue_full", "quota_exceeded", "lost_in_restore"]),
    route!(POST "/remuda/v1/workers", Worker, workers::join, "Join as a worker" => 201 "JoinReply")
        .audited("worker.join")
        .body("JoinRequest", r#"{"worker": "gpu-7", "services": ["exec"], "slots": 1}"#)
        .errors(&["identity_unproven", "machine_retired", "repeated_join", "out_of_bounds"]),
    route!(GET "/remuda/v1/workers", Admin, workers::list, "All workers" => 200 "WorkerList"),
    route!(GET "/remuda/v1/workers/{id}", Admin, workers::one, "One worker" => 200 "Worker"),
    route!(POST "/remuda/v1/workers/{id}/beat", WorkerSelf, workers::beat, "Send a heartbeat; `wait` seconds is how long the plane may hold it for orders" => 200 "BeatReply")
        .query(&["wait"])
        .body("BeatRequest", r#"{"incarnation": 1, "seq": 8, "term": 3, "held": [], "finished": []}"#)
        .errors(&["unknown_worker", "replaced", "stale_beat", "machine_retired", "out_of_bounds"]),
    route!(PUT "/remuda/v1/workers/{id}/preview", WorkerSelf, preview::put, "Publish a preview of an attempt: a JPEG, PNG or WebP of at most 1 MiB" => 200 "PreviewTaken")
        .query(&["job", "attempt", "node"])
        .bytes(&["image/jpeg", "image/png", "image/webp"])
        .errors(&["unknown_worker", "replaced", "refused", "invalid"]),
    route!(PUT "/remuda/v1/workers/{id}/live", WorkerSelf, live::put, "Report an attempt's progress, service messages and outputs so far" => 200 "AttemptName")
        .query(&["job", "attempt", "node"])
        .body("LiveReport", r#"{"progress": {"value": 0.4, "nodes_done": 2, "nodes_total": 5, "message": "KSampler 8/20"}}"#)
        .errors(&["unknown_worker", "replaced", "refused"]),
    route!(POST "/remuda/v1/workers/{id}/drain", Admin, workers::drain, "Assign no new work; the worker leaves when it holds nothing, or after `deadline_seconds`" => 200 "Draining")
        .audited("worker.drain")
        .query(&["reason"])
        .optional_body("DrainRequest", r#"{"deadline_seconds": 600, "reason": "maintenance"}"#).errors(&["refused"]),
    route!(DELETE "/remuda/v1/workers/{id}", WorkerSelfOrAdmin, workers::leave, "Leave: the worker is offline at once" => 200 "WorkerLeft")
        .audited("worker.leave")
        .query(&["reason"])
        .errors(&["unknown_worker", "refused"]),
    route!(POST "/remuda/v1/blobs", AnyToken, blobs::store, "Store a blob; the answer has its hash and size" => 201 "StoredBlob", 200 "StoredBlob")
        .streamed()
        .bytes(&["application/octet-stream"])
        .errors(&["too_many_uploads"]),
    route!(PUT "/remuda/v1/blobs/{hash}", AnyToken, blobs::store_named, "Store a blob whose hash is known; 201, or 200 at once if it is stored already" => 201 "StoredBlob", 200 "StoredBlob")
        .streamed()
        .bytes(&["application/octet-stream"])
        .errors(&["hash_mismatch", "too_many_uploads"]),
    route!(GET "/remuda/v1/blobs/{hash}", AnyToken, blobs::read, "A blob, as an attachment, with HEAD, Range, If-Range and If-None-Match; `name` sets file name and type" => 200 "*/*", 206 "*/*", 304 "")
        .streamed()
        .query(&["name"])
        .headers(&["Range", "If-None-Match"])
        .errors(&["range_not_satisfiable"]),
    route!(GET "/remuda/v1/machines", Admin, machines::list, "All machines, rented or not: state, cost, what they wait for" => 200 "MachineList"),
    route!(GET "/remuda/v1/machines/{id}", Admin, machines::one, "One machine" => 200 "Machine"),
    route!(POST "/remuda/v1/machines/{id}/drain", Admin, machines::drain, "Assign no new work to its workers; the machine is returned when they hold nothing, or after `deadline_seconds`" => 200 "Draining")
        .audited("machine.drain")
        .optional_body("DrainRequest", r#"{"deadline_seconds": 600, "reason": "maintenance"}"#).errors(&["refused"]),
    route!(GET "/remuda/v1/fleets", Admin, fleets::list, "All fleets: settings, machines, budget, spending, what limits them" => 200 "FleetList"),
    route!(GET "/remuda/v1/fleets/{id}", Admin, fleets::one, "One fleet" => 200 "Fleet"),
    route!(POST "/remuda/v1/fleets/{id}/pause", Admin, fleets::pause, "Neither grow nor shrink until resumed" => 200 "Fleet")
        .audited("fleet.pause")
        .optional_body("ReasonRequest", r#"{"reason": "provider incident"}"#),
    route!(POST "/remuda/v1/fleets/{id}/resume", Admin, fleets::resume, "Follow the scaling policy again" => 200 "Fleet")
        .audited("fleet.resume"),
    route!(POST "/remuda/v1/fleets/{id}/scale", Admin, fleets::scale, "Set the number of machines; `null` follows the policy again" => 200 "Fleet")
        .audited("fleet.scale")
        .body("ScaleRequest", r#"{"machines": 4}"#),
    route!(POST "/remuda/v1/fleets/{id}/reset-brake", Admin, fleets::reset_brake, "Clear what holds back creations: the brake, avoided offers, waits" => 200 "Fleet")
        .audited("fleet.reset_brake"),
    route!(GET "/remuda/v1/cost", Admin, cost::cost, "What machines cost, now and in a window (milliseconds); by fleet, tenant, job or hour" => 200 "Cost")
        .query(&["from", "until", "by"]),
    route!(GET "/remuda/v1/blocks", Admin, blocks::list, "Blocks: workflows and shapes that a worker is not given" => 200 "BlockList"),
    route!(DELETE "/remuda/v1/blocks/{worker}/{shape}", Admin, blocks::lift, "Lift a block" => 200 "LiftedBlock").audited("block.lift"),
    route!(GET "/remuda/v1/affinities", Admin, affinities::list, "Shapes with preferred or excluded workers" => 200 "AffinityList"),
    route!(GET "/remuda/v1/affinities/{shape}", Admin, affinities::one, "One shape's preferred and excluded workers" => 200 "ShapeAffinity"),
    route!(PUT "/remuda/v1/affinities/{shape}", Admin, affinities::set, "Set a shape's preferred and excluded workers" => 200 "ShapeAffinity")
        .audited("affinity.set")
        .body("AffinityRequest", r#"{"preferred": ["gpu-7"], "excluded": []}"#),
    route!(DELETE "/remuda/v1/affinities/{shape}", Admin, affinities::remove, "Remove a shape's affinity" => 200 "RemovedAffinity")
        .audited("affinity.remove"),
    route!(GET "/remuda/v1/quarantine", Admin, quarantine::list, "Shapes that fail on every worker" => 200 "QuarantineList"),
    route!(DELETE "/remuda/v1/quarantine/{shape}", Admin, quarantine::release, "Release a shape from quarantine" => 200 "ReleasedShape")
        .audited("quarantine.release"),
    route!(GET "/remuda/v1/events", Client, events::stream, "Events as they happen (SSE); resumes with Last-Event-ID" => 200 "text/event-stream")
        .query(&["job", "tenant", "worker", "name", "after", "metadata.KEY"])
        .headers(&["Last-Event-ID"])
        .errors(&["too_many_streams"]),
    route!(GET "/remuda/v1/alerts", Admin, alerts::list, "The alerts of the configuration: state, open incidents" => 200 "AlertList"),
    route!(POST "/remuda/v1/alerts/{name}/test", Admin, alerts::test, "Send a test message on every channel of an alert" => 200 "AlertTest")
        .audited("alert.test"),
    route!(GET "/remuda/v1/events/recent", Client, events::recent, "Stored events, newest first, a page at a time" => 200 "EventPage")
        .query(&["job", "tenant", "worker", "name", "metadata.KEY", "before", "limit"]),
    route!(GET "/remuda/v1/cycles", Admin, cycles::list, "The newest reports of the control cycle" => 200 "CycleList"),
    route!(POST "/remuda/v1/cycles", Admin, cycles::run, "Run a control cycle now; the answer is its report" => 200 "CycleReport")
        .audited("cycle.run"),
    route!(GET "/remuda/v1/plan", Admin, cycles::plan, "What a control cycle would do now; changes nothing" => 200 "CycleReport"),
    route!(POST "/remuda/v1/reload", Admin, reload::reload, "Read the settings again and apply them; an invalid file changes nothing" => 200 "Reloaded")
        .audited("settings.reload"),
    route!(GET "/remuda/v1/settings", Admin, reload::settings, "Every setting with its value and origin, as last read" => 200 "SettingsList"),
    route!(GET "/remuda/v1/audit", Admin, audit::list, "The newest lines of the audit log, newest first" => 200 "AuditLines")
        .query(&["limit"]),
    route!(POST "/remuda/v1/tokens", Admin, tokens::create, "Create a token; its secret is in this answer only" => 201 "CreatedToken")
        .audited("token.create")
        .body("TokenRequest", r#"{"role": "client", "tenant": "anna", "name": "web shop", "expires_seconds": 86400}"#)
        .errors(&["no_admin"]),
    route!(GET "/remuda/v1/tokens", Admin, tokens::list, "All tokens, without their secrets" => 200 "TokenList"),
    route!(DELETE "/remuda/v1/tokens/{id}", Admin, tokens::revoke, "Revoke a token by its id or name, effective at once" => 200 "RevokedToken")
        .audited("token.revoke")
        .errors(&["ambiguous", "last_admin"]),
    route!(GET "/remuda/v1/models", Admin, openai::models::status, "Every model and its copies, on every worker" => 200 "ModelStatusList"),
    route!(GET "/remuda/v1/status", Admin, status::status, "The whole picture: jobs and the oldest that waits, workers, brakes, fleets, refused messages, background tasks, the next wake-up" => 200 "PlaneStatus"),
    route!(GET "/remuda/v1/overview", Admin, overview::overview, "The dashboard's first page: the plane in one sentence, numbers, workers with trouble first, running jobs" => 200 "Overview"),
    route!(GET "/remuda/v1/numbers", Admin, overview::numbers, "The last hour of the dashboard's numbers, every 10 s" => 200 "NumberHistory"),
    route!(GET "/remuda/v1/workflows", Admin, workflows::list, "Shapes among the newest jobs: runs, success, run times, workers" => 200 "WorkflowList"),
    route!(GET "/remuda/v1/me", AnyToken, me::me, "Who the caller is: name, role, tenant" => 200 "CallerInfo"),
    route!(GET "/remuda/v1/views/{name}", Admin, status::view, "orchestrator_status, active_workers_health or worker_performance" => 200 "StatusView"),
    route!(GET "/openapi.json", Client, openapi::document, "Every API here as an OpenAPI document" => 200 "OpenapiDocument"),
    route!(GET "/remuda/v1/openapi.json", AnyToken, openapi::native_document, "The native part of it" => 200 "OpenapiDocument"),
    route!(GET "/metrics", Metrics, metrics::metrics, "Metrics in the text format of Prometheus; see docs/metrics.md" => 200 "text/plain"),
    route!(GET "/", Public, dashboard::page, "The dashboard, unless `--ui` serves ComfyUI's web interface here" => 200 "text/html", 304 ""),
    route!(GET "/remuda", Public, dashboard::page, "The dashboard" => 200 "text/html", 304 ""),
    route!(GET "/remuda/", Public, dashboard::page, "The dashboard" => 200 "text/html", 304 ""),
    route!(GET "/remuda/assets/{name}", Public, dashboard::asset, "A file of the dashboard" => 200 "*/*", 304 ""),
    route!(GET "/health/live", Public, health::live, "200 while the event loop runs" => 200 "Liveness", 503 "Liveness"),
    route!(GET "/health/ready", Public, health::ready, "200 while jobs are accepted and every background task runs" => 200 "Readiness", 503 "Readiness"),
];
