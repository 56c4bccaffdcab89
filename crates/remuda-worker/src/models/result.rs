//! Sends a model's answer to the plane: files as blobs first, then the result that names them; and the pieces of an
//! answer that is still being generated.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use remuda_core::wire::live::ProgressSnapshot;
use remuda_models::result::{SplitAnswer, write_streamed_text};
use remuda_models::{AnswerUpdate, ModelAnswer};
use serde_json::value::{RawValue, to_raw_value};
use tracing::warn;

use crate::blob_link::{BlobLink, BlobLinkError};
use crate::live_reports::ServiceMessage;

/// While the plane cannot take blobs, the worker keeps the answer and offers it this often.
const STORE_RETRY: Duration = Duration::from_secs(5);

/// Stores the answer's files; returns the result, or why there is none.
pub(super) async fn store_answer(
    model: &str,
    answer: ModelAnswer,
    blobs: &BlobLink,
) -> Result<Box<RawValue>, String> {
    let split = SplitAnswer::new(model, answer);
    let mut stored = Vec::new();
    for file in &split.files {
        stored.push(store_file(blobs, Bytes::copy_from_slice(file.bytes())).await?);
    }
    to_raw_value(&split.into_result(stored)).map_err(|error| format!("cannot serialise the answer: {error}"))
}

async fn store_file(blobs: &BlobLink, bytes: Bytes) -> Result<(String, u64), String> {
    loop {
        match blobs.store_bytes(bytes.clone()).await {
            Ok((hash, size_bytes)) => return Ok((hash.to_string(), size_bytes)),
            Err(error @ BlobLinkError::Unreachable { .. }) => {
                warn!(%error, "plane cannot store an output; retrying");
                tokio::time::sleep(STORE_RETRY).await;
            }
            Err(error) => return Err(format!("the plane refused an output: {error}")),
        }
    }
}

/// How much of a streamed answer has been reported.
#[derive(Debug, Default)]
pub(super) struct StreamedAnswer {
    /// Bytes of text reported so far.
    text_bytes: usize,
    pub(super) progress: f32,
}

impl StreamedAnswer {
    /// The next piece as a message and a snapshot for the live report, and as a phase for the beat.
    pub(super) fn report(
        &mut self,
        piece: AnswerUpdate,
    ) -> (Option<ServiceMessage>, Option<ProgressSnapshot>, String) {
        match piece {
            AnswerUpdate::Text(text) => {
                let raw = write_streamed_text(self.text_bytes, &text).map(Arc::from);
                self.text_bytes += text.len();
                (
                    raw.map(|raw| ServiceMessage { raw, supersedes: None }),
                    None,
                    format!("{} bytes", self.text_bytes),
                )
            }
            AnswerUpdate::Progress(progress) => {
                self.progress = progress.clamp(self.progress, 1.0);
                let value = f64::from(self.progress);
                let snapshot = ProgressSnapshot { value, nodes_total: 1, ..ProgressSnapshot::default() };
                (None, Some(snapshot), String::new())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use remuda_models::result::read_streamed_text;

    use super::*;

    #[test]
    fn streamed_text_is_reported_with_its_offset() {
        let mut streamed = StreamedAnswer::default();
        let mut report = |text: &str| streamed.report(AnswerUpdate::Text(text.to_owned())).0.unwrap();
        assert_eq!(read_streamed_text(&report("grün").raw), Some((0, "grün".to_owned())));
        assert_eq!(read_streamed_text(&report("!").raw), Some((5, "!".to_owned())));
    }
}
