//! Processor time: on a machine that others use too, the only time whose ratios mean something.

use std::time::Duration;

use anyhow::Context as _;

/// What all threads of this process have used so far.
pub(crate) fn own() -> anyhow::Result<Duration> {
    of("self")
}

/// What all threads of a process have used so far, in the kernel's finest measure.
pub(crate) fn of(process: &str) -> anyhow::Result<Duration> {
    let tasks = format!("/proc/{process}/task");
    let mut nanoseconds = 0;
    for task in std::fs::read_dir(&tasks).with_context(|| format!("no {tasks}: this is measured on Linux"))? {
        // A thread may end between the list and the look.
        let Ok(line) = std::fs::read_to_string(task?.path().join("schedstat")) else { continue };
        nanoseconds += line.split(' ').next().and_then(|used| used.parse::<u64>().ok()).unwrap_or(0);
    }
    Ok(Duration::from_nanos(nanoseconds))
}

/// The middle one: a single disturbance moves the mean, and chooses the best.
pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}
