//! Whose fault it is that a command failed. A command that exits says something about the job; one that was killed, or
//! asks to be tried elsewhere, says something about the machine it ran on.
//!
//! | end | cause |
//! |---|---|
//! | exit code 0 with a readable result | none: completed |
//! | exit code 75 (`EX_TEMPFAIL`), a signal | service |
//! | any other exit code, a result that is too large | job |
//! | not started, not observed, result unreadable | worker |

use std::sync::Arc;

use serde_json::value::RawValue;

use super::AttemptEnd;
use crate::cause::Cause;

/// A larger result belongs into a file, whose name the command prints.
pub const RESULT_BYTES_MAX: u64 = 1 << 20;
const EX_TEMPFAIL: i32 = 75;

/// How a command ended.
#[derive(Clone, Debug)]
pub enum CommandExit {
    Code(i32),
    /// It was ended by a signal; the text names it.
    Signal(String),
    NotStarted(String),
    /// The system could not say how it ended.
    Unobserved(String),
}

/// What a command printed.
#[derive(Clone, Debug)]
pub struct CommandOutput {
    /// Its standard output, cut after `RESULT_BYTES_MAX` and one more byte; or why it could not be read.
    pub result: Result<Vec<u8>, String>,
    /// The last lines of its standard error, for the message.
    pub last_lines: String,
}

impl CommandExit {
    pub fn judge(self, printed: CommandOutput) -> AttemptEnd {
        let last = printed.last_lines;
        match (self, printed.result) {
            (CommandExit::NotStarted(why), _) => {
                failed(Cause::Worker, format!("the command could not be started: {why}"))
            }
            (CommandExit::Unobserved(why), _) => {
                failed(Cause::Worker, format!("waiting for the command failed: {why}"))
            }
            (_, Ok(result)) if result.len() as u64 > RESULT_BYTES_MAX => failed(
                Cause::Job,
                format!(
                    "the result is larger than {RESULT_BYTES_MAX} bytes: write it to a file and print its name"
                ),
            ),
            (CommandExit::Code(0), Ok(result)) => completed(&result),
            (CommandExit::Code(0), Err(why)) => {
                failed(Cause::Worker, format!("the result could not be read: {why}"))
            }
            (CommandExit::Code(EX_TEMPFAIL), _) => {
                failed(Cause::Service, format!("the command asked to be tried elsewhere: {last}"))
            }
            (CommandExit::Code(code), _) => {
                failed(Cause::Job, format!("the command ended with exit code {code}: {last}"))
            }
            (CommandExit::Signal(signal), _) => {
                failed(Cause::Service, format!("the command was ended by a signal ({signal}): {last}"))
            }
        }
    }
}

/// JSON is passed on unchanged; anything else becomes a JSON string.
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

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(exit: CommandExit, result: Result<&[u8], &str>) -> String {
        let result = result.map(<[u8]>::to_vec).map_err(str::to_owned);
        match exit.judge(CommandOutput { result, last_lines: "oh".to_owned() }) {
            AttemptEnd::Completed { result } => result.get().to_owned(),
            AttemptEnd::Failed { cause, message } => format!("{cause}: {message}"),
        }
    }

    #[test]
    fn exit_code_is_the_jobs_fault_and_a_signal_is_not() {
        let large = vec![b'x'; RESULT_BYTES_MAX as usize + 1];
        for (exit, result, expected) in [
            (CommandExit::Code(0), Ok(&b" {\"a\": 1}\n"[..]), "{\"a\": 1}"),
            (CommandExit::Code(0), Ok(b"plain text"), "\"plain text\""),
            (CommandExit::Code(0), Ok(b""), "null"),
            (CommandExit::Code(0), Err("no pipe"), "worker: the result could not be read: no pipe"),
            (CommandExit::Code(3), Ok(b""), "job: the command ended with exit code 3: oh"),
            (CommandExit::Code(75), Ok(b""), "service: the command asked to be tried elsewhere: oh"),
            (
                CommandExit::Signal("signal: 9".to_owned()),
                Ok(b""),
                "service: the command was ended by a signal (signal: 9): oh",
            ),
            (
                CommandExit::NotStarted("no sh".to_owned()),
                Ok(b""),
                "worker: the command could not be started: no sh",
            ),
            (
                CommandExit::Code(0),
                Ok(&large),
                "job: the result is larger than 1048576 bytes: write it to a file and print its name",
            ),
        ] {
            assert_eq!(judged(exit, result), expected);
        }
    }
}
