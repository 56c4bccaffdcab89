//! Keeps the newest preview in a file, for whoever watches that file: it is always whole, and never older than it was.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use reqwest::Method;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::cli::Client;
use remuda_core::wire::preview::PREVIEW_BYTES_MAX;
use remuda_net::terminal::escape_control;

const FETCH_MAX: Duration = Duration::from_secs(5);

/// Who is told of previews; between two that come quickly, the first may be passed over.
#[derive(Debug)]
pub(super) struct Previews {
    newest: watch::Sender<Option<String>>,
    keeping: JoinHandle<()>,
}

impl Previews {
    pub(super) fn keep(client: Client, path: PathBuf) -> Previews {
        let (newest, mut coming) = watch::channel(None::<String>);
        let keeping = tokio::spawn(async move {
            let mut is_told = false;
            while coming.changed().await.is_ok() {
                let Some(job) = coming.borrow_and_update().clone() else { continue };
                if let Err(problem) = fetch(&client, &job, &path).await
                    && !std::mem::replace(&mut is_told, true)
                {
                    eprintln!("remuda: no preview: {}", escape_control(&format!("{problem:#}")));
                }
            }
        });
        Previews { newest, keeping }
    }

    pub(super) fn hear(&self, job: &str) {
        self.newest.send_replace(Some(job.to_owned()));
    }

    /// Waits for what is being written.
    pub(super) async fn end(self) {
        drop(self.newest);
        // Past this there is nothing worth waiting for.
        drop(tokio::time::timeout(FETCH_MAX, self.keeping).await);
    }
}

async fn fetch(client: &Client, job: &str, path: &Path) -> anyhow::Result<()> {
    let request = client.request(Method::GET, &format!("/remuda/v1/jobs/{job}/preview"));
    // The attempt may be over by now, and its preview with it.
    let Ok(mut response) = client.open(request.timeout(FETCH_MAX)).await else { return Ok(()) };
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
