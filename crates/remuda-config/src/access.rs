//! Settings for access that are read once at the start. The tokens themselves are in the store.

use std::path::PathBuf;

use anyhow::{Context as _, bail};

use super::ServeSettings;
use remuda_net::secret::Secret;

/// A hand-made token must not be guessable; generated ones are longer.
const ADMIN_TOKEN_CHARS_MIN: usize = 20;

/// On loopback all of it may stay unset.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AccessSettings {
    pub tls_cert: Option<PathBuf>,
    pub tls_key: Option<PathBuf>,
    /// From the environment only, so that neither a file nor a process list shows it.
    pub admin_token: Option<Secret>,
    pub admin_token_file: Option<PathBuf>,
    pub allowed_hosts: Vec<String>,
    pub allowed_origins: Vec<String>,
    /// 0 means the default limit of `remuda-server`.
    pub connections_per_address_max: usize,
    pub streams_per_token_max: usize,
    pub requests_per_second: usize,
}

impl ServeSettings {
    /// The admin token from the environment or from `admin_token_file`, if there is one.
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
                "the token in {from} is too short: it needs at least {ADMIN_TOKEN_CHARS_MIN} characters; generate one with \
                 `openssl rand -hex 32`"
            );
        }
        Ok(Some(secret))
    }
}
