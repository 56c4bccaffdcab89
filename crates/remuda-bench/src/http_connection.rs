//! A plain HTTP/1.1 connection that is kept open: the load must cost as little as possible beside what it measures.

use anyhow::{Context as _, bail};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

#[derive(Debug)]
pub(crate) struct HttpConnection {
    stream: TcpStream,
    out: Vec<u8>,
    read: Vec<u8>,
}

const ANSWER_BYTES_MAX: usize = 64 << 20;

impl HttpConnection {
    pub(crate) async fn open(address: &str) -> anyhow::Result<Self> {
        let stream =
            TcpStream::connect(address).await.with_context(|| format!("cannot connect to {address}"))?;
        stream.set_nodelay(true)?;
        Ok(HttpConnection { stream, out: Vec::new(), read: Vec::new() })
    }

    /// Sends a POST and gives the answer's status and body.
    pub(crate) async fn post(
        &mut self,
        path: &str,
        token: &str,
        body: &[u8],
    ) -> anyhow::Result<(u16, Vec<u8>)> {
        self.out.clear();
        let head = format!(
            "POST {path} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {token}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        self.out.extend_from_slice(head.as_bytes());
        self.out.extend_from_slice(body);
        self.stream.write_all(&self.out).await?;
        self.answer().await
    }

    async fn answer(&mut self) -> anyhow::Result<(u16, Vec<u8>)> {
        let head_end = loop {
            if let Some(end) = self.read.windows(4).position(|window| window == b"\r\n\r\n") {
                break end + 4;
            }
            self.fill().await?;
        };
        let head = std::str::from_utf8(&self.read[..head_end]).context("the answer's head is not text")?;
        let status =
            head.get(9..12).and_then(|code| code.parse().ok()).context("the answer has no status")?;
        let length = head
            .lines()
            .filter_map(|line| line.split_once(':'))
            .find(|(name, _)| name.eq_ignore_ascii_case("content-length"))
            .and_then(|(_, value)| value.trim().parse::<usize>().ok())
            .context("the answer has no length")?;
        if length > ANSWER_BYTES_MAX {
            bail!("an answer of {length} bytes");
        }
        while self.read.len() < head_end + length {
            self.fill().await?;
        }
        let body = self.read[head_end..head_end + length].to_vec();
        self.read.drain(..head_end + length);
        Ok((status, body))
    }

    async fn fill(&mut self) -> anyhow::Result<()> {
        if self.stream.read_buf(&mut self.read).await? == 0 {
            bail!("the plane closed the connection");
        }
        Ok(())
    }
}
