//! Words we do not use: a reader who does not know this code base has to decode them. The list is short on purpose;
//! `house-style` asks for the field's ordinary English everywhere, and these are the words that crept in before.

use std::collections::BTreeMap;

use crate::comments::line_comments;
use crate::source::{documents, rust_files};

/// Matched as whole words, whatever their case.
pub const AVOIDED_WORDS: &[&str] = &[
    "nobody",
    "somebody",
    "everybody",
    "whoever",
    "whomever",
    "anew",
    "mend",
    "mends",
    "mended",
    "mending",
    "all the same",
    "bring home",
    "brings home",
    "brought home",
    "take home",
    "takes home",
    "taken home",
    "is told of",
    "are told of",
    "to the letter",
    "beside it",
];

/// One place where an avoided word stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WordHit {
    /// Path relative to the root of the workspace.
    pub file: String,
    pub line: usize,
    pub word: &'static str,
}

/// How often avoided words stand in a body of text.
#[derive(Debug, Default)]
pub struct WordCount {
    pub words: usize,
    pub hits: Vec<WordHit>,
}

impl WordCount {
    pub fn per_ten_thousand(&self) -> f64 {
        self.hits.len() as f64 * 10_000.0 / self.words.max(1) as f64
    }

    /// The number of hits of each word.
    pub fn by_word(&self) -> BTreeMap<&'static str, usize> {
        let mut counts = BTreeMap::new();
        for hit in &self.hits {
            *counts.entry(hit.word).or_default() += 1;
        }
        counts
    }

    fn add(&mut self, file: &str, line: usize, text: &str) {
        self.words +=
            text.split(|c: char| !c.is_alphabetic() && c != '\'').filter(|word| !word.is_empty()).count();
        let hits = avoided_in(text).into_iter().map(|word| WordHit { file: file.to_owned(), line, word });
        self.hits.extend(hits);
    }
}

/// The comments of every Rust file.
pub fn in_comments() -> WordCount {
    let mut count = WordCount::default();
    for file in rust_files().iter().filter(|file| file.crate_name() != "remuda-tidy") {
        for (line, text) in line_comments(&file.text) {
            count.add(&format!("crates/{}", file.name), line, text);
        }
    }
    count
}

/// The code of every Rust file: names, log lines, error messages, help.
pub fn in_code() -> WordCount {
    let mut count = WordCount::default();
    for file in rust_files().iter().filter(|file| file.crate_name() != "remuda-tidy") {
        let comments: BTreeMap<_, _> = line_comments(&file.text).into_iter().collect();
        for (line, text) in file.lines() {
            let code =
                comments.get(&line).map_or(text, |comment| &text[..text.len().saturating_sub(comment.len())]);
            count.add(&format!("crates/{}", file.name), line, &code.replace('_', " "));
        }
    }
    count
}

/// Every document that users read.
pub fn in_documents() -> WordCount {
    let mut count = WordCount::default();
    for (name, text) in documents() {
        for (at, line) in text.lines().enumerate() {
            count.add(&name, at + 1, line);
        }
    }
    count
}

/// The avoided words of a text, each as often as it stands there.
fn avoided_in(text: &str) -> Vec<&'static str> {
    let lower = text.to_lowercase();
    let mut found = Vec::new();
    for word in AVOIDED_WORDS {
        let is_whole = |at: usize| {
            let before = lower[..at].chars().next_back();
            let after = lower[at + word.len()..].chars().next();
            !before.is_some_and(char::is_alphanumeric) && !after.is_some_and(char::is_alphanumeric)
        };
        found.extend(lower.match_indices(word).filter(|(at, _)| is_whole(*at)).map(|_| *word));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_words_count() {
        assert_eq!(avoided_in("Nobody mends it; amend the commendable."), ["nobody", "mends"]);
        assert_eq!(avoided_in("It is done all the same, anew and anew."), ["anew", "anew", "all the same"]);
    }
}
