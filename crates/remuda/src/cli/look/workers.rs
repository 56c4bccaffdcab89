use std::process::ExitCode;
use clap::Args;
use super::super::Connection;
#[derive(Debug, Args)]
pub(crate) struct Workers {
    #[command(flatten)]
    connection: Connection,
}
impl Workers {
    pub(crate) async fn run(self) -> anyhow::Result<ExitCode> {
        drop(self.connection);
        Ok(ExitCode::SUCCESS)
    }
}
#[derive(Debug, Args)]
pub(crate) struct Drain {
    #[command(flatten)]
    connection: Connection,
}
impl Drain {
    pub(crate) async fn run(self) -> anyhow::Result<ExitCode> {
        drop(self.connection);
        Ok(ExitCode::SUCCESS)
    }
}
