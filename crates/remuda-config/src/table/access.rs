//! Keys about who may ask, over what, and how much.

use super::super::key::{Key, slot};
use super::super::value::Kind::{File, List};
use super::number;

pub(super) const ACCESS: &[Key] = &[
    Key::new(
        "tls.cert",
        slot!(serve.access.tls_cert),
        File,
        "Certificate of the plane and what vouches for it, as PEM; read again when it changes.",
    ),
    Key::new("tls.key", slot!(serve.access.tls_key), File, "The key that belongs to `tls.cert`, as PEM."),
    Key::new(
        "admin_token_file",
        slot!(serve.access.admin_token_file),
        File,
        "File with an admin's token in it, besides those that `remuda token` makes.",
    ),
    Key::new(
        "http.allowed_hosts",
        slot!(serve.access.allowed_hosts),
        List,
        "Names besides its own address that a plane may be asked by.",
    ),
    Key::new(
        "http.allowed_origins",
        slot!(serve.access.allowed_origins),
        List,
        "Origins whose pages may ask the plane from a browser, such as `https://app.example.org`.",
    ),
    Key::new(
        "limits.connections_per_address_max",
        slot!(serve.access.connections_per_address_max),
        number(0, 1_000_000),
        "Connections one address may have open; 0 is 256, and no limit for this machine.",
    ),
    Key::new(
        "limits.streams_per_token_max",
        slot!(serve.access.streams_per_token_max),
        number(0, 1_000_000),
        "Event streams one token (or address) may have open; 0 is 64, and no limit for this machine.",
    ),
    Key::new(
        "limits.client_priority_max",
        slot!(serve.client_priority_max),
        number(0, 127),
        "The highest priority that a client's token may ask for; admins may ask for any.",
    ),
    Key::new(
        "limits.requests_per_second",
        slot!(serve.access.requests_per_second),
        number(0, 1_000_000),
        "Requests one token (or address) may make, five seconds' worth at once; 0 is 200, and no limit for this machine.",
    ),
];
