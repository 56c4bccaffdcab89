//! The pool's side of one running copy: its order queue, its beacon, its thread and process.

use std::collections::VecDeque;
use std::sync::Arc;

use super::ping::Nonce;
use super::process::Process;
use super::shared::State;
use crate::beacon::Beacon;
use crate::request::RequestPart;
use crate::supervisor::{CopyId, RunId};
use crate::sync::{Condvar, is_finished, thread};

pub(super) struct CopyHandle {
    pub(super) orders: VecDeque<CopyOrder>,
    pub(super) order_added: Arc<Condvar>,
    pub(super) beacon: Beacon,
    pub(super) process: Option<Arc<Process>>,
    /// The supervisor's last ping of a child process.
    pub(super) pinged: Option<Nonce>,
    pub(super) thread: Option<thread::JoinHandle<()>>,
    pub(super) quit_requested: bool,
    pub(super) has_ended: bool,
}

#[derive(Debug)]
pub(super) enum CopyOrder {
    Run {
        run: RunId,
        parts: Vec<Arc<RequestPart>>,
        is_stopped: bool,
    },
    /// For child processes; a thread reads its beacon.
    Stop(RunId),
    Ping(Nonce),
    Quit,
}

impl State {
    pub(super) fn order(&mut self, copy: CopyId, order: CopyOrder) {
        if let Some(handle) = self.copies.get_mut(&copy) {
            handle.orders.push_back(order);
            handle.order_added.notify_all();
        }
    }

    pub(super) fn stop(&mut self, copy: CopyId, stopped: RunId) {
        let Some(handle) = self.copies.get_mut(&copy) else { return };
        let is_taken = !handle.orders.iter_mut().any(|order| match order {
            CopyOrder::Run { run, is_stopped, .. } if *run == stopped => {
                *is_stopped = true;
                true
            }
            CopyOrder::Run { .. } | CopyOrder::Stop(_) | CopyOrder::Ping(_) | CopyOrder::Quit => false,
        });
        if is_taken {
            handle.beacon.stop();
        }
        if handle.process.is_some() {
            self.order(copy, CopyOrder::Stop(stopped));
        }
    }

    pub(super) fn quit(&mut self, copy: CopyId) {
        if let Some(handle) = self.copies.get_mut(&copy) {
            handle.quit_requested = true;
            handle.beacon.stop();
            handle.orders.clear();
        }
        self.order(copy, CopyOrder::Quit);
    }

    /// Copies whose thread has reported its exit and can be joined.
    pub(super) fn finished(&mut self) -> Vec<(CopyId, thread::JoinHandle<()>)> {
        let finished: Vec<CopyId> =
            self.copies.iter().filter(|(_, handle)| handle.is_finished()).map(|(copy, _)| *copy).collect();
        let handle = |copy| Some((copy, self.copies.get_mut(&copy)?.thread.take()?));
        finished.into_iter().filter_map(handle).collect()
    }
}

impl CopyHandle {
    pub(super) fn is_finished(&self) -> bool {
        self.has_ended && self.thread.as_ref().is_some_and(is_finished)
    }
}

impl Default for CopyHandle {
    fn default() -> Self {
        CopyHandle {
            orders: VecDeque::new(),
            order_added: Arc::new(Condvar::new()),
            beacon: Beacon::default(),
            process: None,
            pinged: None,
            thread: None,
            quit_requested: false,
            has_ended: false,
        }
    }
}
