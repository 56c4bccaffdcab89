//! What a model gave, as a result of a job, and back again: for whoever asked over HTTP and waits for that job.
//!
//! ```json
//! { "model": "embed", "prompt_tokens": 5, "parts": [{ "vector": [0.1, 0.2] }], "outputs": [] }
//! { "model": "chat", "prompt_tokens": 9, "parts": [{ "text": "hi", "finish": "stop", "tokens": 1 }], "outputs": [] }
//! { "model": "draw", "prompt_tokens": 3, "parts": [{ "output": 0 }], "outputs": [{ "name": "drawn_00001.png", … }] }
//! { "model": "embed", "prompt_tokens": 9000, "parts": [{ "output": 0, "from": 0, "count": 384 }, …], "outputs": [{ … }] }
//! ```
//!
//! Pictures are blobs, and so are vectors that are many, all of them in one; listed as every other worker lists its outputs.

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
    /// So many of the numbers in one of the outputs.
    Numbers {
        output: usize,
        from: usize,
        count: usize,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        labels: Option<Vec<Label>>,
    },
    /// One of the outputs, a picture.
    Drawn {
        output: usize,
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
    let prompt_tokens = answer.prompt_tokens;
    let (parts, files) = sorted(answer);
    let mut outputs = Vec::new();
    for (at, file) in files.into_iter().enumerate() {
        let (key, ending, media) = match file {
            File::Picture(_) => ("images", "png", PNG),
            File::Numbers(_) => ("vectors", "f32", NUMBERS),
        };
        let (hash, size_bytes) = store(blobs, file.bytes()).await?;
        outputs.push(Output {
            node: model.to_owned(),
            key: key.to_owned(),
            name: format!("{model}_{:05}.{ending}", at + 1),
            kind: "output".to_owned(),
            media: media.to_owned(),
            hash,
            size_bytes,
        });
    }
    let given = Given { model: model.to_owned(), prompt_tokens, parts, outputs };
    to_raw_value(&given).map_err(|error| format!("the answer cannot be written: {error}"))
}

/// What is not written into the result itself.
#[derive(Debug)]
enum File {
    Picture(Vec<u8>),
    /// The low byte first.
    Numbers(Vec<u8>),
}

impl File {
    fn bytes(self) -> Bytes {
        match self {
            File::Picture(bytes) | File::Numbers(bytes) => bytes.into(),
        }
    }
}

/// The parts as they are written, and the files they refer to.
fn sorted(answer: Answer) -> (Vec<Part>, Vec<File>) {
    let are_many = answer.parts.iter().map(numbers_of).sum::<usize>() > NUMBERS_MAX;
    let (mut files, mut numbers) = (Vec::new(), Vec::new());
    let mut filed = |vector: &[f32], labels| {
        let from = numbers.len() / size_of::<f32>();
        numbers.extend(low_first(vector));
        // The numbers come before all pictures; no model gives both.
        Part::Numbers { output: 0, from, count: vector.len(), labels }
    };
    let parts = answer.parts.into_iter().map(|part| match part {
        PartAnswer::Text(text) => Part::Text(text),
        PartAnswer::Seen(seen) => Part::Seen { seen },
        PartAnswer::Vector(vector) if are_many => filed(&vector, None),
        PartAnswer::Vector(vector) => Part::Vector { vector },
        PartAnswer::Picture(Embedded { vector, labels }) if are_many => filed(&vector, Some(labels)),
        PartAnswer::Picture(Embedded { vector, labels }) => Part::Picture { vector, labels },
        PartAnswer::Drawn(png) => {
            files.push(File::Picture(png));
            Part::Drawn { output: files.len() - 1 }
        }
    });
    let parts = parts.collect();
    files.extend((!numbers.is_empty()).then_some(File::Numbers(numbers)));
    (parts, files)
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
        let read = |part| {
            Some(match part {
                Part::Text(text) => PartAnswer::Text(text),
                Part::Seen { seen } => PartAnswer::Seen(seen),
                Part::Vector { vector } => PartAnswer::Vector(vector),
                Part::Picture { vector, labels } => PartAnswer::Picture(Embedded { vector, labels }),
                Part::Drawn { output } => PartAnswer::Drawn(contents.get(output)?.clone()),
                Part::Numbers { output, from, count, labels } => {
                    let size = size_of::<f32>();
                    let bytes = from.checked_mul(size)?..from.checked_add(count)?.checked_mul(size)?;
                    let vector = numbers(contents.get(output)?.get(bytes)?);
                    match labels {
                        Some(labels) => PartAnswer::Picture(Embedded { vector, labels }),
                        None => PartAnswer::Vector(vector),
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
    fn what_is_large_is_read_from_its_files() {
        let label = Label { name: "cat".to_owned(), confidence: 0.5 };
        let vector = |seed: usize| (0..600).map(|at| (at * seed) as f32).collect::<Vec<_>>();
        let vectors = (0..40).map(|seed| PartAnswer::Vector(vector(seed))).collect();
        let embedded =
            |seed| PartAnswer::Picture(Embedded { vector: vector(seed), labels: vec![label.clone()] });
        let pictures = vec![PartAnswer::Drawn(vec![1, 2]), PartAnswer::Drawn(vec![3])];
        for (parts, expected) in [(vectors, 1), ((0..40).map(embedded).collect(), 1), (pictures, 2)] {
            let answer = Answer { parts, prompt_tokens: 1 };
            let (parts, files) = sorted(answer.clone());
            assert_eq!(files.len(), expected);
            let written = serde_json::to_string(&parts).unwrap();
            let parts = serde_json::from_str(&written).unwrap();
            let given = Given { model: "m".to_owned(), prompt_tokens: 1, parts, outputs: Vec::new() };
            let contents: Vec<_> = files.into_iter().map(|file| file.bytes().to_vec()).collect();
            assert_eq!(given.clone().answer(&contents), Some(answer));
            assert_eq!(given.answer(&[]), None, "a file that is not there");
        }
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
