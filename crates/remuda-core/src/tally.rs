//! Counts that nothing is decided by. They travel with the state that they describe, and must not tell two states apart:
//! the exhaustive models in `remuda-sim` compare states by their `Debug` text, and with visible counts they would search
//! every way in which one state can be reached. So the text of a `Tally` is always the same.

use std::fmt;
use std::ops::{Deref, DerefMut};

use serde::{Deserialize, Serialize};

#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Tally<T>(T);

impl<T> Deref for Tally<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T> DerefMut for Tally<T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.0
    }
}

impl<T> fmt::Debug for Tally<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tally")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_do_not_tell_states_apart() {
        let mut tally = Tally::<Vec<u64>>::default();
        let before = format!("{tally:?}");
        tally.push(7);
        assert_eq!(format!("{tally:?}"), before);
    }
}
