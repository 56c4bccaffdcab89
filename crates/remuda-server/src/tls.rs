//! The plane's certificate. It is reloaded when its files change, or on request, and used from the next connection on; an
//! invalid pair, or one that has ended, is logged and changes nothing.

mod validity;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, SystemTime};

use anyhow::{Context as _, bail};
use remuda_core::time::Timestamp;
use rustls::ServerConfig;
use rustls::crypto::ring::default_provider;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tracing::{error, info};

use self::validity::{CertificateEnd, EndWarning};
use crate::shutdown::stopped;
use crate::tasks::Ticker;

/// How often the files are checked.
const CHECK_EVERY: Duration = Duration::from_secs(2);

/// Clones share the certificate.
#[derive(Clone)]
pub struct Tls {
    acceptor: TlsAcceptor,
    pair: Arc<CertificatePair>,
}

impl std::fmt::Debug for Tls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tls").field("cert", &self.pair.cert).finish_non_exhaustive()
    }
}

/// A certificate chain and its key.
#[derive(Debug)]
struct CertificatePair {
    cert: PathBuf,
    key: PathBuf,
    current: RwLock<(Arc<CertifiedKey>, CertificateEnd)>,
    /// Modification times of the files at the last check.
    seen: Mutex<Changed>,
}

type Changed = [Option<SystemTime>; 2];

impl Tls {
    pub fn load(cert: &Path, key: &Path) -> anyhow::Result<Tls> {
        let seen = changed(cert, key);
        let current = RwLock::new(read(cert, key)?);
        let pair =
            CertificatePair { cert: cert.to_owned(), key: key.to_owned(), current, seen: Mutex::new(seen) };
        let pair = Arc::new(pair);
        let config = ServerConfig::builder_with_provider(Arc::new(default_provider()))
            .with_safe_default_protocol_versions()
            .context("TLS cannot be set up")?;
        let mut config = config.with_no_client_auth().with_cert_resolver(pair.clone());
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Tls { acceptor: TlsAcceptor::from(Arc::new(config)), pair })
    }

    pub async fn accept(&self, stream: TcpStream) -> io::Result<TlsStream<TcpStream>> {
        self.acceptor.accept(stream).await
    }

    /// Reads the files again; the old pair stays if they are invalid.
    pub fn reload(&self) -> anyhow::Result<()> {
        let pair = &self.pair;
        let seen = changed(&pair.cert, &pair.key);
        *pair.seen.lock().unwrap_or_else(PoisonError::into_inner) = seen;
        let read = read(&pair.cert, &pair.key)?;
        *pair.current.write().unwrap_or_else(PoisonError::into_inner) = read;
        info!(cert = %pair.cert.display(), "certificate reloaded");
        Ok(())
    }

    /// When the certificate in use ends.
    pub fn ends_at(&self) -> Timestamp {
        self.end().0
    }

    fn end(&self) -> CertificateEnd {
        self.pair.current.read().unwrap_or_else(PoisonError::into_inner).1
    }

    /// Reloads when the files have changed, and warns when the certificate ends soon.
    pub async fn follow(self, mut stopping: watch::Receiver<bool>, ticker: Ticker) {
        let mut warning = EndWarning::default();
        loop {
            ticker.tick();
            warning.check(self.end(), &self.pair.cert, wall_clock());
            tokio::select! {
                () = tokio::time::sleep(CHECK_EVERY) => {}
                () = stopped(&mut stopping) => return,
            }
            let tls = self.clone();
            let checked = tokio::task::spawn_blocking(move || tls.reload_if_changed()).await;
            if let Ok(Err(error)) = checked {
                error!("certificate reload failed; the old one stays: {error:#}");
            }
        }
    }

    fn reload_if_changed(&self) -> anyhow::Result<()> {
        let seen = *self.pair.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if changed(&self.pair.cert, &self.pair.key) == seen { Ok(()) } else { self.reload() }
    }
}

impl ResolvesServerCert for CertificatePair {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.current.read().unwrap_or_else(PoisonError::into_inner).0.clone())
    }
}

fn changed(cert: &Path, key: &Path) -> Changed {
    [cert, key].map(|path| path.metadata().and_then(|metadata| metadata.modified()).ok())
}

/// Certificates are about dates, so no other clock will do.
fn wall_clock() -> Timestamp {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    Timestamp::from_millis(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}

fn read(cert: &Path, key: &Path) -> anyhow::Result<(Arc<CertifiedKey>, CertificateEnd)> {
    let unreadable = |path: &Path| format!("cannot read {} as PEM (tls.cert, tls.key)", path.display());
    let chain = CertificateDer::pem_file_iter(cert).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let chain = chain.with_context(|| unreadable(cert))?;
    let Some(own) = chain.first() else {
        bail!("there is no certificate in {} (tls.cert)", cert.display());
    };
    let end = CertificateEnd::read(own, cert)?;
    let secret = PrivateKeyDer::from_pem_file(key).with_context(|| unreadable(key))?;
    let pair = CertifiedKey::from_der(chain, secret, &default_provider())
        .with_context(|| format!("{} and {} do not belong together", cert.display(), key.display()))?;
    end.refuse_if_over(cert, wall_clock())?;
    Ok((Arc::new(pair), end))
}
