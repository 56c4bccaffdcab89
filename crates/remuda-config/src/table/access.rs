//! Settings for access: TLS, tokens, hosts, origins and limits per caller.

use super::super::key::{Key, slot};
use super::super::value::Kind::{File, List};
use super::number;

pub(super) const ACCESS: &[Key] = &[
    Key::new(
        "tls.cert",
        slot!(serve.access.tls_cert),
        File,
        "Certificate chain of the plane (PEM); reloaded when the file changes.",
    ),
    Key::new("tls.key", slot!(serve.access.tls_key), File, "Private key of `tls.cert` (PEM)."),
    Key::new(
        "admin_token_file",
        slot!(serve.access.admin_token_file),
        File,
        "File with an admin token, in addition to those made by `remuda token`.",
    ),
    Key::new(
        "http.allowed_hosts",
        slot!(serve.access.allowed_hosts),
        List,
        "Host names to accept in requests, in addition to the plane's own address.",
    ),
    Key::new(
        "http.allowed_origins",
        slot!(serve.access.allowed_origins),
        List,
        "Origins whose pages may call the plane from a browser, such as `https://app.example.org`.",
    ),
    Key::new(
        "limits.connections_per_address_max",
        slot!(serve.access.connections_per_address_max),
        number(0, 1_000_000),
        "Connections of clients open at once per address; 0 means 256, and no limit for this machine. Workers are not counted.",
    ),
    Key::new(
        "limits.streams_per_token_max",
        slot!(serve.access.streams_per_token_max),
        number(0, 1_000_000),
        "Event streams open at once per token (or address); 0 means 64, and no limit for this machine.",
    ),
    Key::new(
        "limits.client_priority_max",
        slot!(serve.client_priority_max),
        number(0, 127),
        "Highest priority that a client token may request; admins may request any.",
    ),
    Key::new(
        "limits.requests_per_second",
        slot!(serve.access.requests_per_second),
        number(0, 1_000_000),
        "Requests per second and token (or address), with bursts of five seconds' worth; 0 means 200, and no limit for this machine.",
    ),
];
