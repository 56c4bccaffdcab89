//! Generates tokens one after the other until the answer ends.

use std::fmt;

use super::detokenizer::Detokenizer;
use super::sampler::Sampler;
use super::vocab::Vocab;
use crate::beacon::Beacon;
use crate::failure::InferenceError;
use crate::model::TextToText;
use crate::request::{AnswerUpdate, FinishReason, GeneratedText, Sampling};

/// Reads tokens and returns the logits of the next token.
pub(super) trait LanguageModel: Send {
    /// Drops all but the first tokens from its state, or all if it cannot do that; returns how many it kept.
    fn keep_prefix(&mut self, tokens: usize) -> usize;

    /// Reads more tokens after those it has read.
    fn read(&mut self, tokens: &[u32], beacon: &Beacon) -> Result<&[f32], InferenceError>;
}

/// Generates answers with a language model.
pub(super) struct Generator {
    network: Box<dyn LanguageModel>,
    vocab: Vocab,
    context: usize,
    /// The tokens the model has certainly read.
    read: Vec<u32>,
}

impl Generator {
    pub(super) fn new(network: Box<dyn LanguageModel>, vocab: Vocab, context: usize) -> Self {
        Generator { network, vocab, context, read: Vec::new() }
    }

    /// Reads the prompt, except for the prefix shared with the previous request.
    fn begin(&mut self, prompt: &[u32], beacon: &Beacon) -> Result<&[f32], InferenceError> {
        let same = self.read.iter().zip(prompt).take_while(|(read, asked)| read == asked).count();
        // The last token is always read, because its logits are needed.
        let kept = self.network.keep_prefix(same.min(prompt.len().saturating_sub(1)));
        // If something fails from here on, only this prefix is known.
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
            let detail = format!("the prompt has {} tokens; 1 to {} fit", prompt.len(), self.context - 1);
            return Err(InferenceError::Input(detail));
        }
        let tokens_max = sampling.tokens_max.map_or(room, |max| room.min(max as usize));
        let (mut sampler, mut speech) = (Sampler::new(sampling), Detokenizer::new(&sampling.stop));
        let (mut finish, mut tokens) = (FinishReason::Length, 0);
        let mut tokens_so_far = prompt.to_vec();
        while tokens < tokens_max {
            let logits = match tokens_so_far.last() {
                Some(last) if tokens > 0 => {
                    let logits = self.network.read(&[*last], beacon)?;
                    self.read.push(*last);
                    logits
                }
                _ => self.begin(prompt, beacon)?,
            };
            let token = sampler.next(logits, &tokens_so_far)?;
            tokens += 1;
            if self.vocab.ends(token) {
                finish = FinishReason::Stop;
                break;
            }
            tokens_so_far.push(token);
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
