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
pub enum Request {
    TextEmbedding { texts: Vec<String> },
    TextToText(Chat),
    Vision(Look),
    ImageEmbedding { images: Vec<Vec<u8>> },
    TextToImage(Draw),
}

impl Request {
    pub fn capability(&self) -> Capability {
        match self {
            Request::TextEmbedding { .. } => Capability::TextEmbedding,
            Request::TextToText(_) => Capability::TextToText,
            Request::Vision(_) => Capability::Vision,
            Request::ImageEmbedding { .. } => Capability::ImageEmbedding,
            Request::TextToImage(_) => Capability::TextToImage,
        }
    }

    /// Draws now what would be left to chance: whoever begins the answer anew comes to the same one.
    pub fn draw_seed(&mut self) {
        let seed = match self {
            Request::TextToText(chat) => &mut chat.sampling.seed,
            Request::TextToImage(draw) => &mut draw.seed,
            Request::TextEmbedding { .. } | Request::Vision(_) | Request::ImageEmbedding { .. } => return,
        };
        // The standard library's hasher is seeded by the system; one bit less, as there are readers of JSON with a sign.
        seed.get_or_insert_with(|| RandomState::new().build_hasher().finish() >> 1);
    }
}

/// A conversation to go on with.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Chat {
    pub messages: Vec<Message>,
    #[serde(flatten)]
    pub sampling: Sampling,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Message {
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
pub struct Look {
    /// A PNG or JPEG file.
    pub image: Vec<u8>,
    /// What to look for, for models that can be asked.
    #[serde(default)]
    pub question: Option<String>,
}

/// A picture to make.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Draw {
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
pub enum Part {
    /// A text to embed, truncated to what the model reads.
    Tokens(Vec<u32>),
    /// A conversation through the model's template, with room left in its context.
    Prompt {
        tokens: Vec<u32>,
        sampling: Sampling,
    },
    Look(Look),
    /// A picture to embed.
    Picture(Vec<u8>),
    Draw(Draw),
}

impl Part {
    pub fn tokens(&self) -> usize {
        match self {
            Part::Tokens(tokens) | Part::Prompt { tokens, .. } => tokens.len(),
            Part::Look(_) | Part::Picture(_) | Part::Draw(_) => 1,
        }
    }

    pub fn bytes(&self) -> usize {
        match self {
            Part::Tokens(tokens) | Part::Prompt { tokens, .. } => tokens.len() * size_of::<u32>(),
            Part::Look(look) => look.image.len(),
            Part::Picture(image) => image.len(),
            Part::Draw(draw) => draw.prompt.len() + draw.negative_prompt.len(),
        }
    }
}

/// What a copy says while it works on a part.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Piece {
    /// The next words of an answer.
    Text(String),
    /// How far a long piece of work is, from 0 to 1.
    Progress(f32),
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum PartAnswer {
    Vector(Vec<f32>),
    Text(Generated),
    Seen(Seen),
    Picture(Embedded),
    /// A PNG file.
    Drawn(Vec<u8>),
}

/// A text that was generated, whole.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Generated {
    pub text: String,
    pub finish: Finish,
    pub tokens: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Finish {
    /// It came to an end, or to a text that ends it.
    Stop,
    /// It was as long as it was allowed to be.
    Length,
}

/// What was read in a picture.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Seen {
    pub text: String,
    pub lines: Vec<Line>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Line {
    pub text: String,
    pub confidence: f32,
    /// Its corners in the picture, clockwise from where its text begins.
    pub corners: [(f32, f32); 4],
}

/// A picture as a vector, with what the model calls it if it can.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Embedded {
    pub vector: Vec<f32>,
    pub labels: Vec<Label>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Label {
    pub name: String,
    pub confidence: f32,
}

/// The answer to a whole request, its parts in their order.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Answer {
    pub parts: Vec<PartAnswer>,
    /// How many tokens the request was.
    pub prompt_tokens: u64,
}
