//! Where a copy takes its orders from, whatever it runs in.

use std::collections::VecDeque;
use std::sync::Arc;

use super::ping::Nonce;
use super::process::Process;
use super::shared::State;
use crate::beacon::Beacon;
use crate::request::Part;
use crate::roster::{CopyId, RunId};
use crate::sync::{Condvar, is_finished, thread};

/// Where a copy takes its orders from.
pub(super) struct Seat {
    pub(super) orders: VecDeque<Order>,
    pub(super) came: Arc<Condvar>,
    pub(super) beacon: Beacon,
    pub(super) process: Option<Arc<Process>>,
    /// What the supervisor asked a child last.
    pub(super) pinged: Option<Nonce>,
    pub(super) handle: Option<thread::JoinHandle<()>>,
    pub(super) is_told: bool,
    pub(super) has_ended: bool,
}

#[derive(Debug)]
pub(super) enum Order {
    Run {
        run: RunId,
        parts: Vec<Arc<Part>>,
        is_stopped: bool,
    },
    /// To child processes; a thread sees its beacon.
    Stop(RunId),
    Ping(Nonce),
    Quit,
}

impl State {
    pub(super) fn order(&mut self, copy: CopyId, order: Order) {
        if let Some(seat) = self.seats.get_mut(&copy) {
            seat.orders.push_back(order);
            seat.came.notify_all();
        }
    }

    pub(super) fn stop(&mut self, copy: CopyId, stopped: RunId) {
        let Some(seat) = self.seats.get_mut(&copy) else { return };
        let is_taken = !seat.orders.iter_mut().any(|order| match order {
            Order::Run { run, is_stopped, .. } if *run == stopped => {
                *is_stopped = true;
                true
            }
            Order::Run { .. } | Order::Stop(_) | Order::Ping(_) | Order::Quit => false,
        });
        if is_taken {
            seat.beacon.stop();
        }
        if seat.process.is_some() {
            self.order(copy, Order::Stop(stopped));
        }
    }

    pub(super) fn quit(&mut self, copy: CopyId) {
        if let Some(seat) = self.seats.get_mut(&copy) {
            seat.is_told = true;
            seat.beacon.stop();
            seat.orders.clear();
        }
        self.order(copy, Order::Quit);
    }

    /// Who has said its last word, and has joined as far as one can see.
    pub(super) fn finished(&mut self) -> Vec<(CopyId, thread::JoinHandle<()>)> {
        let finished: Vec<CopyId> =
            self.seats.iter().filter(|(_, seat)| seat.is_finished()).map(|(copy, _)| *copy).collect();
        let handle = |copy| Some((copy, self.seats.get_mut(&copy)?.handle.take()?));
        finished.into_iter().filter_map(handle).collect()
    }
}

impl Seat {
    pub(super) fn is_finished(&self) -> bool {
        self.has_ended && self.handle.as_ref().is_some_and(is_finished)
    }
}

impl Default for Seat {
    fn default() -> Self {
        Seat {
            orders: VecDeque::new(),
            came: Arc::new(Condvar::new()),
            beacon: Beacon::default(),
            process: None,
            pinged: None,
            handle: None,
            is_told: false,
            has_ended: false,
        }
    }
}
