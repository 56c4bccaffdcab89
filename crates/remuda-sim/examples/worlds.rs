//! Runs a range of seeds and says which laws broke: `worlds FIRST COUNT`, or `worlds replay SEED`.
#![expect(clippy::print_stdout, reason = "a tool for the terminal")]

use std::time::Instant;

use remuda_sim::{WorldSettings, replay, run};

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize, otherwise: u64| args.get(at).and_then(|it| it.parse().ok()).unwrap_or(otherwise);
    let settings = WorldSettings::default();
    if args.first().is_some_and(|it| it == "replay") {
        replay(number(1, 0), &settings, &mut |line| println!("{line}"));
        return;
    }
    let (first, count) = (number(0, 0), number(1, 1000));
    let (began, mut jobs, mut steps, mut bad) = (Instant::now(), 0, 0, 0);
    for seed in first..first + count {
        let outcome = run(seed, &settings);
        (jobs, steps) = (jobs + outcome.jobs, steps + outcome.steps);
        if let Some(violation) = outcome.violations.first() {
            bad += 1;
            println!("seed {seed}: {violation}");
        }
    }
    let seconds = began.elapsed().as_secs_f64();
    println!(
        "{count} worlds, {bad} bad, {jobs} jobs, {steps} steps, {seconds:.1} s: {:.0} jobs/s",
        jobs as f64 / seconds
    );
}
