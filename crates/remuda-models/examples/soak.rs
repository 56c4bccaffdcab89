//! Copies that are busy for long on a saturated machine: none may be declared dead.
//!
//! `cargo run -p remuda-models --example soak -- SECONDS SECONDS_A_JOB` (default 600 and 30). Two processes outside the
//! pool compute without pause; two thread copies and two process copies do the same as jobs, and their liveness is
//! queried repeatedly.
#![expect(clippy::print_stdout, reason = "a measuring tool prints its results")]

use std::io;
use std::process::{Child, Command, ExitCode};
use std::time::{Duration, Instant};

use remuda_models::fake::FakeEngine;
use remuda_models::{
    AnswerHandle, CallOptions, Engines, ModelPool, ModelPoolSettings, ModelRequest, ModelSpec,
};

/// A sixth of the default, as a harder test.
const STALL_MAX: Duration = Duration::from_secs(5);

fn main() -> io::Result<ExitCode> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.first().map(String::as_str) {
        Some("pool-copy") => {
            return remuda_models::child::run(&Engines::default().with(FakeEngine))
                .map(|()| ExitCode::SUCCESS);
        }
        Some("hog") => loop {
            std::hint::spin_loop();
        },
        _ => {}
    }
    let number = |at: usize, usual: u64| args.get(at).and_then(|arg| arg.parse().ok()).unwrap_or(usual);
    let mut hogs = (0..2).map(|_| Hog::start()).collect::<io::Result<Vec<_>>>()?;
    let deaths = soak(Duration::from_secs(number(0, 600)), number(1, 30))?;
    hogs.clear();
    Ok(if deaths == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Load from outside the pool.
struct Hog(Child);

impl Hog {
    fn start() -> io::Result<Self> {
        Command::new(std::env::current_exe()?).arg("hog").spawn().map(Hog)
    }
}

impl Drop for Hog {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

fn soak(time: Duration, job_seconds: u64) -> io::Result<u64> {
    let folder = std::env::temp_dir().join(format!("soak-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    let settings = ModelPoolSettings { stall_max: STALL_MAX, ..ModelPoolSettings::default() };
    let pool = ModelPool::start(settings, Engines::default().with(FakeEngine));
    for kind in ["thread", "process"] {
        let path = folder.join(kind).with_extension("fake");
        std::fs::write(&path, format!("text_embedding\nisolation = {kind}"))?;
        pool.add(ModelSpec { copies: 2, ..ModelSpec::new(kind, path) }).map_err(io::Error::other)?;
    }
    let began = Instant::now();
    let (mut jobs, mut failed, mut doubted) = (Vec::new(), 0, 0);
    let (mut done, mut asked) = (0_u64, 0_u64);
    while began.elapsed() < time || !jobs.is_empty() {
        for kind in ["thread", "process"] {
            let under_way = jobs.iter().filter(|(model, _)| *model == kind).count();
            if under_way < 3 && began.elapsed() < time {
                jobs.push((kind, ask(&pool, kind, job_seconds)?));
            }
            asked += 1;
            doubted += u64::from(!pool.has_alive_workers(kind));
            failed += pool.validate_workers(kind) as u64;
        }
        jobs.retain_mut(|(_, pending)| match pending.try_answer() {
            None => true,
            Some(answer) => {
                done += 1;
                failed += u64::from(answer.is_err());
                false
            }
        });
        std::thread::sleep(Duration::from_millis(250));
    }
    let snapshot = pool.snapshot();
    let deaths: u64 = snapshot.models.iter().flat_map(|model| model.deaths.values()).sum();
    println!(
        "{:.0} s: {done} jobs of {job_seconds} s, {failed} failed, {deaths} deaths; asked {asked} times, {doubted} times \
         every copy seemed dead",
        began.elapsed().as_secs_f64()
    );
    pool.close(Duration::from_secs(1));
    std::fs::remove_dir_all(&folder)?;
    Ok(deaths + failed)
}

fn ask(pool: &ModelPool, model: &str, seconds: u64) -> io::Result<AnswerHandle> {
    let request = ModelRequest::TextEmbedding { texts: vec![format!("!spin {}", seconds * 1000)] };
    pool.call(model, request, CallOptions::default()).map_err(io::Error::other)
}
