//! A copy from the inside, when it is a process of its own: the same engines and the same models, with a socket where a
//! thread has the pool.
//!
//! ```text
//!  parent ──frames──▶ side thread ──work──▶ main thread: Model::answer, stepping its beacon
//!         ◀──pong, with the step count──┘        │
//!         ◀──pieces, answers─────────────────────┘
//! ```
//!
//! The side thread never computes, so it answers while the main thread is busy or hangs; it says what the beacon says and
//! vouches for nothing else. The step count travels in the pong instead of in shared memory: the parent asks a few times
//! a second, and a step costs no system call. The child ends with its parent: the socket ends, or the kernel's signal
//! comes.

pub(crate) mod frame;

use std::io::{self, BufReader};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};

use self::frame::{FromChild, ToChild};
use crate::backend::Engines;
use crate::beacon::Beacon;
use crate::failure::LoadError;
use crate::model::LoadedModel;
use crate::pool::message;
use crate::request::RequestPart;
use crate::spec::ModelSpec;

/// Serves one model to the process that started this one, over its standard input, until that ends. What a program does
/// when it is started with [`ChildCommand`](crate::ChildCommand)'s arguments.
pub fn run(engines: &Engines) -> io::Result<()> {
    #[cfg(target_os = "linux")]
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
    let socket = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    let copy = Copy {
        to_parent: Arc::new(Mutex::new(socket.try_clone()?)),
        beacon: Beacon::default(),
        current: Arc::default(),
    };
    let (work, orders) = mpsc::channel();
    let beside = copy.clone();
    std::thread::Builder::new().name("side".to_owned()).spawn(move || beside.listen(socket, &work))?;
    let life = AssertUnwindSafe(|| copy.live(engines, &orders));
    catch_unwind(life).unwrap_or_else(|panic| copy.tell(&FromChild::Panicked(message(panic.as_ref()))))
}

#[derive(Clone)]
struct Copy {
    to_parent: Arc<Mutex<UnixStream>>,
    beacon: Beacon,
    current: Arc<Mutex<Current>>,
}

/// Which run is at work, and which was told to stop, perhaps before it began.
#[derive(Default)]
struct Current {
    run: u64,
    stopped: u64,
}

impl Copy {
    fn tell(&self, frame: &FromChild) -> io::Result<()> {
        frame::write(&mut *lock(&self.to_parent), frame)
    }

    fn listen(&self, socket: UnixStream, work: &mpsc::Sender<ToChild>) {
        let mut from_parent = BufReader::new(socket);
        while let Ok(Some(frame)) = frame::read(&mut from_parent) {
            let heard = match frame {
                ToChild::Ping { nonce } => self.tell(&FromChild::Pong { nonce, steps: self.beacon.steps() }),
                ToChild::Stop { run } => {
                    self.stop(run);
                    Ok(())
                }
                frame @ (ToChild::Load(_) | ToChild::Work { .. }) => {
                    work.send(frame).map_err(io::Error::other)
                }
            };
            if heard.is_err() {
                break;
            }
        }
        // Nobody is left to work for, whatever the main thread does just now.
        std::process::exit(0);
    }

    fn stop(&self, run: u64) {
        let mut current = lock(&self.current);
        current.stopped = current.stopped.max(run);
        if current.run == run {
            self.beacon.stop();
        }
    }

    fn live(&self, engines: &Engines, orders: &mpsc::Receiver<ToChild>) -> io::Result<()> {
        let Ok(ToChild::Load(spec)) = orders.recv() else { return Ok(()) };
        let mut model = match self.load(engines, &spec) {
            Ok(model) => model,
            Err(error) => return self.tell(&FromChild::NotLoaded(error)),
        };
        self.tell(&FromChild::Loaded)?;
        while let Ok(ToChild::Work { run, parts }) = orders.recv() {
            let batch: Vec<RequestPart> = parts.into_iter().map(Arc::unwrap_or_clone).collect();
            self.begin(run);
            let mut say = |piece| drop(self.tell(&FromChild::AnswerUpdate { run, piece }));
            let outcome = model.answer(&batch, &self.beacon, &mut say);
            self.tell(&FromChild::Done { run, outcome })?;
        }
        Ok(())
    }

    fn load(&self, engines: &Engines, spec: &ModelSpec) -> Result<LoadedModel, LoadError> {
        let (backend, _) = engines.find(spec)?;
        backend.load(spec, &self.beacon)
    }

    fn begin(&self, run: u64) {
        let mut current = lock(&self.current);
        current.run = run;
        if current.stopped >= run { self.beacon.stop() } else { self.beacon.resume() }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
