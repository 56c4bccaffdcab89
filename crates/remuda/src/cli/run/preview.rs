//! Writes the newest preview to a file. The file is replaced atomically, so that a viewer always sees a complete image.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use reqwest::Method;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::cli::Client;
use remuda_core::wire::preview::PREVIEW_BYTES_MAX;
use remuda_net::terminal::escape_control;

const FETCH_TIMEOUT: Duration = Duration::from_secs(5);

/// Fetches previews in the background; of several in quick succession only the last is fetched.
#[derive(Debug)]
pub(super) struct PreviewFile {
    newest: watch::Sender<Option<String>>,
    writer: JoinHandle<()>,
}

impl PreviewFile {
    pub(super) fn start(client: Client, path: PathBuf) -> PreviewFile {
        let (newest, mut changes) = watch::channel(None::<String>);
        let writer = tokio::spawn(async move {
            let mut is_reported = false;
            while changes.changed().await.is_ok() {
                let Some(job) = changes.borrow_and_update().clone() else { continue };
                if let Err(problem) = fetch(&client, &job, &path).await
                    && !std::mem::replace(&mut is_reported, true)
                {
                    eprintln!("remuda: no preview: {}", escape_control(&format!("{problem:#}")));
                }
            }
        });
        PreviewFile { newest, writer }
    }

    /// This job has a new preview.
    pub(super) fn update(&self, job: &str) {
        self.newest.send_replace(Some(job.to_owned()));
    }

    /// Waits for a write in progress.
    pub(super) async fn end(self) {
        drop(self.newest);
        drop(tokio::time::timeout(FETCH_TIMEOUT, self.writer).await);
    }
}

async fn fetch(client: &Client, job: &str, path: &Path) -> anyhow::Result<()> {
    let request = client.request(Method::GET, &format!("/remuda/v1/jobs/{job}/preview"));
    // The preview is gone if the attempt has ended in the meantime.
    let Ok(mut response) = client.open(request.timeout(FETCH_TIMEOUT)).await else { return Ok(()) };
    let mut bytes = Vec::new();
    while let Ok(Some(piece)) = response.chunk().await {
        bytes.extend_from_slice(&piece);
        anyhow::ensure!(
            bytes.len() <= PREVIEW_BYTES_MAX,
            "the plane sent more than {PREVIEW_BYTES_MAX} bytes"
        );
    }
    if remuda_core::wire::preview::PreviewFormat::detect(&bytes).is_none() {
        return Ok(());
    }
    let mut part = path.as_os_str().to_owned();
    part.push(".part");
    let written = match tokio::fs::write(&part, bytes).await {
        Ok(()) => tokio::fs::rename(&part, path).await,
        Err(error) => Err(error),
    };
    written.with_context(|| format!("cannot write {}", path.display()))
}
