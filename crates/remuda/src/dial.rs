//! Calling others over HTTP: only who was named is called, whatever the environment or an answer says. A name that cannot
//! be looked up for a while keeps the address it had.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use reqwest::{Client, ClientBuilder, redirect};
use tracing::warn;

/// No proxy from the environment, no redirect to somewhere else, and TLS with ring.
pub fn client() -> ClientBuilder {
    // The first in this process is as good as any other.
    drop(rustls::crypto::ring::default_provider().install_default());
    Client::builder().no_proxy().redirect(redirect::Policy::none()).dns_resolver(Book::default())
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
