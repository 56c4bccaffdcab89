//! What a machine must be able to do before anything is installed on it.

use remuda_core::provider::BootstrapError;
use uuid::Uuid;

use super::connection::Connection;
use super::remote::{self, Input};
use super::settings::{GpuCheck, StageTimeouts, StorageCheck};
use super::stage::Stage;

/// Assembled by the remote shell, so that an echo of the command does not pass.
const MARKER: &str = r#"printf '%s-%s\n' "$1" "$2""#;
const STORAGE: &str = include_str!("scripts/storage.sh");
const GPU: &str = include_str!("scripts/gpu.py");

/// Checks that a shell executes commands. A provider's proxy accepts any command, prints an error and exits with 0.
pub(super) async fn marker(connection: &Connection, timeouts: &StageTimeouts) -> Result<(), BootstrapError> {
    let (one, other) = (nonce(), nonce());
    let command = remote::script(MARKER, &[&one, &other]);
    let step = Stage::Marker.begin(timeouts);
    let said = remote::run(connection, step, &command, Input::Nothing).await?.0;
    let expected = format!("{one}-{other}");
    if said.lines().any(|line| line.trim() == expected) {
        return Ok(());
    }
    Err(Stage::Marker.failed(format!("it exited with 0 but did not run the command; output: {said}")))
}

pub(super) async fn storage(
    connection: &Connection,
    timeouts: &StageTimeouts,
    storage: &StorageCheck,
) -> Result<(), BootstrapError> {
    let is_mount = if storage.is_mount { "yes" } else { "no" };
    let free_kib_min = storage.free_bytes_min.div_ceil(1024).to_string();
    let command = remote::script(STORAGE, &[&storage.path, &nonce(), is_mount, &free_kib_min]);
    remote::run(connection, Stage::Mount.begin(timeouts), &command, Input::Nothing).await.map(drop)
}

pub(super) async fn gpu(
    connection: &Connection,
    timeouts: &StageTimeouts,
    check: &GpuCheck,
) -> Result<(), BootstrapError> {
    let (command, input) = match check {
        GpuCheck::None => return Ok(()),
        GpuCheck::Command(command) => (remote::script(command, &[]), Input::Nothing),
        GpuCheck::BuiltIn => ("python3 -".to_owned(), Input::Text(GPU)),
    };
    remote::run(connection, Stage::Gpu.begin(timeouts), &command, input).await.map(drop)
}

pub(super) async fn dependencies(
    connection: &Connection,
    timeouts: &StageTimeouts,
    commands: &[String],
) -> Result<(), BootstrapError> {
    let step = Stage::Dependencies.begin(timeouts);
    for command in commands {
        let line = remote::script(command, &[]);
        let done = remote::run(connection, step, &line, Input::Nothing).await;
        done.map_err(|error| BootstrapError { message: format!("{command:?}: {}", error.message), ..error })?;
    }
    Ok(())
}

/// A random name.
pub(super) fn nonce() -> String {
    Uuid::new_v4().simple().to_string()
}
