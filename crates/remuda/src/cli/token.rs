//! `remuda token`: access tokens. A running plane creates and revokes them; the first one, without which a plane does not
//! listen on public addresses, is created in the data folder.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use clap::{Args, Subcommand};
use remuda_core::id::{Tenant, WorkerId};
use remuda_core::record::Record;
use remuda_store::{RecordBatch, Store, StoreError};
use serde_json::{Value, json};

use super::commands::{cell, rows, show};
use super::{Client, Connection, DataSettings};
use remuda_config::parse_duration;
use remuda_net::clock::Clock;
use remuda_net::terminal::print_line;
use remuda_net::terminal::{escape_control, table};
use remuda_server::audit::{Audit, Note};
use remuda_server::data_folder;
use remuda_server::http::{self, Role, TokenRequest};

pub(super) const EXAMPLES: &str = "\
Examples:
  remuda token create --role admin --data /var/lib/remuda   (the first one, before the plane is started)
  remuda token create --role client --tenant anna --name \"anna's laptop\" --expires 30d
  remuda token create --role worker --worker gpu-7
  remuda token list
  remuda token revoke \"anna's laptop\"";

#[derive(Debug, Args)]
pub(super) struct TokenCommand {
    #[command(subcommand)]
    command: TokenAction,
    #[command(flatten)]
    connection: Connection,
}

#[derive(Debug, Subcommand)]
enum TokenAction {
    /// Create a token and print it; it cannot be shown again
    Create(Create),
    /// List tokens without their secrets
    List,
    /// Revoke a token; requests with it are refused from now on
    Revoke {
        /// Name or id of the token
        which: String,
    },
}

#[derive(Debug, Args)]
struct Create {
    /// client, worker or admin
    #[arg(long)]
    role: Role,
    /// Tenant whose jobs the client submits and sees
    #[arg(long)]
    tenant: Option<Tenant>,
    /// Name of the token
    #[arg(long)]
    name: Option<String>,
    /// Name under which a worker may join; may be repeated
    #[arg(long = "worker", value_name = "NAME")]
    workers: Vec<WorkerId>,
    /// How long it is valid, such as 30d; by default until it is revoked
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    expires: Option<Duration>,
    /// Create it in this data folder; no plane may be running on it
    #[arg(long, value_name = "DIR")]
    data: Option<String>,
}

impl TokenCommand {
    pub(super) async fn run(self) -> anyhow::Result<ExitCode> {
        let connection = &self.connection;
        match self.command {
            TokenAction::Create(create) => {
                let created = match &create.data {
                    Some(data) => create_in_folder(data, create.request()).await?,
                    None => {
                        Client::new(connection)?.post("/remuda/v1/tokens", &json!(create.request())).await?
                    }
                };
                if connection.json {
                    print_line(&created.to_string());
                } else {
                    eprintln!("{}", describe_token(&created));
                    print_line(created["token"].as_str().unwrap_or_default());
                }
            }
            TokenAction::List => {
                let answer = Client::new(connection)?.get("/remuda/v1/tokens").await?;
                show(connection, &answer, || list(&answer));
            }
            TokenAction::Revoke { which } => {
                let path = format!("/remuda/v1/tokens/{}", percent_encode(&which));
                let answer = Client::new(connection)?.delete(&path).await?;
                show(connection, &answer, || {
                    format!(
                        "{} ({}) was revoked",
                        escape_control(&cell(&answer["name"])),
                        cell(&answer["id"])
                    )
                });
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}

impl Create {
    fn request(&self) -> TokenRequest {
        TokenRequest {
            role: self.role,
            tenant: self.tenant.clone(),
            name: self.name.clone(),
            workers: self.workers.clone(),
            expires_seconds: self.expires.map(|expires| expires.as_secs()),
        }
    }
}

/// Writes the token as a plane would, as the leader of the store: no other process may have it open.
async fn create_in_folder(data: &str, request: TokenRequest) -> anyhow::Result<Value> {
    let settings = DataSettings { data: Some(data.to_owned()), ..DataSettings::default() };
    let serve = settings.load()?.serve;
    data_folder::prepare(&serve.data)?;
    let store = Store::open(&serve.store.to_string()).await.map_err(|error| match error {
        StoreError::InUse { .. } => anyhow::Error::new(error)
            .context("a plane is running on this folder: use --url instead of --data"),
        _ => anyhow::Error::new(error).context("cannot open the store"),
    })?;
    if matches!(store, Store::Memory(_)) {
        bail!(
            "this plane's store is in memory, so a token in it would be lost: set REMUDA_ADMIN_TOKEN instead"
        );
    }
    let term = store.take_leadership().await?;
    let now = Clock::starting_now().now();
    let (token, secret) = http::Token::make(request, now)?;
    let records = vec![Record::Document(Arc::new(token.document()?))];
    store.commit(term, RecordBatch { records }).await?;
    let audit = Audit::open(&serve.data, now).context("cannot open the audit log")?;
    let who = "a user of the data folder".to_owned();
    let on = format!("{} ({} {})", token.name, token.role, token.id);
    let outcome = "done".to_owned();
    audit.note(Note { at: now, who, from: String::new(), what: "token.create", on, outcome }).await;
    store.close().await?;
    let mut created = token.shown(now);
    created["token"] = secret.reveal().into();
    Ok(created)
}

fn describe_token(created: &Value) -> String {
    let until = match created["expires_at"].as_str() {
        Some(at) => format!("until {at}"),
        None => "until it is revoked".to_owned(),
    };
    let tenant = created["tenant"].as_str().map(|tenant| format!(" of tenant {tenant}")).unwrap_or_default();
    let name = escape_control(&cell(&created["name"]));
    let role = cell(&created["role"]);
    format!("token {name}, role {role}{tenant}, valid {until}; it cannot be shown again:")
}

fn list(answer: &Value) -> String {
    let tokens = rows(answer, "tokens");
    if tokens.is_empty() && answer["is_open"] == true {
        return "no tokens: every client that reaches this plane has full access".to_owned();
    }
    let row = |token: &Value| {
        let until = match token["has_expired"] == true {
            true => "expired".to_owned(),
            false => token["expires_at"].as_str().unwrap_or("revoked").to_owned(),
        };
        let [id, name, role] = ["id", "name", "role"].map(|field| cell(&token[field]));
        let scope = match (&token["tenant"], token["workers"].as_array()) {
            (Value::String(tenant), _) => tenant.clone(),
            (_, Some(names)) => names.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(" "),
            _ => String::new(),
        };
        let used = token["used_at"].as_str().unwrap_or("not since the start");
        vec![id, name, role, scope, until, used.to_owned()]
    };
    table(&["ID", "NAME", "ROLE", "FOR", "UNTIL", "USED"], &tokens.iter().map(row).collect::<Vec<_>>())
}

/// Percent-encodes a name for a URL path.
fn percent_encode(text: &str) -> String {
    let is_unreserved = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte);
    text.bytes()
        .map(|byte| if is_unreserved(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") })
        .collect()
}
