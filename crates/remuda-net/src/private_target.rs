//! Private addresses that outgoing calls may go to, as an operator lists them: a host name, an address or a network, with
//! or without a port.
//!
//! ```text
//!  hooks.internal:8080   10.1.2.3   192.168.0.0/24   [::1]:9000   fd00::/8
//! ```

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::str::FromStr;

/// One entry of the list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PrivateTarget {
    host: TargetHost,
    /// `None` allows every port.
    port: Option<u16>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum TargetHost {
    /// In lower case, without a final dot.
    Name(String),
    Network {
        address: IpAddr,
        bits: u8,
    },
}

impl PrivateTarget {
    /// Whether it allows this port at this address. `name` is what the address was resolved from, if anything.
    pub fn allows(&self, name: Option<&str>, address: IpAddr, port: u16) -> bool {
        let is_host = match &self.host {
            TargetHost::Name(own) => name.is_some_and(|name| canonical_name(name) == *own),
            TargetHost::Network { address: network, bits } => is_within(address, *network, *bits),
        };
        is_host && self.port.is_none_or(|own| own == port)
    }
}

fn canonical_name(name: &str) -> String {
    name.trim_end_matches('.').to_ascii_lowercase()
}

fn is_within(address: IpAddr, network: IpAddr, bits: u8) -> bool {
    match (address, network) {
        (IpAddr::V4(address), IpAddr::V4(network)) => {
            let mask = u32::MAX.checked_shl(32 - u32::from(bits)).unwrap_or(0);
            address.to_bits() & mask == network.to_bits() & mask
        }
        (IpAddr::V6(address), IpAddr::V6(network)) => {
            let mask = u128::MAX.checked_shl(128 - u32::from(bits)).unwrap_or(0);
            address.to_bits() & mask == network.to_bits() & mask
        }
        (IpAddr::V4(_), IpAddr::V6(_)) | (IpAddr::V6(_), IpAddr::V4(_)) => false,
    }
}

/// It is no host name, address or network.
#[derive(Debug, thiserror::Error)]
#[error(
    "{0:?} is no host, address or network: write `hooks.internal:8080`, `10.1.2.3`, `10.0.0.0/8` or `[::1]:9000`"
)]
pub struct BadPrivateTarget(String);

impl FromStr for PrivateTarget {
    type Err = BadPrivateTarget;

    fn from_str(text: &str) -> Result<PrivateTarget, BadPrivateTarget> {
        let bad = || BadPrivateTarget(text.to_owned());
        let (host, port) = split_port(text).ok_or_else(bad)?;
        let (host, bits) = match host.split_once('/') {
            Some((host, bits)) => (host, Some(bits.parse::<u8>().map_err(|_| bad())?)),
            None => (host, None),
        };
        let host = match (host.parse::<IpAddr>(), bits) {
            (Ok(address), bits) => {
                let most = if address.is_ipv4() { 32 } else { 128 };
                let bits = bits.unwrap_or(most);
                if bits == 0 || bits > most {
                    return Err(bad());
                }
                TargetHost::Network { address, bits }
            }
            (Err(_), None) if is_host_name(host) => TargetHost::Name(canonical_name(host)),
            (Err(_), _) => return Err(bad()),
        };
        Ok(PrivateTarget { host, port })
    }
}

/// The host, without the brackets of an IPv6 address, and the port.
fn split_port(text: &str) -> Option<(&str, Option<u16>)> {
    if let Some(rest) = text.strip_prefix('[') {
        let (host, rest) = rest.split_once(']')?;
        let port = match rest {
            "" => None,
            rest => Some(rest.strip_prefix(':')?.parse().ok()?),
        };
        return Some((host, port));
    }
    if text.split('/').next()?.parse::<Ipv6Addr>().is_ok() {
        return Some((text, None));
    }
    match text.split_once(':') {
        Some((host, port)) => Some((host, Some(port.parse().ok()?))),
        None => Some((text, None)),
    }
}

fn is_host_name(text: &str) -> bool {
    let is_part = |part: &str| {
        !part.is_empty()
            && part.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'))
    };
    text.len() <= 253 && text.trim_end_matches('.').split('.').all(is_part)
}

impl fmt::Display for PrivateTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.host {
            TargetHost::Name(name) => f.write_str(name)?,
            TargetHost::Network { address, bits } => {
                let (is_long, most) =
                    (address.is_ipv6() && self.port.is_some(), if address.is_ipv4() { 32 } else { 128 });
                let bits = if *bits == most { String::new() } else { format!("/{bits}") };
                if is_long { write!(f, "[{address}{bits}]")? } else { write!(f, "{address}{bits}")? }
            }
        }
        self.port.map_or(Ok(()), |port| write!(f, ":{port}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allows(entry: &str, name: Option<&str>, address: &str, port: u16) -> bool {
        let entry: PrivateTarget = entry.parse().unwrap();
        assert_eq!(entry.to_string().parse::<PrivateTarget>().unwrap(), entry, "{entry} is read back");
        entry.allows(name, address.parse().unwrap(), port)
    }

    /// Faults: X5.
    #[test]
    fn entry_allows_its_host_and_port_only() {
        for (entry, name, address, port, expected) in [
            ("127.0.0.1:9000", None, "127.0.0.1", 9000, true),
            ("127.0.0.1:9000", None, "127.0.0.1", 8288, false),
            ("127.0.0.1:9000", None, "127.0.0.2", 9000, false),
            ("10.0.0.0/8", None, "10.200.3.4", 1, true),
            ("10.0.0.0/8", None, "11.0.0.1", 1, false),
            ("10.0.0.0/8", Some("evil.example"), "10.0.0.1", 1, true),
            ("192.168.0.0/24:80", None, "192.168.0.7", 80, true),
            ("192.168.0.0/24:80", None, "192.168.1.7", 80, false),
            ("[::1]:9000", None, "::1", 9000, true),
            ("[::1]:9000", None, "::1", 1, false),
            ("fd00::/8", None, "fd12::1", 1, true),
            ("fd00::/8", None, "fe80::1", 1, false),
            ("Hooks.Internal.:8080", Some("hooks.internal"), "10.0.0.1", 8080, true),
            ("hooks.internal:8080", Some("other.internal"), "10.0.0.1", 8080, false),
            ("hooks.internal", None, "10.0.0.1", 8080, false),
            ("10.0.0.0/8", None, "::1", 1, false),
        ] {
            assert_eq!(allows(entry, name, address, port), expected, "{entry} {name:?} {address}:{port}");
        }
    }

    #[test]
    fn entry_that_names_no_host_is_refused() {
        for text in [
            "",
            "http://10.0.0.1",
            "10.0.0.0/33",
            "0.0.0.0/0",
            "::/0",
            "a b",
            "host:port",
            "[::1",
            "host/8",
            ".",
            ":80",
        ] {
            assert!(text.parse::<PrivateTarget>().is_err(), "{text:?}");
        }
    }
}
