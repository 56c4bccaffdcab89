//! A file as a stream of pieces, read where waiting for the disk holds up nobody.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::{Stream, stream};

/// What a reader takes of memory.
const PIECE_BYTES: u64 = 256 << 10;

/// `length` bytes from `start` on. A file that ends before that is an error, so that nobody takes a part for the whole.
pub fn pieces(file: File, start: u64, length: u64) -> impl Stream<Item = io::Result<Bytes>> + Send + use<> {
    let file = Arc::new(file);
    stream::try_unfold((start, length), move |(at, left)| {
        let file = file.clone();
        async move {
            if left == 0 {
                return Ok(None);
            }
            let wanted = left.min(PIECE_BYTES);
            let read = tokio::task::spawn_blocking(move || {
                let mut piece = vec![0; usize::try_from(wanted).expect("a piece is small")];
                file.read_exact_at(&mut piece, at).map(|()| Bytes::from(piece))
            });
            let piece = read.await.map_err(io::Error::other)??;
            Ok(Some((piece, (at + wanted, left - wanted))))
        }
    })
}
