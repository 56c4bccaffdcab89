//! What of an answer was given out while it was made. Words cannot be taken back: whoever begins the answer anew has to
//! begin it alike, and is heard from where the one before it fell silent.
//!
//! ```text
//!  first copy    h e l l o   w ✝
//!  second copy   h e l l o   w o r l d
//!  heard         h e l l o   w o r l d        another beginning: nothing more, and an error
//! ```

use super::{CopyId, PoolEffect, RunId, Supervisor};
use crate::request::{AnswerUpdate, PartAnswer};

#[derive(Clone, Debug, Default)]
pub(crate) struct StreamedText(String);

/// It was begun anew, and becomes another text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Diverged;

impl StreamedText {
    /// What is new in a text that begins at `at`, which everything before it was already compared up to.
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

    /// Whether that can be what it was the beginning of.
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
            // How far something is can be said twice.
            return self.effects.push(PoolEffect::Stream { request, update });
        };
        let at = current.streamed_bytes;
        current.streamed_bytes += text.len();
        match item.streamed.append(at, &text) {
            Ok(new) if new.is_empty() => {}
            Ok(new) => self.effects.push(PoolEffect::Stream { request, update: AnswerUpdate::Text(new) }),
            Err(Diverged) => self.fail_diverged(request),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::{FinishReason, GeneratedText};

    /// Each run as the pieces it says, and what is heard of all of them.
    fn heard(runs: &[&[&str]]) -> Result<String, Diverged> {
        let (mut said, mut heard) = (StreamedText::default(), String::new());
        for run in runs {
            let mut at = 0;
            for update in *run {
                heard.push_str(&said.append(at, update)?);
                at += update.len();
            }
        }
        Ok(heard)
    }

    #[test]
    fn what_is_begun_anew_is_heard_once_however_it_is_cut() {
        assert_eq!(heard(&[&["grü", "n"], &["g", "rün", "er"]]).as_deref(), Ok("grüner"));
        assert_eq!(heard(&[&["gr"], &["grün"], &["grüner Wald"]]).as_deref(), Ok("grüner Wald"));
        assert_eq!(heard(&[&["grün"], &["gr"], &["", "grü"]]).as_deref(), Ok("grün"));
    }

    #[test]
    fn another_beginning_is_not_gone_on_with() {
        for again in [&["b"][..], &["ab", "d"], &["abd"], &["abx", "c"]] {
            assert_eq!(heard(&[&["abc"], again]), Err(Diverged), "{again:?}");
        }
        assert_eq!(heard(&[&["é"], &["è"]]), Err(Diverged), "alike in their first byte");
    }

    #[test]
    fn an_answer_begins_with_what_was_said_of_it() {
        let whole = |text: &str| {
            PartAnswer::Text(GeneratedText { text: text.to_owned(), finish: FinishReason::Stop, tokens: 1 })
        };
        let said = StreamedText("he".to_owned());
        assert!(said.is_prefix_of(&whole("hello")) && said.is_prefix_of(&whole("he")));
        assert!(!said.is_prefix_of(&whole("h")) && !said.is_prefix_of(&whole("hollow")));
        assert!(!said.is_prefix_of(&PartAnswer::Vector(vec![1.0])));
    }
}
