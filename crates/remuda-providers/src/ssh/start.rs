//! Starts the worker once, in its own session, with none of its streams on the SSH channel.

use std::collections::BTreeMap;
use std::fmt;

use remuda_core::provider::BootstrapError;

use super::BootstrapSettings;
use super::check::nonce;
use super::connection::Connection;
use super::remote::{self, Input, quote};
use super::stage::Stage;

const ALIVE: &str = include_str!("scripts/alive.sh");
const START: &str = include_str!("scripts/start.sh");
const STARTED: &str = include_str!("scripts/started.sh");
const LAUNCH: &str = include_str!("scripts/launch.sh");

/// The script that becomes the worker. It contains the environment, so it is sent as input and never as an argument, is
/// stored in a file that only its owner can read, and removes that file before the worker starts.
pub(super) struct LaunchScript(String);

impl LaunchScript {
    pub(super) fn new(
        settings: &BootstrapSettings,
        environment: &BTreeMap<&String, &String>,
    ) -> Result<LaunchScript, BootstrapError> {
        let mut text = String::new();
        for (name, value) in environment {
            if !is_name(name) {
                return Err(Stage::Start.failed(format!("{name:?} is not a valid variable name")));
            }
            if value.contains('\0') {
                return Err(Stage::Start.failed(format!("the value of {name} contains a NUL byte")));
            }
            text.push_str(&format!("export {name}={}\n", quote(value)));
        }
        text.push_str(&format!("set -- {}\n", quote(&settings.folder)));
        text.push_str(LAUNCH);
        text.push_str(&format!("exec sh -c {}\n", quote(&settings.command)));
        Ok(LaunchScript(text))
    }
}

impl fmt::Debug for LaunchScript {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LaunchScript").finish_non_exhaustive()
    }
}

fn is_name(text: &str) -> bool {
    let is_part = |it: char| it == '_' || it.is_ascii_alphanumeric();
    !text.is_empty() && text.chars().all(is_part) && !text.starts_with(|it: char| it.is_ascii_digit())
}

pub(super) async fn start(
    connection: &Connection,
    settings: &BootstrapSettings,
    launch: &LaunchScript,
) -> Result<(), BootstrapError> {
    let bytes = launch.0.len().to_string();
    let command = remote::script(&format!("{ALIVE}{START}"), &[&settings.folder, &nonce(), &bytes]);
    remote::run(connection, Stage::Start.begin(&settings.timeouts), &command, Input::Text(&launch.0))
        .await
        .map(drop)
}

/// Checks that the worker did not exit at once; if it did, the end of its log is the reason.
pub(super) async fn started(
    connection: &Connection,
    settings: &BootstrapSettings,
) -> Result<(), BootstrapError> {
    let settle_time = format!("{:.1}", settings.timeouts.settle_time.as_secs_f64());
    let command = remote::script(&format!("{ALIVE}{STARTED}"), &[&settings.folder, &settle_time]);
    remote::run(connection, Stage::Started.begin(&settings.timeouts), &command, Input::Nothing)
        .await
        .map(drop)
}
