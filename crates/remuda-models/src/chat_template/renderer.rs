//! The process that renders, seen from the caller: it is started for one conversation, waited for, and always reaped.

use std::io::{self, ErrorKind};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, ExitStatus, Stdio};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

use rustix::process::Signal;

use super::limits::{RenderLimits, VARIABLE};
use super::{RenderJob, TemplateError};
use crate::child_command::ChildCommand;
use crate::frame;

/// Five times the processor time it may take, for a machine that is busy.
const WAIT_MAX: Duration = Duration::from_secs(10);
/// Processes that render at once: what hostile templates take together is four times the memory limit of one.
const PLACES: usize = 4;

const NOT_CALLED: &str =
    "this program does not call `remuda_models::child::run` when it is started with `pool-copy`";

/// Why a process did not answer.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum RendererError {
    Memory,
    Time,
    Unavailable(String),
}

pub(super) fn render(
    child: &ChildCommand,
    job: &RenderJob<'_>,
    limits: RenderLimits,
) -> Result<Result<String, TemplateError>, RendererError> {
    let unavailable =
        |error: io::Error| RendererError::Unavailable(format!("its process cannot be started: {error}"));
    // A program that ignores its arguments would start itself for ever.
    if std::env::var_os(VARIABLE).is_some() {
        return Err(RendererError::Unavailable(NOT_CALLED.to_owned()));
    }
    let _place = Place::take()?;
    let (mut socket, theirs) = UnixStream::pair().map_err(unavailable)?;
    socket.set_read_timeout(Some(WAIT_MAX)).map_err(unavailable)?;
    socket.set_write_timeout(Some(WAIT_MAX)).map_err(unavailable)?;
    let process = start(child, limits, theirs).map_err(unavailable)?;
    // If the process has ended, the answer is missing as well, and its end says why.
    let written = frame::write(&mut socket, job);
    let answer = written.and_then(|()| frame::read(&mut socket));
    let status = process.end();
    match answer {
        Ok(Some(answer)) => Ok(answer),
        Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
            Err(RendererError::Unavailable(format!("no answer within {} s", WAIT_MAX.as_secs())))
        }
        Ok(None) | Err(_) => Err(status.map_or_else(unavailable, reason)),
    }
}

fn start(child: &ChildCommand, limits: RenderLimits, socket: UnixStream) -> io::Result<Renderer> {
    let mut command = child.command()?;
    // A template needs no environment; the program may need its libraries.
    command.env_clear().envs(std::env::vars_os().filter(|(name, _)| name == "LD_LIBRARY_PATH"));
    command.env(VARIABLE, limits.to_string()).process_group(0);
    command.stdin(Stdio::from(OwnedFd::from(socket))).stderr(Stdio::null()).spawn().map(Renderer)
}

/// Why a process that did not answer ended.
fn reason(status: ExitStatus) -> RendererError {
    match status.signal().and_then(Signal::from_named_raw) {
        // A failed allocation aborts.
        Some(Signal::ABORT) => RendererError::Memory,
        Some(Signal::XCPU) => RendererError::Time,
        _ if status.success() => RendererError::Unavailable(NOT_CALLED.to_owned()),
        _ => RendererError::Unavailable(format!("its process ended with {status}")),
    }
}

/// Ends with its caller, even if that panics.
struct Renderer(Child);

impl Renderer {
    fn end(mut self) -> io::Result<ExitStatus> {
        // One that has answered ends by itself; it is not worth waiting for.
        drop(self.0.kill());
        self.0.wait()
    }
}

impl Drop for Renderer {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

static TAKEN: Mutex<usize> = Mutex::new(0);
static RETURNED: Condvar = Condvar::new();

/// One of the [`PLACES`].
struct Place;

impl Place {
    fn take() -> Result<Place, RendererError> {
        let taken = TAKEN.lock().unwrap_or_else(PoisonError::into_inner);
        let (mut taken, waited) = RETURNED
            .wait_timeout_while(taken, WAIT_MAX, |taken| *taken >= PLACES)
            .unwrap_or_else(PoisonError::into_inner);
        if waited.timed_out() {
            return Err(RendererError::Unavailable(format!("{PLACES} others are being rendered; try again")));
        }
        *taken += 1;
        Ok(Place)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        *TAKEN.lock().unwrap_or_else(PoisonError::into_inner) -= 1;
        RETURNED.notify_one();
    }
}
