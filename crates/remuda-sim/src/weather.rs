//! The kinds of weather: which part of a world has faults.

/// Which part of a world has faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Weather {
    /// No faults. Only here is fairness checked.
    Fair,
    /// Agents and services crash, pause, or run twice.
    Agents,
    /// Messages are lost, duplicated or late; links are cut.
    Network,
    /// Services lose, forget and repeat things, break, and have other users. Everything else works.
    Service,
    /// The plane crashes, pauses, is replaced. Workers have no faults, and must not lose work.
    Plane,
    /// The store is slow or down. Workers have no faults, and must not lose work.
    Store,
    /// All of it at once.
    Wild,
    /// Machines are rented and returned, and the provider has every kind of trouble.
    Fleet,
    /// Many workers, several on one machine, with long attempts: many die at once, the plane is cut off or stands still.
    Losses,
}

impl Weather {
    pub const ALL: [Weather; 9] = [
        Weather::Fair,
        Weather::Agents,
        Weather::Network,
        Weather::Service,
        Weather::Plane,
        Weather::Store,
        Weather::Wild,
        Weather::Fleet,
        Weather::Losses,
    ];
}
