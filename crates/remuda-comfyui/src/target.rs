//! Where a ComfyUI server is and what to show at its door. Checked once, so that a typing error is told at the start and
//! not by every request after it.

use reqwest::Url;
use reqwest::header::{HeaderMap, HeaderName, HeaderValue};

use remuda_net::secret::Secret;

use super::client::Error;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// `http(s)://host[:port][/base/path]`
    pub url: String,
    /// Sent with every request: an API key, a basic authorisation.
    pub headers: Vec<(String, Secret)>,
}

impl Target {
    pub fn new(url: impl Into<String>) -> Self {
        Target { url: url.into(), headers: Vec::new() }
    }

    /// The address of the server, ending in `/`, so that paths can be joined to it.
    pub(super) fn base(&self) -> Result<Url, Error> {
        let bad = |why: &str| {
            Error::Target(format!("{:?} is no address of a ComfyUI server: {why}", self.without_secrets()))
        };
        let mut url = Url::parse(self.url.trim()).map_err(|error| bad(&error.to_string()))?;
        if !matches!(url.scheme(), "http" | "https") {
            return Err(bad("it begins with http:// or https://"));
        }
        if !url.username().is_empty() || url.password().is_some() {
            return Err(bad("put credentials into a header, an address is shown and logged"));
        }
        if url.query().is_some() || url.fragment().is_some() {
            return Err(bad("it ends with the path, without ? or #"));
        }
        if !url.path().ends_with('/') {
            url.set_path(&format!("{}/", url.path()));
        }
        Ok(url)
    }

    pub(super) fn header_map(&self) -> Result<HeaderMap, Error> {
        let mut map = HeaderMap::new();
        for (name, secret) in &self.headers {
            let key = HeaderName::from_bytes(name.as_bytes())
                .map_err(|_| Error::Target(format!("{name:?} is no name of a header")))?;
            let mut value = HeaderValue::from_str(secret.reveal()).map_err(|_| {
                Error::Target(format!(
                    "the value of the header {name:?} has characters that no header may have"
                ))
            })?;
            value.set_sensitive(true);
            map.append(key, value);
        }
        Ok(map)
    }

    /// The address as it may stand in an error, even if somebody wrote a password into it.
    fn without_secrets(&self) -> String {
        match (self.url.find("://"), self.url.rfind('@')) {
            (Some(scheme), Some(at)) if scheme < at => {
                format!("{}***{}", &self.url[..scheme + 3], &self.url[at..])
            }
            _ => self.url.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_may_have_a_path_and_a_slash_more_or_less() {
        for (url, base) in [
            ("http://127.0.0.1:8188", "http://127.0.0.1:8188/"),
            (" https://gpu.example/comfy/one ", "https://gpu.example/comfy/one/"),
            ("http://[::1]:8188/x/", "http://[::1]:8188/x/"),
        ] {
            assert_eq!(Target::new(url).base().unwrap().as_str(), base);
        }
    }

    #[test]
    fn a_bad_address_is_told_without_what_is_secret_in_it() {
        for url in ["", "localhost:8188", "ftp://x", "http://", "http://x/?a=b", "http://me:hunter2@x/"] {
            let error = Target::new(url).base().unwrap_err().to_string();
            assert!(error.contains("no address"), "{error}");
            assert!(!error.contains("hunter2"), "{error}");
        }
    }

    #[test]
    fn no_way_of_printing_shows_a_secret() {
        let mut target = Target::new("http://x");
        target.headers.push(("x-key".to_owned(), Secret::new("hunter2")));
        let map = target.header_map().unwrap();
        assert!(!format!("{target:?} {} {map:?}", target.headers[0].1).contains("hunter2"));
        target.headers[0].1 = Secret::new("hunter2\n");
        assert!(!target.header_map().unwrap_err().to_string().contains("hunter2"));
        target.headers[0].0 = "x key".to_owned();
        assert!(target.header_map().is_err());
    }
}
