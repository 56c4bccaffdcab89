//! Copies a program to a machine, atomically.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use remuda_core::provider::BootstrapError;
use sha2::{Digest, Sha256};

use super::check::nonce;
use super::connection::Connection;
use super::remote::{self, Input};
use super::settings::{ProgramUpload, StageTimeouts};
use super::stage::Stage;

/// Prints the hash, or nothing if there is no such file.
const HASH: &str = r#"[ ! -f "$1" ] || sha256sum <"$1""#;
const RECEIVE: &str = include_str!("scripts/receive.sh");

pub(super) async fn upload(
    connection: &Connection,
    timeouts: &StageTimeouts,
    upload: &ProgramUpload,
) -> Result<(), BootstrapError> {
    let step = Stage::Upload.begin(timeouts);
    let path = upload.from.clone();
    let hashed = tokio::task::spawn_blocking(move || hash(&path)).await;
    let wanted = hashed.map_err(|error| Stage::Upload.failed(error))?.map_err(|error| {
        Stage::Upload.failed(format!("our own {} cannot be read: {error}", upload.from.display()))
    })?;
    let look = remote::script(HASH, &[&upload.to]);
    let there = remote::run(connection, step, &look, Input::Nothing).await?.0;
    // Any word, not only the first: a login script may have printed something before.
    if there.split_whitespace().any(|word| word == wanted) {
        return Ok(());
    }
    let receive = remote::script(RECEIVE, &[&upload.to, &nonce(), &wanted]);
    remote::run(connection, step, &receive, Input::File(&upload.from)).await.map(drop)
}

fn hash(path: &Path) -> io::Result<String> {
    let mut file = File::open(path)?;
    let mut hasher = Sha256::new();
    let mut piece = vec![0; 1 << 20];
    loop {
        let bytes = file.read(&mut piece)?;
        if bytes == 0 {
            break;
        }
        hasher.update(&piece[..bytes]);
    }
    Ok(hex::encode(hasher.finalize()))
}
