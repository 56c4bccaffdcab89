//! A copy as a child process, seen from the parent: one thread writes to it, another reads from it and notices first
//! when it ends.
//!
//! The end of the socket is the exit signal: the kernel closes it within a millisecond when the process ends for any
//! reason. The child is then killed, in case it only closed the socket, and reaped. Only after that the thread reports
//! the exit and the memory is released.

use std::io::{self, BufReader};
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};

use super::ModelRuntime;
use super::copy_handle::CopyOrder;
use super::ping::Nonce;
use super::shared::PoolShared;
use crate::beacon::Beacon;
use crate::child::message::{FromChild, ToChild};
use crate::failure::LoadError;
use crate::frame;
use crate::supervisor::{CopyId, ExitReason, RunId, SupervisorEvent};
use crate::sync::thread;

/// The process of a copy. The thread pools of its engines are process-wide; more threads than configured would only
/// contend.
fn command(runtime: &ModelRuntime) -> io::Result<Command> {
    let (mut command, threads) = (runtime.child.command()?, runtime.spec.threads.to_string());
    command
        .env("RAYON_NUM_THREADS", &threads)
        .env("CANDLE_NUM_THREADS", &threads)
        // A separate process group, so that Ctrl-C in the terminal lets this program drain first.
        .process_group(0);
    Ok(command)
}

/// The handle of a child process.
#[derive(Debug)]
pub(crate) struct Process {
    pid: u32,
    child: Mutex<Child>,
}

impl Process {
    pub(super) fn pid(&self) -> u32 {
        self.pid
    }

    /// Kills the process. Does not wait if it is being reaped already.
    pub(super) fn kill(&self) {
        if let Ok(mut child) = self.child.try_lock() {
            drop(child.kill());
        }
    }

    fn reap(&self) -> io::Result<ExitStatus> {
        let mut child = self.child.lock().unwrap_or_else(PoisonError::into_inner);
        drop(child.kill());
        child.wait()
    }
}

/// Runs a copy on the thread that reads from the child. The kernel kills the child when this thread ends.
pub(super) fn run(runtime: &ModelRuntime, shared: &Arc<PoolShared>, copy: CopyId, beacon: &Beacon) {
    let why = live(runtime, shared, copy, beacon)
        .unwrap_or_else(|error| ExitReason::Exited(format!("start failed: {error}")));
    shared.copy_ended(copy, why);
}

fn live(
    runtime: &ModelRuntime,
    shared: &Arc<PoolShared>,
    copy: CopyId,
    beacon: &Beacon,
) -> io::Result<ExitReason> {
    let (ours, theirs) = UnixStream::pair()?;
    let child = command(runtime)?.stdin(Stdio::from(OwnedFd::from(theirs))).spawn()?;
    let process = Arc::new(Process { pid: child.id(), child: Mutex::new(child) });
    shared.attach_process(copy, Arc::clone(&process));
    let to_child = ours.try_clone();
    let (spec, orders) = (runtime.spec.clone(), Arc::clone(shared));
    let writer = to_child.and_then(|to_child| {
        let body = move || write(to_child, spec, &orders, copy);
        thread::Builder::new().name(format!("{}-{copy}-to", runtime.spec.name)).spawn(body)
    });
    let last_words = if writer.is_ok() { read(ours, shared, copy, beacon) } else { None };
    let status = process.reap();
    let quit_requested = shared.child_ended(copy);
    let writer = writer?.join();
    drop(writer);
    Ok(match (last_words, status) {
        (Some(why), _) => why,
        (None, _) if quit_requested => ExitReason::Requested,
        (None, status) => ExitReason::Exited(status.map_or_else(|error| error.to_string(), manner)),
    })
}

fn manner(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("with code {code}"),
        (None, Some(9)) => "killed by signal 9, possibly by the OOM killer".to_owned(),
        (None, Some(signal)) => format!("by signal {signal}"),
        (None, None) => status.to_string(),
    }
}

/// Sends orders to the child until the copy has to quit or the socket fails; the reading thread then learns the cause.
fn write(mut to_child: UnixStream, spec: crate::ModelSpec, shared: &PoolShared, copy: CopyId) {
    let mut reached = frame::write(&mut to_child, &ToChild::Load(spec));
    loop {
        let frame = match shared.next_order(copy) {
            // If the run was stopped before it was sent, the stop is the next order.
            CopyOrder::Run { run: RunId(run), parts, .. } => ToChild::Work { run, parts },
            CopyOrder::Stop(RunId(run)) => ToChild::Stop { run },
            CopyOrder::Ping(Nonce(nonce)) => ToChild::Ping { nonce },
            CopyOrder::Quit => break,
        };
        if reached.is_ok() {
            reached = frame::write(&mut to_child, &frame);
        }
        if reached.is_err() {
            break;
        }
    }
    drop(to_child.shutdown(Shutdown::Write));
}

/// Handles the child's frames until the socket closes. Returns the exit reason if the child reported one.
fn read(
    from_child: UnixStream,
    shared: &Arc<PoolShared>,
    copy: CopyId,
    beacon: &Beacon,
) -> Option<ExitReason> {
    let mut from_child = BufReader::new(from_child);
    loop {
        match frame::read(&mut from_child) {
            Ok(Some(FromChild::Loaded)) => shared.apply(SupervisorEvent::Loaded(copy)),
            Ok(Some(FromChild::Update { run, update })) => shared.stream(copy, RunId(run), update),
            Ok(Some(FromChild::Done { run, outcome })) => {
                shared.apply(SupervisorEvent::Finished { copy, run: RunId(run), outcome });
            }
            Ok(Some(FromChild::Pong { nonce, steps })) => shared.pong(copy, Nonce(nonce), beacon, steps),
            Ok(Some(FromChild::NotLoaded(LoadError::Stopped))) => return Some(ExitReason::Requested),
            Ok(Some(FromChild::NotLoaded(error))) => return Some(ExitReason::Load(error)),
            Ok(Some(FromChild::Panicked(what))) => return Some(ExitReason::Panicked(what)),
            Ok(None) => return None,
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                return Some(ExitReason::Exited(format!("invalid frame: {error}")));
            }
            // Connection reset by the dying child.
            Err(_) => return None,
        }
    }
}
