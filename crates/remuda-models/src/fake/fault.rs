//! Faults that a text injects.

use std::collections::BTreeMap;
use std::collections::hash_map::RandomState;
use std::fs::OpenOptions;
use std::hash::{BuildHasher, Hasher};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::config::{beside, hang};
use crate::beacon::Beacon;
use crate::failure::InferenceError;
use crate::request::Sampling;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InjectedFault {
    /// `!panic`
    Panic,
    /// `!hang`: no beacon steps until a file `*.go` exists next to the model.
    Hang,
    /// `!busy 500`: works for this many milliseconds, with beacon steps.
    Busy(u64),
    /// `!spin 500`: the same with a busy loop.
    Spin(u64),
    /// `!oom`
    OutOfMemory,
    /// `!fail`: an engine error.
    Fail,
    /// `!input`: an input error, which fails everywhere.
    Input,
    /// `!poison`: panics while holding the engine's lock, which breaks every later copy in this process.
    Poison,
    /// `!broken`: reports itself as poisoned.
    Broken,
    /// `!exit`: ends the process.
    Exit,
    /// `!abort`: ends the process with a signal.
    Abort,
    /// `!empty`, `!short`, `!nan`, `!missing`: an invalid answer.
    Empty,
    Short,
    NaN,
    Missing,
    /// `!once panic` and so on: only for the first copy of the model that reaches it.
    Once(OnceFault),
    /// `!chance`: writes the seed, or a random number if there is none.
    Chance,
    /// `!stray`: writes a random number, different in every copy.
    Stray,
}

/// The faults that can happen once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnceFault {
    Panic,
    Hang,
    Exit,
    Fail,
}

/// A lock per model, shared by all copies in this process.
static LOCKS: Mutex<BTreeMap<PathBuf, Arc<Mutex<()>>>> = Mutex::new(BTreeMap::new());

fn engine_lock(path: &Path) -> Arc<Mutex<()>> {
    let mut locks = LOCKS.lock().unwrap_or_else(PoisonError::into_inner);
    Arc::clone(locks.entry(path.to_owned()).or_default())
}

pub(super) fn is_usable(path: &Path) -> Result<(), InferenceError> {
    let poisoned = |_| InferenceError::Poisoned("the engine's lock is poisoned".to_owned());
    engine_lock(path).lock().map(drop).map_err(poisoned)
}

impl InjectedFault {
    /// The first fault in the text, with the text before and after it.
    pub fn find(text: &str) -> Option<(&str, InjectedFault, &str)> {
        let (before, after) = text.split_once('!')?;
        let mut words = WordSplitter(after);
        let fault = match words.word()? {
            "panic" => InjectedFault::Panic,
            "hang" => InjectedFault::Hang,
            "busy" => InjectedFault::Busy(words.word()?.parse().ok()?),
            "spin" => InjectedFault::Spin(words.word()?.parse().ok()?),
            "oom" => InjectedFault::OutOfMemory,
            "fail" => InjectedFault::Fail,
            "input" => InjectedFault::Input,
            "poison" => InjectedFault::Poison,
            "broken" => InjectedFault::Broken,
            "exit" => InjectedFault::Exit,
            "abort" => InjectedFault::Abort,
            "empty" => InjectedFault::Empty,
            "short" => InjectedFault::Short,
            "nan" => InjectedFault::NaN,
            "missing" => InjectedFault::Missing,
            "once" => InjectedFault::Once(match words.word()? {
                "panic" => OnceFault::Panic,
                "hang" => OnceFault::Hang,
                "exit" => OnceFault::Exit,
                "fail" => OnceFault::Fail,
                _ => return None,
            }),
            "chance" => InjectedFault::Chance,
            "stray" => InjectedFault::Stray,
            _ => return None,
        };
        Some((before, fault, words.0))
    }

    /// The text it adds to an answer.
    pub(super) fn words(self, sampling: &Sampling) -> String {
        let drawn = || RandomState::new().build_hasher().finish();
        match self {
            InjectedFault::Chance => sampling.seed.unwrap_or_else(drawn).to_string(),
            InjectedFault::Stray => drawn().to_string(),
            _ => String::new(),
        }
    }

    pub(super) fn happen(self, path: &Path, beacon: &Beacon) -> Result<(), InferenceError> {
        match self {
            InjectedFault::Panic => panic!("injected fault"),
            InjectedFault::Hang => hang(path),
            InjectedFault::Busy(ms) => {
                let until = Instant::now() + Duration::from_millis(ms);
                while Instant::now() < until {
                    beacon.step()?;
                    std::thread::sleep(Duration::from_millis(1));
                }
            }
            InjectedFault::Spin(ms) => {
                let until = Instant::now() + Duration::from_millis(ms);
                while Instant::now() < until {
                    beacon.step()?;
                    std::hint::black_box((0..100_000_u64).fold(1, |a, b| std::hint::black_box(a ^ b)));
                }
            }
            InjectedFault::OutOfMemory => {
                return Err(InferenceError::OutOfMemory("injected fault".to_owned()));
            }
            InjectedFault::Fail => return Err(InferenceError::Engine("injected fault".to_owned())),
            InjectedFault::Input => return Err(InferenceError::Input("injected fault".to_owned())),
            InjectedFault::Broken => return Err(InferenceError::Poisoned("injected fault".to_owned())),
            InjectedFault::Poison => {
                let lock = engine_lock(path);
                let _held = lock.lock();
                panic!("injected panic with the engine's lock held");
            }
            InjectedFault::Exit => std::process::exit(1),
            InjectedFault::Abort => std::process::abort(),
            InjectedFault::Once(once) => {
                let marked = OpenOptions::new().write(true).create_new(true).open(beside(path, "once"));
                if marked.is_ok() {
                    InjectedFault::from(once).happen(path, beacon)?;
                }
            }
            InjectedFault::Empty | InjectedFault::Short | InjectedFault::NaN | InjectedFault::Missing => {}
            InjectedFault::Chance | InjectedFault::Stray => {}
        }
        Ok(())
    }
}

impl From<OnceFault> for InjectedFault {
    fn from(once: OnceFault) -> Self {
        match once {
            OnceFault::Panic => InjectedFault::Panic,
            OnceFault::Hang => InjectedFault::Hang,
            OnceFault::Exit => InjectedFault::Exit,
            OnceFault::Fail => InjectedFault::Fail,
        }
    }
}

/// Splits off words and keeps the rest as it is.
struct WordSplitter<'a>(&'a str);

impl<'a> WordSplitter<'a> {
    fn word(&mut self) -> Option<&'a str> {
        let (word, rest) = self.0.split_once(' ').unwrap_or((self.0, ""));
        self.0 = rest;
        (!word.is_empty()).then_some(word)
    }
}
