//! The cost of supervision. In its own test binary, because it counts CPU time by thread names.
#![expect(clippy::unwrap_used, reason = "a failed expectation fails the test")]

use std::time::{Duration, Instant};

use remuda_models::fake::FakeEngine;
use remuda_models::{
    CallOptions, ChildCommand, Engines, ModelPool, ModelPoolSettings, ModelRequest, ModelSpec,
};

/// CPU time of a process's threads whose names begin like this.
fn computed(pid: u32, name: &str) -> Duration {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let nanoseconds = tasks.filter_map(|task| {
        let task = task.ok()?.path();
        let its_name = std::fs::read_to_string(task.join("comm")).ok()?;
        let spent = std::fs::read_to_string(task.join("schedstat")).ok()?;
        its_name.starts_with(name).then(|| spent.split(' ').next()?.parse::<u64>().ok())?
    });
    Duration::from_nanos(nanoseconds.sum())
}

/// Promise 6: the supervisor thread, the threads to and from each child and the child's side thread take less than a
/// hundredth of one core, with beacons read eight times as often as by default.
#[test]
fn six_supervision_takes_less_than_a_hundredth_of_a_core() {
    let folder = tempfile::tempdir().unwrap();
    let program = Some(env!("CARGO_BIN_EXE_remuda-models-stand-in").into());
    let child = ChildCommand { program, ..ChildCommand::default() };
    let settings =
        ModelPoolSettings { child, stall_max: Duration::from_secs(1), ..ModelPoolSettings::default() };
    let pool = ModelPool::start(settings, Engines::default().with(FakeEngine));
    for (name, kind) in [("in", "thread"), ("out", "process")] {
        let path = folder.path().join(name).with_extension("fake");
        std::fs::write(&path, format!("text_embedding\nisolation = {kind}")).unwrap();
        pool.add(ModelSpec { copies: 2, ..ModelSpec::new(name, path) }).unwrap();
    }
    let ask = |model: &str, text: &str| {
        let request = ModelRequest::TextEmbedding { texts: vec![text.to_owned()] };
        pool.call(model, request, CallOptions::default()).unwrap()
    };
    for model in ["in", "out", "in", "out"] {
        ask(model, "text").wait().unwrap();
    }
    let children: Vec<u32> =
        pool.snapshot().models.iter().flat_map(|model| &model.copies).filter_map(|copy| copy.pid).collect();
    assert_eq!(children.len(), 2);
    let spent = || {
        let own = ["pool-supervisor", "out-"].iter().map(|name| computed(std::process::id(), name));
        own.chain(children.iter().map(|pid| computed(*pid, "side"))).sum::<Duration>()
    };
    let (before, began) = (spent(), Instant::now());
    let busy: Vec<_> = ["in", "out", "in", "out"].iter().map(|model| ask(model, "!busy 4000")).collect();
    for pending in busy {
        pending.wait().unwrap();
    }
    let (spent, passed) = (spent() - before, began.elapsed());
    println!("{spent:?} in {passed:?}");
    assert!(spent > Duration::ZERO, "no CPU time was counted");
    assert!(spent < passed / 100, "{spent:?} in {passed:?}");
}
