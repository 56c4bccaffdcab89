//! The names of the laws; `laws` describes and checks them.

use std::fmt;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Law {
    S1,
    S2,
    S3,
    S4,
    S5,
    S6,
    S7,
    S8,
    S9,
    S10,
    S11,
    S12,
    L1,
    L2,
    L3,
    L4,
    L5,
    L6,
    Fair,
    Events,
}

pub const LAWS: [Law; 20] = [
    Law::S1,
    Law::S2,
    Law::S3,
    Law::S4,
    Law::S5,
    Law::S6,
    Law::S7,
    Law::S8,
    Law::S9,
    Law::S10,
    Law::S11,
    Law::S12,
    Law::L1,
    Law::L2,
    Law::L3,
    Law::L4,
    Law::L5,
    Law::L6,
    Law::Fair,
    Law::Events,
];

impl fmt::Display for Law {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?}")
    }
}
