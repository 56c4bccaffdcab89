//! What a machine must be able to do before anything is put on it.

use remuda_core::provider::BootstrapError;
use uuid::Uuid;

use super::connection::Connection;
use super::preparation::{GpuCheck, Limits, Storage};
use super::remote::{self, Input};
use super::stage::Stage;

/// Put together over there, so that nobody passes by repeating what we asked.
const MARKER: &str = r#"printf '%s-%s\n' "$1" "$2""#;
const STORAGE: &str = include_str!("scripts/storage.sh");
const GPU: &str = include_str!("scripts/gpu.py");

/// That a shell does what it is told. A provider's proxy takes any command, prints an error and says that all went well.
pub(super) async fn marker(connection: &Connection, limits: &Limits) -> Result<(), BootstrapError> {
    let (one, other) = (nonce(), nonce());
    let command = remote::script(MARKER, &[&one, &other]);
    let step = Stage::Marker.begin(limits);
    let said = remote::run(connection, step, &command, Input::Nothing).await?.0;
    let expected = format!("{one}-{other}");
    if said.lines().any(|line| line.trim() == expected) {
        return Ok(());
    }
    Err(Stage::Marker.failed(format!("it ends well and did not do what was asked; it said: {said}")))
}

pub(super) async fn storage(
    connection: &Connection,
    limits: &Limits,
    storage: &Storage,
) -> Result<(), BootstrapError> {
    let is_mount = if storage.is_mount { "yes" } else { "no" };
    let free_kib_min = storage.free_bytes_min.div_ceil(1024).to_string();
    let command = remote::script(STORAGE, &[&storage.path, &nonce(), is_mount, &free_kib_min]);
    remote::run(connection, Stage::Mount.begin(limits), &command, Input::Nothing).await.map(drop)
}

pub(super) async fn gpu(
    connection: &Connection,
    limits: &Limits,
    check: &GpuCheck,
) -> Result<(), BootstrapError> {
    let (command, input) = match check {
        GpuCheck::None => return Ok(()),
        GpuCheck::Command(command) => (remote::script(command, &[]), Input::Nothing),
        GpuCheck::BuiltIn => ("python3 -".to_owned(), Input::Text(GPU)),
    };
    remote::run(connection, Stage::Gpu.begin(limits), &command, input).await.map(drop)
}

pub(super) async fn dependencies(
    connection: &Connection,
    limits: &Limits,
    commands: &[String],
) -> Result<(), BootstrapError> {
    let step = Stage::Dependencies.begin(limits);
    for command in commands {
        let line = remote::script(command, &[]);
        let done = remote::run(connection, step, &line, Input::Nothing).await;
        done.map_err(|error| BootstrapError { message: format!("{command:?}: {}", error.message), ..error })?;
    }
    Ok(())
}

/// For a name that nobody has.
pub(super) fn nonce() -> String {
    Uuid::new_v4().simple().to_string()
}
