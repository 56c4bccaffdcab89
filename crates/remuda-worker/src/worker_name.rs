//! Default names of workers and machines.

use remuda_core::id::{BadId, WorkerId};

/// A name made of the machine and the server's port. It is the same after a restart, so that a new agent finds the
/// attempts that the old one left with that server.
pub fn worker_name_for(server: &str) -> Result<WorkerId, BadId> {
    let rest = server.split_once("://").map_or(server, |(_, rest)| rest);
    let authority = rest.split('/').next().unwrap_or(rest);
    let (host, port) = authority.rsplit_once(':').unwrap_or((authority, "80"));
    let is_here = matches!(host, "127.0.0.1" | "localhost" | "[::1]" | "");
    let host = if is_here { hostname() } else { host.to_owned() };
    let name: String =
        format!("{host}-{port}").chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
    name.trim_matches('-').parse()
}

/// This machine's host name, reduced to characters that are valid in a worker name.
pub fn hostname() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let name: String =
        name.trim().chars().filter(|c| c.is_ascii_alphanumeric() || *c == '-').take(40).collect();
    if name.is_empty() { "worker".to_owned() } else { name }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn worker_name_follows_from_the_server_address() {
        let here = hostname();
        for (server, expected) in [
            ("http://127.0.0.1:8188", format!("{here}-8188")),
            ("http://localhost:8188/base", format!("{here}-8188")),
            ("https://gpu7.example.org", "gpu7-example-org-80".to_owned()),
            ("http://10.0.0.7:8189/", "10-0-0-7-8189".to_owned()),
        ] {
            assert_eq!(worker_name_for(server).unwrap().as_str(), expected, "{server}");
        }
    }
}
