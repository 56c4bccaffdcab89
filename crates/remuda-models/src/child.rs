//! A copy that runs as a child process, seen from inside: the same engines and models as in a thread, with a socket to
//! the pool in the parent.
//!
//! ```text
//!  parent ──frames──▶ side thread ──work──▶ main thread: LoadedModel::answer, advancing its beacon
//!         ◀──pong, with the step count──┘        │
//!         ◀──updates, answers─────────────────────┘
//! ```
//!
//! The side thread never computes, so it answers pings while the main thread is busy or hangs; a pong carries only the
//! step count. The count travels in the pong and not in shared memory: the parent pings a few times a second, and a
//! step costs no system call. The child ends with its parent: the socket closes, or the kernel sends the parent-death
//! signal.
//!
//! The same program, started the same way, also renders one chat template and ends: see
//! [`chat_template`](crate::chat_template).

pub(crate) mod message;

use std::io::{self, BufReader};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};

use remuda_core::supervise::panic_message;

use self::message::{FromChild, ToChild};
use crate::backend::Engines;
use crate::beacon::Beacon;
use crate::failure::LoadError;
use crate::frame;
use crate::model::LoadedModel;
use crate::request::RequestPart;
use crate::spec::ModelSpec;

/// Serves one model to the parent process over standard input until the socket closes, or renders one chat template.
/// Programs call this when they are started with the arguments of `ChildCommand`.
pub fn run(engines: &Engines) -> io::Result<()> {
    #[cfg(target_os = "linux")]
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
    #[cfg(feature = "gguf")]
    if let Some(limits) = crate::chat_template::requested_limits() {
        return crate::chat_template::serve(limits);
    }
    let socket = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    let copy = Copy {
        to_parent: Arc::new(Mutex::new(socket.try_clone()?)),
        beacon: Beacon::default(),
        current: Arc::default(),
    };
    let (work, orders) = mpsc::channel();
    let side = copy.clone();
    std::thread::Builder::new().name("side".to_owned()).spawn(move || side.listen(socket, &work))?;
    let life = AssertUnwindSafe(|| copy.live(engines, &orders));
    catch_unwind(life).unwrap_or_else(|panic| copy.tell(&FromChild::Panicked(panic_message(panic.as_ref()))))
}

#[derive(Clone)]
struct Copy {
    to_parent: Arc<Mutex<UnixStream>>,
    beacon: Beacon,
    current: Arc<Mutex<Current>>,
}

/// The run in progress, and the newest run that was stopped, possibly before it began.
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
            let handled = match frame {
                ToChild::Ping { nonce } => self.tell(&FromChild::Pong { nonce, steps: self.beacon.steps() }),
                ToChild::Stop { run } => {
                    self.stop(run);
                    Ok(())
                }
                frame @ (ToChild::Load(_) | ToChild::Work { .. }) => {
                    work.send(frame).map_err(io::Error::other)
                }
            };
            if handled.is_err() {
                break;
            }
        }
        // The parent is gone, so nothing the main thread computes is needed.
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
            let mut emit = |update| drop(self.tell(&FromChild::Update { run, update }));
            let outcome = model.answer(&batch, &self.beacon, &mut emit);
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
