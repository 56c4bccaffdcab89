//! What a listen address requires before the plane serves on it: TLS and an admin, beyond loopback.

use anyhow::bail;
use remuda_config::ServeSettings;
use remuda_core::time::Timestamp;
use tracing::warn;

use crate::http::AccessControl;
use crate::tls::Tls;

pub(super) fn load_tls(serve: &ServeSettings) -> anyhow::Result<Option<Tls>> {
    match (&serve.access.tls_cert, &serve.access.tls_key) {
        (Some(cert), Some(key)) => Tls::load(cert, key).map(Some),
        (None, None) => Ok(None),
        (Some(_), None) => {
            bail!("a certificate is of no use without its key: name it with --tls-key (tls.key)")
        }
        (None, Some(_)) => {
            bail!("a key is of no use without its certificate: name it with --tls-cert (tls.cert)")
        }
    }
}

/// Loopback needs neither token nor TLS; on any other address an eavesdropper would get every token.
pub(super) fn require_tls(serve: &ServeSettings, has_tls: bool) -> anyhow::Result<()> {
    if serve.listen.ip().is_loopback() || serve.insecure || has_tls {
        return Ok(());
    }
    bail!(
        "{} is open to other machines. Give the plane a certificate, with --tls-cert FILE --tls-key FILE, and an admin, \
         with `remuda token create --role admin --data {}`; or listen on 127.0.0.1; or say --insecure if the network \
         itself keeps strangers out",
        serve.listen,
        serve.data.display()
    )
}

/// Beyond loopback there has to be an admin, or no client could ever get a token.
pub(super) fn require_admin(
    serve: &ServeSettings,
    access: &AccessControl,
    now: Timestamp,
) -> anyhow::Result<()> {
    if serve.listen.ip().is_loopback() || access.has_admin(now) {
        return Ok(());
    }
    if serve.insecure {
        warn!(listen = %serve.listen, "everyone who reaches this address can submit jobs and join as a worker");
        return Ok(());
    }
    bail!(
        "{} is open to other machines, and no client could get in: there is no admin token yet. Make one with \
         `remuda token create --role admin --data {}`, or set REMUDA_ADMIN_TOKEN, and start again",
        serve.listen,
        serve.data.display()
    )
}
