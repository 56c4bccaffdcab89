//! A large file up and down, against a plain copy of the same file in the same place, and what that takes of memory.

use std::path::Path;
use std::time::Instant;

use anyhow::{Context as _, ensure};
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::figures::Figures;
use crate::plane_process::PlaneProcess;

const PIECE_BYTES: usize = 1 << 20;
const BOUNDARY: &str = "remuda-bench-boundary";
/// Each is done as often, and the quickest counts: a disk has moods.
const ROUNDS: u64 = 3;

pub(crate) async fn measure(table: &mut Figures, megabytes: usize, data: &Path) -> anyhow::Result<()> {
    let size = megabytes * 1_000_000;
    let copied = quickest(|round| copy(data, noise(size, round)))?;
    let limit = megabytes as f64 / copied;
    table.add("limit: plain file copy", limit, "MB/s", "written and synced, then read again".to_owned());
    let plane = PlaneProcess::start(&data.join("transfer")).await?;
    // Once for whatever is set up the first time.
    upload(&plane, &noise(PIECE_BYTES, 99)).await?;
    let before = plane.memory_peak_bytes()?;
    let (mut up, mut down) = (f64::MAX, f64::MAX);
    for round in 0..ROUNDS {
        let content = noise(size, round);
        let started = Instant::now();
        let id = upload(&plane, &content).await?;
        up = up.min(started.elapsed().as_secs_f64());
        let started = Instant::now();
        let received = download(&plane, &id).await?;
        down = down.min(started.elapsed().as_secs_f64());
        ensure!(received == size, "{received} bytes came back of {size}");
    }
    let grown = plane.memory_peak_bytes()?.saturating_sub(before);
    for (name, seconds) in [("up", up), ("down", down)] {
        let rate = megabytes as f64 / seconds;
        let note = format!("{:.2} of a plain copy", rate / limit);
        table.add(&format!("asset of {megabytes} MB, {name}"), rate, "MB/s", note);
    }
    let note = "more than before at its peak, up and down".to_owned();
    table.add(&format!("asset of {megabytes} MB: memory"), grown as f64 / 1e6, "MB", note);
    plane.kill().await
}

fn quickest(once: impl Fn(u64) -> anyhow::Result<f64>) -> anyhow::Result<f64> {
    (0..ROUNDS).map(once).try_fold(f64::MAX, |best, seconds| Ok(best.min(seconds?)))
}

/// Another content each time, so that nothing is known already.
fn noise(size: usize, round: u64) -> Vec<u8> {
    let mut state = round.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = Vec::with_capacity(size + 8);
    while bytes.len() < size {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(size);
    bytes
}

#[expect(clippy::needless_pass_by_value, reason = "made for it alone")]
fn copy(data: &Path, content: Vec<u8>) -> anyhow::Result<f64> {
    let path = data.join("copy");
    let started = Instant::now();
    let mut file = std::fs::File::create(&path)?;
    for piece in content.chunks(PIECE_BYTES) {
        std::io::Write::write_all(&mut file, piece)?;
    }
    file.sync_all()?;
    drop(file);
    let read = std::fs::read(&path)?;
    let seconds = started.elapsed().as_secs_f64();
    ensure!(read.len() == content.len(), "the copy is not whole");
    std::fs::remove_file(&path)?;
    Ok(seconds)
}

async fn upload(plane: &PlaneProcess, content: &[u8]) -> anyhow::Result<String> {
    let mut front = String::new();
    for (name, value) in [("content_type", "video/mp4"), ("file_path", "film.mp4")] {
        front +=
            &format!("--{BOUNDARY}\r\ncontent-disposition: form-data; name=\"{name}\"\r\n\r\n{value}\r\n");
    }
    front += &format!(
        "--{BOUNDARY}\r\ncontent-disposition: form-data; name=\"file\"; filename=\"film.mp4\"\r\n\r\n"
    );
    let back = format!("\r\n--{BOUNDARY}--\r\n");
    let length = front.len() + content.len() + back.len();
    let head = format!(
        "POST /api/v2/assets HTTP/1.1\r\nhost: {}\r\nconnection: close\r\ncontent-length: {length}\r\n\
         content-type: multipart/form-data; boundary={BOUNDARY}\r\n\r\n{front}",
        plane.address
    );
    let mut line = TcpStream::connect(&plane.address).await?;
    line.write_all(head.as_bytes()).await?;
    for piece in content.chunks(PIECE_BYTES) {
        line.write_all(piece).await?;
    }
    line.write_all(back.as_bytes()).await?;
    let mut answer = Vec::new();
    line.read_to_end(&mut answer).await?;
    let answer = String::from_utf8_lossy(&answer).into_owned();
    ensure!(answer.starts_with("HTTP/1.1 20"), "an upload was answered {answer}");
    let body = answer.split("\r\n\r\n").nth(1).context("an upload was answered without a word")?;
    let asset: Value = serde_json::from_str(body).with_context(|| format!("no asset in {body}"))?;
    Ok(asset["id"].as_str().context("the asset has no id")?.to_owned())
}

/// How much came.
async fn download(plane: &PlaneProcess, id: &str) -> anyhow::Result<usize> {
    let mut line = TcpStream::connect(&plane.address).await?;
    let head = format!(
        "GET /api/v2/assets/{id}/content HTTP/1.1\r\nhost: {}\r\nconnection: close\r\n\r\n",
        plane.address
    );
    line.write_all(head.as_bytes()).await?;
    let mut piece = vec![0; PIECE_BYTES];
    let mut head = Vec::new();
    let mut received = 0;
    loop {
        let size = line.read(&mut piece).await?;
        if size == 0 {
            return Ok(received);
        }
        if received > 0 {
            received += size;
            continue;
        }
        head.extend_from_slice(&piece[..size]);
        if let Some(end) = head.windows(4).position(|window| window == b"\r\n\r\n") {
            received = head.len() - end - 4;
        }
    }
}
