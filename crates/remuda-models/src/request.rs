//! What is asked of a model, the parts it is cut into, and what comes back.
//!
//! A request is prepared on its caller's thread into [`Part`]s. Parts are what waits in the queue, what is batched with
//! parts of other requests, and what crosses to a child process; each is answered by itself.

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

    /// Draws now what would be left to chance: whoever begins the answer anew comes to the same one.
    pub fn fix_seed(&mut self) {
        let seed = match self {
            ModelRequest::TextToText(chat) => &mut chat.sampling.seed,
            ModelRequest::TextToImage(draw) => &mut draw.seed,
            ModelRequest::TextEmbedding { .. }
            | ModelRequest::Vision(_)
            | ModelRequest::ImageEmbedding { .. } => return,
        };
        // The standard library's hasher is seeded by the system; one bit less, as there are readers of JSON with a sign.
        seed.get_or_insert_with(|| RandomState::new().build_hasher().finish() >> 1);
    }
}

/// A conversation to go on with.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Chat {
    pub messages: Vec<ChatMessage>,
    #[serde(flatten)]
    pub sampling: Sampling,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChatMessage {
    /// `system`, `user` or `assistant`: what the model's template knows.
    pub role: String,
    pub content: String,
}

/// How the next token is chosen, and when it is enough.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Sampling {
    /// 0 takes the likeliest token every time.
    pub temperature: f32,
    pub top_p: f32,
    pub top_k: Option<u32>,
    pub repeat_penalty: f32,
    /// The same seed gives the same text; drawn when it is asked if there is none.
    pub seed: Option<u64>,
    /// By default as far as the model's context reaches.
    pub tokens_max: Option<u32>,
    /// Texts that end the answer and do not belong to it.
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

/// A picture to read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageQuery {
    /// A PNG or JPEG file.
    pub image: Vec<u8>,
    /// What to look for, for models that can be asked.
    #[serde(default)]
    pub question: Option<String>,
}

/// A picture to make.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ImagePrompt {
    pub prompt: String,
    #[serde(default)]
    pub negative_prompt: String,
    /// By default as large as the model was trained for.
    #[serde(default)]
    pub size: Option<(u32, u32)>,
    #[serde(default)]
    pub steps: Option<u32>,
    #[serde(default)]
    pub guidance: Option<f32>,
    #[serde(default)]
    pub seed: Option<u64>,
}

/// One piece of work that a copy answers: small enough to be done by one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum RequestPart {
    /// A text to embed, truncated to what the model reads.
    Tokens(Vec<u32>),
    /// A conversation through the model's template, with room left in its context.
    Prompt {
        tokens: Vec<u32>,
        sampling: Sampling,
    },
    Recognize(ImageQuery),
    /// A picture to embed.
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

/// What a copy says while it works on a part.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum AnswerUpdate {
    /// The next words of an answer.
    Text(String),
    /// How far a long piece of work is, from 0 to 1.
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

/// A text that was generated, whole.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GeneratedText {
    pub text: String,
    pub finish: FinishReason,
    pub tokens: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FinishReason {
    /// It came to an end, or to a text that ends it.
    Stop,
    /// It was as long as it was allowed to be.
    Length,
}

/// What was read in a picture.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RecognizedText {
    pub text: String,
    pub lines: Vec<TextLine>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TextLine {
    pub text: String,
    pub confidence: f32,
    /// Its corners in the picture, clockwise from where its text begins.
    pub corners: [(f32, f32); 4],
}

/// A picture as a vector, with what the model calls it if it can.
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

/// The answer to a whole request, its parts in their order.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ModelAnswer {
    pub parts: Vec<PartAnswer>,
    /// How many tokens the request was.
    pub prompt_tokens: u64,
}
