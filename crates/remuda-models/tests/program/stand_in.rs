//! The second process of the tests: a copy, or a parent that has a copy and is then killed.

use std::io::{self, Write};
use std::path::Path;

use remuda_models::fake::FakeEngine;
use remuda_models::{CallOptions, Engines, ModelPool, ModelPoolSettings, ModelRequest, ModelSpec};

fn main() -> io::Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["pool-copy"] => {
            // Tests inject panics and get them reported by the pool; printing them would only clutter the output.
            std::panic::set_hook(Box::new(|_| {}));
            remuda_models::child::run(&Engines::default().with(FakeEngine))
        }
        ["parent", model] => parent(Path::new(model)),
        _ => Err(io::Error::other(format!("{args:?}: neither `pool-copy` nor `parent MODEL`"))),
    }
}

/// Starts a child process with long work, prints its pid and waits to be killed.
fn parent(model: &Path) -> io::Result<()> {
    let pool = ModelPool::start(ModelPoolSettings::default(), Engines::default().with(FakeEngine));
    pool.add(ModelSpec::new("embed", model)).map_err(io::Error::other)?;
    let request = ModelRequest::TextEmbedding { texts: vec!["!busy 600000".to_owned()] };
    let busy = pool.call("embed", request, CallOptions::default()).map_err(io::Error::other)?;
    let pid = loop {
        let snapshot = pool.snapshot();
        let at_work = snapshot.models[0].copies.iter().find(|copy| copy.state == "busy");
        if let Some(pid) = at_work.and_then(|copy| copy.pid) {
            break pid;
        }
        std::thread::yield_now();
    };
    writeln!(io::stdout(), "{pid}")?;
    busy.wait().map(drop).map_err(io::Error::other)
}
