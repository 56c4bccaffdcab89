//! TODO

/// What goes wrong in a world.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Weather {
    /// Nothing does: here the laws of fairness are looked at.
    Fair,
    /// Agents and services die, stop, come twice.
    Agents,
    /// Messages are lost, doubled, late; links are cut.
    Network,
    /// Services lose, forget, deny and repeat things, fall ill and have other guests; the rest is well.
    Service,
    /// The plane dies, stops, is replaced; workers are well and must not suffer for it.
    Plane,
    /// The store is slow or away; workers are well and must not suffer for it.
    Store,
    /// All of it at once.
    Wild,
    /// Machines are rented and returned, and the provider gets everything wrong that one can.
    Fleet,
}

impl Weather {
    pub const ALL: [Weather; 8] = [
        Weather::Fair,
        Weather::Agents,
        Weather::Network,
        Weather::Service,
        Weather::Plane,
        Weather::Store,
        Weather::Wild,
        Weather::Fleet,
    ];
}
