//! `remuda audit`: prints the audit log and verifies its hash chain.

use std::process::ExitCode;

use anyhow::Context as _;
use clap::Args;
use serde_json::json;

use super::DataSettings;
use remuda_net::terminal::print_line;
use remuda_net::terminal::table;
use remuda_server::audit::{self, FILE_NAME, Found, Line};

#[derive(Debug, Args)]
pub(super) struct AuditCommand {
    #[command(flatten)]
    settings: DataSettings,
    /// Only verify the log; exit code 1 if it was tampered with
    #[arg(long)]
    verify: bool,
    /// Number of newest lines to show
    #[arg(long, default_value_t = 50, value_name = "NUMBER")]
    limit: usize,
    /// Print JSON for scripts
    #[arg(long)]
    json: bool,
}

impl AuditCommand {
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        let path = self.settings.load()?.serve.data.join(FILE_NAME);
        let found = audit::read(&path)
            .with_context(|| format!("cannot read {}: set the plane's folder with --data", path.display()))?;
        let skipped = found.lines.len().saturating_sub(self.limit);
        let shown = if self.verify { &[] } else { &found.lines[skipped..] };
        if self.json {
            let verdict = json!({
                "lines": found.lines.len(), "torn": found.torn, "broken": found.broken, "head": found.head,
                "newest": shown,
            });
            print_line(&verdict.to_string());
        } else {
            if !shown.is_empty() {
                print_line(&table(
                    &["AT", "WHO", "FROM", "WHAT", "ON", "OUTCOME"],
                    &shown.iter().map(row).collect::<Vec<_>>(),
                ));
            }
            print_line(&verdict(&found));
        }
        Ok(if found.broken.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}

fn row(line: &Line) -> Vec<String> {
    [&line.at, &line.who, &line.from, &line.what, &line.on, &line.outcome].map(Clone::clone).to_vec()
}

fn verdict(found: &Found) -> String {
    let count = found.lines.len();
    let mut text = match found.broken.is_empty() {
        true => format!("{count} lines, hash chain intact"),
        false => format!("{count} lines, hash chain broken: {}", found.broken.join("; ")),
    };
    if found.torn > 0 {
        text.push_str(&format!("; {} cut short by a crash", found.torn));
    }
    if let Some(head) = found.head {
        text.push_str(&format!(". The last one is {head}"));
    }
    text
}
