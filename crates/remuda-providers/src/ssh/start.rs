//! Starts the worker: in a session of its own, with none of its streams on ours, once.

use std::collections::BTreeMap;
use std::fmt;

use remuda_core::provider::BootstrapError;

use super::Preparation;
use super::check::nonce;
use super::connection::Connection;
use super::remote::{self, Input, quoted};
use super::stage::Stage;

const ALIVE: &str = include_str!("scripts/alive.sh");
const START: &str = include_str!("scripts/start.sh");
const STARTED: &str = include_str!("scripts/started.sh");
const LAUNCH: &str = include_str!("scripts/launch.sh");

/// The script that becomes the worker. It has the environment in it, so it travels as input and never as an argument,
/// lies in a file that only its owner can read, and removes that file before the worker begins.
pub(super) struct Launch(String);

impl Launch {
    pub(super) fn new(
        settings: &Preparation,
        environment: &BTreeMap<&String, &String>,
    ) -> Result<Launch, BootstrapError> {
        let mut text = String::new();
        for (name, value) in environment {
            if !is_name(name) {
                return Err(Stage::Start.failed(format!("{name:?} cannot be the name of a variable")));
            }
            if value.contains('\0') {
                return Err(Stage::Start.failed(format!("the value of {name} cannot be that of a variable")));
            }
            text.push_str(&format!("export {name}={}\n", quoted(value)));
        }
        text.push_str(&format!("set -- {}\n", quoted(&settings.folder)));
        text.push_str(LAUNCH);
        text.push_str(&format!("exec sh -c {}\n", quoted(&settings.command)));
        Ok(Launch(text))
    }
}

impl fmt::Debug for Launch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Launch").finish_non_exhaustive()
    }
}

fn is_name(text: &str) -> bool {
    let is_part = |it: char| it == '_' || it.is_ascii_alphanumeric();
    !text.is_empty() && text.chars().all(is_part) && !text.starts_with(|it: char| it.is_ascii_digit())
}

pub(super) async fn start(
    connection: &Connection,
    settings: &Preparation,
    launch: &Launch,
) -> Result<(), BootstrapError> {
    let bytes = launch.0.len().to_string();
    let command = remote::script(&format!("{ALIVE}{START}"), &[&settings.folder, &nonce(), &bytes]);
    remote::run(connection, Stage::Start.begin(&settings.limits), &command, Input::Text(&launch.0))
        .await
        .map(drop)
}

/// That it did not end at once; if it did, its own last words are the reason.
pub(super) async fn started(connection: &Connection, settings: &Preparation) -> Result<(), BootstrapError> {
    let settling = format!("{:.1}", settings.limits.settling.as_secs_f64());
    let command = remote::script(&format!("{ALIVE}{STARTED}"), &[&settings.folder, &settling]);
    remote::run(connection, Stage::Started.begin(&settings.limits), &command, Input::Nothing).await.map(drop)
}
