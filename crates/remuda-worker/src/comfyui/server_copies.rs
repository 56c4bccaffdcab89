//! Removes the files that an attempt left on its server, once the plane has recorded the result: every output is stored as a
//! blob by then, and no client looks for them in the attempt's own folder.
//!
//! ComfyUI has no request that deletes a file. So this works only where the worker sees the server's output folder: on the same
//! machine, or through a mount at the same path. The server tells the folder in `/system_stats`, as arguments of its program.
//! Elsewhere the files stay. So do files in the temporary folder, which the server empties itself, and files of attempts that
//! failed, or whose worker died before the plane had recorded them.

use std::path::Path;
use std::sync::Arc;

use remuda_comfyui::restore::attempt_folder;
use remuda_core::id::{Attempt, JobId};
use tracing::{debug, warn};

use super::ComfyuiContext;

impl ComfyuiContext {
    /// Removes the folders of these attempts.
    pub(super) async fn remove_copies(self: Arc<Self>, attempts: Vec<(JobId, Attempt)>) {
        let ask = || async { self.client.stats().await.map(|stats| stats.output_folder) };
        let folder = self.output_folder.get_or_try_init(ask);
        // The server is asked again when the next attempt has ended.
        let Ok(Some(output)) = folder.await else { return };
        let output = output.clone();
        let remove = move || {
            for (job, attempt) in attempts {
                match remove_folder(&output, &attempt_folder(job, attempt)) {
                    Ok(true) => debug!(%job, %attempt, "removed the server's copies of the outputs"),
                    Ok(false) => {}
                    Err(error) => {
                        warn!(%job, %attempt, %error, "could not remove the server's copies of the outputs");
                    }
                }
            }
        };
        // It fails only when the worker ends.
        drop(tokio::task::spawn_blocking(remove).await);
    }
}

/// Removes a folder with all that is in it; false if it is not here. The server runs code of others, so no link is followed: the
/// folder and those above it must be real ones.
fn remove_folder(output: &Path, folder: &str) -> std::io::Result<bool> {
    let mut path = output.to_owned();
    for part in folder.split('/') {
        path.push(part);
        match path.symlink_metadata() {
            Ok(about) if about.is_dir() => {}
            Ok(_) => return Ok(false),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(false),
            Err(error) => return Err(error),
        }
    }
    std::fs::remove_dir_all(&path).map(|()| true)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    /// Faults: X6.
    #[test]
    fn only_the_folder_of_the_attempt_is_removed_and_no_link_is_followed() {
        let folder = tempfile::tempdir().unwrap();
        let output = folder.path().join("output");
        let elsewhere = folder.path().join("elsewhere");
        fs::create_dir_all(output.join("remuda/a-1/cats")).unwrap();
        fs::create_dir_all(output.join("remuda/b-1")).unwrap();
        fs::create_dir_all(elsewhere.join("c-1")).unwrap();
        for file in ["output/remuda/a-1/cats/x.png", "output/remuda/b-1/x.png", "elsewhere/c-1/x.png"] {
            fs::write(folder.path().join(file), "x").unwrap();
        }
        symlink(&elsewhere, output.join("remuda/a-1/link")).unwrap();
        symlink(elsewhere.join("c-1"), output.join("remuda/c-1")).unwrap();
        assert!(remove_folder(&output, "remuda/a-1").unwrap());
        assert!(!output.join("remuda/a-1").exists() && output.join("remuda/b-1/x.png").exists());
        assert!(!remove_folder(&output, "remuda/a-1").unwrap(), "it is gone");
        assert!(!remove_folder(&output, "remuda/c-1").unwrap(), "a link");
        symlink(&elsewhere, folder.path().join("remuda")).unwrap();
        assert!(!remove_folder(folder.path(), "remuda/c-1").unwrap(), "below a link");
        assert!(elsewhere.join("c-1/x.png").exists());
    }
}
