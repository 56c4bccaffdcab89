//! `remuda sim`: worlds that go wrong.

use std::process::ExitCode;

use clap::Args;

#[derive(Debug, Args)]
pub(super) struct Sim {
    /// How many worlds
    #[arg(long, default_value_t = 1000)]
    seeds: u64,
    /// The first seed
    #[arg(long, default_value_t = 0)]
    from: u64,
    /// Tell one world, a line a step
    #[arg(long, value_name = "SEED")]
    replay: Option<u64>,
}

impl Sim {
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        anyhow::bail!("{} {} {:?}", self.seeds, self.from, self.replay)
    }
}
