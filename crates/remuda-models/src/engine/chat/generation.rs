//! Tokens out of a network, one after the other, until it is enough.

use std::fmt;

use super::detokenizer::Detokenizer;
use super::sampler::Sampler;
use super::vocab::Vocab;
use crate::beacon::Beacon;
use crate::failure::InferenceError;
use crate::model::TextToText;
use crate::request::{AnswerUpdate, FinishReason, GeneratedText, Sampling};

/// What reads tokens and says how likely each of all tokens is to follow.
pub(super) trait LanguageModel: Send {
    /// Forgets all but the first tokens it has read, or all if it cannot do that; says how many it kept.
    fn keep(&mut self, tokens: usize) -> usize;

    /// Reads on from what it has read.
    fn read(&mut self, tokens: &[u32], beacon: &Beacon) -> Result<&[f32], InferenceError>;
}

/// A network that answers.
pub(super) struct Generator {
    network: Box<dyn LanguageModel>,
    vocab: Vocab,
    context: usize,
    /// What the network has read, as far as that is certain.
    read: Vec<u32>,
}

impl Generator {
    pub(super) fn new(network: Box<dyn LanguageModel>, vocab: Vocab, context: usize) -> Self {
        Generator { network, vocab, context, read: Vec::new() }
    }

    /// The network reads the prompt, except for what it begins with and has read for the request before.
    fn begin(&mut self, prompt: &[u32], beacon: &Beacon) -> Result<&[f32], InferenceError> {
        let same = self.read.iter().zip(prompt).take_while(|(read, asked)| read == asked).count();
        // The last is always read: its logits are wanted.
        let kept = self.network.keep(same.min(prompt.len().saturating_sub(1)));
        // Whatever goes wrong from here on, nothing more than this is known.
        self.read.truncate(kept);
        let logits = self.network.read(&prompt[kept..], beacon)?;
        self.read.extend_from_slice(&prompt[kept..]);
        Ok(logits)
    }
}

impl TextToText for Generator {
    fn generate(
        &mut self,
        prompt: &[u32],
        sampling: &Sampling,
        beacon: &Beacon,
        say: &mut dyn FnMut(AnswerUpdate),
    ) -> Result<GeneratedText, InferenceError> {
        let room = self.context.saturating_sub(prompt.len());
        if prompt.is_empty() || room == 0 {
            let told = format!("{} tokens were asked, and from 1 to {} fit", prompt.len(), self.context - 1);
            return Err(InferenceError::Input(told));
        }
        let tokens_max = sampling.tokens_max.map_or(room, |max| room.min(max as usize));
        let (mut sampler, mut speech) = (Sampler::new(sampling), Detokenizer::new(&sampling.stop));
        let (mut finish, mut tokens) = (FinishReason::Length, 0);
        let mut said = prompt.to_vec();
        while tokens < tokens_max {
            let logits = match said.last() {
                Some(last) if tokens > 0 => {
                    let logits = self.network.read(&[*last], beacon)?;
                    self.read.push(*last);
                    logits
                }
                _ => self.begin(prompt, beacon)?,
            };
            let token = sampler.next(logits, &said)?;
            tokens += 1;
            if self.vocab.ends(token) {
                finish = FinishReason::Stop;
                break;
            }
            said.push(token);
            let (piece, stopped) = speech.push(self.vocab.bytes_of_token(token));
            if !piece.is_empty() {
                say(AnswerUpdate::Text(piece));
            }
            if stopped {
                finish = FinishReason::Stop;
                break;
            }
        }
        let (last, text) = speech.end();
        if !last.is_empty() {
            say(AnswerUpdate::Text(last));
        }
        Ok(GeneratedText { text, finish, tokens: u32::try_from(tokens).unwrap_or(u32::MAX) })
    }
}

impl fmt::Debug for Generator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Generator")
            .field("context", &self.context)
            .field("read", &self.read.len())
            .finish_non_exhaustive()
    }
}
