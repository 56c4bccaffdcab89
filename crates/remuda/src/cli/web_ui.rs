//! Finds the stock ComfyUI web UI. It is a Python package (`comfyui-frontend-package`), which Remuda serves but does not
//! contain.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::bail;
use clap::Args;

#[derive(Clone, Debug, Args)]
pub(super) struct WebUiArgs {
    /// Serve the stock ComfyUI web UI from this folder, or by default from the installed Python package
    /// (pip install comfyui-frontend-package)
    #[arg(long, value_name = "DIR", num_args = 0..=1, default_missing_value = "")]
    ui: Option<PathBuf>,
}

/// Where the files may be below the folder of `--ui`: it may be the files, the package or the folder of all packages.
const SUBFOLDERS: [&str; 3] = ["", "static", "comfyui_frontend_package/static"];

impl WebUiArgs {
    /// The folder with `index.html`; None without `--ui`.
    pub(super) fn folder(&self) -> anyhow::Result<Option<PathBuf>> {
        let Some(named) = &self.ui else { return Ok(None) };
        let (folder, origin) = match named.as_os_str().is_empty() {
            true => (installed()?, "the installed comfyui-frontend-package".to_owned()),
            false => (named.clone(), named.display().to_string()),
        };
        match SUBFOLDERS.iter().map(|below| folder.join(below)).find(|it| it.join("index.html").is_file()) {
            Some(found) => Ok(Some(found)),
            None => bail!(
                "{origin} has no index.html: --ui takes the folder static of the package comfyui-frontend-package"
            ),
        }
    }
}

fn installed() -> anyhow::Result<PathBuf> {
    let program = "import comfyui_frontend_package as it; print(it.__path__[0])";
    let asked = Command::new("python3").args(["-c", program]).output();
    let found = asked.ok().filter(|output| output.status.success());
    let path = found.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
    match path.filter(|path| Path::new(path).is_dir()) {
        Some(path) => Ok(path.into()),
        None => bail!(
            "python3 cannot find the web UI: run `pip install comfyui-frontend-package`, or set its folder with --ui DIR"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn web_ui_is_found_in_its_folder_its_package_or_the_packages_folder() {
        let packages = tempfile::tempdir().unwrap();
        let files = packages.path().join("comfyui_frontend_package/static");
        std::fs::create_dir_all(&files).unwrap();
        std::fs::write(files.join("index.html"), "").unwrap();
        for folder in [packages.path(), files.parent().unwrap(), &files] {
            let ui = WebUiArgs { ui: Some(folder.to_owned()) };
            assert_eq!(ui.folder().unwrap(), Some(files.clone()), "{}", folder.display());
        }
        let elsewhere = WebUiArgs { ui: Some(files.join("assets")) };
        assert!(elsewhere.folder().unwrap_err().to_string().contains("comfyui-frontend-package"));
        assert_eq!(WebUiArgs { ui: None }.folder().unwrap(), None);
    }
}
