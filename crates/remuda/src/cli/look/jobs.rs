use std::process::ExitCode;
use clap::Args;
use super::super::Connection;
#[derive(Debug, Args)]
pub(crate) struct Jobs {
    #[command(flatten)]
    connection: Connection,
}
impl Jobs {
    pub(crate) async fn run(self) -> anyhow::Result<ExitCode> {
        drop(self.connection);
        Ok(ExitCode::SUCCESS)
    }
}
#[derive(Debug, Args)]
pub(crate) struct Cancel {
    #[command(flatten)]
    connection: Connection,
}
impl Cancel {
    pub(crate) async fn run(self) -> anyhow::Result<ExitCode> {
        drop(self.connection);
        Ok(ExitCode::SUCCESS)
    }
}
