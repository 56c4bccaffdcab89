//! Calling others over HTTP: only who was named is called, whatever the environment or an answer says. A name that cannot
//! be looked up for a while keeps the address it had. Credentials say who calls a plane, and whom that one trusts.

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

/// No proxy from the environment, no redirect to somewhere else, and TLS with ring.
pub fn client() -> ClientBuilder {
    // The first in this process is as good as any other.
    drop(rustls::crypto::ring::default_provider().install_default());
    Client::builder().no_proxy().redirect(redirect::Policy::none()).dns_resolver(Book::default())
}

/// Who calls a plane, and whose certificates that one trusts besides those the system does.
#[derive(Clone, Debug, Default)]
pub struct Credentials {
    pub token: Secret,
    authorities: Vec<Certificate>,
}

impl Credentials {
    /// For a plane that the system's authorities vouch for, or nobody has to.
    pub fn of(token: Secret) -> Credentials {
        Credentials { token, ..Credentials::default() }
    }

    /// `ca` is a file of certificates, as PEM.
    pub fn new(token: Secret, ca: Option<&Path>) -> anyhow::Result<Credentials> {
        let authorities = match ca {
            Some(path) => {
                let pem = std::fs::read(path)
                    .with_context(|| format!("cannot read {} (--ca, REMUDA_CA)", path.display()))?;
                let bundle = Certificate::from_pem_bundle(&pem);
                bundle.with_context(|| format!("{} has no certificates as PEM in it", path.display()))?
            }
            None => Vec::new(),
        };
        Ok(Credentials { token, authorities })
    }

    pub fn client(&self) -> ClientBuilder {
        client().tls_certs_merge(self.authorities.iter().cloned())
    }

    /// Signs a request, if there is something to sign it with.
    pub fn sign(&self, request: RequestBuilder) -> RequestBuilder {
        if self.token.is_empty() { request } else { request.bearer_auth(self.token.reveal()) }
    }
}

/// The last address each name had. Few names: a client calls one or two.
#[derive(Clone, Debug, Default)]
struct Book(Arc<Mutex<HashMap<String, Vec<SocketAddr>>>>);

impl Resolve for Book {
    fn resolve(&self, name: Name) -> Resolving {
        let book = self.clone();
        Box::pin(async move {
            // The port is filled in by whoever asked.
            let found = tokio::net::lookup_host((name.as_str(), 0)).await.map(Iterator::collect);
            let addresses = book.turn_to(name.as_str(), found)?;
            Ok(Box::new(addresses.into_iter()) as Addrs)
        })
    }
}

impl Book {
    /// What was found, or what was found the last time.
    fn turn_to(&self, name: &str, found: io::Result<Vec<SocketAddr>>) -> io::Result<Vec<SocketAddr>> {
        let mut book = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match found {
            Ok(addresses) if !addresses.is_empty() => {
                book.insert(name.to_owned(), addresses.clone());
                Ok(addresses)
            }
            Ok(_) | Err(_) if book.contains_key(name) => {
                warn!(name, "the name cannot be looked up; calling the address it had");
                Ok(book.get(name).cloned().unwrap_or_default())
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
    fn a_name_that_cannot_be_looked_up_keeps_the_address_it_had() {
        let book = Book::default();
        let lost = || Err(io::Error::other("no such name"));
        assert!(book.turn_to("plane", lost()).is_err(), "nothing is known yet");
        let (first, second) = (SocketAddr::from(([10, 0, 0, 7], 0)), SocketAddr::from(([10, 0, 0, 8], 0)));
        assert_eq!(book.turn_to("plane", Ok(vec![first])).unwrap(), [first]);
        assert_eq!(book.turn_to("plane", lost()).unwrap(), [first]);
        assert_eq!(book.turn_to("plane", Ok(Vec::new())).unwrap(), [first]);
        assert_eq!(book.turn_to("plane", Ok(vec![second])).unwrap(), [second], "it moved");
        assert_eq!(book.turn_to("plane", lost()).unwrap(), [second]);
        assert!(book.turn_to("other", lost()).is_err());
    }
}
