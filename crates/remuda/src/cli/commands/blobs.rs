//! `remuda blobs`: stores and fetches files.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::{Args, Subcommand};
use remuda_store::blobs::BlobHash;
use serde_json::json;

use super::super::{Client, Connection};
use super::show;
use remuda_worker::BlobLink;

#[derive(Debug, Args)]
pub(crate) struct BlobsCommand {
    #[command(subcommand)]
    command: BlobsAction,
    #[command(flatten)]
    connection: Connection,
}

#[derive(Debug, Subcommand)]
enum BlobsAction {
    /// Store a file and print its hash, which workflows can reference
    ///
    /// Example: remuda blobs put photo.png
    Put {
        /// The file
        file: PathBuf,
    },
    /// Fetch a blob into a file and verify its hash
    ///
    /// Example: remuda blobs get blake3:1f3a… -o photo.png
    Get {
        /// The hash, as printed by `put` or contained in a result
        hash: BlobHash,
        /// File to write; by default a file in the current folder, named after the hash
        #[arg(short, long, value_name = "FILE")]
        output: Option<PathBuf>,
    },
}

impl BlobsCommand {
    pub(crate) async fn run(self) -> anyhow::Result<ExitCode> {
        // An unreachable plane is reported at once; the transfer would retry first.
        Client::new(&self.connection)?.get("/health/live").await?;
        let link = BlobLink::with_credentials(&self.connection.url, &self.connection.credentials()?);
        match self.command {
            BlobsAction::Put { file } => {
                let stored = link.store(&file).await;
                let (hash, size_bytes) =
                    stored.with_context(|| format!("cannot store {}", file.display()))?;
                show(&self.connection, &json!({ "hash": hash, "size_bytes": size_bytes }), || {
                    hash.to_string()
                });
            }
            BlobsAction::Get { hash, output } => {
                let path = output.unwrap_or_else(|| hash.hex().into());
                let size_bytes =
                    link.fetch(&hash, &path).await.with_context(|| format!("cannot fetch {hash}"))?;
                let shown = path.display().to_string();
                let answer = json!({ "hash": hash, "size_bytes": size_bytes, "path": shown });
                show(&self.connection, &answer, || format!("{size_bytes} bytes in {shown}"));
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}
