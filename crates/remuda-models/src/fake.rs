//! A stand-in for an engine: loads `*.fake` files in no time, answers the same question always alike, and breaks where a
//! text or its file asks for it. What supervision promises is tested on it; what engines compute is tested on engines.
//!
//! The file says what the model does and how it misbehaves ([`Habits`]); a text says `!panic`, `!busy 500` and so on
//! ([`Mishap`]). In a conversation it happens after what stands before it was said, and if anybody is left to, what
//! stands behind it is said as well.

mod drawing;
mod habits;
mod mishap;

use std::path::PathBuf;
use std::sync::Arc;

pub use self::habits::Habits;
pub use self::mishap::Mishap;
use crate::backend::{Backend, Found, Prepare};
use crate::beacon::Beacon;
use crate::failure::{Failure, LoadError, PoolError};
use crate::model::{Model, TextEmbedding, TextToText};
use crate::request::{Chat, Finish, Generated, Message, Part, Piece, Request, Sampling};
use crate::spec::{Capability, Device, ModelSpec};

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
        let habits = Habits::read(&spec.path)?;
        Ok(Some(Found {
            engine: self.name(),
            capability: habits.capability,
            architecture: "fake".to_owned(),
            files: vec![spec.path.clone()],
            device: Device::Cpu,
            device_bytes: None,
            memory_bytes: habits.memory_bytes,
            isolation: habits.isolation,
            notes: Vec::new(),
        }))
    }

    fn load(&self, spec: &ModelSpec, beacon: &Beacon) -> Result<Model, LoadError> {
        beacon.step()?;
        let habits = Habits::read(&spec.path)?;
        habits.load(&spec.path, beacon)?;
        let weights = vec![1; usize::try_from(habits.weights_bytes).unwrap_or(0)];
        let capability = habits.capability;
        let echo = Echo { path: spec.path.clone(), habits, answered: 0, weights };
        match capability {
            Capability::TextToText => Ok(Model::TextToText(Box::new(echo))),
            Capability::TextToImage => Ok(Model::TextToImage(Box::new(echo))),
            _ => Ok(Model::TextEmbedding(Box::new(echo))),
        }
    }

    fn prepare(&self, spec: &ModelSpec) -> Result<Arc<dyn Prepare>, LoadError> {
        Ok(Arc::new(Letters(Habits::read(&spec.path)?.capability)))
    }
}

/// Every letter is a token.
#[derive(Debug)]
struct Letters(Capability);

impl Prepare for Letters {
    fn prepare(&self, request: Request) -> Result<Vec<Part>, PoolError> {
        match request {
            Request::TextEmbedding { texts } => {
                Ok(texts.iter().map(|text| Part::Tokens(letters(text))).collect())
            }
            Request::TextToText(chat) => Ok(vec![prompt(&chat)]),
            Request::TextToImage(draw) => Ok(vec![Part::Draw(draw)]),
            _ => Err(PoolError::Input("the stand-in sees nothing".to_owned())),
        }
    }

    fn golden(&self) -> Part {
        let content = "golden".to_owned();
        match self.0 {
            Capability::TextToText => prompt(&Chat {
                messages: vec![Message { role: "user".to_owned(), content }],
                sampling: Sampling::default(),
            }),
            Capability::TextToImage => Part::Draw(drawing::golden(content)),
            _ => Part::Tokens(letters(&content)),
        }
    }
}

fn prompt(chat: &Chat) -> Part {
    let last = chat.messages.last().map(|message| letters(&message.content)).unwrap_or_default();
    Part::Prompt { tokens: last, sampling: chat.sampling.clone() }
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
    habits: Habits,
    answered: u64,
    /// Takes memory and is good for nothing else.
    weights: Vec<u8>,
}

impl Echo {
    /// Of length 1, and another for another text.
    fn vector(&mut self, text: &[u32]) -> Vec<f32> {
        self.answered += 1;
        let mut sums = vec![f32::from(self.weights.first().copied().unwrap_or(1)); self.habits.dimensions];
        for (place, letter) in text.iter().enumerate() {
            sums[place % self.habits.dimensions] += (letter % 97) as f32;
        }
        let length = sums.iter().map(|number| number * number).sum::<f32>().sqrt();
        if self.is_wrong() {
            sums.reverse();
        }
        sums.iter().map(|number| number / length).collect()
    }

    fn is_wrong(&self) -> bool {
        self.habits.wrong_after.is_some_and(|after| self.answered > after)
    }
}

impl TextEmbedding for Echo {
    fn embed(&mut self, texts: &[&[u32]], beacon: &Beacon) -> Result<Vec<Vec<f32>>, Failure> {
        mishap::is_usable(&self.path)?;
        let mut vectors = Vec::new();
        for letters in texts {
            beacon.step()?;
            let mishap = Mishap::find(&text(letters)).map(|(_, mishap, _)| mishap);
            match mishap {
                Some(Mishap::Empty) => vectors.push(Vec::new()),
                Some(Mishap::Short) => vectors.push(vec![1.0]),
                Some(Mishap::NaN) => vectors.push(vec![f32::NAN; self.habits.dimensions]),
                Some(Mishap::Missing) => {}
                other => {
                    other.map_or(Ok(()), |mishap| mishap.happen(&self.path, beacon))?;
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
        say: &mut dyn FnMut(Piece),
    ) -> Result<Generated, Failure> {
        mishap::is_usable(&self.path)?;
        self.answered += 1;
        let whole = text(prompt);
        let mut left = sampling.tokens_max.map_or(usize::MAX, |max| max as usize);
        let (mut text, mut finish) = (String::new(), Finish::Stop);
        let mut speak = |words: &str, text: &mut String| {
            for letter in words.chars() {
                if left == 0 {
                    finish = Finish::Length;
                    break;
                }
                left -= 1;
                beacon.step()?;
                text.push(if self.is_wrong() { '?' } else { letter });
                say(Piece::Text(letter.to_string()));
            }
            Ok::<(), Failure>(())
        };
        let mut rest = whole.as_str();
        while let Some((before, mishap, after)) = Mishap::find(rest) {
            speak(before, &mut text)?;
            match mishap {
                Mishap::Empty => text.clear(),
                mishap => mishap.happen(&self.path, beacon)?,
            }
            speak(&mishap.words(sampling), &mut text)?;
            rest = after;
        }
        speak(rest, &mut text)?;
        let tokens = u32::try_from(text.chars().count()).unwrap_or(u32::MAX);
        Ok(Generated { text, finish, tokens })
    }
}
