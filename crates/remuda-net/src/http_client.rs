//! Outgoing HTTP. Requests go only to the configured address: proxies from the environment and redirects are ignored. A
//! name that cannot be resolved for a while keeps its last address. `Credentials` hold the token for a plane and the
//! certificate authorities to trust.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Context as _;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use reqwest::{Certificate, Client, ClientBuilder, RequestBuilder, redirect};
use tracing::warn;

use crate::secret::Secret;

/// A client without proxies and redirects, with TLS by ring and addresses that survive a DNS outage.
pub fn client_builder() -> ClientBuilder {
    // Only the first call of a process installs it; all callers install the same provider.
    drop(rustls::crypto::ring::default_provider().install_default());
    Client::builder().no_proxy().redirect(redirect::Policy::none()).dns_resolver(CachingResolver::default())
}

/// The token sent to a plane, and certificate authorities that are trusted in addition to the system's.
#[derive(Clone, Debug, Default)]
pub struct Credentials {
    pub token: Secret,
    authorities: Vec<Certificate>,
}

impl Credentials {
    /// Trusts only the system's certificate authorities.
    pub fn from_token(token: Secret) -> Credentials {
        Credentials { token, ..Credentials::default() }
    }

    /// `ca` is a PEM file of certificates.
    pub fn new(token: Secret, ca: Option<&Path>) -> anyhow::Result<Credentials> {
        let authorities = match ca {
            Some(path) => {
                let pem = std::fs::read(path)
                    .with_context(|| format!("cannot read {} (--ca, REMUDA_CA)", path.display()))?;
                let bundle = Certificate::from_pem_bundle(&pem);
                bundle.with_context(|| format!("{} contains no PEM certificates", path.display()))?
            }
            None => Vec::new(),
        };
        Ok(Credentials { token, authorities })
    }

    pub fn client(&self) -> ClientBuilder {
        client_builder().tls_certs_merge(self.authorities.iter().cloned())
    }

    /// Adds the token to a request, unless it is empty.
    pub fn sign(&self, request: RequestBuilder) -> RequestBuilder {
        if self.token.is_empty() { request } else { request.bearer_auth(self.token.reveal()) }
    }
}

/// DNS with a memory: the last address of each name. It is unbounded because a client calls one or two names.
#[derive(Clone, Debug, Default)]
struct CachingResolver(Arc<Mutex<HashMap<String, Vec<SocketAddr>>>>);

impl Resolve for CachingResolver {
    fn resolve(&self, name: Name) -> Resolving {
        let resolver = self.clone();
        Box::pin(async move {
            // reqwest replaces the port.
            let found = tokio::net::lookup_host((name.as_str(), 0)).await.map(Iterator::collect);
            let addresses = resolver.remember(name.as_str(), found)?;
            Ok(Box::new(addresses.into_iter()) as Addrs)
        })
    }
}

impl CachingResolver {
    /// The addresses just found, or else those found the last time.
    fn remember(&self, name: &str, found: io::Result<Vec<SocketAddr>>) -> io::Result<Vec<SocketAddr>> {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match found {
            Ok(addresses) if !addresses.is_empty() => {
                known.insert(name.to_owned(), addresses.clone());
                Ok(addresses)
            }
            Ok(_) | Err(_) if known.contains_key(name) => {
                warn!(name, "DNS lookup failed; using the last known address");
                Ok(known.get(name).cloned().unwrap_or_default())
            }
            Ok(nothing) => Ok(nothing),
            Err(error) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Faults: N8.
    #[test]
    fn unresolvable_name_keeps_its_last_address() {
        let resolver = CachingResolver::default();
        let lost = || Err(io::Error::other("no such name"));
        assert!(resolver.remember("plane", lost()).is_err(), "nothing is known yet");
        let (first, second) = (SocketAddr::from(([10, 0, 0, 7], 0)), SocketAddr::from(([10, 0, 0, 8], 0)));
        assert_eq!(resolver.remember("plane", Ok(vec![first])).unwrap(), [first]);
        assert_eq!(resolver.remember("plane", lost()).unwrap(), [first]);
        assert_eq!(resolver.remember("plane", Ok(Vec::new())).unwrap(), [first]);
        assert_eq!(resolver.remember("plane", Ok(vec![second])).unwrap(), [second], "it moved");
        assert_eq!(resolver.remember("plane", lost()).unwrap(), [second]);
        assert!(resolver.remember("other", lost()).is_err());
    }
}
