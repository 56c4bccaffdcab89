//! Which targets webhooks may have. A name is resolved once, and the checked address is the one that is called: the owner
//! of the name cannot change it in between.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use remuda_net::private_target::PrivateTarget;
use reqwest::Url;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};

/// What the operator allows. Clones share the list.
#[derive(Clone, Debug, Default)]
pub struct Policy {
    /// Loopback and private addresses that are allowed.
    private_targets: Arc<[PrivateTarget]>,
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
    pub fn new(private_targets: &[PrivateTarget]) -> Policy {
        Policy { private_targets: private_targets.into() }
    }

    /// The URL, if it is allowed as far as can be decided without resolving its name.
    pub fn check(&self, text: &str) -> Result<Url, String> {
        let url: Url = text.parse().map_err(|error| format!("{text:?} is no URL: {error}"))?;
        if !matches!(url.scheme(), "http" | "https") {
            return Err(format!("{:?} is no address for a webhook: http or https", url.scheme()));
        }
        if !url.username().is_empty() || url.password().is_some() {
            return Err("a webhook's URL has no name or password in it: it is shown with the job".to_owned());
        }
        let Some(host) = url.host_str() else { return Err(format!("{text:?} names no host")) };
        let port = url.port_or_known_default().unwrap_or(0);
        let literal = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
        match literal {
            Ok(address) => self.check_address(None, address, port)?,
            Err(_) => self.check_name(host, port)?,
        }
        Ok(url)
    }

    fn check_name(&self, host: &str, port: u16) -> Result<(), String> {
        let host = host.trim_end_matches('.').to_ascii_lowercase();
        if METADATA_NAMES.contains(&host.as_str()) {
            return Err(format!("webhooks never go to {host}: it serves machine secrets"));
        }
        let is_local = host == "localhost" || host.ends_with(".localhost");
        if !is_local {
            return Ok(());
        }
        let loopback = [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)];
        match loopback.iter().any(|address| self.allows(Some(&host), *address, port)) {
            true => Ok(()),
            false => Err(private(&host, port)),
        }
    }

    /// `name` is what the address was resolved from.
    fn check_address(&self, name: Option<&str>, address: IpAddr, port: u16) -> Result<(), String> {
        let (plain, inner) = (unmapped(address), embedded(address).map(IpAddr::V4));
        if is_always_refused(plain) || inner.is_some_and(is_always_refused) {
            return Err(format!("webhooks never go to {address}: it is link-local, or not a host's address"));
        }
        let is_inside = is_private(plain) || inner.is_some_and(is_private);
        if is_inside && !self.allows(name, plain, port) {
            return Err(private(&plain.to_string(), port));
        }
        Ok(())
    }

    fn allows(&self, name: Option<&str>, address: IpAddr, port: u16) -> bool {
        self.private_targets.iter().any(|target| target.allows(name, address, port))
    }
}

fn private(host: &str, port: u16) -> String {
    format!(
        "{host} is a private address: add \"{host}\" or \"{host}:{port}\" to webhooks.private_targets if webhooks may go there"
    )
}

/// A resolver that returns allowed addresses only; the addresses that it returns are the ones that are called. A client
/// has one port, because a resolver is not told the port of a request.
#[derive(Clone, Debug)]
pub(super) struct GuardedResolver {
    pub(super) policy: Policy,
    pub(super) port: u16,
}

impl Resolve for GuardedResolver {
    fn resolve(&self, name: Name) -> Resolving {
        let guard = self.clone();
        Box::pin(async move {
            let found = tokio::net::lookup_host((name.as_str(), 0)).await?;
            let addresses = guard.allowed(name.as_str(), found)?;
            Ok(Box::new(addresses.into_iter()) as Addrs)
        })
    }
}

impl GuardedResolver {
    /// If one of a name's addresses is refused, so is the name: such an answer is an attack.
    fn allowed(&self, name: &str, found: impl Iterator<Item = SocketAddr>) -> io::Result<Vec<SocketAddr>> {
        let found: Vec<_> = found.collect();
        let check =
            |address: &SocketAddr| self.policy.check_address(Some(name), address.ip(), self.port).err();
        match found.iter().find_map(check) {
            Some(problem) => Err(io::Error::other(problem)),
            None => Ok(found),
        }
    }
}

/// The IPv4 address that an IPv6 one stands for, where both are the same host.
fn unmapped(address: IpAddr) -> IpAddr {
    let IpAddr::V6(long) = address else { return address };
    match long.segments() {
        // Mapped, and the prefix by which IPv6-only networks reach IPv4.
        [0, 0, 0, 0, 0, 0xffff, high, low] | [0x64, 0xff9b, 0, 0, 0, 0, high, low] => {
            IpAddr::V4(v4(high, low))
        }
        // Compatible, deprecated; `::` and `::1` are themselves.
        [0, 0, 0, 0, 0, 0, high, low] if high != 0 => IpAddr::V4(v4(high, low)),
        _ => address,
    }
}

/// The IPv4 address that a tunnel or a translator would send to.
fn embedded(address: IpAddr) -> Option<Ipv4Addr> {
    let IpAddr::V6(long) = address else { return None };
    match long.segments() {
        // 6to4.
        [0x2002, high, low, ..] => Some(v4(high, low)),
        // Teredo, which stores it inverted.
        [0x2001, 0, .., high, low] => Some(v4(!high, !low)),
        // A network's own translator; its octet 8 is not part of the address (RFC 6052).
        [0x64, 0xff9b, 1, high, low, last, ..] => Some(v4(high, (low << 8) | (last >> 8))),
        _ => None,
    }
}

fn v4(high: u16, low: u16) -> Ipv4Addr {
    Ipv4Addr::from_bits(u32::from(high) << 16 | u32::from(low))
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
            // Behind a carrier's NAT, protocol assignments, relays of 6to4, benchmarks.
            let is_shared = (a == 100 && b & 0xc0 == 64)
                || matches!((a, b, c), (192, 0, 0) | (192, 88, 99))
                || (a == 198 && b & 0xfe == 18);
            it.is_private() || it.is_loopback() || is_shared || a >= 240
        }
        IpAddr::V6(it) => {
            let [first, second, third, ..] = it.segments();
            let is_site_local = first & 0xffc0 == 0xfec0;
            // Tunnels and translators lead to wherever their operator wants: 6to4, Teredo and other protocols, own NAT64.
            let is_tunnel = first == 0x2002
                || first == 0x2001 && second < 0x200
                || (first, second, third) == (0x64, 0xff9b, 1);
            it.is_loopback() || it.is_unique_local() || is_site_local || is_tunnel
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every private address there is.
    fn open() -> Policy {
        policy(&["0.0.0.0/1", "128.0.0.0/1", "::/1", "8000::/1", "localhost"])
    }

    fn policy(entries: &[&str]) -> Policy {
        let entries: Vec<_> = entries.iter().map(|entry| entry.parse().unwrap()).collect();
        Policy::new(&entries)
    }

    /// Faults: X5.
    #[test]
    fn metadata_services_are_never_called() {
        for url in [
            "http://169.254.169.254/latest/meta-data/",
            "http://[fe80::1]/",
            "http://[::ffff:169.254.169.254]/",
            "http://[64:ff9b::a9fe:a9fe]/",
            "http://[2002:a9fe:a9fe::1]/",
            "http://[2001:0:4136:e378:8000:63bf:5601:5601]/",
            "http://[64:ff9b:1:a9fe:a9:fe00::]/",
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
            assert!(open().check(url).is_err(), "{url}");
        }
        assert!(open().check("https://hooks.example.org:8443/a?b=c").is_ok());
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
            "http://[64:ff9b::10.0.0.1]/",
            "http://[64:ff9b:1:a00:0:100::]/",
            "http://[fec0::1]/",
            "http://[feff::1]/",
            "http://[2001::1]/",
            "http://[2002:5db8:d822::1]/",
            "http://[2002:7f00:1::1]/",
            "http://192.88.99.1/",
        ] {
            assert!(Policy::default().check(url).is_err(), "{url}");
            assert!(open().check(url).is_ok(), "{url}: {:?}", open().check(url));
        }
        for url in ["http://93.184.216.34/", "http://[2606:2800:220:1::1]/", "http://[::ffff:93.184.216.34]/"]
        {
            assert!(Policy::default().check(url).is_ok(), "{url}");
        }
    }

    /// Faults: X5.
    #[test]
    fn allowed_target_is_one_host_and_port() {
        let policy = policy(&["127.0.0.1:9000"]);
        assert!(policy.check("http://127.0.0.1:9000/hook").is_ok());
        assert!(policy.check("http://[::ffff:127.0.0.1]:9000/hook").is_ok());
        assert!(policy.check("http://localhost:9000/hook").is_ok(), "the resolver checks what it means");
        for url in
            ["http://127.0.0.1:8288/", "http://127.0.0.1/", "http://[::1]:9000/", "http://10.0.0.1:9000/"]
        {
            let problem = policy.check(url).unwrap_err();
            assert!(problem.contains("webhooks.private_targets"), "{problem}");
        }
    }

    /// Faults: X5.
    #[test]
    fn name_with_one_forbidden_address_is_not_called() {
        let at = |ip: [u8; 4]| SocketAddr::from((ip, 0));
        let guard = |policy: Policy, port| GuardedResolver { policy, port };
        let good = [at([93, 184, 216, 34])];
        let closed = guard(Policy::default(), 80);
        assert_eq!(closed.allowed("a.example", good.into_iter()).unwrap(), good);
        assert!(closed.allowed("a.example", [good[0], at([127, 0, 0, 1])].into_iter()).is_err());
        let open = guard(open(), 80);
        assert!(open.allowed("a.example", [good[0], at([169, 254, 169, 254])].into_iter()).is_err());
        // A name is allowed by itself or by its address, for its port.
        let inside = || [at([10, 0, 0, 7])].into_iter();
        for (entry, name, port, expected) in [
            ("hooks.internal", "hooks.internal", 80, true),
            ("hooks.internal:80", "hooks.internal", 80, true),
            ("hooks.internal:80", "hooks.internal", 81, false),
            ("hooks.internal:80", "evil.example", 80, false),
            ("10.0.0.0/24:80", "evil.example", 80, true),
            ("10.0.0.0/24:80", "evil.example", 6379, false),
        ] {
            let guard = guard(policy(&[entry]), port);
            assert_eq!(guard.allowed(name, inside()).is_ok(), expected, "{entry} for {name}:{port}");
        }
    }
}
