//! A copy as a thread of this process.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use remuda_core::supervise::panic_message;

use super::ModelRuntime;
use super::copy_handle::CopyOrder;
use super::shared::PoolShared;
use crate::beacon::Beacon;
use crate::failure::LoadError;
use crate::request::RequestPart;
use crate::supervisor::{CopyId, ExitReason, SupervisorEvent};

/// Runs a copy on the current thread. However it ends, the model is dropped before the exit is reported.
pub(super) fn run(runtime: &ModelRuntime, shared: &Arc<PoolShared>, copy: CopyId, beacon: &Beacon) {
    let life = AssertUnwindSafe(|| live(runtime, shared, copy, beacon));
    let why = catch_unwind(life).unwrap_or_else(|panic| ExitReason::Panicked(panic_message(panic.as_ref())));
    shared.copy_ended(copy, why);
}

fn live(runtime: &ModelRuntime, shared: &Arc<PoolShared>, copy: CopyId, beacon: &Beacon) -> ExitReason {
    let mut model = match runtime.backend.load(&runtime.spec, beacon) {
        Ok(model) => model,
        Err(LoadError::Stopped) => return ExitReason::Requested,
        Err(error) => return ExitReason::Load(error),
    };
    shared.apply(SupervisorEvent::Loaded(copy));
    loop {
        match shared.next_order(copy) {
            CopyOrder::Run { run, parts, .. } => {
                let batch: Vec<RequestPart> = parts.iter().map(|part| RequestPart::clone(part)).collect();
                let outcome = model.answer(&batch, beacon, &mut |update| shared.stream(copy, run, update));
                shared.apply(SupervisorEvent::Finished { copy, run, outcome });
            }
            // Not needed here: a thread copy is stopped and watched through its beacon.
            CopyOrder::Stop(_) | CopyOrder::Ping(_) => {}
            CopyOrder::Quit => return ExitReason::Requested,
        }
    }
}
