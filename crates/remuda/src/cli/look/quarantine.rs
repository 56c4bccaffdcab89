use std::process::ExitCode;
use clap::Args;
use super::super::Connection;
#[derive(Debug, Args)]
pub(crate) struct Quarantine {
    #[command(flatten)]
    connection: Connection,
}
impl Quarantine {
    pub(crate) async fn run(self) -> anyhow::Result<ExitCode> {
        drop(self.connection);
        Ok(ExitCode::SUCCESS)
    }
}
