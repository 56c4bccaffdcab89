//! A file as a stream of chunks, read on tokio's blocking threads.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::{Stream, stream};

/// The memory per reader.
const CHUNK_BYTES: u64 = 256 << 10;

/// `length` bytes from `start` on. A shorter file is an error, so that a truncated blob is never taken for complete.
pub fn read_chunks(
    file: File,
    start: u64,
    length: u64,
) -> impl Stream<Item = io::Result<Bytes>> + Send + use<> {
    let file = Arc::new(file);
    stream::try_unfold((start, length), move |(at, left)| {
        let file = file.clone();
        async move {
            if left == 0 {
                return Ok(None);
            }
            let length = left.min(CHUNK_BYTES);
            let read = tokio::task::spawn_blocking(move || {
                let mut chunk = vec![0; usize::try_from(length).expect("a chunk fits into memory")];
                file.read_exact_at(&mut chunk, at).map(|()| Bytes::from(chunk))
            });
            let chunk = read.await.map_err(io::Error::other)??;
            Ok(Some((chunk, (at + length, left - length))))
        }
    })
}
