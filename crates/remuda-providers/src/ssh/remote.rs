//! Runs one command on a machine with a guaranteed end: a deadline around all of it, a limit on its output, and an
//! error if there is no exit status.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::future::pending;
use std::io;
use std::path::Path;
use std::time::Duration;

use remuda_core::provider::BootstrapError;
use russh::{ChannelMsg, ChannelReadHalf, ChannelWriteHalf, client};
use tokio::fs::File;
use tokio::io::AsyncReadExt;
use tokio::time::{Instant, timeout, timeout_at};

use super::connection::{Connection, timed_out};
use super::stage::StageDeadline;

/// Standard input of a command.
#[derive(Clone, Copy, Debug)]
pub(super) enum Input<'a> {
    Nothing,
    Text(&'a str),
    File(&'a Path),
}

/// The last part of the standard output of a successful command.
#[derive(Debug)]
pub(super) struct Stdout(pub(super) String);

/// A shell script with arguments as one command line. It is visible in the remote process list, so it must not contain
/// secrets.
pub(super) fn script(text: &str, arguments: &[&str]) -> String {
    let words = ["sh", "-c", text, "remuda"].into_iter().chain(arguments.iter().copied());
    words.map(quote).collect::<Vec<_>>().join(" ")
}

/// Quotes one shell word.
pub(super) fn quote(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// Succeeds if the command does: exit status 0 before the stage's deadline. `command` is a program with its arguments.
pub(super) async fn run(
    connection: &Connection,
    step: StageDeadline,
    command: &str,
    input: Input<'_>,
) -> Result<Stdout, BootstrapError> {
    let StageDeadline { stage, timeout: limit, deadline } = step;
    // A command that hangs outlives its connection, and sshd does not signal processes of root: so `timeout` ends it
    // remotely, shortly after our deadline.
    let left = deadline.saturating_duration_since(Instant::now());
    let command = format!("exec timeout -k {KILL_SECONDS} {} {command}", left.as_secs() + 1);
    let channel = match timeout_at(deadline, connection.exec(&command)).await {
        Ok(Ok(opened)) => opened,
        Ok(Err(error)) if connection.is_lost() => return Err(stage.not_ready(error)),
        Ok(Err(error)) => return Err(stage.failed(format!("it accepts no commands: {error}"))),
        Err(_) => return Err(stage.failed(timed_out(limit))),
    };
    let (mut reader, writer) = channel.split();
    let mut output = CommandOutput::default();
    let ended = {
        let (reading, sending) = (read_output(&mut reader, &mut output), send_input(&writer, input));
        let exchange = async {
            tokio::select! {
                ended = reading => ended,
                error = sending => Err(CommandFailure::Local(error)),
            }
        };
        timeout_at(deadline, exchange).await
    };
    match ended {
        Ok(Ok(0)) => Ok(Stdout(output.out())),
        Ok(Ok(status)) => Err(stage.failed(format!("exit status {status}: {}", output.all()))),
        Ok(Err(CommandFailure::NoStatus)) if connection.is_lost() => {
            Err(stage.not_ready(format!("the connection was lost: {}", output.all())))
        }
        Ok(Err(failure)) => Err(stage.failed(format!("{failure}: {}", output.all()))),
        Err(_) => Err(stage.failed(format!("not finished within {limit:?}: {}", output.all()))),
    }
}

/// Between SIGTERM and SIGKILL.
const KILL_SECONDS: u32 = 5;

/// How long output is awaited after the exit: a background process may keep the channel open forever.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(1);

/// More output than this is not useful.
const OUTPUT_BYTES_MAX: u64 = 64 * 1024 * 1024;

#[derive(Debug, thiserror::Error)]
enum CommandFailure {
    #[error("it ended without an exit status")]
    NoStatus,
    #[error("it was ended by signal {0}")]
    Killed(String),
    #[error("it refused to run the command")]
    Refused,
    #[error("it printed more than {} MiB", OUTPUT_BYTES_MAX >> 20)]
    OutputTooLarge,
    #[error("the local input cannot be read: {0}")]
    Local(#[source] io::Error),
}

async fn read_output(
    reader: &mut ChannelReadHalf,
    output: &mut CommandOutput,
) -> Result<u32, CommandFailure> {
    loop {
        match reader.wait().await.ok_or(CommandFailure::NoStatus)? {
            ChannelMsg::ExitStatus { exit_status } => {
                let rest = async {
                    while let Some(message) = reader.wait().await {
                        output.take(&message);
                    }
                };
                drop(timeout(DRAIN_TIMEOUT, rest).await);
                return Ok(exit_status);
            }
            ChannelMsg::ExitSignal { signal_name, .. } => {
                return Err(CommandFailure::Killed(format!("{signal_name:?}")));
            }
            ChannelMsg::Failure => return Err(CommandFailure::Refused),
            message => output.take(&message),
        }
        if output.bytes > OUTPUT_BYTES_MAX {
            return Err(CommandFailure::OutputTooLarge);
        }
    }
}

/// Returns only if the input cannot be read locally. A command that does not read its input ends sooner or later, and
/// its exit status says more than a closed channel.
async fn send_input(writer: &ChannelWriteHalf<client::Msg>, input: Input<'_>) -> io::Error {
    match write_input(writer, input).await {
        Ok(InputSent) => match pending::<Infallible>().await {},
        Err(error) => error,
    }
}

#[derive(Debug)]
struct InputSent;

/// One packet.
const PIECE_BYTES: usize = 32 * 1024;

async fn write_input(writer: &ChannelWriteHalf<client::Msg>, input: Input<'_>) -> io::Result<InputSent> {
    match input {
        Input::Nothing => {}
        Input::Text(text) => drop(writer.data(text.as_bytes()).await),
        Input::File(path) => {
            let mut file = File::open(path).await?;
            let mut piece = vec![0; PIECE_BYTES];
            loop {
                let bytes = file.read(&mut piece).await?;
                if bytes == 0 || writer.data(&piece[..bytes]).await.is_err() {
                    break;
                }
            }
        }
    }
    drop(writer.eof().await);
    Ok(InputSent)
}

/// The end of a command's output, where the reason is. Kept per stream, because the two are not ordered, and late
/// output must not push out error messages.
#[derive(Debug, Default)]
struct CommandOutput {
    out: Tail,
    errors: Tail,
    bytes: u64,
}

impl CommandOutput {
    fn take(&mut self, message: &ChannelMsg) {
        let (tail, data) = match message {
            ChannelMsg::Data { data } => (&mut self.out, data),
            ChannelMsg::ExtendedData { data, .. } => (&mut self.errors, data),
            _ => return,
        };
        tail.push(data);
        self.bytes += data.len() as u64;
    }

    fn out(&self) -> String {
        self.out.text()
    }

    fn all(&self) -> String {
        match (self.out.text(), self.errors.text()) {
            (out, errors) if out.is_empty() && errors.is_empty() => "no output".to_owned(),
            (out, errors) if errors.is_empty() => out,
            (out, errors) if out.is_empty() => errors,
            (out, errors) => format!("{out}\n{errors}"),
        }
    }
}

#[derive(Debug, Default)]
struct Tail(VecDeque<u8>);

impl Tail {
    /// About fifteen lines.
    const BYTES_MAX: usize = 1400;

    fn push(&mut self, data: &[u8]) {
        self.0.extend(&data[data.len().saturating_sub(Self::BYTES_MAX)..]);
        self.0.drain(..self.0.len().saturating_sub(Self::BYTES_MAX));
    }

    /// Without control characters for a terminal.
    fn text(&self) -> String {
        let bytes: Vec<u8> = self.0.iter().copied().collect();
        let text = String::from_utf8_lossy(&bytes);
        text.trim().chars().filter(|it| !it.is_control() || *it == '\n' || *it == '\t').collect()
    }
}
