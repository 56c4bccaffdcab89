//! Address and headers of a ComfyUI server. They are checked once, so that a typing error is reported at the start and not
//! by every later request.

use reqwest::Url;
use reqwest::header::{HeaderMap, HeaderName, HeaderValue};

use remuda_net::secret::Secret;

use super::error::ComfyuiError;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ComfyuiTarget {
    /// `http(s)://host[:port][/base/path]`
    pub url: String,
    /// Sent with every request, for example an API key.
    pub headers: Vec<(String, Secret)>,
}

impl ComfyuiTarget {
    pub fn new(url: impl Into<String>) -> Self {
        ComfyuiTarget { url: url.into(), headers: Vec::new() }
    }

    /// The server's URL, ending in `/`, so that paths can be joined to it.
    pub(super) fn base(&self) -> Result<Url, ComfyuiError> {
        let bad = |why: &str| {
            ComfyuiError::Target(format!(
                "{:?} is not a valid URL of a ComfyUI server: {why}",
                self.without_secrets()
            ))
        };
        let mut url = Url::parse(self.url.trim()).map_err(|error| bad(&error.to_string()))?;
        if !matches!(url.scheme(), "http" | "https") {
            return Err(bad("it must begin with http:// or https://"));
        }
        if !url.username().is_empty() || url.password().is_some() {
            return Err(bad("pass credentials in a header, because URLs are logged"));
        }
        if url.query().is_some() || url.fragment().is_some() {
            return Err(bad("it must not contain ? or #"));
        }
        if !url.path().ends_with('/') {
            url.set_path(&format!("{}/", url.path()));
        }
        Ok(url)
    }

    pub(super) fn header_map(&self) -> Result<HeaderMap, ComfyuiError> {
        let mut map = HeaderMap::new();
        for (name, secret) in &self.headers {
            let key = HeaderName::from_bytes(name.as_bytes())
                .map_err(|_| ComfyuiError::Target(format!("{name:?} is not a valid header name")))?;
            let mut value = HeaderValue::from_str(secret.reveal()).map_err(|_| {
                ComfyuiError::Target(format!("the value of header {name:?} contains invalid characters"))
            })?;
            value.set_sensitive(true);
            map.append(key, value);
        }
        Ok(map)
    }

    /// The URL for error messages, with credentials masked.
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
    fn url_may_have_a_path_and_a_trailing_slash() {
        for (url, base) in [
            ("http://127.0.0.1:8188", "http://127.0.0.1:8188/"),
            (" https://gpu.example/comfy/one ", "https://gpu.example/comfy/one/"),
            ("http://[::1]:8188/x/", "http://[::1]:8188/x/"),
        ] {
            assert_eq!(ComfyuiTarget::new(url).base().unwrap().as_str(), base);
        }
    }

    #[test]
    fn error_about_a_url_does_not_show_its_password() {
        for url in ["", "localhost:8188", "ftp://x", "http://", "http://x/?a=b", "http://me:hunter2@x/"] {
            let error = ComfyuiTarget::new(url).base().unwrap_err().to_string();
            assert!(error.contains("not a valid URL"), "{error}");
            assert!(!error.contains("hunter2"), "{error}");
        }
    }

    #[test]
    fn headers_are_never_printed() {
        let mut target = ComfyuiTarget::new("http://x");
        target.headers.push(("x-key".to_owned(), Secret::new("hunter2")));
        let map = target.header_map().unwrap();
        assert!(!format!("{target:?} {} {map:?}", target.headers[0].1).contains("hunter2"));
        target.headers[0].1 = Secret::new("hunter2\n");
        assert!(!target.header_map().unwrap_err().to_string().contains("hunter2"));
        target.headers[0].0 = "x key".to_owned();
        assert!(target.header_map().is_err());
    }
}
