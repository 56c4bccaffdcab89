//! Fingerprints of states. The core's types have no `Hash`; their `Debug` text contains every field in a fixed order (there is
//! no hash table in the core), so its hash is the state's fingerprint. Times stay absolute: a state that recurs later is
//! another one, and a horizon bounds the search instead.

use std::cell::Cell;
use std::fmt::{self, Debug, Write};
use std::rc::Rc;

use super::search::Fingerprint;

/// The hash of a value's `Debug` text.
pub(super) fn fingerprint(value: &impl Debug) -> Fingerprint {
    // Hashing the whole text at once is several times faster than each of its many short pieces.
    let mut text = String::with_capacity(TEXT_BYTES);
    write!(text, "{value:?}").expect("writing to a string does not fail");
    let (mut low, mut high) = (0x9e37_79b9_7f4a_7c15_u64, 0xc2b2_ae3d_27d4_eb4f_u64);
    let mut mix = |word: u64| {
        low = (low ^ word).wrapping_mul(0xff51_afd7_ed55_8ccd).rotate_left(29);
        high = (high.rotate_left(31) ^ word).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    };
    let (words, rest) = text.as_bytes().as_chunks::<8>();
    words.iter().for_each(|word| mix(u64::from_le_bytes(*word)));
    rest.iter().for_each(|byte| mix(u64::from(*byte)));
    for _ in 0..2 {
        mix(text.len() as u64);
    }
    low ^= high >> 32;
    high ^= low >> 29;
    Fingerprint::from(high) << 64 | Fingerprint::from(low)
}

/// The text of a plane is about this long.
const TEXT_BYTES: usize = 16 * 1024;

/// For a collection whose order does not matter.
pub(super) fn unordered<T: Debug>(values: impl IntoIterator<Item = T>) -> Fingerprint {
    values.into_iter().fold(0, |sum: Fingerprint, value| sum.wrapping_add(fingerprint(&value)))
}

/// A value that many states share, with its fingerprint; copied when it changes.
#[derive(Clone)]
pub(super) struct Shared<T> {
    value: Rc<T>,
    /// Computed when it is first needed: a value often changes several times within one action.
    print: Cell<Option<Fingerprint>>,
}

impl<T: Debug + Clone> Shared<T> {
    pub(super) fn new(value: T) -> Shared<T> {
        Shared { value: Rc::new(value), print: Cell::new(None) }
    }

    pub(super) fn change<R>(&mut self, change: impl FnOnce(&mut T) -> R) -> R {
        self.print.set(None);
        change(Rc::make_mut(&mut self.value))
    }
}

impl<T> std::ops::Deref for Shared<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

/// Only the fingerprint: it stands for the value.
impl<T: Debug> Debug for Shared<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let print = self.print.get().unwrap_or_else(|| fingerprint(&self.value));
        self.print.set(Some(print));
        write!(f, "{print:x}")
    }
}
