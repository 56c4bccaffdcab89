//! A copy as a thread of this process.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use super::Serving;
use super::seat::Order;
use super::shared::Shared;
use crate::beacon::Beacon;
use crate::failure::LoadError;
use crate::request::Part;
use crate::roster::{CopyId, Event, Why};

/// Its whole life. However it ends, the model is dropped by then and the last word is said.
pub(super) fn run(serving: &Serving, shared: &Arc<Shared>, copy: CopyId, beacon: &Beacon) {
    let life = AssertUnwindSafe(|| live(serving, shared, copy, beacon));
    let why = catch_unwind(life).unwrap_or_else(|panic| Why::Panicked(message(panic.as_ref())));
    shared.last_word(copy, why);
}

fn live(serving: &Serving, shared: &Arc<Shared>, copy: CopyId, beacon: &Beacon) -> Why {
    let mut model = match serving.backend.load(&serving.spec, beacon) {
        Ok(model) => model,
        Err(LoadError::Stopped) => return Why::Told,
        Err(error) => return Why::Load(error),
    };
    shared.apply(Event::Loaded(copy));
    loop {
        match shared.take(copy) {
            Order::Run { run, parts, .. } => {
                let batch: Vec<Part> = parts.iter().map(|part| Part::clone(part)).collect();
                let outcome = model.answer(&batch, beacon, &mut |piece| shared.say(copy, run, piece));
                shared.apply(Event::Done { copy, run, outcome });
            }
            // A thread sees its beacon, and has a supervisor who does.
            Order::Stop(_) | Order::Ping(_) => {}
            Order::Quit => return Why::Told,
        }
    }
}

pub(crate) fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "without a word".to_owned())
}
