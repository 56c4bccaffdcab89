//! The connection to a machine: port, host key, login.
//!
//! The library runs a connection in its own task, which our deadlines do not reach: it would keep a silent socket open
//! for as long as the socket lives. So this module owns the socket and forwards the bytes; dropping a `Connection`
//! closes it.

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

use super::settings::CLOSE_TIMEOUT;
use super::stage::Stage;
use super::{BootstrapSettings, PodInstance};

pub(super) struct Connection {
    handle: Handle<HostKeyCheck>,
    host_key: String,
    /// Forwards bytes to and from the socket; ends with this value.
    forwarder: JoinSet<io::Result<(u64, u64)>>,
}

impl Connection {
    pub(super) async fn open(
        address: &SshAddress,
        pod: &PodInstance,
        settings: &BootstrapSettings,
    ) -> Result<Connection, BootstrapError> {
        let timeouts = &settings.timeouts;
        let answered = timeout(timeouts.port, connect(address)).await;
        let (socket, greeting) =
            answered.unwrap_or_else(|_| Err(timed_out(timeouts.port))).map_err(|error| {
                Stage::Port
                    .not_ready(format!("{}:{} does not answer with SSH: {error}", address.host, address.port))
            })?;
        let mut forwarder = JoinSet::new();
        let (ours, theirs) = tokio::io::duplex(FORWARD_BUFFER_BYTES);
        forwarder.spawn(forward(socket, greeting, theirs));

        let check = HostKeyCheck { expected: settings.host_key.expected(pod), seen: Arc::default() };
        let (expected, seen) = (check.expected.clone(), Arc::clone(&check.seen));
        let handshake = timeout(timeouts.host_key, client::connect_stream(config(), ours, check)).await;
        let host_key = seen.get().cloned().unwrap_or_default();
        if let Some(expected) = expected.filter(|expected| !host_key.is_empty() && *expected != host_key) {
            return Err(Stage::HostKey.failed(format!(
                "its host key is {host_key} and must be {expected}: it is another machine, or the connection is intercepted"
            )));
        }
        let handle = match handshake {
            Ok(Ok(handle)) => handle,
            Ok(Err(error @ russh::Error::NoCommonAlgo { .. })) => return Err(Stage::HostKey.failed(error)),
            Ok(Err(error)) => return Err(Stage::HostKey.not_ready(error)),
            Err(_) => return Err(Stage::HostKey.not_ready(timed_out(timeouts.host_key))),
        };
        let mut connection = Connection { handle, host_key, forwarder };
        connection.log_in(settings.user.as_deref().unwrap_or(&address.user), settings).await?;
        Ok(connection)
    }

    /// The fingerprint of the host key.
    pub(super) fn host_key(&self) -> &str {
        &self.host_key
    }

    /// A start script may write `authorized_keys` long after sshd answers: a refusal is not final.
    async fn log_in(&mut self, user: &str, settings: &BootstrapSettings) -> Result<(), BootstrapError> {
        let key = PrivateKeyWithHashAlg::new(settings.key.private(), None);
        let limit = settings.timeouts.login;
        match timeout(limit, self.handle.authenticate_publickey(user, key)).await {
            Ok(Ok(answer)) if answer.success() => Ok(()),
            Ok(Ok(_)) => Err(Stage::Login.not_ready(format!(
                "login as {user} with our key was refused; is this key in its authorized_keys? {}",
                settings.key.public()
            ))),
            Ok(Err(error)) => Err(Stage::Login.not_ready(error)),
            Err(_) => Err(Stage::Login.not_ready(timed_out(limit))),
        }
    }

    /// Opens a channel and runs the command on it.
    pub(super) async fn exec(&self, command: &str) -> Result<Channel<client::Msg>, russh::Error> {
        let channel = self.handle.channel_open_session().await?;
        channel.exec(true, command).await?;
        Ok(channel)
    }

    pub(super) fn is_lost(&self) -> bool {
        self.handle.is_closed()
    }

    /// Disconnects, so that pending output is delivered.
    pub(super) async fn close(mut self) {
        let disconnect = async {
            drop(self.handle.disconnect(Disconnect::ByApplication, "", "").await);
            drop(self.forwarder.join_next().await);
        };
        drop(timeout(CLOSE_TIMEOUT, disconnect).await);
    }
}

/// One packet of the largest size in each direction, and space for the next.
const FORWARD_BUFFER_BYTES: usize = 128 * 1024;

/// Less than the minute after which middleboxes drop idle connections. A peer that misses three of them is gone.
const KEEPALIVE: Duration = Duration::from_secs(15);

fn config() -> Arc<client::Config> {
    Arc::new(client::Config {
        keepalive_interval: Some(KEEPALIVE),
        keepalive_max: 3,
        ..client::Config::default()
    })
}

/// One line is enough to recognise another protocol.
const GREETING_CHARS_MAX: usize = 100;

/// RFC 4253 allows lines before the version; more than this is not SSH.
const GREETING_BYTES_MAX: usize = 8 * 1024;

pub(super) fn timed_out(limit: Duration) -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, format!("no answer within {limit:?}"))
}

/// Connects and reads up to the version line. Returns the socket and what was read from that line on.
async fn connect(address: &SshAddress) -> io::Result<(TcpStream, Vec<u8>)> {
    let mut socket = TcpStream::connect((address.host.as_str(), address.port)).await?;
    socket.set_nodelay(true)?;
    let mut received = Vec::new();
    loop {
        if let Some(at) = version_at(&received) {
            return Ok((socket, received.split_off(at)));
        }
        if received.len() > GREETING_BYTES_MAX {
            return Err(io::Error::other("it is not an SSH server"));
        }
        if socket.read_buf(&mut received).await? == 0 {
            let greeting_text: String =
                String::from_utf8_lossy(&received).chars().take(GREETING_CHARS_MAX).collect();
            return Err(io::Error::other(format!(
                "it closed the connection after {:?}",
                greeting_text.trim_end()
            )));
        }
    }
}

/// Where the version line starts, once it is complete.
fn version_at(received: &[u8]) -> Option<usize> {
    let mut at = 0;
    for line in received.split_inclusive(|byte| *byte == b'\n') {
        if line.starts_with(b"SSH-") && line.ends_with(b"\n") {
            return Some(at);
        }
        at += line.len();
    }
    None
}

async fn forward(
    mut socket: TcpStream,
    greeting: Vec<u8>,
    mut theirs: DuplexStream,
) -> io::Result<(u64, u64)> {
    theirs.write_all(&greeting).await?;
    tokio::io::copy_bidirectional(&mut socket, &mut theirs).await
}

/// Checks the host key during the handshake.
#[derive(Debug)]
pub(super) struct HostKeyCheck {
    expected: Option<String>,
    seen: Arc<OnceLock<String>>,
}

impl client::Handler for HostKeyCheck {
    type Error = russh::Error;

    async fn check_server_key(&mut self, offered: &PublicKeyOrCertificate) -> Result<bool, russh::Error> {
        let fingerprint = match offered {
            PublicKeyOrCertificate::PublicKey { key, .. } => key.fingerprint(HashAlg::Sha256),
            PublicKeyOrCertificate::Certificate(certificate) => {
                certificate.public_key().fingerprint(HashAlg::Sha256)
            }
        };
        // Also on a rekey in the middle of a connection: the first host key counts.
        let seen = self.seen.get_or_init(|| fingerprint.to_string());
        Ok(*seen == fingerprint.to_string() && self.expected.as_ref().is_none_or(|expected| expected == seen))
    }
}
