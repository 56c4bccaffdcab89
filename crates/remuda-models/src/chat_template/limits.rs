//! The limits of a process that renders, and that process from inside: it limits itself, starts itself again, reads one
//! job, answers it and ends.
//!
//! It starts itself again (`exec`, in the same process) because an allocator reserves memory when a program starts:
//! mimalloc a gigabyte, which a limit that is set afterwards does not count.

use std::fmt;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::{RenderJob, jinja};
use crate::child_command::this_program;
use crate::frame;

/// Asks a child process to render, within these limits.
pub(super) const VARIABLE: &str = "REMUDA_RENDER_LIMITS";

/// This program itself takes up to 40 MiB (the allocator's first segment), the longest template in use less than 4.
const MEMORY_BYTES: u64 = 192 << 20;
/// The messages are held as received, as values and as output, and a template in use copies each a few times.
const COPIES_OF_MESSAGES: u64 = 16;
/// The longest conversations in use take some milliseconds; all steps that a template may take, half a second.
const PROCESSOR_SECONDS: u64 = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RenderLimits {
    pub(super) memory_bytes: u64,
    pub(super) processor_seconds: u64,
}

impl RenderLimits {
    pub(super) fn for_messages(bytes: usize) -> Self {
        let memory_bytes = MEMORY_BYTES + COPIES_OF_MESSAGES * bytes as u64;
        RenderLimits { memory_bytes, processor_seconds: PROCESSOR_SECONDS }
    }

    /// Limits this process for the rest of its life.
    fn apply(self) -> io::Result<()> {
        lower(Resource::Core, 0)?;
        // A second more until the kernel kills: the first limit's signal says why it ended.
        let processor =
            Rlimit { current: Some(self.processor_seconds), maximum: Some(self.processor_seconds + 1) };
        setrlimit(Resource::Cpu, processor)?;
        if lower(Resource::Data, self.memory_bytes)? {
            return Err(Command::new(this_program()?).args(std::env::args_os().skip(1)).exec());
        }
        Ok(())
    }
}

/// Lowers a limit of this process, and returns whether it was higher before.
fn lower(resource: Resource, limit: u64) -> io::Result<bool> {
    let is_higher = getrlimit(resource).maximum.is_none_or(|maximum| maximum > limit);
    if is_higher {
        setrlimit(resource, Rlimit { current: Some(limit), maximum: Some(limit) })?;
    }
    Ok(is_higher)
}

impl fmt::Display for RenderLimits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.memory_bytes, self.processor_seconds)
    }
}

/// The limits this process was asked to render within, if it was.
pub(crate) fn requested_limits() -> Option<RenderLimits> {
    let text = std::env::var(VARIABLE).ok()?;
    let (memory, processor) = text.split_once(' ')?;
    Some(RenderLimits { memory_bytes: memory.parse().ok()?, processor_seconds: processor.parse().ok()? })
}

/// Renders the one job that comes over standard input, and ends.
pub(crate) fn serve(limits: RenderLimits) -> io::Result<()> {
    limits.apply()?;
    let mut socket = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    match frame::read::<RenderJob<'_>>(&mut socket)? {
        Some(job) => frame::write(&mut socket, &jinja::render(&job)),
        None => Ok(()),
    }
}
