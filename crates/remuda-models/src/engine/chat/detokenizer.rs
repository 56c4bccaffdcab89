//! Bytes as they are generated into pieces that can be said: whole characters, and nothing that belongs to a stop text.
//!
//! ```text
//!  bytes ──▶ waits for the rest of its character ──▶ waits while it could become a stop text ──▶ said
//! ```

/// One answer as it grows.
#[derive(Debug)]
pub(super) struct Detokenizer<'a> {
    stops: &'a [String],
    /// The beginning of a character.
    begun: Vec<u8>,
    /// Whole characters that may not be said yet.
    held: String,
    said: String,
}

impl<'a> Detokenizer<'a> {
    pub(super) fn new(stops: &'a [String]) -> Self {
        Detokenizer { stops, begun: Vec::new(), held: String::new(), said: String::new() }
    }

    /// What can be said now, and whether a stop text has come.
    pub(super) fn push(&mut self, bytes: &[u8]) -> (String, bool) {
        self.begun.extend_from_slice(bytes);
        self.decode();
        let stop =
            self.stops.iter().filter(|stop| !stop.is_empty()).filter_map(|stop| self.held.find(stop)).min();
        if let Some(stop) = stop {
            self.held.truncate(stop);
            self.begun.clear();
            return (self.say(self.held.len()), true);
        }
        let waiting = self.stops.iter().map(|stop| begun(&self.held, stop)).max().unwrap_or(0);
        (self.say(self.held.len() - waiting), false)
    }

    /// What is left when nothing more comes, and all that was said.
    pub(super) fn end(mut self) -> (String, String) {
        if !self.begun.is_empty() {
            self.held.push(char::REPLACEMENT_CHARACTER);
        }
        let last = self.say(self.held.len());
        (last, self.said)
    }

    fn say(&mut self, bytes: usize) -> String {
        let now: String = self.held.drain(..bytes).collect();
        self.said.push_str(&now);
        now
    }

    /// Moves whole characters on; bytes that never become one are replaced.
    fn decode(&mut self) {
        while !self.begun.is_empty() {
            match std::str::from_utf8(&self.begun) {
                Ok(text) => {
                    self.held.push_str(text);
                    self.begun.clear();
                }
                Err(error) => {
                    let valid = error.valid_up_to();
                    self.held.push_str(&String::from_utf8_lossy(&self.begun[..valid]));
                    let Some(broken) = error.error_len() else {
                        self.begun.drain(..valid);
                        return;
                    };
                    self.held.push(char::REPLACEMENT_CHARACTER);
                    self.begun.drain(..valid + broken);
                }
            }
        }
    }
}

/// How many bytes at the end of a text a stop text could begin with.
fn begun(text: &str, stop: &str) -> usize {
    (1..stop.len())
        .rev()
        .find(|length| stop.is_char_boundary(*length) && text.ends_with(&stop[..*length]))
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{any, prop, prop_assert, prop_assert_eq, proptest};

    use super::Detokenizer;

    fn spoken(stops: &[&str], bytes: &[&[u8]]) -> (Vec<String>, String, bool) {
        let stops: Vec<String> = stops.iter().map(|stop| (*stop).to_owned()).collect();
        let mut speech = Detokenizer::new(&stops);
        let mut pieces = Vec::new();
        let mut stopped = false;
        for bytes in bytes {
            let (piece, stop) = speech.push(bytes);
            pieces.push(piece);
            if stop {
                stopped = true;
                break;
            }
        }
        let (last, said) = speech.end();
        pieces.push(last);
        (pieces.into_iter().filter(|piece| !piece.is_empty()).collect(), said, stopped)
    }

    #[test]
    fn a_character_is_said_when_it_is_whole() {
        let (pieces, said, _) = spoken(&[], &[b"a", &[0xe2], &[0x82], &[0xac, b'b'], &[0xf0, 0x9f]]);
        assert_eq!(pieces, ["a", "€b", "\u{fffd}"]);
        assert_eq!(said, "a€b\u{fffd}");
    }

    #[test]
    fn a_stop_text_never_shows_however_it_comes() {
        let (pieces, said, stopped) = spoken(&["END"], &[b"one E", b"N", b"D two"]);
        assert_eq!((pieces, said.as_str(), stopped), (vec!["one ".to_owned()], "one ", true));
        let (pieces, said, stopped) = spoken(&["END"], &[b"one E", b"N", b"O"]);
        assert_eq!((pieces.len(), said.as_str(), stopped), (2, "one ENO", false));
        let (_, said, stopped) = spoken(&["abc", "b"], &[b"a", b"b"]);
        assert_eq!((said.as_str(), stopped), ("a", true), "the one that is complete counts");
    }

    proptest! {
        #[test]
        fn pieces_are_the_text_before_the_first_stop(
            text in "[ab€]{0,20}", stop in "[ab€]{1,4}", cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..6)
        ) {
            let bytes = text.as_bytes();
            let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(bytes.len() + 1)).collect();
            cuts.extend([0, bytes.len()]);
            cuts.sort_unstable();
            let parts: Vec<&[u8]> = cuts.windows(2).map(|cut| &bytes[cut[0]..cut[1]]).collect();
            let (pieces, said, stopped) = spoken(&[&stop], &parts);
            prop_assert!(!said.contains(&stop));
            prop_assert_eq!(stopped, text.contains(&stop));
            prop_assert_eq!(said.as_str(), text.split(&stop).next().unwrap_or(""));
            prop_assert_eq!(pieces.concat(), said);
        }
    }
}
