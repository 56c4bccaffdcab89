//! Calling others over HTTP: only who was named is called, whatever the environment or an answer says.

use reqwest::{Client, ClientBuilder, redirect};

/// No proxy from the environment, no redirect to somewhere else, and TLS with ring.
pub fn client() -> ClientBuilder {
    // The first in this process is as good as any other.
    drop(rustls::crypto::ring::default_provider().install_default());
    Client::builder().no_proxy().redirect(redirect::Policy::none())
}
