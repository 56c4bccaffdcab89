//! What happened to machines and fleets, for subscribers: the part of `DomainEvent` that concerns providers.

use serde_json::Value;

use super::domain_event::EventDescription;
use crate::event_kind::EventKind;
use crate::id::{FleetId, MachineId, WorkerId};
use crate::machine::Presence;
use crate::provider::{Pod, ProviderError};
use crate::rental::Rental;
use crate::scale::ScalingDirection;

pub(super) enum FleetEvent<'a> {
    /// A machine is online while any of its workers is.
    MachinePresence {
        machine: &'a MachineId,
        worker: Option<&'a WorkerId>,
        presence: Presence,
    },
    MachinePhase(&'a Rental),
    MachinePreparing(&'a MachineId),
    MachineGone {
        rental: &'a Rental,
        reason: &'a str,
    },
    MachineUnreliable {
        machine: &'a MachineId,
        stale_in_an_hour: usize,
    },
    MachineOrphan {
        fleet: &'a FleetId,
        pod: &'a Pod,
        reason: String,
    },
    MachineAlarm {
        rental: &'a Rental,
        reason: String,
    },
    Order {
        fleet: &'a FleetId,
        order: &'static str,
        machines: Option<u32>,
    },
    Fault {
        fleet: &'a FleetId,
        call: &'static str,
        fault: &'a ProviderError,
    },
    Doubt {
        fleet: &'a FleetId,
        reason: String,
    },
    Scaled(Scaling<'a>),
}

/// A fleet grows or shrinks.
pub(super) struct Scaling<'a> {
    pub(super) direction: ScalingDirection,
    pub(super) fleet: Option<&'a FleetId>,
    pub(super) worker: Option<&'a WorkerId>,
    pub(super) count: u32,
    pub(super) reason: &'a str,
}

impl<'a> FleetEvent<'a> {
    pub(super) fn describe(self) -> EventDescription<'a> {
        use EventDescription as It;
        use EventKind as Kind;
        match self {
            FleetEvent::MachinePresence { machine, worker, presence } => {
                machine_state(machine, presence.as_str()).worker(worker)
            }
            FleetEvent::MachinePhase(rental) => machine_state(&rental.machine, rental.phase().as_str())
                .with("fleet", Some(rental.fleet.as_str().into()))
                .with("pod", Some(rental.pod().map_or(Value::Null, |pod| pod.id.as_str().into())))
                .with("reason", Some(rental.reason.clone().into())),
            FleetEvent::MachinePreparing(machine) => machine_state(machine, "preparing"),
            FleetEvent::MachineGone { rental, reason } => machine_state(&rental.machine, "gone")
                .with("fleet", Some(rental.fleet.as_str().into()))
                .with("reason", Some(reason.into())),
            FleetEvent::MachineUnreliable { machine, stale_in_an_hour } => It::new(
                Kind::MachineUnreliable,
                [("machine", machine.as_str().into()), ("stale_in_an_hour", stale_in_an_hour.into())],
            ),
            FleetEvent::MachineOrphan { fleet, pod, reason } => It::new(
                Kind::MachineOrphan,
                [
                    ("fleet", fleet.as_str().into()),
                    ("pod", pod.id.as_str().into()),
                    ("reason", reason.into()),
                ],
            ),
            FleetEvent::MachineAlarm { rental, reason } => It::new(
                Kind::MachineAlarm,
                [
                    ("machine", rental.machine.as_str().into()),
                    ("fleet", rental.fleet.as_str().into()),
                    ("reason", reason.into()),
                ],
            ),
            FleetEvent::Order { fleet, order, machines } => It::new(
                Kind::FleetOrder,
                [
                    ("fleet", fleet.as_str().into()),
                    ("order", order.into()),
                    ("machines", machines.map_or(Value::Null, Into::into)),
                ],
            ),
            FleetEvent::Fault { fleet, call, fault } => It::new(
                Kind::FleetFault,
                [
                    ("fleet", fleet.as_str().into()),
                    ("call", call.into()),
                    ("fault", fault.class.as_str().into()),
                    ("reason", fault.message.clone().into()),
                ],
            ),
            FleetEvent::Doubt { fleet, reason } => {
                It::new(Kind::FleetDoubt, [("fleet", fleet.as_str().into()), ("reason", reason.into())])
            }
            FleetEvent::Scaled(it) => it.describe(),
        }
    }
}

impl<'a> Scaling<'a> {
    fn describe(self) -> EventDescription<'a> {
        let kind = match self.direction {
            ScalingDirection::Up => EventKind::ScaleUp,
            ScalingDirection::Down => EventKind::ScaleDown,
        };
        EventDescription::new(kind, [("count", self.count.into()), ("reason", self.reason.into())])
            .with("fleet", self.fleet.map(|fleet| fleet.as_str().into()))
            .worker(self.worker)
    }
}

fn machine_state<'a>(machine: &MachineId, state: &str) -> EventDescription<'a> {
    let detail = [("machine", machine.as_str().into()), ("state", state.into())];
    EventDescription::new(EventKind::MachineState, detail)
}
