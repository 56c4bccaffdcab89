//! `remuda completions`: a script for the user's shell, made from the commands themselves.

use std::process::ExitCode;

use clap::{Args, CommandFactory as _, ValueEnum};
use clap_complete::Shell;
use remuda_net::terminal::print_line;

use super::Cli;

#[derive(Debug, Args)]
pub(super) struct CompletionsCommand {
    /// The shell
    shell: CompletionShell,
}

/// The shells whose scripts are tested or read by users; clap knows more.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum CompletionShell {
    Bash,
    Zsh,
    Fish,
}

impl CompletionsCommand {
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        let shell = match self.shell {
            CompletionShell::Bash => Shell::Bash,
            CompletionShell::Zsh => Shell::Zsh,
            CompletionShell::Fish => Shell::Fish,
        };
        let mut script = Vec::new();
        clap_complete::generate(shell, &mut visible_commands(), "remuda", &mut script);
        print_line(String::from_utf8_lossy(&script).trim_end());
        Ok(ExitCode::SUCCESS)
    }
}

/// The commands without the hidden ones, which clap would offer too.
fn visible_commands() -> clap::Command {
    let all = Cli::command();
    let mut visible = clap::Command::new("remuda").version(env!("CARGO_PKG_VERSION"));
    for command in all.get_subcommands().filter(|command| !command.is_hide_set()) {
        visible = visible.subcommand(command.clone());
    }
    visible
}
