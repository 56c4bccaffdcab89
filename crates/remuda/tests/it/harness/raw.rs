//! A raw connection, for requests that no well-behaved client sends.

use std::net::SocketAddr;

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};

use super::WAIT_MAX;

#[derive(Debug)]
pub(crate) struct Raw(pub(crate) TcpStream);

impl Raw {
    pub(crate) async fn open(address: SocketAddr) -> Raw {
        Raw(TcpStream::connect(address).await.unwrap())
    }

    /// One that takes in only a little before the other side has to wait.
    pub(crate) async fn open_narrow(address: SocketAddr) -> Raw {
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_recv_buffer_size(4096).unwrap();
        Raw(socket.connect(address).await.unwrap())
    }

    /// The beginning of a submission, with these headers in it and no body yet.
    pub(crate) async fn submit(address: SocketAddr, headers: &str) -> Raw {
        let mut raw = Raw::open(address).await;
        raw.send(&format!("POST /remuda/v1/jobs HTTP/1.1\r\nhost: localhost\r\n{headers}\r\n\r\n")).await;
        raw
    }

    pub(crate) async fn send(&mut self, text: &str) {
        self.0.write_all(text.as_bytes()).await.unwrap();
    }

    /// Everything until the other side closes; the status and the error in it.
    pub(crate) async fn refusal(mut self) -> (u16, Value) {
        let text = tokio::time::timeout(WAIT_MAX, self.rest()).await.expect("an answer should have come");
        let status = text.split(' ').nth(1).unwrap_or_else(|| panic!("no answer in {text:?}"));
        let body = text.split_once("\r\n\r\n").unwrap().1;
        let body: Value = serde_json::from_str(body).unwrap_or_default();
        (status.parse().unwrap(), body["error"].clone())
    }

    /// The first line and headers that the other side sends.
    pub(crate) async fn head(&mut self) -> String {
        let mut text = Vec::new();
        while !text.ends_with(b"\r\n\r\n") {
            text.push(self.0.read_u8().await.unwrap());
        }
        String::from_utf8(text).unwrap()
    }

    /// What is answered first, whether the other side goes on listening or not.
    pub(crate) async fn answer(mut self) -> (u16, Value) {
        let mut text = Vec::new();
        loop {
            let read = String::from_utf8_lossy(&text).into_owned();
            let body =
                read.split_once("\r\n\r\n").and_then(|(_, body)| serde_json::from_str::<Value>(body).ok());
            if let Some(body) = body {
                let status = read.split(' ').nth(1).unwrap().parse().unwrap();
                return (status, body["error"].clone());
            }
            assert!(self.0.read_buf(&mut text).await.unwrap() > 0, "it was closed after {read:?}");
        }
    }

    /// Everything until the other side closes.
    pub(crate) async fn rest(&mut self) -> String {
        let mut text = Vec::new();
        // A connection that is cut rather than closed has ended too.
        self.0.read_to_end(&mut text).await.ok();
        String::from_utf8_lossy(&text).into_owned()
    }
}
