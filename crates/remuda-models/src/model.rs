//! What an engine gives: one small trait a capability. A copy owns its model, so nothing here is shared.

use std::fmt;

use crate::beacon::Beacon;
use crate::failure::Failure;
use crate::request::{Draw, Embedded, Generated, Look, Part, PartAnswer, Piece, Sampling, Seen};
use crate::spec::Capability;

pub trait TextEmbedding: Send {
    /// A vector of length 1 for each text.
    fn embed(&mut self, texts: &[&[u32]], beacon: &Beacon) -> Result<Vec<Vec<f32>>, Failure>;
}

pub trait TextToText: Send {
    /// Says pieces of the answer as they come, whole characters only, and nothing that could still become a stop text.
    fn generate(
        &mut self,
        prompt: &[u32],
        sampling: &Sampling,
        beacon: &Beacon,
        say: &mut dyn FnMut(Piece),
    ) -> Result<Generated, Failure>;
}

pub trait Vision: Send {
    fn look(&mut self, look: &Look, beacon: &Beacon) -> Result<Seen, Failure>;
}

pub trait ImageEmbedding: Send {
    fn embed(&mut self, image: &[u8], beacon: &Beacon) -> Result<Embedded, Failure>;
}

pub trait TextToImage: Send {
    /// A PNG file; says how far it is.
    fn draw(&mut self, draw: &Draw, beacon: &Beacon, say: &mut dyn FnMut(Piece)) -> Result<Vec<u8>, Failure>;
}

/// A loaded model.
pub enum Model {
    TextEmbedding(Box<dyn TextEmbedding>),
    TextToText(Box<dyn TextToText>),
    Vision(Box<dyn Vision>),
    ImageEmbedding(Box<dyn ImageEmbedding>),
    TextToImage(Box<dyn TextToImage>),
}

impl Model {
    pub fn capability(&self) -> Capability {
        match self {
            Model::TextEmbedding(_) => Capability::TextEmbedding,
            Model::TextToText(_) => Capability::TextToText,
            Model::Vision(_) => Capability::Vision,
            Model::ImageEmbedding(_) => Capability::ImageEmbedding,
            Model::TextToImage(_) => Capability::TextToImage,
        }
    }

    /// Answers a batch. Only texts to embed come in batches of more than one; a piece said belongs to the first part.
    pub fn answer(
        &mut self,
        batch: &[Part],
        beacon: &Beacon,
        say: &mut dyn FnMut(Piece),
    ) -> Result<Vec<PartAnswer>, Failure> {
        if let Model::TextEmbedding(model) = self {
            let texts = batch.iter().map(tokens).collect::<Result<Vec<_>, _>>()?;
            return Ok(model.embed(&texts, beacon)?.into_iter().map(PartAnswer::Vector).collect());
        }
        batch.iter().map(|part| self.answer_one(part, beacon, say)).collect()
    }

    fn answer_one(
        &mut self,
        part: &Part,
        beacon: &Beacon,
        say: &mut dyn FnMut(Piece),
    ) -> Result<PartAnswer, Failure> {
        match (self, part) {
            (Model::TextToText(model), Part::Prompt { tokens, sampling }) => {
                model.generate(tokens, sampling, beacon, say).map(PartAnswer::Text)
            }
            (Model::Vision(model), Part::Look(look)) => model.look(look, beacon).map(PartAnswer::Seen),
            (Model::ImageEmbedding(model), Part::Picture(image)) => {
                model.embed(image, beacon).map(PartAnswer::Picture)
            }
            (Model::TextToImage(model), Part::Draw(draw)) => {
                model.draw(draw, beacon, say).map(PartAnswer::Drawn)
            }
            (model, _) => Err(not_for(model.capability())),
        }
    }
}

fn tokens(part: &Part) -> Result<&[u32], Failure> {
    match part {
        Part::Tokens(tokens) => Ok(tokens),
        Part::Prompt { .. } | Part::Look(_) | Part::Picture(_) | Part::Draw(_) => {
            Err(not_for(Capability::TextEmbedding))
        }
    }
}

fn not_for(capability: Capability) -> Failure {
    Failure::Input(format!("a model for {capability} was given something else"))
}

impl fmt::Debug for Model {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Model({})", self.capability())
    }
}
