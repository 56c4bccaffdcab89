//! The part of an answer that was already streamed to the caller. Streamed text cannot be taken back: a second copy has
//! to produce the same beginning, and only the text after it is delivered.
//!
//! ```text
//!  first copy    h e l l o   w ✝
//!  second copy   h e l l o   w o r l d
//!  delivered     h e l l o   w o r l d        a different beginning: the request fails
//! ```

use super::{CopyId, RunId, Supervisor, SupervisorEffect};
use crate::request::{AnswerUpdate, PartAnswer};

#[derive(Clone, Debug, Default)]
pub(crate) struct StreamedText(String);

/// The second text differs from the streamed one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Diverged;

impl StreamedText {
    /// Compares `text`, which starts at offset `at`, with the streamed text and returns the new part. Everything before
    /// `at` was compared already.
    fn append(&mut self, at: usize, text: &str) -> Result<String, Diverged> {
        let known = self.0.get(at..).ok_or(Diverged)?;
        match text.strip_prefix(known) {
            Some(new) => {
                let new = new.to_owned();
                self.0.push_str(&new);
                Ok(new)
            }
            None if known.starts_with(text) => Ok(String::new()),
            None => Err(Diverged),
        }
    }

    /// Whether the answer begins with the streamed text.
    pub(crate) fn is_prefix_of(&self, answer: &PartAnswer) -> bool {
        match answer {
            PartAnswer::Text(whole) => whole.text.starts_with(&self.0),
            PartAnswer::Vector(_)
            | PartAnswer::Recognized(_)
            | PartAnswer::ImageVector(_)
            | PartAnswer::Image(_) => self.0.is_empty(),
        }
    }
}

impl Supervisor {
    pub(super) fn streamed(&mut self, id: CopyId, run: RunId, update: AnswerUpdate) {
        let current = self.copies.get_mut(&id).and_then(|copy| copy.run_mut());
        let Some(current) = current.filter(|current| current.id == run) else { return };
        let Some(item) = current.items.first_mut() else { return };
        let request = item.request;
        let AnswerUpdate::Text(text) = update else {
            // Progress may be reported twice.
            return self.effects.push(SupervisorEffect::Stream { request, update });
        };
        let at = current.streamed_bytes;
        current.streamed_bytes += text.len();
        match item.streamed.append(at, &text) {
            Ok(new) if new.is_empty() => {}
            Ok(new) => {
                self.effects.push(SupervisorEffect::Stream { request, update: AnswerUpdate::Text(new) });
            }
            Err(Diverged) => self.fail_diverged(request),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::{FinishReason, GeneratedText};

    /// Streams the chunks of each run in turn; returns everything that was delivered.
    fn delivered(runs: &[&[&str]]) -> Result<String, Diverged> {
        let (mut streamed, mut delivered) = (StreamedText::default(), String::new());
        for run in runs {
            let mut at = 0;
            for update in *run {
                delivered.push_str(&streamed.append(at, update)?);
                at += update.len();
            }
        }
        Ok(delivered)
    }

    #[test]
    fn repeated_text_is_delivered_once_however_it_is_chunked() {
        assert_eq!(delivered(&[&["grü", "n"], &["g", "rün", "er"]]).as_deref(), Ok("grüner"));
        assert_eq!(delivered(&[&["gr"], &["grün"], &["grüner Wald"]]).as_deref(), Ok("grüner Wald"));
        assert_eq!(delivered(&[&["grün"], &["gr"], &["", "grü"]]).as_deref(), Ok("grün"));
    }

    #[test]
    fn different_beginning_is_an_error() {
        for again in [&["b"][..], &["ab", "d"], &["abd"], &["abx", "c"]] {
            assert_eq!(delivered(&[&["abc"], again]), Err(Diverged), "{again:?}");
        }
        assert_eq!(delivered(&[&["é"], &["è"]]), Err(Diverged), "the same first byte");
    }

    #[test]
    fn answer_begins_with_the_streamed_text() {
        let whole = |text: &str| {
            PartAnswer::Text(GeneratedText { text: text.to_owned(), finish: FinishReason::Stop, tokens: 1 })
        };
        let streamed = StreamedText("he".to_owned());
        assert!(streamed.is_prefix_of(&whole("hello")) && streamed.is_prefix_of(&whole("he")));
        assert!(!streamed.is_prefix_of(&whole("h")) && !streamed.is_prefix_of(&whole("hollow")));
        assert!(!streamed.is_prefix_of(&PartAnswer::Vector(vec![1.0])));
    }
}
