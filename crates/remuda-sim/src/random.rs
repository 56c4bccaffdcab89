//! Random numbers as a function of the seed alone: splitmix64, which is short and good enough for drawing worlds.

#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Random(seed)
    }

    pub(crate) fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// From 0 to `end`, exclusive.
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        // The bias of a multiply-shift is one in 2^64 / end: too small to matter.
        ((u128::from(self.draw()) * u128::from(end.max(1))) >> 64) as u64
    }

    /// Both bounds inclusive.
    pub(crate) fn between(&mut self, least: u64, most: u64) -> u64 {
        least + self.below(most.saturating_sub(least) + 1)
    }

    pub(crate) fn index(&mut self, len: usize) -> usize {
        self.below(len as u64) as usize
    }

    /// True in `chance` of a thousand cases.
    pub(crate) fn permille(&mut self, chance: u64) -> bool {
        chance > 0 && self.below(1000) < chance
    }

    pub(crate) fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.index(from.len())]
    }
}
