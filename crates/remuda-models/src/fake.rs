//! A fake engine for tests: loads `*.fake` files instantly, always gives the same answer to the same request, and fails
//! on demand. Supervision is tested with it; computations are tested with the real engines.
//!
//! The file configures the model and its faults ([`FakeConfig`]); a text injects a fault with `!panic`, `!busy 500` and
//! so on ([`InjectedFault`]). In a conversation the fault happens after the text before it was streamed; if the copy
//! survives, the text after it follows.

mod config;
mod fault;
mod image;

use std::path::PathBuf;
use std::sync::Arc;

pub use self::config::FakeConfig;
pub use self::fault::InjectedFault;
use crate::backend::{Backend, ModelInfo, Prepare};
use crate::beacon::Beacon;
use crate::failure::{InferenceError, LoadError, ModelError};
use crate::model::{LoadedModel, TextEmbedding, TextToText};
use crate::request::{
    AnswerUpdate, Chat, ChatMessage, FinishReason, GeneratedText, ModelRequest, RequestPart, Sampling,
};
use crate::spec::{Capability, Device, ModelSpec};

#[derive(Clone, Copy, Debug, Default)]
pub struct FakeEngine;

impl Backend for FakeEngine {
    fn name(&self) -> &'static str {
        "fake"
    }

    fn inspect(&self, spec: &ModelSpec) -> Result<Option<ModelInfo>, LoadError> {
        if spec.path.extension().is_none_or(|extension| extension != "fake") {
            return Ok(None);
        }
        let config = FakeConfig::read(&spec.path)?;
        Ok(Some(ModelInfo {
            engine: self.name(),
            capability: config.capability,
            architecture: "fake".to_owned(),
            files: vec![spec.path.clone()],
            device: Device::Cpu,
            device_bytes: None,
            memory_bytes: config.memory_bytes,
            isolation: config.isolation,
            notes: Vec::new(),
        }))
    }

    fn load(&self, spec: &ModelSpec, beacon: &Beacon) -> Result<LoadedModel, LoadError> {
        beacon.step()?;
        let config = FakeConfig::read(&spec.path)?;
        config.load(&spec.path, beacon)?;
        let weights = vec![1; usize::try_from(config.weights_bytes).unwrap_or(0)];
        let capability = config.capability;
        let echo = Echo { path: spec.path.clone(), config, answered: 0, weights };
        match capability {
            Capability::TextToText => Ok(LoadedModel::TextToText(Box::new(echo))),
            Capability::TextToImage => Ok(LoadedModel::TextToImage(Box::new(echo))),
            _ => Ok(LoadedModel::TextEmbedding(Box::new(echo))),
        }
    }

    fn prepare(&self, spec: &ModelSpec) -> Result<Arc<dyn Prepare>, LoadError> {
        Ok(Arc::new(Letters(FakeConfig::read(&spec.path)?.capability)))
    }
}

/// Every character is a token.
#[derive(Debug)]
struct Letters(Capability);

impl Prepare for Letters {
    fn prepare(&self, request: ModelRequest) -> Result<Vec<RequestPart>, ModelError> {
        match request {
            ModelRequest::TextEmbedding { texts } => {
                Ok(texts.iter().map(|text| RequestPart::Tokens(letters(text))).collect())
            }
            ModelRequest::TextToText(chat) => Ok(vec![prompt(&chat)]),
            ModelRequest::TextToImage(draw) => Ok(vec![RequestPart::GenerateImage(draw)]),
            _ => Err(ModelError::Input("the fake engine reads no images".to_owned())),
        }
    }

    fn golden(&self) -> RequestPart {
        let content = "golden".to_owned();
        match self.0 {
            Capability::TextToText => prompt(&Chat {
                messages: vec![ChatMessage { role: "user".to_owned(), content }],
                sampling: Sampling::default(),
            }),
            Capability::TextToImage => RequestPart::GenerateImage(image::golden(content)),
            _ => RequestPart::Tokens(letters(&content)),
        }
    }
}

fn prompt(chat: &Chat) -> RequestPart {
    let last = chat.messages.last().map(|message| letters(&message.content)).unwrap_or_default();
    RequestPart::Prompt { tokens: last, sampling: chat.sampling.clone() }
}

fn letters(text: &str) -> Vec<u32> {
    text.chars().map(u32::from).collect()
}

fn text(letters: &[u32]) -> String {
    letters.iter().filter_map(|letter| char::from_u32(*letter)).collect()
}

#[derive(Debug)]
struct Echo {
    path: PathBuf,
    config: FakeConfig,
    answered: u64,
    /// Only takes memory.
    weights: Vec<u8>,
}

impl Echo {
    /// A unit vector that depends on the text.
    fn vector(&mut self, text: &[u32]) -> Vec<f32> {
        self.answered += 1;
        let mut sums = vec![f32::from(self.weights.first().copied().unwrap_or(1)); self.config.dimensions];
        for (place, letter) in text.iter().enumerate() {
            sums[place % self.config.dimensions] += (letter % 97) as f32;
        }
        let length = sums.iter().map(|number| number * number).sum::<f32>().sqrt();
        if self.is_wrong() {
            sums.reverse();
        }
        sums.iter().map(|number| number / length).collect()
    }

    fn is_wrong(&self) -> bool {
        self.config.wrong_after.is_some_and(|after| self.answered > after)
    }
}

impl TextEmbedding for Echo {
    fn embed(&mut self, texts: &[&[u32]], beacon: &Beacon) -> Result<Vec<Vec<f32>>, InferenceError> {
        fault::is_usable(&self.path)?;
        let mut vectors = Vec::new();
        for letters in texts {
            beacon.step()?;
            let fault = InjectedFault::find(&text(letters)).map(|(_, fault, _)| fault);
            match fault {
                Some(InjectedFault::Empty) => vectors.push(Vec::new()),
                Some(InjectedFault::Short) => vectors.push(vec![1.0]),
                Some(InjectedFault::NaN) => vectors.push(vec![f32::NAN; self.config.dimensions]),
                Some(InjectedFault::Missing) => {}
                other => {
                    other.map_or(Ok(()), |fault| fault.happen(&self.path, beacon))?;
                    vectors.push(self.vector(letters));
                }
            }
        }
        Ok(vectors)
    }
}

impl TextToText for Echo {
    fn generate(
        &mut self,
        prompt: &[u32],
        sampling: &Sampling,
        beacon: &Beacon,
        emit: &mut dyn FnMut(AnswerUpdate),
    ) -> Result<GeneratedText, InferenceError> {
        fault::is_usable(&self.path)?;
        self.answered += 1;
        let whole = text(prompt);
        let mut left = sampling.tokens_max.map_or(usize::MAX, |max| max as usize);
        let (mut text, mut finish) = (String::new(), FinishReason::Stop);
        let mut speak = |words: &str, text: &mut String| {
            for letter in words.chars() {
                if left == 0 {
                    finish = FinishReason::Length;
                    break;
                }
                left -= 1;
                beacon.step()?;
                text.push(if self.is_wrong() { '?' } else { letter });
                emit(AnswerUpdate::Text(letter.to_string()));
            }
            Ok::<(), InferenceError>(())
        };
        let mut rest = whole.as_str();
        while let Some((before, fault, after)) = InjectedFault::find(rest) {
            speak(before, &mut text)?;
            match fault {
                InjectedFault::Empty => text.clear(),
                fault => fault.happen(&self.path, beacon)?,
            }
            speak(&fault.words(sampling), &mut text)?;
            rest = after;
        }
        speak(rest, &mut text)?;
        let tokens = u32::try_from(text.chars().count()).unwrap_or(u32::MAX);
        Ok(GeneratedText { text, finish, tokens })
    }
}
