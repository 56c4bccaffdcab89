//! Errors of requests to a ComfyUI server, and how transport errors map to them.

use std::io;
use std::time::Duration;

use remuda_net::text::one_line;
use reqwest::StatusCode;

/// Why a request has no usable answer.
#[derive(Debug, thiserror::Error)]
pub enum ComfyuiError {
    /// The configured address or headers are invalid.
    #[error("{0}")]
    Target(String),
    /// Nothing was sent: the connection was refused, so the server is not running.
    #[error("ComfyUI refused the connection, is it running? {0}")]
    Gone(String),
    /// Nothing was sent: the network is down or too slow.
    #[error("cannot connect to ComfyUI: {0}")]
    Unreachable(String),
    /// The server may be busy; the effect of the request is unknown.
    #[error("ComfyUI did not answer within {0:?}")]
    Timeout(Duration),
    /// The connection broke during the request; the effect of the request is unknown.
    #[error("the connection to ComfyUI broke: {0}")]
    Broken(String),
    /// The requested item does not exist.
    #[error("ComfyUI has no {0}")]
    NotFound(String),
    /// The server refused the request or failed to handle it.
    #[error("ComfyUI answered {status} to {path}: {text}")]
    Status { status: u16, path: String, text: String },
    /// The answer is not that of a supported ComfyUI.
    #[error("ComfyUI's answer to {path} cannot be read: {why}")]
    Unreadable { path: String, why: String },
}

impl ComfyuiError {
    /// Whether nothing was sent, so that the request can have had no effect.
    pub fn is_unsent(&self) -> bool {
        matches!(self, ComfyuiError::Gone(_) | ComfyuiError::Unreachable(_) | ComfyuiError::Target(_))
    }
}

/// Only a refused connection shows that the server is down; a failed lookup or a blocked route may be our own problem.
pub(super) fn not_connected(cause: &(dyn std::error::Error + 'static)) -> ComfyuiError {
    let io = cause.downcast_ref::<io::Error>();
    if io.is_some_and(|error| error.kind() == io::ErrorKind::ConnectionRefused) {
        ComfyuiError::Gone(cause.to_string())
    } else {
        ComfyuiError::Unreachable(cause.to_string())
    }
}

/// The root cause: the outer layers only repeat it in other words.
pub(super) fn innermost<'a>(
    error: &'a (dyn std::error::Error + 'static),
) -> &'a (dyn std::error::Error + 'static) {
    let mut innermost = error;
    while let Some(cause) = innermost.source() {
        innermost = cause;
    }
    innermost
}

pub(super) fn refused(status: StatusCode, path: &str, body: &[u8]) -> ComfyuiError {
    let text = one_line(&String::from_utf8_lossy(&body[..body.len().min(2000)]), 200);
    ComfyuiError::Status { status: status.as_u16(), path: format!("/{path}"), text }
}

pub(super) fn unreadable(path: &str, why: &str) -> ComfyuiError {
    ComfyuiError::Unreadable { path: format!("/{path}"), why: why.to_owned() }
}
