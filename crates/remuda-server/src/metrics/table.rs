//! The table of all metrics. A name here is a promise: dashboards and alert rules of users refer to it.

/// One metric family.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Metric {
    pub(crate) name: &'static str,
    pub(crate) kind: MetricKind,
    /// Label names, in the order in which samples give their values.
    pub(crate) labels: &'static [&'static str],
    pub(crate) help: &'static str,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MetricKind {
    Counter,
    Gauge,
    Histogram,
}

impl MetricKind {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            MetricKind::Counter => "counter",
            MetricKind::Gauge => "gauge",
            MetricKind::Histogram => "histogram",
        }
    }
}

/// A heading of the document, and the metrics below it.
#[cfg(test)]
pub(crate) struct MetricGroup {
    pub(crate) title: &'static str,
    pub(crate) metrics: &'static [&'static Metric],
}

/// `JOBS = Gauge "remuda_jobs" ["state"] "Open jobs.";` below a title.
macro_rules! metrics {
    ($($title:literal { $($const:ident = $kind:ident $name:literal [$($label:literal),*] $help:literal;)* })*) => {
        $($(pub(crate) static $const: Metric =
            Metric { name: $name, kind: MetricKind::$kind, labels: &[$($label),*], help: $help };)*)*

        #[cfg(test)]
        pub(crate) static GROUPS: &[MetricGroup] =
            &[$(MetricGroup { title: $title, metrics: &[$(&$const),*] }),*];
    };
}

metrics! {
    "Jobs" {
        JOBS = Gauge "remuda_jobs" ["state"] "Open jobs: `waiting` or `running`.";
        JOBS_WAITING = Gauge "remuda_jobs_waiting" ["reason"] "Waiting jobs by the kind of reason: `starting`, `busy`, `blocked`, `unavailable`, `quarantined`, `unschedulable`, `no_worker`, `retry_delay`; `not_examined` beyond 256 kinds of jobs.";
        OLDEST_WAITING = Gauge "remuda_oldest_waiting_job_seconds" [] "Age of the oldest job that waits; 0 if none waits.";
        JOBS_SUBMITTED = Counter "remuda_jobs_submitted_total" [] "Accepted jobs.";
        JOBS_ENDED = Counter "remuda_jobs_ended_total" ["outcome"] "Jobs that got their outcome: `completed`, `failed`, `expired`, `cancelled`.";
        JOB_WAIT = Histogram "remuda_job_wait_seconds" [] "Time from acceptance to the first start.";
        JOB_RUN = Histogram "remuda_job_run_seconds" [] "Run time of completed attempts.";
        JOB_TURNAROUND = Histogram "remuda_job_turnaround_seconds" [] "Time from acceptance to the outcome, whatever it is.";
        ATTEMPTS_ENDED = Counter "remuda_attempts_ended_total" ["verdict", "cause"] "Ended attempts by what ended them (`completed`, `failed`, `worker_silent`, …) and what was at fault: `job`, `worker`, `service`, `provider`, `plane`, `none`.";
        RECOVERED = Counter "remuda_recovered_completions_total" [] "Completions whose message was lost and which a probe found.";
        REFUSED_WRITES = Counter "remuda_refused_writes_total" ["kind"] "Refused messages of workers: `stale_attempt`, `already_recorded`, `old_beat`, `old_incarnation`.";
        PROBES = Counter "remuda_probes_total" ["result"] "Probes of attempts at their services, by result, as workers report them.";
    }
    "Workers" {
        WORKERS = Gauge "remuda_workers" ["availability"] "Workers by whether they take work: `ready`, `starting`, `draining`, `suspect`, `offline`, `unheard`, `disconnected`, `probation`, `sick`, `failed`, `terminated`.";
        SLOTS = Gauge "remuda_slots" ["state"] "Slots of ready workers: `busy` or `free`.";
        UNRELIABLE = Gauge "remuda_unreliable" ["kind"] "What went stale too often within the last hour: `workers` or `machines`.";
        BLOCKS = Gauge "remuda_blocks" [] "Workers that a workflow or shape is kept from now, as pairs.";
        QUARANTINED = Gauge "remuda_quarantined_shapes" [] "Shapes that fail on several workers and run one job at a time.";
        BRAKES = Gauge "remuda_brakes" ["kind"] "Brakes that are on: `mass_loss` or `creation`.";
        MODEL_COPIES = Gauge "remuda_model_copies" ["state"] "Model copies on workers that report them: `loading`, `testing`, `ready`, `busy`, `draining`, `dead`.";
    }
    "Events" {
        EVENTS = Counter "remuda_events_total" ["kind"] "Published events by kind, as `/remuda/v1/events` names them: blocks, quarantines, offline workers, scaling, brakes, webhooks.";
    }
    "Fleets and money" {
        MACHINES = Gauge "remuda_machines" ["fleet", "phase"] "Rented machines: `wanted`, `lost`, `made`, `up`, `draining`, `returning`.";
        SCALING = Counter "remuda_scaling_actions_total" ["direction"] "Decisions to grow (`up`) or shrink (`down`) a fleet.";
        SPEND_RATE = Gauge "remuda_spend_dollars_per_hour" ["fleet"] "Hourly price of all machines of a fleet.";
        SPEND_TODAY = Gauge "remuda_spend_dollars_today" ["fleet"] "Cost of a fleet since midnight UTC.";
        PROVIDER_CALLS = Counter "remuda_provider_calls_total" ["call", "outcome"] "Answered calls to providers: `rent`, `list`, `return`, `price`, `bootstrap`; the outcome is `ok` or the class of the error.";
    }
    "The plane itself" {
        COMMIT_SECONDS = Histogram "remuda_commit_seconds" [] "Time of one commit to the store.";
        COMMIT_RECORDS = Histogram "remuda_commit_records" [] "Records in one commit.";
        COMMIT_FAILURES = Counter "remuda_commit_failures_total" [] "Commits that failed; nothing of them was acknowledged.";
        LOOP_STEPS = Counter "remuda_event_loop_messages_total" [] "Messages that the event loop has handled.";
        LOOP_LAG = Gauge "remuda_event_loop_lag_seconds" [] "Longest delay of a due timer within the last minute or two.";
        LOOP_LONGEST = Gauge "remuda_event_loop_longest_step_seconds" [] "Longest uninterrupted step within the last minute or two.";
        STORE_RESERVE = Gauge "remuda_store_has_reserve" [] "1 while the store has its disk reserve; 0 means that new jobs are refused.";
        TASK_UP = Gauge "remuda_task_up" ["task"] "1 while a background task runs, 0 while it restarts or is down.";
        TASK_RESTARTS = Counter "remuda_task_restarts_total" ["task"] "Restarts of a background task.";
        CERTIFICATE_ENDS = Gauge "remuda_certificate_expiry_timestamp_seconds" [] "When the certificate of the listener ends; absent without TLS.";
        TERM = Gauge "remuda_plane_term" [] "Counts the starts of the plane on this store.";
    }
    "HTTP and webhooks" {
        HTTP_REQUESTS = Counter "remuda_http_requests_total" ["method", "route", "status"] "Answered requests by the pattern of their route; `other` matches no route.";
        CONNECTIONS = Gauge "remuda_connections" ["class"] "Open connections: `clients`, `workers`, `admins`, `without_request`.";
        CONNECTIONS_REFUSED = Counter "remuda_connections_refused_total" ["reason"] "Connections that were refused or closed to make room.";
        LISTENERS = Gauge "remuda_listeners" ["kind"] "Open streams of events (`sse`), and connected ComfyUI clients (`comfyui`).";
        WEBHOOKS_PENDING = Gauge "remuda_webhooks_pending" [] "Webhooks that wait for delivery, as far as they are in memory.";
        WEBHOOK_TRIES = Counter "remuda_webhook_tries_total" ["outcome"] "Tries to deliver a webhook: `accepted` or `failed`.";
    }
    "Alerts" {
        ALERTS = Gauge "remuda_alerts" ["state"] "Alerts of Remuda itself, by incident: `firing`, or `pending` until its time is over.";
        ALERT_MESSAGES = Counter "remuda_alert_messages_total" ["channel", "outcome"] "Tries to send a message of an alert: `accepted` or `failed`.";
    }
    "Process" {
        BUILD_INFO = Gauge "remuda_build_info" ["version"] "Always 1; the label has the version.";
        MEMORY = Gauge "process_resident_memory_bytes" [] "Resident memory.";
        OPEN_FILES = Gauge "process_open_fds" [] "Open files and sockets.";
        OPEN_FILES_MAX = Gauge "process_max_fds" [] "Limit of open files and sockets.";
        CPU_SECONDS = Counter "process_cpu_seconds_total" [] "CPU time, in user and system mode.";
        START_TIME = Gauge "process_start_time_seconds" [] "When the process started, since 1970.";
    }
}

#[cfg(test)]
pub(crate) fn all() -> impl Iterator<Item = &'static Metric> {
    GROUPS.iter().flat_map(|group| group.metrics.iter().copied())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_follow_the_conventions_of_prometheus() {
        let mut names = std::collections::BTreeSet::new();
        for metric in all() {
            let Metric { name, kind, help, .. } = metric;
            assert!(names.insert(*name), "{name} is listed twice");
            assert!(name.starts_with("remuda_") || name.starts_with("process_"), "{name}");
            assert_eq!(
                name.ends_with("_total"),
                *kind == MetricKind::Counter,
                "{name}: only counters end in _total"
            );
            assert!(help.ends_with('.'), "{name}: its meaning is a sentence");
        }
    }

    /// Faults: X17.
    #[test]
    fn no_label_names_a_tenant_a_job_or_a_worker() {
        for metric in all() {
            let named = metric
                .labels
                .iter()
                .find(|label| ["tenant", "job", "worker", "machine", "token"].contains(label));
            assert_eq!(named, None, "{}: its values would be without bound", metric.name);
        }
    }
}
