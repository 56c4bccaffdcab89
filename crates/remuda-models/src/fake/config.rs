//! The contents of a `*.fake` file: its capability, and on further lines `key = value` settings of its misbehaviour.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::beacon::Beacon;
use crate::failure::LoadError;
use crate::spec::{Capability, Isolation};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FakeConfig {
    pub capability: Capability,
    pub isolation: Isolation,
    /// The memory a copy claims to need.
    pub memory_bytes: u64,
    /// The memory a copy really takes.
    pub weights_bytes: u64,
    /// This many loads fail; counted in a file next to the model.
    pub failing_loads: u64,
    pub load: LoadFault,
    /// Loading takes this long, with a beacon step every millisecond.
    pub load_ms: u64,
    /// The length of its vectors.
    pub dimensions: usize,
    /// Every answer after this many is wrong.
    pub wrong_after: Option<u64>,
}

/// How a failing load fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoadFault {
    Fails,
    Panics,
    RunsOutOfMemory,
    /// Until a file `*.go` exists next to the model.
    Hangs,
}

impl FakeConfig {
    pub fn new(capability: Capability) -> Self {
        FakeConfig {
            capability,
            isolation: Isolation::Thread,
            memory_bytes: 1 << 20,
            weights_bytes: 0,
            failing_loads: 0,
            load: LoadFault::Fails,
            load_ms: 0,
            dimensions: 8,
            wrong_after: None,
        }
    }

    pub fn read(path: &Path) -> Result<Self, LoadError> {
        let wrong = |detail: String| LoadError::Wrong { path: path.to_owned(), detail };
        let text = std::fs::read_to_string(path).map_err(|error| wrong(error.to_string()))?;
        let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
        let first = lines.next().unwrap_or_default();
        let mut config = FakeConfig::new(first.parse().map_err(wrong)?);
        for line in lines {
            let (key, value) = line.split_once('=').unwrap_or((line, ""));
            config.set(key.trim(), value.trim()).map_err(|detail| wrong(format!("{line}: {detail}")))?;
        }
        Ok(config)
    }

    fn set(&mut self, key: &str, value: &str) -> Result<(), String> {
        let number = || value.parse::<u64>().map_err(|error| error.to_string());
        match key {
            "isolation" => {
                self.isolation = match value {
                    "thread" => Isolation::Thread,
                    "process" => Isolation::Process,
                    other => return Err(format!("{other} is neither thread nor process")),
                }
            }
            "memory_bytes" => self.memory_bytes = number()?,
            "weights_bytes" => self.weights_bytes = number()?,
            "failing_loads" => self.failing_loads = number()?,
            "load_ms" => self.load_ms = number()?,
            "dimensions" => self.dimensions = value.parse().map_err(|_| format!("{value} is no number"))?,
            "wrong_after" => self.wrong_after = Some(number()?),
            "load" => {
                self.load = match value {
                    "fails" => LoadFault::Fails,
                    "panics" => LoadFault::Panics,
                    "runs_out_of_memory" => LoadFault::RunsOutOfMemory,
                    "hangs" => LoadFault::Hangs,
                    other => return Err(format!("unknown load fault {other}")),
                }
            }
            other => return Err(format!("unknown key {other}")),
        }
        Ok(())
    }

    pub(super) fn load(&self, path: &Path, beacon: &Beacon) -> Result<(), LoadError> {
        let engine = |error: std::io::Error| LoadError::Engine(error.to_string());
        let until = Instant::now() + Duration::from_millis(self.load_ms);
        while Instant::now() < until {
            beacon.step()?;
            std::thread::sleep(Duration::from_millis(1));
        }
        let counted = beside(path, "loads");
        let loads: u64 = match std::fs::read_to_string(&counted) {
            Ok(text) => text.trim().parse().unwrap_or(0),
            Err(_) => 0,
        };
        std::fs::write(&counted, (loads + 1).to_string()).map_err(engine)?;
        if loads >= self.failing_loads {
            return Ok(());
        }
        match self.load {
            LoadFault::Fails => Err(LoadError::Engine(format!("load {} fails", loads + 1))),
            LoadFault::Panics => panic!("load {} panics", loads + 1),
            LoadFault::RunsOutOfMemory => {
                let hint = "others hold it".to_owned();
                Err(LoadError::Memory { need_bytes: self.memory_bytes, free_bytes: 0, hint })
            }
            LoadFault::Hangs => {
                hang(path);
                Ok(())
            }
        }
    }
}

/// Blocks without beacon steps until a file `*.go` exists next to the model.
pub(super) fn hang(path: &Path) {
    let go = beside(path, "go");
    while !go.exists() {
        std::thread::sleep(Duration::from_millis(2));
    }
}

pub(super) fn beside(path: &Path, extension: &str) -> PathBuf {
    path.with_extension(extension)
}
