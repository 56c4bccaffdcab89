//! What callers send to a model, the parts a request is cut into, and the answers.
//!
//! A request is prepared on its caller's thread into [`RequestPart`]s. Parts wait in the queue, are batched with parts
//! of other requests and cross to child processes; each part is answered independently.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};

use serde::{Deserialize, Serialize};

use crate::spec::Capability;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "capability", rename_all = "snake_case")]
pub enum ModelRequest {
    TextEmbedding { texts: Vec<String> },
    TextToText(Chat),
    Vision(ImageQuery),
    ImageEmbedding { images: Vec<Vec<u8>> },
    TextToImage(ImagePrompt),
}

impl ModelRequest {
    pub fn capability(&self) -> Capability {
        match self {
            ModelRequest::TextEmbedding { .. } => Capability::TextEmbedding,
            ModelRequest::TextToText(_) => Capability::TextToText,
            ModelRequest::Vision(_) => Capability::Vision,
            ModelRequest::ImageEmbedding { .. } => Capability::ImageEmbedding,
            ModelRequest::TextToImage(_) => Capability::TextToImage,
        }
    }

    /// Chooses a random seed now if the request has none, so that a second copy repeats the same answer.
    pub fn fix_seed(&mut self) {
        // The standard library's hasher is seeded by the system.
        self.fix_seed_to(RandomState::new().build_hasher().finish());
    }

    /// As `fix_seed`, with this seed.
    pub fn fix_seed_to(&mut self, number: u64) {
        let seed = match self {
            ModelRequest::TextToText(chat) => &mut chat.sampling.seed,
            ModelRequest::TextToImage(draw) => &mut draw.seed,
            ModelRequest::TextEmbedding { .. }
            | ModelRequest::Vision(_)
            | ModelRequest::ImageEmbedding { .. } => return,
        };
        // One bit less, because some JSON readers use signed integers.
        seed.get_or_insert(number >> 1);
    }
}

/// A conversation whose next message the model generates.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Chat {
    pub messages: Vec<ChatMessage>,
    #[serde(flatten)]
    pub sampling: Sampling,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChatMessage {
    /// `system`, `user` or `assistant`, or another role of the model's template.
    pub role: String,
    pub content: String,
}

/// How tokens are sampled, and when generation ends.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Sampling {
    /// 0 always takes the likeliest token.
    pub temperature: f32,
    pub top_p: f32,
    pub top_k: Option<u32>,
    pub repeat_penalty: f32,
    /// The same seed gives the same text. Chosen at submission if absent.
    pub seed: Option<u64>,
    /// Default: the rest of the model's context.
    pub tokens_max: Option<u32>,
    /// Texts that end the answer and are not part of it.
    pub stop: Vec<String>,
}

impl Default for Sampling {
    fn default() -> Self {
        Sampling {
            temperature: 0.0,
            top_p: 1.0,
            top_k: None,
            repeat_penalty: 1.0,
            seed: None,
            tokens_max: None,
            stop: Vec::new(),
        }
    }
}

/// An image to read text from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageQuery {
    /// A PNG or JPEG file.
    pub image: Vec<u8>,
    /// A question about the image, for models that accept one.
    #[serde(default)]
    pub question: Option<String>,
}

/// A description of an image to generate.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ImagePrompt {
    pub prompt: String,
    #[serde(default)]
    pub negative_prompt: String,
    /// Default: the size the model was trained for.
    #[serde(default)]
    pub size: Option<(u32, u32)>,
    #[serde(default)]
    pub steps: Option<u32>,
    #[serde(default)]
    pub guidance: Option<f32>,
    #[serde(default)]
    pub seed: Option<u64>,
}

/// One unit of work for a copy.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum RequestPart {
    /// A text to embed, truncated to the model's maximum.
    Tokens(Vec<u32>),
    /// A conversation rendered through the model's template, with space left in its context.
    Prompt {
        tokens: Vec<u32>,
        sampling: Sampling,
    },
    Recognize(ImageQuery),
    /// An image to embed.
    EmbedImage(Vec<u8>),
    GenerateImage(ImagePrompt),
}

impl RequestPart {
    pub fn tokens(&self) -> usize {
        match self {
            RequestPart::Tokens(tokens) | RequestPart::Prompt { tokens, .. } => tokens.len(),
            RequestPart::Recognize(_) | RequestPart::EmbedImage(_) | RequestPart::GenerateImage(_) => 1,
        }
    }

    pub fn bytes(&self) -> usize {
        match self {
            RequestPart::Tokens(tokens) | RequestPart::Prompt { tokens, .. } => {
                tokens.len() * size_of::<u32>()
            }
            RequestPart::Recognize(look) => look.image.len(),
            RequestPart::EmbedImage(image) => image.len(),
            RequestPart::GenerateImage(draw) => draw.prompt.len() + draw.negative_prompt.len(),
        }
    }
}

/// What a copy emits while it works on a part.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum AnswerUpdate {
    /// The next piece of the generated text.
    Text(String),
    /// Progress of a long computation, from 0 to 1.
    Progress(f32),
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum PartAnswer {
    Vector(Vec<f32>),
    Text(GeneratedText),
    Recognized(RecognizedText),
    ImageVector(EmbeddedImage),
    /// A PNG file.
    Image(Vec<u8>),
}

/// A complete generated text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GeneratedText {
    pub text: String,
    pub finish: FinishReason,
    pub tokens: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FinishReason {
    /// The model ended the text, or a stop text was reached.
    Stop,
    /// The token limit was reached.
    Length,
}

/// The text read in an image.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RecognizedText {
    pub text: String,
    pub lines: Vec<TextLine>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TextLine {
    pub text: String,
    pub confidence: f32,
    /// The corners in the image, clockwise from the start of the text.
    pub corners: [(f32, f32); 4],
}

/// An image as a vector, with labels if the model has them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct EmbeddedImage {
    pub vector: Vec<f32>,
    pub labels: Vec<ImageLabel>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ImageLabel {
    pub name: String,
    pub confidence: f32,
}

/// The answer to a whole request, with its parts in order.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ModelAnswer {
    pub parts: Vec<PartAnswer>,
    /// The number of tokens in the request.
    pub prompt_tokens: u64,
}
