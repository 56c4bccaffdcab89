//! What a model gave, as a result of a job, and back again: for whoever asked over HTTP and waits for that job.
//!
//! ```json
//! { "model": "embed", "prompt_tokens": 5, "parts": [{ "vector": [0.1, 0.2] }], "outputs": [] }
//! { "model": "chat", "prompt_tokens": 9, "parts": [{ "text": "hi", "finish": "stop", "tokens": 1 }], "outputs": [] }
//! { "model": "draw", "prompt_tokens": 3, "parts": [{ "output": 0 }], "outputs": [{ "name": "drawn_00001.png", … }] }
//! ```
//!
//! Pictures, and vectors that are many, are blobs, listed as every other worker lists its outputs.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use remuda_adapters::blobs::BlobHash;
use remuda_pool::request::{Embedded, Generated, Label, Seen};
use remuda_pool::{Answer, PartAnswer, Piece};
use serde::{Deserialize, Serialize};
use serde_json::json;
use serde_json::value::{RawValue, to_raw_value};
use tracing::warn;

use crate::live::Snapshot;
use crate::worker::blobs::{BlobLink, LinkError};
use crate::worker::reports::Said;

/// More numbers than this are a file: results are read whole and kept for long.
const NUMBERS_MAX: usize = 16 << 10;
/// While the plane's blobs are out of reach the answer is kept here, and offered again and again.
const STORE_AGAIN: Duration = Duration::from_secs(5);

/// An answer as it stands in a result.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Given {
    pub(crate) model: String,
    prompt_tokens: u64,
    parts: Vec<Part>,
    pub(crate) outputs: Vec<Output>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
enum Part {
    Text(Generated),
    Seen {
        seen: Seen,
    },
    Picture {
        vector: Vec<f32>,
        labels: Vec<Label>,
    },
    Vector {
        vector: Vec<f32>,
    },
    /// One of the outputs: a picture, or a vector of numbers of 32 bits, the low byte first.
    Output {
        output: usize,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        labels: Option<Vec<Label>>,
    },
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Output {
    node: String,
    key: String,
    name: String,
    #[serde(rename = "type")]
    kind: String,
    media: String,
    pub(crate) hash: BlobHash,
    pub(crate) size_bytes: u64,
}

const PNG: &str = "image/png";
const NUMBERS: &str = "application/octet-stream";

/// Stores what belongs into blobs; the result, or why there is none.
pub(super) async fn bring_home(
    model: &str,
    answer: Answer,
    blobs: &BlobLink,
) -> Result<Box<RawValue>, String> {
    let numbers: usize = answer.parts.iter().map(numbers_of).sum();
    let (mut parts, mut outputs) = (Vec::new(), Vec::new());
    for part in answer.parts {
        let (bytes, media, labels) = match part {
            PartAnswer::Text(text) => {
                parts.push(Part::Text(text));
                continue;
            }
            PartAnswer::Seen(seen) => {
                parts.push(Part::Seen { seen });
                continue;
            }
            PartAnswer::Vector(vector) if numbers <= NUMBERS_MAX => {
                parts.push(Part::Vector { vector });
                continue;
            }
            PartAnswer::Picture(Embedded { vector, labels }) if numbers <= NUMBERS_MAX => {
                parts.push(Part::Picture { vector, labels });
                continue;
            }
            PartAnswer::Vector(vector) => (low_first(&vector), NUMBERS, None),
            PartAnswer::Picture(Embedded { vector, labels }) => (low_first(&vector), NUMBERS, Some(labels)),
            PartAnswer::Drawn(png) => (png, PNG, None),
        };
        parts.push(Part::Output { output: outputs.len(), labels });
        let (hash, size_bytes) = store(blobs, bytes.into()).await?;
        let (key, name) = match media {
            PNG => ("images", format!("drawn_{:05}.png", outputs.len() + 1)),
            _ => ("vectors", format!("vector_{:05}.f32", outputs.len() + 1)),
        };
        let (node, kind) = (model.to_owned(), "output".to_owned());
        let (key, media) = (key.to_owned(), media.to_owned());
        outputs.push(Output { node, key, name, kind, media, hash, size_bytes });
    }
    let given = Given { model: model.to_owned(), prompt_tokens: answer.prompt_tokens, parts, outputs };
    to_raw_value(&given).map_err(|error| format!("the answer cannot be written: {error}"))
}

async fn store(blobs: &BlobLink, bytes: Bytes) -> Result<(BlobHash, u64), String> {
    loop {
        match blobs.store_bytes(bytes.clone()).await {
            Ok(stored) => return Ok(stored),
            Err(error @ LinkError::Unreachable { .. }) => {
                warn!(%error, "the plane does not take an output now; trying on");
                tokio::time::sleep(STORE_AGAIN).await;
            }
            Err(error) => return Err(format!("an output is not taken by the plane: {error}")),
        }
    }
}

impl Given {
    /// The answer it was; `contents` has what is in its outputs, in their order.
    pub(crate) fn answer(self, contents: &[Vec<u8>]) -> Option<Answer> {
        let outputs = &self.outputs;
        let read = |part| {
            Some(match part {
                Part::Text(text) => PartAnswer::Text(text),
                Part::Seen { seen } => PartAnswer::Seen(seen),
                Part::Vector { vector } => PartAnswer::Vector(vector),
                Part::Picture { vector, labels } => PartAnswer::Picture(Embedded { vector, labels }),
                Part::Output { output, labels } => {
                    let (listed, content) = (outputs.get(output)?, contents.get(output)?);
                    match (listed.media.as_str(), labels) {
                        (PNG, _) => PartAnswer::Drawn(content.clone()),
                        (_, None) => PartAnswer::Vector(numbers(content)),
                        (_, Some(labels)) => {
                            PartAnswer::Picture(Embedded { vector: numbers(content), labels })
                        }
                    }
                }
            })
        };
        let parts = self.parts.into_iter().map(read).collect::<Option<_>>()?;
        Some(Answer { parts, prompt_tokens: self.prompt_tokens })
    }
}

fn numbers_of(part: &PartAnswer) -> usize {
    match part {
        PartAnswer::Vector(vector) | PartAnswer::Picture(Embedded { vector, .. }) => vector.len(),
        PartAnswer::Text(_) | PartAnswer::Seen(_) | PartAnswer::Drawn(_) => 0,
    }
}

fn low_first(vector: &[f32]) -> Vec<u8> {
    vector.iter().flat_map(|number| number.to_le_bytes()).collect()
}

fn numbers(content: &[u8]) -> Vec<f32> {
    let four = |bytes: &[u8]| bytes.try_into().map(f32::from_le_bytes).unwrap_or_default();
    content.chunks_exact(size_of::<f32>()).map(four).collect()
}

/// What was said of an answer so far.
#[derive(Debug, Default)]
pub(super) struct Told {
    /// How much of the text was told, in bytes.
    at: usize,
    pub(super) progress: f32,
}

/// What a text is told as, among the messages of a live report.
const TEXT: &str = "text";

impl Told {
    /// For the live report, and in words for the beat.
    pub(super) fn hear(&mut self, piece: Piece) -> (Option<Said>, Option<Snapshot>, String) {
        match piece {
            Piece::Text(text) => {
                let at = self.at;
                self.at += text.len();
                let told = json!({ "type": TEXT, "data": { "at": at, "text": text } });
                let raw = to_raw_value(&told).ok().map(Arc::from);
                (raw.map(|raw| Said { raw, count_of: None }), None, format!("{} letters", self.at))
            }
            Piece::Progress(progress) => {
                self.progress = progress.clamp(self.progress, 1.0);
                let value = f64::from(self.progress);
                let snapshot = Snapshot { value, nodes_total: 1, ..Snapshot::default() };
                (None, Some(snapshot), String::new())
            }
        }
    }
}

/// A text that stands in a live report, and where it begins.
pub(crate) fn read_text(message: &RawValue) -> Option<(usize, String)> {
    #[derive(Deserialize)]
    struct Message {
        r#type: String,
        data: Data,
    }
    #[derive(Deserialize)]
    struct Data {
        at: usize,
        text: String,
    }
    let Message { r#type, data } = serde_json::from_str(message.get()).ok()?;
    (r#type == TEXT).then_some((data.at, data.text))
}

#[cfg(test)]
mod tests {
    use remuda_pool::request::Finish;

    use super::*;

    #[tokio::test]
    async fn an_answer_is_the_same_after_it_was_a_result() {
        let nowhere = BlobLink::new("http://127.0.0.1:9", "");
        let text = Generated { text: "hi".to_owned(), finish: Finish::Length, tokens: 1 };
        let label = Label { name: "cat".to_owned(), confidence: 0.5 };
        for part in [
            PartAnswer::Vector(vec![0.1, -0.2]),
            PartAnswer::Text(text),
            PartAnswer::Seen(Seen { text: "STOP".to_owned(), lines: Vec::new() }),
            PartAnswer::Picture(Embedded { vector: vec![1.0], labels: vec![label] }),
        ] {
            let answer = Answer { parts: vec![part.clone(), part], prompt_tokens: 7 };
            let result = bring_home("m", answer.clone(), &nowhere).await.unwrap();
            let given: Given = serde_json::from_str(result.get()).unwrap();
            assert_eq!(given.answer(&[]), Some(answer), "{result}");
        }
    }

    #[test]
    fn what_is_in_blobs_is_read_from_them() {
        let hash = BlobHash::of(b"");
        let output = |media: &str| json!({ "node": "m", "key": "k", "name": "n", "type": "output", "media": media, "hash": hash, "size_bytes": 4 });
        let given = json!({
            "model": "m", "prompt_tokens": 1, "parts": [{ "output": 1 }, { "output": 0 }],
            "outputs": [output(PNG), output(NUMBERS)],
        });
        let given: Given = serde_json::from_value(given).unwrap();
        let contents = [vec![1, 2, 3, 4], low_first(&[0.25])];
        let parts = vec![PartAnswer::Vector(vec![0.25]), PartAnswer::Drawn(vec![1, 2, 3, 4])];
        assert_eq!(given.clone().answer(&contents), Some(Answer { parts, prompt_tokens: 1 }));
        assert_eq!(given.answer(&contents[..1]), None);
    }

    #[test]
    fn a_text_is_told_with_where_it_begins() {
        let mut told = Told::default();
        let mut hear = |text: &str| told.hear(Piece::Text(text.to_owned())).0.unwrap();
        assert_eq!(read_text(&hear("grün").raw), Some((0, "grün".to_owned())));
        assert_eq!(read_text(&hear("!").raw), Some((5, "!".to_owned())));
        let other = RawValue::from_string(r#"{"type":"executing","data":{"node":"1"}}"#.to_owned()).unwrap();
        assert_eq!(read_text(&other), None);
    }
}
