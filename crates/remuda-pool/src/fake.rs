//! A stand-in for an engine: loads `*.fake` files in no time, answers the same question always alike, and breaks where a
//! text asks for it. What supervision promises is tested on it; what engines compute is tested on engines.

use std::path::Path;
use std::sync::Arc;

use crate::backend::{Backend, Found, Prepare};
use crate::beacon::Beacon;
use crate::failure::{Failure, LoadError, PoolError};
use crate::model::{Model, TextEmbedding, TextToText};
use crate::request::{Finish, Generated, Part, Piece, Request, Sampling};
use crate::spec::{Capability, Isolation, ModelSpec};

/// How many numbers its vectors have.
const DIMENSIONS: usize = 8;

/// Reads the capability from the file, which has nothing else in it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Fake;

impl Backend for Fake {
    fn name(&self) -> &'static str {
        "fake"
    }

    fn inspect(&self, spec: &ModelSpec) -> Result<Option<Found>, LoadError> {
        if spec.path.extension().is_none_or(|extension| extension != "fake") {
            return Ok(None);
        }
        Ok(Some(Found {
            engine: self.name(),
            capability: capability(&spec.path)?,
            architecture: "fake".to_owned(),
            files: vec![spec.path.clone()],
            memory_bytes: 1 << 20,
            isolation: Isolation::Thread,
            notes: Vec::new(),
        }))
    }

    fn load(&self, spec: &ModelSpec, beacon: &Beacon) -> Result<Model, LoadError> {
        beacon.step()?;
        match capability(&spec.path)? {
            Capability::TextToText => Ok(Model::TextToText(Box::new(Echo))),
            _ => Ok(Model::TextEmbedding(Box::new(Echo))),
        }
    }

    fn prepare(&self, _: &ModelSpec) -> Result<Arc<dyn Prepare>, LoadError> {
        Ok(Arc::new(Letters))
    }
}

fn capability(path: &Path) -> Result<Capability, LoadError> {
    let wrong = |detail: String| LoadError::Wrong { path: path.to_owned(), detail };
    let text = std::fs::read_to_string(path).map_err(|error| wrong(error.to_string()))?;
    text.trim().parse().map_err(wrong)
}

/// Every letter is a token.
#[derive(Debug)]
struct Letters;

impl Prepare for Letters {
    fn prepare(&self, request: Request) -> Result<Vec<Part>, PoolError> {
        match request {
            Request::TextEmbedding { texts } => {
                Ok(texts.iter().map(|text| Part::Tokens(letters(text))).collect())
            }
            Request::TextToText(chat) => {
                let last = chat.messages.last().map(|message| letters(&message.content)).unwrap_or_default();
                Ok(vec![Part::Prompt { tokens: last, sampling: chat.sampling }])
            }
            _ => Err(PoolError::Input("the stand-in knows only texts".to_owned())),
        }
    }

    fn golden(&self) -> Part {
        Part::Tokens(letters("golden"))
    }
}

fn letters(text: &str) -> Vec<u32> {
    text.chars().map(u32::from).collect()
}

#[derive(Debug)]
struct Echo;

impl TextEmbedding for Echo {
    fn embed(&mut self, texts: &[&[u32]], beacon: &Beacon) -> Result<Vec<Vec<f32>>, Failure> {
        texts.iter().map(|text| beacon.step().map(|()| vector(text)).map_err(Failure::from)).collect()
    }
}

impl TextToText for Echo {
    fn generate(
        &mut self,
        prompt: &[u32],
        sampling: &Sampling,
        beacon: &Beacon,
        say: &mut dyn FnMut(Piece),
    ) -> Result<Generated, Failure> {
        let tokens_max = sampling.tokens_max.map_or(usize::MAX, |max| max as usize);
        let mut text = String::new();
        for letter in prompt.iter().take(tokens_max).filter_map(|letter| char::from_u32(*letter)) {
            beacon.step()?;
            text.push(letter);
            say(Piece::Text(letter.to_string()));
        }
        let finish = if prompt.len() > tokens_max { Finish::Length } else { Finish::Stop };
        let tokens = u32::try_from(text.chars().count()).unwrap_or(u32::MAX);
        Ok(Generated { text, finish, tokens })
    }
}

/// Of length 1, and another for another text.
fn vector(text: &[u32]) -> Vec<f32> {
    let mut sums = vec![1.0_f32; DIMENSIONS];
    for (place, letter) in text.iter().enumerate() {
        sums[place % DIMENSIONS] += (letter % 97) as f32;
    }
    let length = sums.iter().map(|number| number * number).sum::<f32>().sqrt();
    sums.iter().map(|number| number / length).collect()
}
