//! The records of pods, one file each: `FOLDER/TAG.json`, next to `FOLDER/TAG.log`. Files are written atomically. An
//! unreadable file is an error and never skipped: it may belong to a running pod.

use std::ffi::OsStr;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::PathBuf;

use remuda_core::id::PodId;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::identity::ProcessIdentity;

/// How many logs of removed pods are kept: enough to see why the last few ended.
const LOGS_MAX: usize = 20;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Record {
    pub(super) id: PodId,
    /// In the environment of this pod and its children, and of no other process.
    pub(super) mark: String,
    /// `None` between the intent and the start.
    pub(super) process: Option<ProcessIdentity>,
}

impl Record {
    pub(super) fn intent(id: PodId) -> Record {
        Record { mark: format!("{id}/{}", Uuid::new_v4().simple()), id, process: None }
    }
}

#[derive(Debug)]
pub(super) struct Records {
    folder: PathBuf,
}

impl Records {
    pub(super) fn open(folder: PathBuf) -> io::Result<Records> {
        // Logs of pods may contain secrets.
        DirBuilder::new().recursive(true).mode(0o700).create(&folder)?;
        Ok(Records { folder })
    }

    /// A file for the pod's output; a pipe would break when the plane exits.
    pub(super) fn log(&self, tag: &str) -> io::Result<File> {
        let path = self.folder.join(format!("{tag}.log"));
        OpenOptions::new().create(true).append(true).mode(0o600).open(path)
    }

    /// Writes the first record of a pod; fails if there is one.
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

    /// `None` if there is no such pod.
    pub(super) fn read(&self, id: &PodId) -> io::Result<Option<Record>> {
        match fs::read(self.path(id)) {
            Ok(text) => parse(&text, id.as_str()).map(Some),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// All records, or an error.
    pub(super) fn read_all(&self) -> io::Result<Vec<Record>> {
        let mut records = Vec::new();
        for entry in fs::read_dir(&self.folder)? {
            let name = entry?.file_name();
            let Some(tag) = name.to_str().and_then(|name| name.strip_suffix(".json")) else { continue };
            match fs::read(self.folder.join(&name)) {
                Ok(text) => records.push(parse(&text, tag)?),
                // It was removed while the folder was read.
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

    /// Keeps the newest logs of pods without a record.
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

    /// Ids are checked when they are parsed: none contains a path separator.
    fn path(&self, id: &PodId) -> PathBuf {
        self.folder.join(format!("{id}.json"))
    }
}

fn parse(text: &[u8], tag: &str) -> io::Result<Record> {
    let bad = |why: String| {
        let help = "check whether its process runs, stop it, and remove the file";
        io::Error::new(
            io::ErrorKind::InvalidData,
            format!("{tag}.json is not a valid pod record: {why}; {help}"),
        )
    };
    let record: Record = serde_json::from_slice(text).map_err(|error| bad(error.to_string()))?;
    if record.id.as_str() != tag {
        return Err(bad(format!("it is about {}", record.id)));
    }
    Ok(record)
}
