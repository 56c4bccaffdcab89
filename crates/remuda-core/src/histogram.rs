//! A histogram with fixed buckets. The owner chooses the unit (milliseconds, microseconds, records); the exporter converts
//! it. Recording costs one search among a dozen bounds, so that it may be done in every step.

/// Counts of recorded values, by the first bound that is not below the value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Histogram {
    /// Upper bounds, rising.
    bounds: &'static [u64],
    /// One for each bound, and one for values above all of them.
    counts: Box<[u64]>,
    sum: u64,
}

impl Histogram {
    pub fn new(bounds: &'static [u64]) -> Self {
        Histogram { bounds, counts: vec![0; bounds.len() + 1].into(), sum: 0 }
    }

    pub fn record(&mut self, value: u64) {
        let bucket = self.bounds.partition_point(|bound| *bound < value);
        if let Some(count) = self.counts.get_mut(bucket) {
            *count += 1;
        }
        self.sum = self.sum.saturating_add(value);
    }

    /// Each bound with the number of values up to it.
    pub fn cumulative(&self) -> impl Iterator<Item = (u64, u64)> {
        let counts = self.counts.iter().scan(0, |sum, count| {
            *sum += count;
            Some(*sum)
        });
        self.bounds.iter().copied().zip(counts)
    }

    /// Number of recorded values.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Sum of the recorded values.
    pub fn sum(&self) -> u64 {
        self.sum
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn value_counts_in_every_bucket_that_reaches_it() {
        let mut histogram = Histogram::new(&[10, 100]);
        for value in [0, 10, 11, 100, 101] {
            histogram.record(value);
        }
        assert_eq!(histogram.cumulative().collect::<Vec<_>>(), [(10, 2), (100, 4)]);
        assert_eq!((histogram.count(), histogram.sum()), (5, 222));
    }
}
