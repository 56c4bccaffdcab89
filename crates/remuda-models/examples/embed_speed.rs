//! Prints how many texts are embedded per second of CPU time: `embed_speed FOLDER [THREADS]`.

use std::error::Error;
use std::time::Duration;

use remuda_models::engine::engines;
use remuda_models::{Beacon, ModelSpec, Precision, RequestPart};

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let folder = args.next().ok_or("pass the model's folder")?;
    let threads = args.next().map_or(Ok(1), |word| word.parse())?;
    for precision in [Precision::Native, Precision::Int8] {
        let mut spec = ModelSpec::new("embed", &folder);
        spec.precision = precision;
        spec.threads = threads;
        let (engine, _) = engines().find(&spec)?;
        let mut model = engine.load(&spec, &Beacon::default())?;
        for (name, batch) in batches() {
            let mut best = 0.0_f64;
            for _ in 0..5 {
                let (begin, mut count) = (cpu(), 0);
                while cpu() - begin < Duration::from_millis(400) {
                    model.answer(&batch, &Beacon::default(), &mut |_| {})?;
                    count += batch.len();
                }
                best = best.max(count as f64 / (cpu() - begin).as_secs_f64());
            }
            eprintln!("{precision:?} {threads} {name} {best:.1}");
        }
    }
    Ok(())
}

fn batches() -> Vec<(String, Vec<RequestPart>)> {
    let text = |length: usize| {
        RequestPart::Tokens((0..length).map(|at| 1000 + (at as u32 * 7919) % 20_000).collect())
    };
    let mut batches = Vec::new();
    for length in [32, 128] {
        for size in [1, 8, 32] {
            batches.push((format!("{length}x{size}"), vec![text(length); size]));
        }
    }
    let lengths = [
        8, 12, 14, 17, 19, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31, 32, 33, 34, 35, 36, 38, 40, 42, 45,
        48, 52, 56, 62, 70, 88, 202,
    ];
    batches.push(("mixed".to_owned(), lengths.map(text).to_vec()));
    batches
}

/// CPU time of all threads.
fn cpu() -> Duration {
    let tasks = std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let used = tasks.filter_map(|task| {
        let line = std::fs::read_to_string(task.path().join("schedstat")).ok()?;
        line.split(' ').next()?.parse::<u64>().ok()
    });
    Duration::from_nanos(used.sum())
}
