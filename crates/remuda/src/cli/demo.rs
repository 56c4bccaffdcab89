use std::process::ExitCode;
use clap::Args;
#[derive(Debug, Args)]
pub(super) struct Demo {
    #[arg(long)]
    json: bool,
}
impl Demo {
    pub(super) async fn run(self) -> anyhow::Result<ExitCode> {
        Ok(if self.json { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}
