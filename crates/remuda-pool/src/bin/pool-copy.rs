//! A copy of a stand-in model, as the child process of this crate's own tests. The `remuda` program is its own child.

use remuda_pool::Engines;
use remuda_pool::fake::Fake;

fn main() -> std::io::Result<()> {
    remuda_pool::child::run(&Engines::default().with(Fake))
}
