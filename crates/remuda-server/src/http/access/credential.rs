//! Where a request carries its token: `Authorization: Bearer`, `Basic` with the token as the password (which browsers ask
//! for), or an offered protocol of a WebSocket. Never in the address, which ends up in logs and histories, and never in a
//! cookie, which a browser sends with requests that other pages cause.

use axum::http::{HeaderMap, HeaderValue, header};
use base64::Engine as _;
use base64::alphabet::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};

use remuda_net::secret::Secret;

/// The prefix of a token among the protocols that a WebSocket offers.
const PROTOCOL: &str = "remuda.token.";

/// The protocol that a page offers in addition to the token, and that the answer selects.
pub(super) const REMUDA: HeaderValue = HeaderValue::from_static("remuda");

pub(super) fn offers_remuda(headers: &HeaderMap) -> bool {
    offered(headers).any(|protocol| protocol == "remuda")
}

fn offered(headers: &HeaderMap) -> impl Iterator<Item = &str> {
    let offered = headers.get_all(header::SEC_WEBSOCKET_PROTOCOL).iter();
    offered.filter_map(|value| value.to_str().ok()).flat_map(|value| value.split(',')).map(str::trim)
}

pub(super) fn credential(headers: &HeaderMap) -> Option<Secret> {
    let text = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    if let Some((scheme, rest)) = text.and_then(|text| text.split_once(' ')) {
        if scheme.eq_ignore_ascii_case("bearer") {
            return Some(Secret::new(rest.trim())).filter(|secret| !secret.is_empty());
        }
        if scheme.eq_ignore_ascii_case("basic") {
            let pair = String::from_utf8(from_base64(rest.trim())?).ok()?;
            return pair.split_once(':').map(|(_, password)| Secret::new(password));
        }
    }
    offered(headers).find_map(|protocol| protocol.strip_prefix(PROTOCOL)).map(Secret::new)
}

/// Accepts any padding, because some clients omit it.
fn from_base64(text: &str) -> Option<Vec<u8>> {
    const LENIENT: GeneralPurpose = GeneralPurpose::new(
        &STANDARD,
        GeneralPurposeConfig::new()
            .with_decode_padding_mode(DecodePaddingMode::Indifferent)
            .with_decode_allow_trailing_bits(true),
    );
    LENIENT.decode(text).ok()
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderName;

    use super::*;

    fn check(name: HeaderName, value: &str, expected: Option<&str>) {
        let headers = HeaderMap::from_iter([(name, HeaderValue::from_str(value).unwrap())]);
        assert_eq!(credential(&headers).as_ref().map(Secret::reveal), expected, "{value}");
    }

    #[test]
    fn token_is_read_from_three_places_only() {
        check(header::AUTHORIZATION, "Bearer rmd_1_2", Some("rmd_1_2"));
        check(header::AUTHORIZATION, "bearer  rmd_1_2 ", Some("rmd_1_2"));
        check(header::AUTHORIZATION, "Basic YW5uYTpybWRfMV8y", Some("rmd_1_2"));
        check(header::AUTHORIZATION, "Basic OnJtZF8xXzI=", Some("rmd_1_2"));
        check(header::SEC_WEBSOCKET_PROTOCOL, "remuda, remuda.token.rmd_1_2", Some("rmd_1_2"));
        for nothing in ["Bearer", "Bearer ", "Basic !!!", "Basic YW5uYQ==", "Digest x", "rmd_1_2"] {
            check(header::AUTHORIZATION, nothing, None);
        }
        check(header::COOKIE, "remuda_token=rmd_1_2", None);
    }

    #[test]
    fn base64_is_decoded() {
        for (text, expected) in
            [("", ""), ("Zg==", "f"), ("Zm8=", "fo"), ("Zm9v", "foo"), ("Zm9vYmFy", "foobar")]
        {
            assert_eq!(from_base64(text).unwrap(), expected.as_bytes());
        }
        assert_eq!(from_base64("Zm9v-"), None);
    }
}
