//! The way to a machine: port, host key, login.
//!
//! The library drives a connection in a task of its own, which a deadline of ours does not reach: it would sit on a
//! socket that says nothing for as long as the socket lives. So the socket stays ours, and what goes through it is
//! carried to and fro; whoever drops a `Connection` has closed it.

use std::io;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use remuda_core::provider::{BootstrapError, SshAddress};
use russh::client::{self, Handle};
use russh::keys::{HashAlg, PrivateKeyWithHashAlg, PublicKeyOrCertificate};
use russh::{Channel, Disconnect};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::preparation::FAREWELL_MAX;
use super::stage::Stage;
use super::{PodKey, Preparation};

pub(super) struct Connection {
    handle: Handle<Guard>,
    host_key: String,
    /// Carries what goes through the socket, and ends with us.
    carrier: JoinSet<io::Result<(u64, u64)>>,
}

impl Connection {
    pub(super) async fn open(
        address: &SshAddress,
        pod: &PodKey,
        settings: &Preparation,
    ) -> Result<Connection, BootstrapError> {
        let limits = &settings.limits;
        let answered = timeout(limits.port, knock(address)).await;
        let (socket, greeting) = answered.unwrap_or_else(|_| Err(late(limits.port))).map_err(|error| {
            Stage::Port.early(format!("{}:{} does not answer with SSH: {error}", address.host, address.port))
        })?;
        let mut carrier = JoinSet::new();
        let (ours, theirs) = tokio::io::duplex(CARRIED_BYTES_MAX);
        carrier.spawn(carry(socket, greeting, theirs));

        let guard = Guard { expected: settings.host_key.expected(pod), seen: Arc::default() };
        let (expected, seen) = (guard.expected.clone(), Arc::clone(&guard.seen));
        let shaken = timeout(limits.host_key, client::connect_stream(config(), ours, guard)).await;
        let host_key = seen.get().cloned().unwrap_or_default();
        if let Some(expected) = expected.filter(|expected| !host_key.is_empty() && *expected != host_key) {
            return Err(Stage::HostKey.failed(format!(
                "its host key is {host_key} and must be {expected}: it is another machine, or somebody is in between"
            )));
        }
        let handle = match shaken {
            Ok(Ok(handle)) => handle,
            Ok(Err(error @ russh::Error::NoCommonAlgo { .. })) => return Err(Stage::HostKey.failed(error)),
            Ok(Err(error)) => return Err(Stage::HostKey.early(error)),
            Err(_) => return Err(Stage::HostKey.early(late(limits.host_key))),
        };
        let mut connection = Connection { handle, host_key, carrier };
        connection.log_in(settings.user.as_deref().unwrap_or(&address.user), settings).await?;
        Ok(connection)
    }

    /// Its fingerprint.
    pub(super) fn host_key(&self) -> &str {
        &self.host_key
    }

    /// A start script may write the keys it lets in long after its sshd answers: a refusal is not the last word.
    async fn log_in(&mut self, user: &str, settings: &Preparation) -> Result<(), BootstrapError> {
        let key = PrivateKeyWithHashAlg::new(settings.key.private(), None);
        let limit = settings.limits.login;
        match timeout(limit, self.handle.authenticate_publickey(user, key)).await {
            Ok(Ok(answer)) if answer.success() => Ok(()),
            Ok(Ok(_)) => Err(Stage::Login.early(format!(
                "{user} is not let in with our key; does the machine know it? {}",
                settings.key.public()
            ))),
            Ok(Err(error)) => Err(Stage::Login.early(error)),
            Err(_) => Err(Stage::Login.early(late(limit))),
        }
    }

    /// A channel on which this command runs, once the other side says so.
    pub(super) async fn begin(&self, command: &str) -> Result<Channel<client::Msg>, russh::Error> {
        let channel = self.handle.channel_open_session().await?;
        channel.exec(true, command).await?;
        Ok(channel)
    }

    pub(super) fn is_lost(&self) -> bool {
        self.handle.is_closed()
    }

    /// Says goodbye, so that what was still to be told is told.
    pub(super) async fn leave(mut self) {
        let farewell = async {
            drop(self.handle.disconnect(Disconnect::ByApplication, "", "").await);
            drop(self.carrier.join_next().await);
        };
        drop(timeout(FAREWELL_MAX, farewell).await);
    }
}

/// One packet of the largest size each way, and room for the next.
const CARRIED_BYTES_MAX: usize = 128 * 1024;

/// Below the minute after which middleboxes forget who speaks to whom; and whoever does not answer three of them is gone.
const KEEPALIVE: Duration = Duration::from_secs(15);

fn config() -> Arc<client::Config> {
    Arc::new(client::Config {
        keepalive_interval: Some(KEEPALIVE),
        keepalive_max: 3,
        ..client::Config::default()
    })
}

/// Of what somebody else says, a line is enough to know who it is.
const SAID_CHARS_MAX: usize = 100;

/// RFC 4253 allows lines before the version; more than this is not SSH.
const GREETING_BYTES_MAX: usize = 8 * 1024;

pub(super) fn late(limit: Duration) -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, format!("nothing within {limit:?}"))
}

/// The socket, and what was read from it: the version line and what came with it.
async fn knock(address: &SshAddress) -> io::Result<(TcpStream, Vec<u8>)> {
    let mut socket = TcpStream::connect((address.host.as_str(), address.port)).await?;
    socket.set_nodelay(true)?;
    let mut heard = Vec::new();
    loop {
        if let Some(at) = version_at(&heard) {
            return Ok((socket, heard.split_off(at)));
        }
        if heard.len() > GREETING_BYTES_MAX {
            return Err(io::Error::other("it speaks something else"));
        }
        if socket.read_buf(&mut heard).await? == 0 {
            let said: String = String::from_utf8_lossy(&heard).chars().take(SAID_CHARS_MAX).collect();
            return Err(io::Error::other(format!("it hung up after {:?}", said.trim_end())));
        }
    }
}

/// Where the line with the version begins, once all of it is there.
fn version_at(heard: &[u8]) -> Option<usize> {
    let mut at = 0;
    for line in heard.split_inclusive(|byte| *byte == b'\n') {
        if line.starts_with(b"SSH-") && line.ends_with(b"\n") {
            return Some(at);
        }
        at += line.len();
    }
    None
}

async fn carry(mut socket: TcpStream, greeting: Vec<u8>, mut theirs: DuplexStream) -> io::Result<(u64, u64)> {
    theirs.write_all(&greeting).await?;
    tokio::io::copy_bidirectional(&mut socket, &mut theirs).await
}

/// Looks at the host key while the connection is made.
#[derive(Debug)]
pub(super) struct Guard {
    expected: Option<String>,
    seen: Arc<OnceLock<String>>,
}

impl client::Handler for Guard {
    type Error = russh::Error;

    async fn check_server_key(&mut self, shown: &PublicKeyOrCertificate) -> Result<bool, russh::Error> {
        let fingerprint = match shown {
            PublicKeyOrCertificate::PublicKey { key, .. } => key.fingerprint(HashAlg::Sha256),
            PublicKeyOrCertificate::Certificate(certificate) => {
                certificate.public_key().fingerprint(HashAlg::Sha256)
            }
        };
        // Also when keys are exchanged anew in the middle of a connection: the first one stands.
        let seen = self.seen.get_or_init(|| fingerprint.to_string());
        Ok(*seen == fingerprint.to_string() && self.expected.as_ref().is_none_or(|expected| expected == seen))
    }
}
