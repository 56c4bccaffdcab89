//! Who may ask the plane: what is read once at the start. Tokens themselves are in the store.

use std::path::PathBuf;

use anyhow::{Context as _, bail};

use super::ServeSettings;
use remuda_net::secret::Secret;

/// A token that somebody thought up must not be guessed; those that are drawn are longer.
const ADMIN_TOKEN_CHARS_MIN: usize = 20;

/// Nothing of it has to be set on loopback.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AccessSettings {
    pub tls_cert: Option<PathBuf>,
    pub tls_key: Option<PathBuf>,
    /// From the environment only: neither a file nor a flag should show it.
    pub admin_token: Option<Secret>,
    pub admin_token_file: Option<PathBuf>,
    pub allowed_hosts: Vec<String>,
    pub allowed_origins: Vec<String>,
    /// Nothing means as many as is usual: see `http::access`.
    pub connections_per_address_max: usize,
    pub streams_per_token_max: usize,
    pub requests_per_second: usize,
}

impl ServeSettings {
    /// The admin's token that is in no list, if there is one.
    pub fn admin_token(&self) -> anyhow::Result<Option<Secret>> {
        let (secret, from) = match (&self.access.admin_token, &self.access.admin_token_file) {
            (Some(secret), _) => (secret.clone(), "REMUDA_ADMIN_TOKEN".to_owned()),
            (None, Some(path)) => {
                let text = std::fs::read_to_string(path)
                    .with_context(|| format!("cannot read {} (admin_token_file)", path.display()))?;
                (Secret::new(text.trim()), path.display().to_string())
            }
            (None, None) => return Ok(None),
        };
        if secret.reveal().chars().count() < ADMIN_TOKEN_CHARS_MIN {
            bail!(
                "the token in {from} could be guessed: it needs at least {ADMIN_TOKEN_CHARS_MIN} characters, such as \
                 `openssl rand -hex 32` makes"
            );
        }
        Ok(Some(secret))
    }
}
