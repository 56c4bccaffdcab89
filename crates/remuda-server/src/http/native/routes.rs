//! The routes of the native API.

use super::super::access::tokens;
use super::super::routes::{Route, route};
use super::super::{affinities, blobs, events, jobs, live, openai, preview, reload, workers};
use super::{blocks, cost, cycles, fleets, health, machines, openapi, quarantine, status};

pub(in crate::http) const ROUTES: &[Route] = &[
    route!(POST "/remuda/v1/jobs", Client, jobs::submit, "Submit a job; 201 with its id, 200 if the idempotency key is known")
        .body(r#"{"workflow": {"scene": "a wild horse at dawn"}, "priority": 5}"#)
        .errors(&["malformed", "invalid_workflow", "key_conflict", "queue_full"]),
    route!(GET "/remuda/v1/jobs", Client, jobs::list, "List jobs, newest first, a page at a time")
        .query(&["state", "tenant", "before", "limit"]),
    route!(GET "/remuda/v1/jobs/{id}", Client, jobs::one, "One job: its request, state, reason, progress and result"),
    route!(GET "/remuda/v1/jobs/{id}/why", Client, jobs::why, "The job's history: every attempt, and every worker that was passed over, with the reason"),
    route!(GET "/remuda/v1/jobs/{id}/workflow", Client, jobs::workflow, "The workflow exactly as it was submitted"),
    route!(GET "/remuda/v1/jobs/{id}/result", Client, jobs::result, "The result alone"),
    route!(GET "/remuda/v1/jobs/{id}/preview", Client, preview::get, "The newest preview of a running job, as an attachment; not stored"),
    route!(POST "/remuda/v1/jobs/{id}/cancel", Client, jobs::cancel, "Cancel a job in any state that is not final")
        .audited("job.cancel")
        .body(r#"{"reason": "no longer needed"}"#)
        .errors(&["ended"]),
    route!(POST "/remuda/v1/jobs/{id}/retry", Client, jobs::retry, "Run an ended job again, as a new job that names it (`options.retry_of`)")
        .audited("job.retry")
        .errors(&["refused", "queue_full"]),
    route!(POST "/remuda/v1/workers", Worker, workers::join, "Join as a worker")
        .audited("worker.join")
        .body(r#"{"worker": "gpu-7", "services": ["exec"], "slots": 1}"#)
        .errors(&["identity_unproven", "machine_retired", "repeated_join"]),
    route!(GET "/remuda/v1/workers", Admin, workers::list, "All workers"),
    route!(GET "/remuda/v1/workers/{id}", Admin, workers::one, "One worker"),
    route!(POST "/remuda/v1/workers/{id}/beat", WorkerSelf, workers::beat, "Send a heartbeat; `wait` seconds is how long the plane may hold it for orders")
        .query(&["wait"])
        .body(r#"{"incarnation": 1, "seq": 8, "term": 3, "held": [], "finished": []}"#)
        .errors(&["unknown_worker", "replaced", "stale_beat", "machine_retired"]),
    route!(PUT "/remuda/v1/workers/{id}/preview", WorkerSelf, preview::put, "Publish a preview of an attempt: a JPEG, PNG or WebP of at most 1 MiB")
        .query(&["job", "attempt", "node"])
        .errors(&["refused"]),
    route!(PUT "/remuda/v1/workers/{id}/live", WorkerSelf, live::put, "Report an attempt's progress, service messages and outputs so far")
        .query(&["job", "attempt", "node"])
        .errors(&["refused"]),
    route!(POST "/remuda/v1/workers/{id}/drain", Admin, workers::drain, "Assign no new work; the worker leaves when it holds nothing, or after `deadline_seconds`")
        .audited("worker.drain")
        .body(r#"{"deadline_seconds": 600, "reason": "maintenance"}"#),
    route!(DELETE "/remuda/v1/workers/{id}", WorkerSelfOrAdmin, workers::leave, "Leave: the worker is offline at once")
        .audited("worker.leave"),
    route!(POST "/remuda/v1/blobs", AnyToken, blobs::store, "Store a blob; the answer has its hash and size")
        .streamed()
        .errors(&["too_many_uploads"]),
    route!(PUT "/remuda/v1/blobs/{hash}", AnyToken, blobs::store_named, "Store a blob whose hash is known; 201, or 200 at once if it is stored already")
        .streamed()
        .errors(&["hash_mismatch", "too_many_uploads"]),
    route!(GET "/remuda/v1/blobs/{hash}", AnyToken, blobs::read, "A blob, as an attachment, with HEAD, Range, If-Range and If-None-Match; `name` sets file name and type")
        .streamed()
        .query(&["name"])
        .errors(&["range_not_satisfiable"]),
    route!(GET "/remuda/v1/machines", Admin, machines::list, "All machines, rented or not: state, cost, what they wait for"),
    route!(GET "/remuda/v1/machines/{id}", Admin, machines::one, "One machine"),
    route!(POST "/remuda/v1/machines/{id}/drain", Admin, machines::drain, "Assign no new work to its workers; the machine is returned when they hold nothing, or after `deadline_seconds`")
        .audited("machine.drain")
        .body(r#"{"deadline_seconds": 600, "reason": "maintenance"}"#),
    route!(GET "/remuda/v1/fleets", Admin, fleets::list, "All fleets: settings, machines, budget, spending, what limits them"),
    route!(GET "/remuda/v1/fleets/{id}", Admin, fleets::one, "One fleet"),
    route!(POST "/remuda/v1/fleets/{id}/pause", Admin, fleets::pause, "Neither grow nor shrink until resumed")
        .audited("fleet.pause")
        .body(r#"{"reason": "provider incident"}"#),
    route!(POST "/remuda/v1/fleets/{id}/resume", Admin, fleets::resume, "Follow the scaling policy again")
        .audited("fleet.resume"),
    route!(POST "/remuda/v1/fleets/{id}/scale", Admin, fleets::scale, "Set the number of machines; `null` follows the policy again")
        .audited("fleet.scale")
        .body(r#"{"machines": 4}"#),
    route!(POST "/remuda/v1/fleets/{id}/reset-brake", Admin, fleets::reset_brake, "Clear what holds back creations: the brake, avoided offers, waits")
        .audited("fleet.reset_brake"),
    route!(GET "/remuda/v1/cost", Admin, cost::cost, "What machines cost, now and in a window (milliseconds); by fleet, tenant, job or hour")
        .query(&["from", "until", "by"]),
    route!(GET "/remuda/v1/blocks", Admin, blocks::list, "Blocks: workflows and shapes that a worker is not given"),
    route!(DELETE "/remuda/v1/blocks/{worker}/{shape}", Admin, blocks::lift, "Lift a block").audited("block.lift"),
    route!(GET "/remuda/v1/affinities", Admin, affinities::list, "Shapes with preferred or excluded workers"),
    route!(GET "/remuda/v1/affinities/{shape}", Admin, affinities::one, "One shape's preferred and excluded workers"),
    route!(PUT "/remuda/v1/affinities/{shape}", Admin, affinities::set, "Set a shape's preferred and excluded workers")
        .audited("affinity.set")
        .body(r#"{"preferred": ["gpu-7"], "excluded": []}"#),
    route!(DELETE "/remuda/v1/affinities/{shape}", Admin, affinities::remove, "Remove a shape's affinity")
        .audited("affinity.remove"),
    route!(GET "/remuda/v1/quarantine", Admin, quarantine::list, "Shapes that fail on every worker"),
    route!(DELETE "/remuda/v1/quarantine/{shape}", Admin, quarantine::release, "Release a shape from quarantine")
        .audited("quarantine.release"),
    route!(GET "/remuda/v1/events", Client, events::stream, "Events as they happen (SSE); resumes with Last-Event-ID")
        .query(&["job", "tenant", "worker", "name", "after", "metadata.KEY"])
        .errors(&["too_many_streams"]),
    route!(GET "/remuda/v1/cycles", Admin, cycles::list, "The newest reports of the control cycle"),
    route!(POST "/remuda/v1/cycles", Admin, cycles::run, "Run a control cycle now; the answer is its report")
        .audited("cycle.run"),
    route!(GET "/remuda/v1/plan", Admin, cycles::plan, "What a control cycle would do now; changes nothing"),
    route!(POST "/remuda/v1/reload", Admin, reload::reload, "Read the settings again and apply them; an invalid file changes nothing")
        .audited("settings.reload"),
    route!(POST "/remuda/v1/tokens", Admin, tokens::create, "Create a token; its secret is in this answer only")
        .audited("token.create")
        .body(r#"{"role": "client", "tenant": "anna", "name": "web shop", "expires_seconds": 86400}"#)
        .errors(&["no_admin"]),
    route!(GET "/remuda/v1/tokens", Admin, tokens::list, "All tokens, without their secrets"),
    route!(DELETE "/remuda/v1/tokens/{id}", Admin, tokens::revoke, "Revoke a token by its id or name, effective at once")
        .audited("token.revoke")
        .errors(&["ambiguous", "last_admin"]),
    route!(GET "/remuda/v1/models", Admin, openai::models::status, "Every model and its copies, on every worker"),
    route!(GET "/remuda/v1/status", Admin, status::status, "The whole picture: jobs and the oldest that waits, workers, brakes, fleets, refused messages, background tasks, the next wake-up"),
    route!(GET "/remuda/v1/views/{name}", Admin, status::view, "orchestrator_status, active_workers_health or worker_performance"),
    route!(GET "/remuda/v1/openapi.json", AnyToken, openapi::document, "This API as an OpenAPI document"),
    route!(GET "/health/live", Public, health::live, "200 while the event loop runs"),
    route!(GET "/health/ready", Public, health::ready, "200 while jobs are accepted and every background task runs"),
];
