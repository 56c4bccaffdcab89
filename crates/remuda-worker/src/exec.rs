//! The `exec` service: one command per attempt. The workflow is its standard input, its standard output is the result, and
//! every line on standard error shows that it is alive:
//!
//! | line | meaning |
//! |---|---|
//! | `progress 0.4 decoding` | 40 % done, in phase "decoding" |
//! | `40%` | 40 % done |
//! | anything else | still running |
//!
//! What an exit means for the job is decided by `remuda_core::service::command`. A command is killed together with
//! everything it started.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;

use remuda_core::agent::AgentEvent;
use remuda_core::cause::Cause;
use remuda_core::id::{Attempt, JobId};
use remuda_core::service::command::{CommandExit, CommandOutput, RESULT_BYTES_MAX};
use remuda_core::service::{
    AttemptEnd, ProbeResult, SelfTestResult, ServiceEvent, ServiceIncarnation, ServiceRemedy, SubmitOutcome,
};
use rustix::process::Signal;
use serde_json::value::RawValue;
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::oneshot;
use tokio::task::JoinSet;

use remuda_net::job_environment::JobEnvironment;

use crate::attempt::{AttemptRequest, Events};
use crate::options::ExecCommand;
use crate::process_group::ProcessGroup;

const LINE_BYTES_MAX: u64 = 4096;
/// How many of the last lines are part of a failure's message.
const LAST_LINES_MAX: usize = 5;
/// A command that is still running this long after SIGTERM is killed.
const TERM_GRACE: Duration = Duration::from_secs(5);

/// How long cancelled commands may take when the worker itself ends; then they are killed.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(1);
/// This service cannot restart, so it has a single incarnation.
const INCARNATION: ServiceIncarnation = ServiceIncarnation(1);

/// The running commands.
#[derive(Debug)]
pub(crate) struct ExecService {
    command: ExecCommand,
    environment: JobEnvironment,
    events: Events,
    /// Commands of held attempts, with the channel that cancels each; None once it was cancelled.
    running: BTreeMap<(JobId, Attempt), Option<oneshot::Sender<String>>>,
    tasks: JoinSet<()>,
}

impl ExecService {
    pub(crate) fn new(command: ExecCommand, environment: JobEnvironment, events: Events) -> Self {
        ExecService { command, environment, events, running: BTreeMap::new(), tasks: JoinSet::new() }
    }

    pub(crate) fn run(&mut self, request: AttemptRequest) {
        let AttemptRequest { job, attempt, service_job_id, workflow, .. } = request;
        let (cancel, cancelled) = oneshot::channel();
        self.running.insert((job, attempt), Some(cancel));
        while self.tasks.try_join_next().is_some() {}
        let (command, environment) = (self.command.clone(), self.environment.clone());
        let events = self.events.clone();
        self.tasks.spawn(async move {
            let submitted = AgentEvent::Submitted {
                job,
                attempt,
                incarnation: INCARNATION,
                answer: SubmitOutcome::Accepted,
            };
            if events.send(submitted).await.is_ok() {
                let run = ExecRun { job, attempt, events };
                let child = spawn_command(&command, &environment, job, attempt, &service_job_id);
                run.run_to_end(child, workflow, cancelled).await;
            }
        });
    }

    pub(crate) fn cancel(&mut self, job: JobId, attempt: Attempt, reason: String) {
        if let Some(cancel) = self.running.get_mut(&(job, attempt)).and_then(Option::take) {
            drop(cancel.send(reason));
        }
    }

    /// A command reports its own end, so it runs as long as its task holds the cancel channel.
    pub(crate) fn probe(&mut self, job: JobId, attempt: Attempt) {
        let is_known = match self.running.get(&(job, attempt)) {
            Some(Some(cancel)) => !cancel.is_closed(),
            Some(None) => true,
            None => false,
        };
        let seen = if is_known { ProbeResult::Running } else { ProbeResult::Unknown };
        self.send(AgentEvent::Probed { job, attempt, incarnation: INCARNATION, result: seen });
    }

    /// Nothing to repair: a command that does not end is killed.
    pub(crate) fn repair(&mut self, remedy: ServiceRemedy) {
        self.send(AgentEvent::Service(ServiceEvent::RemedyDone { remedy, problem: None }));
    }

    pub(crate) fn check(&mut self) {
        self.send(AgentEvent::Service(ServiceEvent::SelfTested {
            incarnation: INCARNATION,
            result: SelfTestResult::Passed,
            offer: None,
        }));
    }

    pub(crate) fn retain(&mut self, held: &BTreeSet<(JobId, Attempt)>) {
        self.running.retain(|key, _| held.contains(key));
    }

    fn send(&mut self, event: AgentEvent) {
        let events = self.events.clone();
        self.tasks.spawn(async move { drop(events.send(event).await) });
    }

    pub(crate) async fn end(mut self) {
        let ended = async { while self.tasks.join_next().await.is_some() {} };
        if tokio::time::timeout(SHUTDOWN_GRACE, ended).await.is_err() {
            self.tasks.shutdown().await;
        }
    }
}

fn spawn_command(
    command: &ExecCommand,
    environment: &JobEnvironment,
    job: JobId,
    attempt: Attempt,
    service_job_id: &str,
) -> std::io::Result<Child> {
    let mut shell = Command::new("sh");
    shell
        .env_clear()
        .envs(environment.variables())
        .arg("-c")
        .arg(&command.command)
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

/// One running command.
struct ExecRun {
    job: JobId,
    attempt: Attempt,
    events: Events,
}

impl ExecRun {
    /// Waits for the command, and reports how it ended.
    async fn run_to_end(
        self,
        child: std::io::Result<Child>,
        workflow: Arc<RawValue>,
        cancelled: oneshot::Receiver<String>,
    ) {
        let outcome = match child {
            Ok(child) => self.watch(child, workflow, cancelled).await,
            Err(error) => {
                let nothing = CommandOutput { result: Ok(Vec::new()), last_lines: String::new() };
                CommandExit::NotStarted(error.to_string()).judge(nothing)
            }
        };
        let ExecRun { job, attempt, events } = self;
        drop(events.send(AgentEvent::Ended { job, attempt, outcome }).await);
    }

    async fn watch(
        &self,
        mut child: Child,
        workflow: Arc<RawValue>,
        mut cancelled: oneshot::Receiver<String>,
    ) -> AttemptEnd {
        let group = ProcessGroup::new(&child);
        let input = write_input(child.stdin.take(), workflow);
        let result = read_result(child.stdout.take());
        let lines = self.read_lines(child.stderr.take());
        let printed = async {
            let ((), result, last_lines) = tokio::join!(input, result, lines);
            let last_lines = last_lines.into_iter().collect::<Vec<_>>().join("\n");
            CommandOutput { result: result.map_err(|error| error.to_string()), last_lines }
        };
        tokio::pin!(printed);
        let ended = async {
            tokio::select! {
                printed = &mut printed => (child.wait().await, printed),
                status = child.wait() => {
                    // Processes it left behind would keep its output open.
                    group.send(Signal::KILL);
                    (status, (&mut printed).await)
                }
            }
        };
        tokio::pin!(ended);
        tokio::select! {
            (status, printed) = &mut ended => exit(status).judge(printed),
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
            let (progress, phase) = parse_progress(&text);
            let signal = AgentEvent::Signal { job: self.job, attempt: self.attempt, progress, phase };
            // If the channel is full the agent has enough signals; the next line will do.
            drop(self.events.try_send(signal));
            last.push_back(text);
            if last.len() > LAST_LINES_MAX {
                last.pop_front();
            }
        }
    }
}

async fn write_input(stdin: Option<impl tokio::io::AsyncWrite + Unpin>, workflow: Arc<RawValue>) {
    let Some(mut stdin) = stdin else { return };
    // A command may ignore its input, so a broken pipe is no error.
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

fn exit(status: std::io::Result<ExitStatus>) -> CommandExit {
    match status {
        Err(error) => CommandExit::Unobserved(error.to_string()),
        Ok(status) => {
            status.code().map_or_else(|| CommandExit::Signal(status.to_string()), CommandExit::Code)
        }
    }
}

/// Progress and phase, as written in a line of standard error.
fn parse_progress(line: &str) -> (f32, String) {
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
    use tokio::sync::mpsc;

    use super::*;

    #[test]
    fn progress_is_parsed_from_lines() {
        assert_eq!(parse_progress("progress 0.4 decoding frames"), (0.4, "decoding frames".to_owned()));
        assert_eq!(parse_progress("40%"), (0.4, String::new()));
        assert_eq!(parse_progress("progress soon"), (0.0, "progress soon".to_owned()));
        assert_eq!(parse_progress("progress 7"), (1.0, String::new()));
    }

    async fn run_command(
        command: &str,
        workflow: &str,
        events: Events,
        cancelled: oneshot::Receiver<String>,
    ) {
        let (job, attempt) = (JobId::from_u128(1), Attempt(1));
        let workflow = Arc::from(RawValue::from_string(workflow.to_owned()).unwrap());
        let command = ExecCommand { command: command.to_owned() };
        let child = spawn_command(&command, &JobEnvironment::default(), job, attempt, "");
        ExecRun { job, attempt, events }.run_to_end(child, workflow, cancelled).await;
    }

    async fn run(command: &str) -> AttemptEnd {
        let (events, mut inbox) = mpsc::channel(64);
        let (_cancel, cancelled) = oneshot::channel();
        run_command(command, r#"{"n":3}"#, events, cancelled).await;
        loop {
            if let AgentEvent::Ended { outcome, .. } = inbox.recv().await.unwrap() {
                return outcome;
            }
        }
    }

    /// Runs the command and compares how it ended.
    async fn check(command: &str, expected: Result<&str, (Cause, &str)>) {
        match (run(command).await, expected) {
            (AttemptEnd::Completed { result }, Ok(expected)) => {
                assert_eq!(result.get(), expected, "{command}");
            }
            (AttemptEnd::Failed { cause, message }, Err((expected, part))) => {
                assert_eq!(cause, expected, "{command}: {message}");
                assert!(message.contains(part), "{command}: {message}");
            }
            (ending, expected) => panic!("{command} gave {ending:?}, expected {expected:?}"),
        }
    }

    #[tokio::test]
    async fn standard_output_is_the_result() {
        check("cat", Ok(r#"{"n":3}"#)).await;
        check("echo plain text", Ok(r#""plain text""#)).await;
        check("true", Ok("null")).await;
        check("sleep 600 & echo done", Ok(r#""done""#)).await;
    }

    #[tokio::test]
    async fn exit_status_decides_whose_fault_a_failure_is() {
        check("echo no such node >&2; exit 3", Err((Cause::Job, "exit code 3: no such node"))).await;
        check("exit 75", Err((Cause::Service, "tried elsewhere"))).await;
        check("kill -9 $$", Err((Cause::Service, "signal"))).await;
        check("head -c 1100000 /dev/zero | tr '\\0' x", Err((Cause::Job, "larger than"))).await;
    }

    #[tokio::test]
    async fn cancelled_command_is_killed_with_everything_it_started() {
        let (events, mut inbox) = mpsc::channel(64);
        let (cancel, cancelled) = oneshot::channel();
        let command = "sleep 600 & echo $! >&2; wait";
        let task = tokio::spawn(run_command(command, "{}", events, cancelled));
        let AgentEvent::Signal { phase, .. } = inbox.recv().await.unwrap() else {
            panic!("a line was expected")
        };
        let child: i32 = phase.parse().unwrap();
        cancel.send("cancelled".to_owned()).unwrap();
        task.await.unwrap();
        // The signal was sent; the kernel may take a moment to remove the process.
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
