//! Brakes: `CreationBrake` stops renting when machines fail one after another; `MassLossBrake` holds back verdicts on silent
//! workers while the plane itself may be cut off.
//!
//! ```text
//!  CreationBrake                                     MassLossBrake
//!
//!  free ──3 failures in a row──▶ on until T          off ──a lease ran out, and no proof that messages arrive──▶ on
//!   ▲                             │      ▲            ▲                                                  │
//!   │                             T      │            └── proof: the dead are judged, paced ─────────────┤
//!   └─success, an operator─ one trial ────┘               `HOLD_MAX` is over ────────────────────────────┘
//!                           failure: T ×2
//! ```
//!
//! **Is the worker dead, or are we cut off?** Silence alone cannot tell, however many workers are silent: a power
//! failure in their rack and a pulled cable at the plane look the same, and a count ("most of them") is wrong in both
//! directions. So a worker whose lease ran out is judged only with one of these proofs:
//!
//! | proof | why it is one |
//! |---|---|
//! | *heard*: another worker was heard after this one had already missed its beats | messages arrive, and this worker is still silent |
//! | *closed*: its side closed the connection, and nothing followed | only a working network delivers a close; a cut one delivers nothing |
//! | *listed*: its provider answered a list after it fell silent | our link works; for rented machines only |
//!
//! A close counts only if it came before the worker was late, and a list only if every list of the last lease was
//! answered: after a cut, the ends of old requests and the provider's answers may arrive before the workers do.
//!
//! *Heard* counts from the moment since which messages have arrived without a gap: when the first worker returns after a
//! cut, the others are on their way, and get a lease. *Closed* counts only if most of the silent
//! workers were closed, because a cut may fall between the end of a long poll and the beat that replaces it. *Closed* and
//! *listed* need our own listener to answer us: if it does not, nothing can reach us.
//!
//! A missing proof is asked for: the long polls of a few workers that are online are answered at once, so that they beat
//! again. While there is no proof, a silent worker is suspect and then offline, which is simply true, but its attempts stay
//! with it and no worker is failed or replaced. That costs nothing: a worker that could take the attempts must be heard
//! first, and its beat is the proof. A fleet whose processes all died is judged by its closed connections; one that lost
//! power is offline in time, and its jobs move one lease after the first worker joins. `HOLD_MAX` ends it in any case.
//!
//! With proof, verdicts are paced: at most `PACE_MIN` machines a second, or a quarter of those lost, so that the queue and
//! the remaining workers are not flooded. A mass loss is counted in machines, not in workers or suspicions: one machine
//! with eight workers is one loss.
//!
//! Known limits: a worker on the plane's own host is heard over loopback while the network is cut. It counts as proof, and
//! the others lose their attempts after their lease, as in any partition. A proxy between the plane and all workers that
//! dies for longer than a lease closes every connection, as if every worker's process had ended.
//!
//! Each fleet has its own `CreationBrake`; there is one `MassLossBrake` for the plane, because it has one link.
//! Reading changes nothing. The brakes do not act: `cycle` and the plane consult them.

mod creation;
mod mass_loss;

pub use self::creation::CreationBrake;
pub use self::mass_loss::{Judgement, MassLossBrake, Silence};
