//! The interface of a loaded model: one small trait per capability. A copy owns its model, so nothing here is shared.

use std::fmt;

use crate::beacon::Beacon;
use crate::failure::InferenceError;
use crate::request::{
    AnswerUpdate, EmbeddedImage, GeneratedText, ImagePrompt, ImageQuery, PartAnswer, RecognizedText,
    RequestPart, Sampling,
};
use crate::spec::Capability;

pub trait TextEmbedding: Send {
    /// Returns a unit vector for each text.
    fn embed(&mut self, texts: &[&[u32]], beacon: &Beacon) -> Result<Vec<Vec<f32>>, InferenceError>;
}

pub trait TextToText: Send {
    /// Emits the text as it is generated: whole characters only, and nothing that could still become a stop text.
    fn generate(
        &mut self,
        prompt: &[u32],
        sampling: &Sampling,
        beacon: &Beacon,
        emit: &mut dyn FnMut(AnswerUpdate),
    ) -> Result<GeneratedText, InferenceError>;
}

pub trait Vision: Send {
    fn look(&mut self, look: &ImageQuery, beacon: &Beacon) -> Result<RecognizedText, InferenceError>;
}

pub trait ImageEmbedding: Send {
    fn embed(&mut self, image: &[u8], beacon: &Beacon) -> Result<EmbeddedImage, InferenceError>;
}

pub trait TextToImage: Send {
    /// Returns a PNG file; emits progress while it works.
    fn draw(
        &mut self,
        draw: &ImagePrompt,
        beacon: &Beacon,
        emit: &mut dyn FnMut(AnswerUpdate),
    ) -> Result<Vec<u8>, InferenceError>;
}

/// A loaded model of any capability.
pub enum LoadedModel {
    TextEmbedding(Box<dyn TextEmbedding>),
    TextToText(Box<dyn TextToText>),
    Vision(Box<dyn Vision>),
    ImageEmbedding(Box<dyn ImageEmbedding>),
    TextToImage(Box<dyn TextToImage>),
}

impl LoadedModel {
    pub fn capability(&self) -> Capability {
        match self {
            LoadedModel::TextEmbedding(_) => Capability::TextEmbedding,
            LoadedModel::TextToText(_) => Capability::TextToText,
            LoadedModel::Vision(_) => Capability::Vision,
            LoadedModel::ImageEmbedding(_) => Capability::ImageEmbedding,
            LoadedModel::TextToImage(_) => Capability::TextToImage,
        }
    }

    /// Answers a batch. Only texts to embed come in batches of more than one; emitted updates belong to the first part.
    pub fn answer(
        &mut self,
        batch: &[RequestPart],
        beacon: &Beacon,
        emit: &mut dyn FnMut(AnswerUpdate),
    ) -> Result<Vec<PartAnswer>, InferenceError> {
        if let LoadedModel::TextEmbedding(model) = self {
            let texts = batch.iter().map(tokens).collect::<Result<Vec<_>, _>>()?;
            return Ok(model.embed(&texts, beacon)?.into_iter().map(PartAnswer::Vector).collect());
        }
        batch.iter().map(|part| self.answer_one(part, beacon, emit)).collect()
    }

    fn answer_one(
        &mut self,
        part: &RequestPart,
        beacon: &Beacon,
        emit: &mut dyn FnMut(AnswerUpdate),
    ) -> Result<PartAnswer, InferenceError> {
        match (self, part) {
            (LoadedModel::TextToText(model), RequestPart::Prompt { tokens, sampling }) => {
                model.generate(tokens, sampling, beacon, emit).map(PartAnswer::Text)
            }
            (LoadedModel::Vision(model), RequestPart::Recognize(look)) => {
                model.look(look, beacon).map(PartAnswer::Recognized)
            }
            (LoadedModel::ImageEmbedding(model), RequestPart::EmbedImage(image)) => {
                model.embed(image, beacon).map(PartAnswer::ImageVector)
            }
            (LoadedModel::TextToImage(model), RequestPart::GenerateImage(draw)) => {
                model.draw(draw, beacon, emit).map(PartAnswer::Image)
            }
            (model, _) => Err(not_for(model.capability())),
        }
    }
}

fn tokens(part: &RequestPart) -> Result<&[u32], InferenceError> {
    match part {
        RequestPart::Tokens(tokens) => Ok(tokens),
        RequestPart::Prompt { .. }
        | RequestPart::Recognize(_)
        | RequestPart::EmbedImage(_)
        | RequestPart::GenerateImage(_) => Err(not_for(Capability::TextEmbedding)),
    }
}

fn not_for(capability: Capability) -> InferenceError {
    InferenceError::Input(format!("a model for {capability} got another kind of request"))
}

impl fmt::Debug for LoadedModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LoadedModel({})", self.capability())
    }
}
