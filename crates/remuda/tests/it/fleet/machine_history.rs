//! The machine events that the plane stored, replayed from the beginning: limits are checked at every moment, not only at
//! the end.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::harness::{Client, Event};

/// The lives of all machines there ever were.
#[derive(Debug, Default)]
pub(super) struct MachineHistory {
    /// Wanted and not yet proved gone, at the same time, at most.
    pub(super) most: usize,
    /// Every one there ever was, and where it is.
    pub(super) machines: BTreeMap<String, String>,
    /// How many were ordered, by what was said when they were.
    pub(super) ordered: u64,
}

impl MachineHistory {
    pub(super) async fn of(client: &Client) -> MachineHistory {
        let mut books = MachineHistory::default();
        for event in client.history().await {
            books.enter(&event);
        }
        books
    }

    fn enter(&mut self, event: &Event) {
        let text = |key: &str| event.data["detail"][key].as_str().unwrap_or_default().to_owned();
        match event.name.as_str() {
            // Whether it is heard is told by the same name, also of one that is gone.
            "machine:state" if ["online", "offline"].contains(&text("state").as_str()) => {}
            "machine:state" => {
                let (machine, state) = (text("machine"), text("state"));
                let before = self.machines.insert(machine.clone(), state.clone());
                assert_ne!(before.as_deref(), Some("gone"), "{machine} came back as {state}");
                assert_eq!(before.is_none(), state == "wanted", "{machine} is {state} after {before:?}");
                self.most = self.most.max(self.there().len());
            }
            "scale:up" => self.ordered += event.data["detail"]["count"].as_u64().unwrap_or_default(),
            _ => {}
        }
    }

    /// Those that are not gone.
    pub(super) fn there(&self) -> BTreeSet<&str> {
        let there = self.machines.iter().filter(|(_, state)| *state != "gone");
        there.map(|(machine, _)| machine.as_str()).collect()
    }
}

/// The newest report of the control cycle.
pub(super) async fn last_cycle(client: &Client) -> Value {
    client.get("/remuda/v1/cycles").await["cycles"][0].clone()
}
