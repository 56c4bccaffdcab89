//! What goes wrong where a text says so.

use std::collections::BTreeMap;
use std::collections::hash_map::RandomState;
use std::fs::OpenOptions;
use std::hash::{BuildHasher, Hasher};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::habits::{beside, hang};
use crate::beacon::Beacon;
use crate::failure::Failure;
use crate::request::Sampling;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mishap {
    /// `!panic`
    Panic,
    /// `!hang`: no sign of life, until a file `*.go` lies beside the model.
    Hang,
    /// `!busy 500`: at work for so many milliseconds, with signs of life.
    Busy(u64),
    /// `!spin 500`: the same, and really computing.
    Spin(u64),
    /// `!oom`
    OutOfMemory,
    /// `!fail`: the engine says so.
    Fail,
    /// `!input`: it would fail everywhere.
    Input,
    /// `!poison`: a panic with the engine's lock in its hands, which every later copy in this process finds broken.
    Poison,
    /// `!broken`: it says that of itself.
    Broken,
    /// `!exit`: the process ends.
    Exit,
    /// `!abort`: and leaves a signal behind.
    Abort,
    /// `!empty`, `!short`, `!nan`, `!missing`: an answer that is none.
    Empty,
    Short,
    NaN,
    Missing,
    /// `!once panic`, and so on: to the first copy of the model that comes to it, and to no other.
    Once(Once),
    /// `!chance`: it says the seed, or what it draws if there is none.
    Chance,
    /// `!stray`: it says what no other copy says.
    Stray,
}

/// What can happen once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Once {
    Panic,
    Hang,
    Exit,
    Fail,
}

/// The lock of each model's engine; what one copy breaks is broken for all in this process.
static LOCKS: Mutex<BTreeMap<PathBuf, Arc<Mutex<()>>>> = Mutex::new(BTreeMap::new());

fn engine_lock(path: &Path) -> Arc<Mutex<()>> {
    let mut locks = LOCKS.lock().unwrap_or_else(PoisonError::into_inner);
    Arc::clone(locks.entry(path.to_owned()).or_default())
}

pub(super) fn is_usable(path: &Path) -> Result<(), Failure> {
    let poisoned = |_| Failure::Poisoned("the engine's lock is poisoned".to_owned());
    engine_lock(path).lock().map(drop).map_err(poisoned)
}

impl Mishap {
    /// The first that the text asks for, with what stands before it and behind it.
    pub fn find(text: &str) -> Option<(&str, Mishap, &str)> {
        let (before, after) = text.split_once('!')?;
        let mut words = Words(after);
        let mishap = match words.word()? {
            "panic" => Mishap::Panic,
            "hang" => Mishap::Hang,
            "busy" => Mishap::Busy(words.word()?.parse().ok()?),
            "spin" => Mishap::Spin(words.word()?.parse().ok()?),
            "oom" => Mishap::OutOfMemory,
            "fail" => Mishap::Fail,
            "input" => Mishap::Input,
            "poison" => Mishap::Poison,
            "broken" => Mishap::Broken,
            "exit" => Mishap::Exit,
            "abort" => Mishap::Abort,
            "empty" => Mishap::Empty,
            "short" => Mishap::Short,
            "nan" => Mishap::NaN,
            "missing" => Mishap::Missing,
            "once" => Mishap::Once(match words.word()? {
                "panic" => Once::Panic,
                "hang" => Once::Hang,
                "exit" => Once::Exit,
                "fail" => Once::Fail,
                _ => return None,
            }),
            "chance" => Mishap::Chance,
            "stray" => Mishap::Stray,
            _ => return None,
        };
        Some((before, mishap, words.0))
    }

    /// What it adds to an answer.
    pub(super) fn words(self, sampling: &Sampling) -> String {
        let drawn = || RandomState::new().build_hasher().finish();
        match self {
            Mishap::Chance => sampling.seed.unwrap_or_else(drawn).to_string(),
            Mishap::Stray => drawn().to_string(),
            _ => String::new(),
        }
    }

    pub(super) fn happen(self, path: &Path, beacon: &Beacon) -> Result<(), Failure> {
        match self {
            Mishap::Panic => panic!("a text asked for it"),
            Mishap::Hang => hang(path),
            Mishap::Busy(ms) => {
                let until = Instant::now() + Duration::from_millis(ms);
                while Instant::now() < until {
                    beacon.step()?;
                    std::thread::sleep(Duration::from_millis(1));
                }
            }
            Mishap::Spin(ms) => {
                let until = Instant::now() + Duration::from_millis(ms);
                while Instant::now() < until {
                    beacon.step()?;
                    std::hint::black_box((0..100_000_u64).fold(1, |a, b| std::hint::black_box(a ^ b)));
                }
            }
            Mishap::OutOfMemory => return Err(Failure::OutOfMemory("a text asked for it".to_owned())),
            Mishap::Fail => return Err(Failure::Engine("a text asked for it".to_owned())),
            Mishap::Input => return Err(Failure::Input("a text asked for it".to_owned())),
            Mishap::Broken => return Err(Failure::Poisoned("a text asked for it".to_owned())),
            Mishap::Poison => {
                let lock = engine_lock(path);
                let _held = lock.lock();
                panic!("a text asked for it, and the engine's lock was held");
            }
            Mishap::Exit => std::process::exit(1),
            Mishap::Abort => std::process::abort(),
            Mishap::Once(once) => {
                let marked = OpenOptions::new().write(true).create_new(true).open(beside(path, "once"));
                if marked.is_ok() {
                    Mishap::from(once).happen(path, beacon)?;
                }
            }
            Mishap::Empty | Mishap::Short | Mishap::NaN | Mishap::Missing => {}
            Mishap::Chance | Mishap::Stray => {}
        }
        Ok(())
    }
}

impl From<Once> for Mishap {
    fn from(once: Once) -> Self {
        match once {
            Once::Panic => Mishap::Panic,
            Once::Hang => Mishap::Hang,
            Once::Exit => Mishap::Exit,
            Once::Fail => Mishap::Fail,
        }
    }
}

/// Word by word, with the rest as it is.
struct Words<'a>(&'a str);

impl<'a> Words<'a> {
    fn word(&mut self) -> Option<&'a str> {
        let (word, rest) = self.0.split_once(' ').unwrap_or((self.0, ""));
        self.0 = rest;
        (!word.is_empty()).then_some(word)
    }
}
