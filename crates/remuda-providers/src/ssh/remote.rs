//! One command on a machine, with an end that is certain: a deadline around all of it, a bound on what it may say, and
//! no belief in a command that ended without an exit status.

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

use super::connection::{Connection, late};
use super::stage::Step;

/// What a command gets to read.
#[derive(Clone, Copy, Debug)]
pub(super) enum Input<'a> {
    Nothing,
    Text(&'a str),
    File(&'a Path),
}

/// What a command that ended well said on its standard output: the end of it.
#[derive(Debug)]
pub(super) struct Answer(pub(super) String);

/// A shell script with arguments as one command line. Whoever may list processes there can read it: no secrets in here.
pub(super) fn script(text: &str, arguments: &[&str]) -> String {
    let words = ["sh", "-c", text, "remuda"].into_iter().chain(arguments.iter().copied());
    words.map(quoted).collect::<Vec<_>>().join(" ")
}

/// One word, whatever is in it.
pub(super) fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// Ends well if the command did: exit status 0, and before the stage's deadline. `command` is a program with its arguments.
pub(super) async fn run(
    connection: &Connection,
    step: Step,
    command: &str,
    input: Input<'_>,
) -> Result<Answer, BootstrapError> {
    let Step { stage, limit, deadline } = step;
    // A command that hangs outlives the connection it came through, and an sshd does not signal what root started: so it
    // takes its own end along, a little after ours.
    let left = deadline.saturating_duration_since(Instant::now());
    let command = format!("exec timeout -k {KILL_SECONDS} {} {command}", left.as_secs() + 1);
    let begun = match timeout_at(deadline, connection.begin(&command)).await {
        Ok(Ok(channel)) => channel,
        Ok(Err(error)) if connection.is_lost() => return Err(stage.early(error)),
        Ok(Err(error)) => return Err(stage.failed(format!("it takes no commands: {error}"))),
        Err(_) => return Err(stage.failed(late(limit))),
    };
    let (mut reader, writer) = begun.split();
    let mut said = Said::default();
    let ended = {
        let (listening, speaking) = (listen(&mut reader, &mut said), speak(&writer, input));
        let exchange = async {
            tokio::select! {
                ended = listening => ended,
                error = speaking => Err(Unheard::Local(error)),
            }
        };
        timeout_at(deadline, exchange).await
    };
    match ended {
        Ok(Ok(0)) => Ok(Answer(said.out())),
        Ok(Ok(status)) => Err(stage.failed(format!("exit status {status}: {}", said.all()))),
        Ok(Err(Unheard::NoStatus)) if connection.is_lost() => {
            Err(stage.early(format!("the connection was lost: {}", said.all())))
        }
        Ok(Err(unheard)) => Err(stage.failed(format!("{unheard}: {}", said.all()))),
        Err(_) => Err(stage.failed(format!("no end within {limit:?}: {}", said.all()))),
    }
}

/// How long a command has to tidy up when its time is over.
const KILL_SECONDS: u32 = 5;

/// For how long what a command said is still awaited once it has ended: what it left running may hold the channel open
/// for ever.
const REST_MAX: Duration = Duration::from_secs(1);

/// Past this a command is not telling us anything any more.
const OUTPUT_BYTES_MAX: u64 = 64 * 1024 * 1024;

#[derive(Debug, thiserror::Error)]
enum Unheard {
    #[error("it ended without an exit status")]
    NoStatus,
    #[error("it was ended by signal {0}")]
    Killed(String),
    #[error("it runs no commands")]
    Refused,
    #[error("it said more than {} MiB", OUTPUT_BYTES_MAX >> 20)]
    TooMuch,
    #[error("what was to be sent cannot be read: {0}")]
    Local(#[source] io::Error),
}

async fn listen(reader: &mut ChannelReadHalf, said: &mut Said) -> Result<u32, Unheard> {
    loop {
        match reader.wait().await.ok_or(Unheard::NoStatus)? {
            ChannelMsg::ExitStatus { exit_status } => {
                let rest = async {
                    while let Some(message) = reader.wait().await {
                        said.take(&message);
                    }
                };
                drop(timeout(REST_MAX, rest).await);
                return Ok(exit_status);
            }
            ChannelMsg::ExitSignal { signal_name, .. } => {
                return Err(Unheard::Killed(format!("{signal_name:?}")));
            }
            ChannelMsg::Failure => return Err(Unheard::Refused),
            message => said.take(&message),
        }
        if said.bytes > OUTPUT_BYTES_MAX {
            return Err(Unheard::TooMuch);
        }
    }
}

/// Comes back only if we cannot read what is to be sent. A command that does not take it ends sooner or later, and its
/// own word says more than a closed channel.
async fn speak(writer: &ChannelWriteHalf<client::Msg>, input: Input<'_>) -> io::Error {
    match feed(writer, input).await {
        Ok(Fed) => match pending::<Infallible>().await {},
        Err(error) => error,
    }
}

#[derive(Debug)]
struct Fed;

/// As much as goes into one packet.
const PIECE_BYTES: usize = 32 * 1024;

async fn feed(writer: &ChannelWriteHalf<client::Msg>, input: Input<'_>) -> io::Result<Fed> {
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
    Ok(Fed)
}

/// What a command said, as far as it is kept: the end, where the reason stands. Its two streams come in no order, and
/// what it prints last must not push out what it complained about.
#[derive(Debug, Default)]
struct Said {
    out: Tail,
    complaints: Tail,
    bytes: u64,
}

impl Said {
    fn take(&mut self, message: &ChannelMsg) {
        let (tail, data) = match message {
            ChannelMsg::Data { data } => (&mut self.out, data),
            ChannelMsg::ExtendedData { data, .. } => (&mut self.complaints, data),
            _ => return,
        };
        tail.push(data);
        self.bytes += data.len() as u64;
    }

    fn out(&self) -> String {
        self.out.text()
    }

    fn all(&self) -> String {
        match (self.out.text(), self.complaints.text()) {
            (out, complaints) if out.is_empty() && complaints.is_empty() => "it said nothing".to_owned(),
            (out, complaints) if complaints.is_empty() => out,
            (out, complaints) if out.is_empty() => complaints,
            (out, complaints) => format!("{out}\n{complaints}"),
        }
    }
}

#[derive(Debug, Default)]
struct Tail(VecDeque<u8>);

impl Tail {
    /// Some fifteen lines.
    const BYTES_MAX: usize = 1400;

    fn push(&mut self, data: &[u8]) {
        self.0.extend(&data[data.len().saturating_sub(Self::BYTES_MAX)..]);
        self.0.drain(..self.0.len().saturating_sub(Self::BYTES_MAX));
    }

    /// Without what a terminal would take as an order to itself.
    fn text(&self) -> String {
        let bytes: Vec<u8> = self.0.iter().copied().collect();
        let text = String::from_utf8_lossy(&bytes);
        text.trim().chars().filter(|it| !it.is_control() || *it == '\n' || *it == '\t').collect()
    }
}
