//! The smallest real service: a command per attempt. The workflow comes on its standard input, what it writes to its
//! standard output is the result, and every line on its standard error is a sign of life:
//!
//! | line | means |
//! |---|---|
//! | `progress 0.4 decoding` | 40 % done, in phase "decoding" |
//! | `40%` | 40 % done |
//! | anything else | still there |
//!
//! Exit 0 is success. 75 (EX_TEMPFAIL) and death by a signal are the service's fault and are tried elsewhere; any
//! other code is the job's. A command is ended together with everything it started.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;

use remuda_core::agent::{AgentEvent, AttemptEnd};
use remuda_core::cause::Cause;
use remuda_core::id::{Attempt, JobId};
use remuda_core::service::{ProbeResult, ServiceEvent, ServiceIncarnation, ServiceRemedy, SubmitOutcome};
use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::value::RawValue;
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use tracing::debug;

use super::hands::{Events, Order};
use remuda_net::secret::VARIABLES;

/// More than this is not a result but a file: it belongs beside it, and its name into it.
const RESULT_BYTES_MAX: u64 = 1 << 20;
const LINE_BYTES_MAX: u64 = 4096;
/// How many of the last lines a failure is told with.
const LAST_LINES: usize = 5;
/// A command that does not end by itself after SIGTERM is killed.
const TERM_GRACE: Duration = Duration::from_secs(5);
const EX_TEMPFAIL: i32 = 75;

/// How long commands that were told to stop may take when the worker itself leaves; then they are killed.
const LAST_GRACE: Duration = Duration::from_secs(1);
/// Commands come and go, and what runs them is always the same.
const LIFE: ServiceIncarnation = ServiceIncarnation(1);

#[derive(Clone, Debug)]
pub struct Exec {
    pub command: String,
}

/// The commands under way.
#[derive(Debug)]
pub(super) struct Commands {
    exec: Exec,
    events: Events,
    /// Until its end is heard of; with the way to tell it to stop, until it was told.
    running: BTreeMap<(JobId, Attempt), Option<oneshot::Sender<String>>>,
    tasks: JoinSet<()>,
}

impl Commands {
    pub(super) fn new(exec: Exec, events: Events) -> Self {
        Commands { exec, events, running: BTreeMap::new(), tasks: JoinSet::new() }
    }

    pub(super) fn run(&mut self, order: Order) {
        let Order { job, attempt, service_job_id, workflow, .. } = order;
        let (cancel, cancelled) = oneshot::channel();
        self.running.insert((job, attempt), Some(cancel));
        while self.tasks.try_join_next().is_some() {}
        let (exec, events) = (self.exec.clone(), self.events.clone());
        self.tasks.spawn(async move {
            let submitted =
                AgentEvent::Submitted { job, attempt, life: LIFE, answer: SubmitOutcome::Accepted };
            if events.send(submitted).await.is_ok() {
                exec.run(job, attempt, service_job_id, workflow, events, cancelled).await;
            }
        });
    }

    pub(super) fn cancel(&mut self, job: JobId, attempt: Attempt, reason: String) {
        if let Some(cancel) = self.running.get_mut(&(job, attempt)).and_then(Option::take) {
            drop(cancel.send(reason));
        }
    }

    /// A command that ended says so: as long as somebody waits for it, it runs.
    pub(super) fn probe(&mut self, job: JobId, attempt: Attempt) {
        let is_known = match self.running.get(&(job, attempt)) {
            Some(Some(cancel)) => !cancel.is_closed(),
            Some(None) => true,
            None => false,
        };
        let seen = if is_known { ProbeResult::Running } else { ProbeResult::Unknown };
        self.say(AgentEvent::Probed { job, attempt, life: LIFE, seen });
    }

    /// There is nothing to treat: a command that does not end is killed.
    pub(super) fn treat(&mut self, remedy: ServiceRemedy) {
        self.say(AgentEvent::Service(ServiceEvent::Treated { remedy, problem: None }));
    }

    pub(super) fn check(&mut self) {
        self.say(AgentEvent::Service(ServiceEvent::Checked { life: LIFE, problem: None, offer: None }));
    }

    pub(super) fn keep_only(&mut self, held: &BTreeSet<(JobId, Attempt)>) {
        self.running.retain(|key, _| held.contains(key));
    }

    fn say(&mut self, event: AgentEvent) {
        let events = self.events.clone();
        self.tasks.spawn(async move { drop(events.send(event).await) });
    }

    pub(super) async fn end(mut self) {
        let ended = async { while self.tasks.join_next().await.is_some() {} };
        if tokio::time::timeout(LAST_GRACE, ended).await.is_err() {
            self.tasks.shutdown().await;
        }
    }
}

impl Exec {
    pub(super) async fn run(
        self,
        job: JobId,
        attempt: Attempt,
        service_job_id: String,
        workflow: Arc<RawValue>,
        events: mpsc::Sender<AgentEvent>,
        cancelled: oneshot::Receiver<String>,
    ) {
        let attempt_of = Running { job, attempt, events: events.clone() };
        let outcome = match self.start(job, attempt, &service_job_id) {
            Ok(child) => attempt_of.watch(child, workflow, cancelled).await,
            Err(error) => {
                let message = format!("the command could not be started: {error}");
                AttemptEnd::Failed { cause: Cause::Worker, message }
            }
        };
        drop(events.send(AgentEvent::Ended { job, attempt, outcome }).await);
    }

    fn start(&self, job: JobId, attempt: Attempt, service_job_id: &str) -> std::io::Result<Child> {
        let mut shell = Command::new("sh");
        for secret in VARIABLES {
            shell.env_remove(secret);
        }
        shell
            .arg("-c")
            .arg(&self.command)
            .env("REMUDA_JOB", job.to_string())
            .env("REMUDA_ATTEMPT", attempt.to_string())
            .env("REMUDA_SERVICE_JOB_ID", service_job_id)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
    }
}

struct Running {
    job: JobId,
    attempt: Attempt,
    events: mpsc::Sender<AgentEvent>,
}

/// What the command printed.
struct Printed {
    result: std::io::Result<Vec<u8>>,
    last: VecDeque<String>,
}

impl Running {
    async fn watch(
        &self,
        mut child: Child,
        workflow: Arc<RawValue>,
        mut cancelled: oneshot::Receiver<String>,
    ) -> AttemptEnd {
        let group = Group::of(&child);
        let feed = feed(child.stdin.take(), workflow);
        let result = read_result(child.stdout.take());
        let lines = self.read_lines(child.stderr.take());
        let printed = async {
            let ((), result, last) = tokio::join!(feed, result, lines);
            Printed { result, last }
        };
        tokio::pin!(printed);
        let ended = async {
            tokio::select! {
                printed = &mut printed => (child.wait().await, printed),
                status = child.wait() => {
                    // What it left behind would keep its output open, and has nobody to report to any more.
                    group.send(Signal::KILL);
                    (status, (&mut printed).await)
                }
            }
        };
        tokio::pin!(ended);
        tokio::select! {
            (status, printed) = &mut ended => judge(status, printed),
            Ok(reason) = &mut cancelled => {
                group.send(Signal::TERM);
                if tokio::time::timeout(TERM_GRACE, &mut ended).await.is_err() {
                    group.send(Signal::KILL);
                    drop(tokio::time::timeout(TERM_GRACE, &mut ended).await);
                }
                AttemptEnd::Failed { cause: Cause::Plane, message: reason }
            }
        }
    }

    async fn read_lines(&self, stderr: Option<impl AsyncRead + Unpin>) -> VecDeque<String> {
        let mut last = VecDeque::new();
        let Some(stderr) = stderr else { return last };
        let mut reader = BufReader::new(stderr);
        let mut line = Vec::new();
        loop {
            line.clear();
            match (&mut reader).take(LINE_BYTES_MAX).read_until(b'\n', &mut line).await {
                Ok(0) | Err(_) => return last,
                Ok(_) => {}
            }
            let text = String::from_utf8_lossy(&line).trim_end().to_owned();
            let (progress, phase) = progress(&text);
            let signal = AgentEvent::Signal { job: self.job, attempt: self.attempt, progress, phase };
            // A sign of life that finds no room is one too many; the next one will do.
            drop(self.events.try_send(signal));
            last.push_back(text);
            if last.len() > LAST_LINES {
                last.pop_front();
            }
        }
    }
}

async fn feed(stdin: Option<impl tokio::io::AsyncWrite + Unpin>, workflow: Arc<RawValue>) {
    let Some(mut stdin) = stdin else { return };
    // A command that does not read its input is free not to.
    drop(stdin.write_all(workflow.get().as_bytes()).await);
    drop(stdin.shutdown().await);
}

async fn read_result(stdout: Option<impl AsyncRead + Unpin>) -> std::io::Result<Vec<u8>> {
    let mut result = Vec::new();
    if let Some(stdout) = stdout {
        stdout.take(RESULT_BYTES_MAX + 1).read_to_end(&mut result).await?;
    }
    Ok(result)
}

fn judge(status: std::io::Result<ExitStatus>, printed: Printed) -> AttemptEnd {
    let status = match status {
        Ok(status) => status,
        Err(error) => return failed(Cause::Worker, format!("the command was lost sight of: {error}")),
    };
    let last = printed.last.into_iter().collect::<Vec<_>>().join("\n");
    match (status.code(), printed.result) {
        (_, Ok(result)) if result.len() as u64 > RESULT_BYTES_MAX => failed(
            Cause::Job,
            format!(
                "the result is larger than {RESULT_BYTES_MAX} bytes: write it to a file and print its name"
            ),
        ),
        (Some(0), Ok(result)) => completed(&result),
        (Some(0), Err(error)) => failed(Cause::Worker, format!("the result could not be read: {error}")),
        (Some(EX_TEMPFAIL), _) => {
            failed(Cause::Service, format!("the command asked to be tried elsewhere: {last}"))
        }
        (Some(code), _) => failed(Cause::Job, format!("the command ended with exit code {code}: {last}")),
        (None, _) => failed(Cause::Service, format!("the command was ended by a signal ({status}): {last}")),
    }
}

/// JSON is passed on as it is; anything else becomes a JSON string.
fn completed(result: &[u8]) -> AttemptEnd {
    let text = String::from_utf8_lossy(result);
    let text = text.trim();
    let json =
        if text.is_empty() { Ok("null") } else { serde_json::from_str::<&RawValue>(text).map(RawValue::get) };
    let raw = match json {
        Ok(json) => RawValue::from_string(json.to_owned()),
        Err(_) => serde_json::value::to_raw_value(text),
    };
    match raw {
        Ok(raw) => AttemptEnd::Completed { result: Arc::from(raw) },
        Err(error) => failed(Cause::Job, format!("the result cannot be written as JSON: {error}")),
    }
}

fn failed(cause: Cause, mut message: String) -> AttemptEnd {
    message.truncate(message.trim_end_matches([':', ' ']).len());
    AttemptEnd::Failed { cause, message }
}

/// A command with everything it started. When nobody watches it any more, for whatever reason, all of it is killed.
pub(super) struct Group(Option<Pid>);

impl Group {
    pub(super) fn of(child: &Child) -> Group {
        Group(child.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?)))
    }

    fn send(&self, signal: Signal) {
        if let Some(group) = self.0
            && let Err(error) = kill_process_group(group, signal)
        {
            debug!(%error, "nothing left to end");
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.send(Signal::KILL);
    }
}

/// How far a line says the attempt is, and what else it says.
fn progress(line: &str) -> (f32, String) {
    if let Some(rest) = line.strip_prefix("progress ") {
        let (number, phase) = rest.split_once(' ').unwrap_or((rest, ""));
        if let Ok(progress) = number.parse::<f32>() {
            return (progress.clamp(0.0, 1.0), phase.to_owned());
        }
    }
    if let Some(percent) = line.strip_suffix('%').and_then(|number| number.trim().parse::<f32>().ok()) {
        return ((percent / 100.0).clamp(0.0, 1.0), String::new());
    }
    (0.0, line.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_tell_how_far_it_is() {
        assert_eq!(progress("progress 0.4 decoding frames"), (0.4, "decoding frames".to_owned()));
        assert_eq!(progress("40%"), (0.4, String::new()));
        assert_eq!(progress("progress soon"), (0.0, "progress soon".to_owned()));
        assert_eq!(progress("progress 7"), (1.0, String::new()));
    }

    async fn run(command: &str) -> AttemptEnd {
        let (events, mut inbox) = mpsc::channel(64);
        let (_cancel, cancelled) = oneshot::channel();
        let workflow = Arc::from(RawValue::from_string(r#"{"n":3}"#.to_owned()).unwrap());
        let exec = Exec { command: command.to_owned() };
        exec.run(JobId::from_u128(1), Attempt(1), String::new(), workflow, events, cancelled).await;
        loop {
            if let AgentEvent::Ended { outcome, .. } = inbox.recv().await.unwrap() {
                return outcome;
            }
        }
    }

    /// Runs the command and compares what is said of it.
    async fn check(command: &str, expected: Result<&str, (Cause, &str)>) {
        match (run(command).await, expected) {
            (AttemptEnd::Completed { result }, Ok(expected)) => {
                assert_eq!(result.get(), expected, "{command}")
            }
            (AttemptEnd::Failed { cause, message }, Err((expected, part))) => {
                assert_eq!(cause, expected, "{command}: {message}");
                assert!(message.contains(part), "{command}: {message}");
            }
            (ending, expected) => panic!("{command} gave {ending:?}, expected {expected:?}"),
        }
    }

    #[tokio::test]
    async fn a_command_reads_its_workflow_and_prints_its_result() {
        check("cat", Ok(r#"{"n":3}"#)).await;
        check("echo plain text", Ok(r#""plain text""#)).await;
        check("true", Ok("null")).await;
        check("sleep 600 & echo done", Ok(r#""done""#)).await;
    }

    #[tokio::test]
    async fn failures_are_told_apart_by_whose_fault_they_are() {
        check("echo no such node >&2; exit 3", Err((Cause::Job, "exit code 3: no such node"))).await;
        check("exit 75", Err((Cause::Service, "tried elsewhere"))).await;
        check("kill -9 $$", Err((Cause::Service, "signal"))).await;
        check("head -c 1100000 /dev/zero | tr '\\0' x", Err((Cause::Job, "larger than"))).await;
    }

    #[tokio::test]
    async fn a_cancelled_command_ends_with_everything_it_started() {
        let (events, mut inbox) = mpsc::channel(64);
        let (cancel, cancelled) = oneshot::channel();
        let workflow = Arc::from(RawValue::from_string("{}".to_owned()).unwrap());
        let exec = Exec { command: "sleep 600 & echo $! >&2; wait".to_owned() };
        let task = tokio::spawn(exec.run(
            JobId::from_u128(1),
            Attempt(1),
            String::new(),
            workflow,
            events,
            cancelled,
        ));
        let AgentEvent::Signal { phase, .. } = inbox.recv().await.unwrap() else {
            panic!("a line was expected")
        };
        let child: i32 = phase.parse().unwrap();
        cancel.send("not wanted".to_owned()).unwrap();
        task.await.unwrap();
        // It was sent its signal; how soon the kernel has it gone is not ours to say.
        let is_running = || {
            std::fs::read_to_string(format!("/proc/{child}/stat")).is_ok_and(|stat| !stat.contains(") Z "))
        };
        let started = std::time::Instant::now();
        while is_running() {
            assert!(
                started.elapsed() < Duration::from_secs(10),
                "the sleep the command started must be gone"
            );
            tokio::task::yield_now().await;
        }
    }
}
