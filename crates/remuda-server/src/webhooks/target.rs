//! Which targets webhooks may have. A name is resolved once, and the checked address is the one that is called: the owner
//! of the name cannot change it in between.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use reqwest::Url;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};

/// What the operator allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Whether loopback and private addresses are allowed.
    pub allow_private: bool,
}

/// Metadata services of clouds, which hold secrets. Their addresses are always refused; their names are refused before they
/// are resolved.
const METADATA_NAMES: [&str; 6] = [
    "metadata",
    "metadata.google.internal",
    "metadata.goog",
    "metadata.azure.internal",
    "instance-data",
    "instance-data.ec2.internal",
];

impl Policy {
    /// The URL, if it is allowed as far as can be decided without resolving its name.
    pub fn check(self, text: &str) -> Result<Url, String> {
        let url: Url = text.parse().map_err(|error| format!("{text:?} is no URL: {error}"))?;
        if !matches!(url.scheme(), "http" | "https") {
            return Err(format!("{:?} is no address for a webhook: http or https", url.scheme()));
        }
        if !url.username().is_empty() || url.password().is_some() {
            return Err("a webhook's URL has no name or password in it: it is shown with the job".to_owned());
        }
        let Some(host) = url.host_str() else { return Err(format!("{text:?} names no host")) };
        let literal = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
        match literal {
            Ok(address) => self.check_address(address)?,
            Err(_) => self.check_name(host)?,
        }
        Ok(url)
    }

    fn check_name(self, host: &str) -> Result<(), String> {
        let host = host.trim_end_matches('.').to_ascii_lowercase();
        if METADATA_NAMES.contains(&host.as_str()) {
            return Err(format!("webhooks never go to {host}: it serves machine secrets"));
        }
        let is_local = host == "localhost" || host.ends_with(".localhost");
        if is_local && !self.allow_private { Err(private(&host)) } else { Ok(()) }
    }

    pub(super) fn check_address(self, address: IpAddr) -> Result<(), String> {
        let address = unmapped(address);
        if is_always_refused(address) {
            return Err(format!("webhooks never go to {address}: it is link-local, or not a host's address"));
        }
        if is_private(address) && !self.allow_private {
            return Err(private(&address.to_string()));
        }
        Ok(())
    }
}

fn private(host: &str) -> String {
    format!("{host} is a private address: set webhooks.allow_private = \"yes\" if webhooks may go there")
}

/// A resolver that returns allowed addresses only.
#[derive(Clone, Copy, Debug)]
pub(super) struct GuardedResolver(pub(super) Policy);

impl Resolve for GuardedResolver {
    fn resolve(&self, name: Name) -> Resolving {
        let policy = self.0;
        Box::pin(async move {
            let found = tokio::net::lookup_host((name.as_str(), 0)).await?;
            let addresses = allowed(policy, found)?;
            Ok(Box::new(addresses.into_iter()) as Addrs)
        })
    }
}

/// If one of a name's addresses is refused, so is the name: such an answer is an attack.
fn allowed(policy: Policy, found: impl Iterator<Item = SocketAddr>) -> io::Result<Vec<SocketAddr>> {
    let found: Vec<_> = found.collect();
    match found.iter().find_map(|address| policy.check_address(address.ip()).err()) {
        Some(problem) => Err(io::Error::other(problem)),
        None => Ok(found),
    }
}

/// The IPv4 address inside an IPv6 one, in any of the known forms.
fn unmapped(address: IpAddr) -> IpAddr {
    let IpAddr::V6(long) = address else { return address };
    let inner = |high: u16, low: u16| {
        let ([a, b], [c, d]) = (high.to_be_bytes(), low.to_be_bytes());
        IpAddr::V4(Ipv4Addr::new(a, b, c, d))
    };
    match long.segments() {
        // Mapped, and the prefix by which IPv6-only networks reach IPv4.
        [0, 0, 0, 0, 0, 0xffff, high, low] | [0x64, 0xff9b, 0, 0, 0, 0, high, low] => inner(high, low),
        // Compatible, deprecated; `::` and `::1` are themselves.
        [0, 0, 0, 0, 0, 0, high, low] if high != 0 => inner(high, low),
        // 6to4.
        [0x2002, high, low, ..] => inner(high, low),
        _ => address,
    }
}

fn is_always_refused(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(it) => {
            // Azure's and Alibaba's, which are not link-local.
            let is_metadata =
                it == Ipv4Addr::new(168, 63, 129, 16) || it == Ipv4Addr::new(100, 100, 100, 200);
            it.is_link_local() || it.is_multicast() || it.is_broadcast() || it.octets()[0] == 0 || is_metadata
        }
        IpAddr::V6(it) => {
            // Amazon's.
            let is_metadata = it == Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254);
            it.is_unicast_link_local() || it.is_multicast() || it.is_unspecified() || is_metadata
        }
    }
}

fn is_private(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(it) => {
            let [a, b, c, _] = it.octets();
            // Behind a carrier's NAT, protocol assignments, benchmarks.
            let is_shared =
                (a == 100 && b & 0xc0 == 64) || (a, b, c) == (192, 0, 0) || (a == 198 && b & 0xfe == 18);
            it.is_private() || it.is_loopback() || is_shared || a >= 240
        }
        IpAddr::V6(it) => it.is_loopback() || it.is_unique_local(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OPEN: Policy = Policy { allow_private: true };
    const CLOSED: Policy = Policy { allow_private: false };

    /// Faults: X5.
    #[test]
    fn metadata_services_are_never_called() {
        for url in [
            "http://169.254.169.254/latest/meta-data/",
            "http://[fe80::1]/",
            "http://[::ffff:169.254.169.254]/",
            "http://[64:ff9b::a9fe:a9fe]/",
            "http://[2002:a9fe:a9fe::1]/",
            "http://[fd00:ec2::254]/",
            "http://2852039166/",
            "http://0xA9.254.0251.254/",
            "http://metadata.google.internal/computeMetadata/v1/",
            "http://METADATA.google.internal./",
            "http://100.100.100.200/",
            "http://168.63.129.16/",
            "http://0.0.0.0:8188/",
            "http://[::]/",
            "http://224.0.0.1/",
            "ftp://example.org/",
            "file:///etc/passwd",
            "http://user:pass@example.org/",
            "nonsense",
        ] {
            assert!(OPEN.check(url).is_err(), "{url}");
        }
        assert!(OPEN.check("https://hooks.example.org:8443/a?b=c").is_ok());
    }

    /// Faults: X5.
    #[test]
    fn private_addresses_need_permission() {
        for url in [
            "http://127.0.0.1:9000/",
            "http://localhost/",
            "http://x.localhost/",
            "http://10.1.2.3/",
            "http://172.31.0.1/",
            "http://192.168.0.1/",
            "http://100.64.0.1/",
            "http://[::1]/",
            "http://[fd12::1]/",
            "http://[::ffff:127.0.0.1]/",
            "http://[::127.0.0.1]/",
        ] {
            assert!(CLOSED.check(url).is_err(), "{url}");
            assert!(OPEN.check(url).is_ok(), "{url}");
        }
        assert!(CLOSED.check("http://93.184.216.34/").is_ok());
    }

    /// Faults: X5.
    #[test]
    fn name_with_one_forbidden_address_is_not_called() {
        let at = |ip: [u8; 4]| SocketAddr::from((ip, 0));
        let good = [at([93, 184, 216, 34])];
        assert_eq!(allowed(CLOSED, good.into_iter()).unwrap(), good);
        assert!(allowed(CLOSED, [good[0], at([127, 0, 0, 1])].into_iter()).is_err());
        assert!(allowed(OPEN, [good[0], at([169, 254, 169, 254])].into_iter()).is_err());
    }
}
