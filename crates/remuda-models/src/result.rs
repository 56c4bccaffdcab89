//! A model's answer as the result of a job, and back: what a worker writes, and what the plane reads for a caller that
//! waits for the job.
//!
//! ```json
//! { "model": "embed", "prompt_tokens": 5, "parts": [{ "vector": [0.1, 0.2] }], "outputs": [] }
//! { "model": "chat", "prompt_tokens": 9, "parts": [{ "text": "hi", "finish": "stop", "tokens": 1 }], "outputs": [] }
//! { "model": "draw", "prompt_tokens": 3, "parts": [{ "output": 0 }], "outputs": [{ "name": "drawn_00001.png", … }] }
//! { "model": "embed", "prompt_tokens": 9000, "parts": [{ "output": 0, "from": 0, "count": 384 }, …], "outputs": [{ … }] }
//! ```
//!
//! Images are files. So are large sets of vectors, all of them in one file. Files are listed the way every other worker
//! lists its outputs; storing them is the caller's business.

use serde::{Deserialize, Serialize};
use serde_json::json;
use serde_json::value::{RawValue, to_raw_value};

use crate::request::{EmbeddedImage, GeneratedText, ImageLabel, ModelAnswer, PartAnswer, RecognizedText};

/// More numbers than this go into a file: results are read whole and kept for long.
const INLINE_NUMBERS_MAX: usize = 16 << 10;

/// The result of a job that called a model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ModelResult {
    pub model: String,
    prompt_tokens: u64,
    parts: Vec<ResultPart>,
    pub outputs: Vec<ResultFile>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
enum ResultPart {
    Text(GeneratedText),
    Recognized {
        recognized: RecognizedText,
    },
    LabelledVector {
        vector: Vec<f32>,
        labels: Vec<ImageLabel>,
    },
    Vector {
        vector: Vec<f32>,
    },
    /// A range of the numbers in one of the outputs.
    VectorInFile {
        output: usize,
        from: usize,
        count: usize,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        labels: Option<Vec<ImageLabel>>,
    },
    /// One of the outputs, an image.
    ImageFile {
        output: usize,
    },
}

/// An output file, named by the hash under which the caller stored it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ResultFile {
    node: String,
    key: String,
    name: String,
    #[serde(rename = "type")]
    kind: String,
    media: String,
    pub hash: String,
    pub size_bytes: u64,
}

/// An answer cut into what stands in the result and what goes into files.
#[derive(Debug)]
pub struct SplitAnswer {
    model: String,
    prompt_tokens: u64,
    parts: Vec<ResultPart>,
    pub files: Vec<OutputContent>,
}

/// The content of an output file.
#[derive(Clone, Debug, PartialEq)]
pub enum OutputContent {
    Png(Vec<u8>),
    /// `f32`, little endian.
    Numbers(Vec<u8>),
}

impl OutputContent {
    pub fn bytes(&self) -> &[u8] {
        match self {
            OutputContent::Png(bytes) | OutputContent::Numbers(bytes) => bytes,
        }
    }

    /// The output key, the file extension and the media type.
    fn description(&self) -> (&'static str, &'static str, &'static str) {
        match self {
            OutputContent::Png(_) => ("images", "png", "image/png"),
            OutputContent::Numbers(_) => ("vectors", "f32", "application/octet-stream"),
        }
    }
}

impl SplitAnswer {
    pub fn new(model: &str, answer: ModelAnswer) -> SplitAnswer {
        let is_large = answer.parts.iter().map(numbers_in).sum::<usize>() > INLINE_NUMBERS_MAX;
        let (mut files, mut numbers) = (Vec::new(), Vec::new());
        let mut into_file = |vector: &[f32], labels| {
            let from = numbers.len() / size_of::<f32>();
            numbers.extend(vector.iter().flat_map(|number| number.to_le_bytes()));
            // The file of numbers is output 0: no model returns both numbers and images.
            ResultPart::VectorInFile { output: 0, from, count: vector.len(), labels }
        };
        let parts = answer.parts.into_iter().map(|part| match part {
            PartAnswer::Text(text) => ResultPart::Text(text),
            PartAnswer::Recognized(recognized) => ResultPart::Recognized { recognized },
            PartAnswer::Vector(vector) if is_large => into_file(&vector, None),
            PartAnswer::Vector(vector) => ResultPart::Vector { vector },
            PartAnswer::ImageVector(EmbeddedImage { vector, labels }) if is_large => {
                into_file(&vector, Some(labels))
            }
            PartAnswer::ImageVector(EmbeddedImage { vector, labels }) => {
                ResultPart::LabelledVector { vector, labels }
            }
            PartAnswer::Image(png) => {
                files.push(OutputContent::Png(png));
                ResultPart::ImageFile { output: files.len() - 1 }
            }
        });
        let parts = parts.collect();
        files.extend((!numbers.is_empty()).then_some(OutputContent::Numbers(numbers)));
        SplitAnswer { model: model.to_owned(), prompt_tokens: answer.prompt_tokens, parts, files }
    }

    /// The result, given the hash and size under which each of `files` was stored, in their order.
    pub fn into_result(self, stored: Vec<(String, u64)>) -> ModelResult {
        let SplitAnswer { model, prompt_tokens, parts, files } = self;
        let outputs = files.iter().zip(stored).enumerate().map(|(at, (file, (hash, size_bytes)))| {
            let (key, extension, media) = file.description();
            ResultFile {
                node: model.clone(),
                key: key.to_owned(),
                name: format!("{model}_{:05}.{extension}", at + 1),
                kind: "output".to_owned(),
                media: media.to_owned(),
                hash,
                size_bytes,
            }
        });
        let outputs = outputs.collect();
        ModelResult { model, prompt_tokens, parts, outputs }
    }
}

impl ModelResult {
    /// The answer it was written from; `contents` holds the content of each output, in their order.
    pub fn into_answer(self, contents: &[Vec<u8>]) -> Option<ModelAnswer> {
        let read = |part| {
            Some(match part {
                ResultPart::Text(text) => PartAnswer::Text(text),
                ResultPart::Recognized { recognized } => PartAnswer::Recognized(recognized),
                ResultPart::Vector { vector } => PartAnswer::Vector(vector),
                ResultPart::LabelledVector { vector, labels } => {
                    PartAnswer::ImageVector(EmbeddedImage { vector, labels })
                }
                ResultPart::ImageFile { output } => PartAnswer::Image(contents.get(output)?.clone()),
                ResultPart::VectorInFile { output, from, count, labels } => {
                    let size = size_of::<f32>();
                    let bytes = from.checked_mul(size)?..from.checked_add(count)?.checked_mul(size)?;
                    let vector = read_numbers(contents.get(output)?.get(bytes)?);
                    match labels {
                        Some(labels) => PartAnswer::ImageVector(EmbeddedImage { vector, labels }),
                        None => PartAnswer::Vector(vector),
                    }
                }
            })
        };
        let parts = self.parts.into_iter().map(read).collect::<Option<_>>()?;
        Some(ModelAnswer { parts, prompt_tokens: self.prompt_tokens })
    }
}

fn numbers_in(part: &PartAnswer) -> usize {
    match part {
        PartAnswer::Vector(vector) | PartAnswer::ImageVector(EmbeddedImage { vector, .. }) => vector.len(),
        PartAnswer::Text(_) | PartAnswer::Recognized(_) | PartAnswer::Image(_) => 0,
    }
}

fn read_numbers(content: &[u8]) -> Vec<f32> {
    let number = |bytes: &[u8]| bytes.try_into().map(f32::from_le_bytes).unwrap_or_default();
    content.chunks_exact(size_of::<f32>()).map(number).collect()
}

/// The message type of streamed text in a live report.
const TEXT: &str = "text";

/// A piece of generated text as a message of a live report; `at` is its offset in bytes.
pub fn write_streamed_text(at: usize, text: &str) -> Option<Box<RawValue>> {
    to_raw_value(&json!({ "type": TEXT, "data": { "at": at, "text": text } })).ok()
}

/// The offset and text of a message that `write_streamed_text` wrote; nothing for any other message.
pub fn read_streamed_text(message: &RawValue) -> Option<(usize, String)> {
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
    use super::*;
    use crate::request::FinishReason;

    fn round_trip(answer: &ModelAnswer) -> (ModelResult, Vec<Vec<u8>>) {
        let split = SplitAnswer::new("m", answer.clone());
        let contents: Vec<_> = split.files.iter().map(|file| file.bytes().to_vec()).collect();
        let stored = contents.iter().map(|content| ("blake3:00".to_owned(), content.len() as u64)).collect();
        let written = serde_json::to_string(&split.into_result(stored)).unwrap();
        (serde_json::from_str(&written).unwrap(), contents)
    }

    #[test]
    fn answer_survives_being_written_as_result() {
        let text = GeneratedText { text: "hi".to_owned(), finish: FinishReason::Length, tokens: 1 };
        let label = ImageLabel { name: "cat".to_owned(), confidence: 0.5 };
        for part in [
            PartAnswer::Vector(vec![0.1, -0.2]),
            PartAnswer::Text(text),
            PartAnswer::Recognized(RecognizedText { text: "STOP".to_owned(), lines: Vec::new() }),
            PartAnswer::ImageVector(EmbeddedImage { vector: vec![1.0], labels: vec![label] }),
        ] {
            let answer = ModelAnswer { parts: vec![part.clone(), part], prompt_tokens: 7 };
            let (result, contents) = round_trip(&answer);
            assert!(contents.is_empty());
            assert_eq!(result.into_answer(&[]), Some(answer));
        }
    }

    #[test]
    fn large_answer_is_read_from_its_files() {
        let label = ImageLabel { name: "cat".to_owned(), confidence: 0.5 };
        let vector = |seed: usize| (0..600).map(|at| (at * seed) as f32).collect::<Vec<_>>();
        let vectors = (0..40).map(|seed| PartAnswer::Vector(vector(seed))).collect();
        let embedded = |seed| {
            PartAnswer::ImageVector(EmbeddedImage { vector: vector(seed), labels: vec![label.clone()] })
        };
        let images = vec![PartAnswer::Image(vec![1, 2]), PartAnswer::Image(vec![3])];
        for (parts, expected) in [(vectors, 1), ((0..40).map(embedded).collect(), 1), (images, 2)] {
            let answer = ModelAnswer { parts, prompt_tokens: 1 };
            let (result, contents) = round_trip(&answer);
            assert_eq!((contents.len(), result.outputs.len()), (expected, expected));
            assert_eq!(result.clone().into_answer(&contents), Some(answer));
            assert_eq!(result.into_answer(&[]), None, "a file is missing");
        }
    }

    #[test]
    fn streamed_text_carries_its_offset() {
        let read = |at, text: &str| read_streamed_text(&write_streamed_text(at, text).unwrap());
        assert_eq!(read(5, "grün"), Some((5, "grün".to_owned())));
        let other = RawValue::from_string(r#"{"type":"executing","data":{"node":"1"}}"#.to_owned()).unwrap();
        assert_eq!(read_streamed_text(&other), None);
    }
}
