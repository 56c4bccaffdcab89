//! What is known of the pods, one file each: `FOLDER/TAG.json`, beside `FOLDER/TAG.log`. A file is whole or not there.
//! Which is why one that cannot be read is a fault and never passed over: it may be a pod that runs.

use std::ffi::OsStr;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::PathBuf;

use remuda_core::id::PodId;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::alive::Life;

/// How many logs of pods that are gone are kept: enough to see why the last few ended.
const LOGS_MAX: usize = 20;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Record {
    pub(super) id: PodId,
    /// What it and everything it starts has in its environment, and nobody else.
    pub(super) mark: String,
    /// Nothing between the intent and the start.
    pub(super) life: Option<Life>,
}

impl Record {
    pub(super) fn intent(id: PodId) -> Record {
        Record { mark: format!("{id}/{}", Uuid::new_v4().simple()), id, life: None }
    }
}

#[derive(Debug)]
pub(super) struct Records {
    folder: PathBuf,
}

impl Records {
    pub(super) fn open(folder: PathBuf) -> io::Result<Records> {
        // What pods write is not for everybody's eyes.
        DirBuilder::new().recursive(true).mode(0o700).create(&folder)?;
        Ok(Records { folder })
    }

    /// Where a pod writes; a pipe would break with the plane.
    pub(super) fn log(&self, tag: &str) -> io::Result<File> {
        let path = self.folder.join(format!("{tag}.log"));
        OpenOptions::new().create(true).append(true).mode(0o600).open(path)
    }

    /// Writes the first record of a pod, of which there must be none.
    pub(super) fn begin(&self, record: &Record) -> io::Result<()> {
        if self.path(&record.id).try_exists()? {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        self.write(record)
    }

    pub(super) fn write(&self, record: &Record) -> io::Result<()> {
        let path = self.path(&record.id);
        let half = path.with_extension("half");
        let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&half)?;
        file.write_all(&serde_json::to_vec(record)?)?;
        file.sync_all()?;
        fs::rename(half, path)?;
        File::open(&self.folder)?.sync_all()
    }

    /// Nothing if there is no such pod.
    pub(super) fn read(&self, id: &PodId) -> io::Result<Option<Record>> {
        match fs::read(self.path(id)) {
            Ok(text) => parse(&text, id.as_str()).map(Some),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// All of them, or none.
    pub(super) fn read_all(&self) -> io::Result<Vec<Record>> {
        let mut records = Vec::new();
        for entry in fs::read_dir(&self.folder)? {
            let name = entry?.file_name();
            let Some(tag) = name.to_str().and_then(|name| name.strip_suffix(".json")) else { continue };
            match fs::read(self.folder.join(&name)) {
                Ok(text) => records.push(parse(&text, tag)?),
                // It ended while we looked.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        records.sort_by(|one, other| one.id.cmp(&other.id));
        Ok(records)
    }

    pub(super) fn remove(&self, id: &PodId) -> io::Result<()> {
        match fs::remove_file(self.path(id)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            Ok(()) | Err(_) => {}
        }
        self.clear_logs()
    }

    /// Keeps the newest logs of pods that have no record any more.
    fn clear_logs(&self) -> io::Result<()> {
        let mut logs = Vec::new();
        for entry in fs::read_dir(&self.folder)? {
            let (path, written) =
                entry.and_then(|entry| Ok((entry.path(), entry.metadata()?.modified()?)))?;
            if path.extension() == Some(OsStr::new("log")) && !path.with_extension("json").exists() {
                logs.push((written, path));
            }
        }
        logs.sort();
        let too_many = logs.len().saturating_sub(LOGS_MAX);
        logs.into_iter().take(too_many).try_for_each(|(_, path)| fs::remove_file(path))
    }

    /// An id is checked to be a name when it is made: it leads out of no folder.
    fn path(&self, id: &PodId) -> PathBuf {
        self.folder.join(format!("{id}.json"))
    }
}

fn parse(text: &[u8], tag: &str) -> io::Result<Record> {
    let bad = |why: String| {
        let help = "see whether its process runs, then end it and remove the file";
        io::Error::new(io::ErrorKind::InvalidData, format!("{tag}.json is no record of a pod: {why}; {help}"))
    };
    let record: Record = serde_json::from_slice(text).map_err(|error| bad(error.to_string()))?;
    if record.id.as_str() != tag {
        return Err(bad(format!("it is about {}", record.id)));
    }
    Ok(record)
}
