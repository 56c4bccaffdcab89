//! The text of Rust comments. A small scanner that knows strings, raw strings and characters, because `syn` drops
//! comments and a search for `//` would find every address in a string.

/// Every line comment of a text with its line number, without the slashes.
pub fn line_comments(text: &str) -> Vec<(usize, &str)> {
    let mut comments = Vec::new();
    let mut scanner = Scanner { rest: text, line: 1 };
    while let Some(found) = scanner.next_comment() {
        comments.push(found);
    }
    comments
}

struct Scanner<'a> {
    rest: &'a str,
    line: usize,
}

impl<'a> Scanner<'a> {
    fn next_comment(&mut self) -> Option<(usize, &'a str)> {
        loop {
            let first = self.rest.chars().next()?;
            if self.rest.starts_with("//") {
                let end = self.rest.find('\n').unwrap_or(self.rest.len());
                let (comment, line) = (&self.rest[..end], self.line);
                self.skip(end);
                return Some((line, comment.trim_start_matches(['/', '!'])));
            }
            if let Some(length) = raw_string(self.rest) {
                self.skip(length);
            } else if first == '"' {
                self.skip(string(self.rest));
            } else if first == '\'' {
                self.skip(character(self.rest));
            } else if first.is_alphanumeric() || first == '_' {
                // A whole word, so that the `r` of `for` does not begin a raw string.
                let end = self.rest.find(|c: char| !c.is_alphanumeric() && c != '_');
                let end = end.unwrap_or(self.rest.len());
                let is_prefix = matches!(&self.rest[..end], "r" | "br" | "b" | "c" | "cr");
                self.skip(if is_prefix { raw_string(self.rest).unwrap_or(end) } else { end });
            } else {
                self.skip(first.len_utf8());
            }
        }
    }

    fn skip(&mut self, bytes: usize) {
        let (skipped, rest) = self.rest.split_at(bytes.min(self.rest.len()));
        self.line += skipped.matches('\n').count();
        self.rest = rest;
    }
}

/// The length of a raw string that begins here: `r"…"`, `br##"…"##`.
fn raw_string(text: &str) -> Option<usize> {
    let after = ["br", "cr", "r"].into_iter().find_map(|prefix| text.strip_prefix(prefix))?;
    let hashes = after.len() - after.trim_start_matches('#').len();
    let content = after[hashes..].strip_prefix('"')?;
    let close = format!("\"{}", "#".repeat(hashes));
    let end = content.find(&close)? + close.len();
    Some(text.len() - content.len() + end)
}

/// The length of a string that begins with the quote here.
fn string(text: &str) -> usize {
    let mut is_escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        match c {
            _ if is_escaped => is_escaped = false,
            '\\' => is_escaped = true,
            '"' => return at + 1,
            _ => {}
        }
    }
    text.len()
}

/// The length of a character, or 1 for the quote of a lifetime.
fn character(text: &str) -> usize {
    let mut chars = text.char_indices().skip(1);
    match chars.next() {
        Some((_, '\\')) => text[2..].find('\'').map_or(1, |at| if at == 0 { 4 } else { at + 3 }),
        Some((at, c)) if text[at + c.len_utf8()..].starts_with('\'') => at + c.len_utf8() + 1,
        _ => 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_are_told_from_strings_and_characters() {
        let text = "let a = \"http://x\"; // one\nlet b = 'x'; let c: &'a str = r#\"// no \" // no\"#;\n/// two\nlet d = b\"//\"; let e = '\\''; // three\nfor x in \"\\\"//\".chars() {} //! four";
        let found: Vec<_> = line_comments(text).into_iter().map(|(at, text)| (at, text.trim())).collect();
        assert_eq!(found, [(1, "one"), (3, "two"), (4, "three"), (5, "four")]);
    }
}
