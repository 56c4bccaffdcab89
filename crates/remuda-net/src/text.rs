//! Untrusted text (from servers, workflows, providers) made safe to print: one line, cut to a length, without characters
//! that control a terminal.

/// One line of at most `chars_max` characters, followed by `…` if the text is longer.
pub fn one_line(text: &str, chars_max: usize) -> String {
    let mut line = String::new();
    for (at, word) in text.split_whitespace().enumerate() {
        if at > 0 {
            line.push(' ');
        }
        line.extend(word.chars().filter(|c| !c.is_control() && !is_invisible(*c)));
        // A character has at most 4 bytes, so this is enough to cut from; the rest of a huge text is not read.
        if line.len() > 4 * chars_max {
            break;
        }
    }
    match line.char_indices().nth(chars_max) {
        Some((cut, _)) => format!("{}…", &line[..cut]),
        None => line,
    }
}

/// A URL as it may be shown: without the name and password in it.
pub fn url_without_password(url: &str) -> String {
    let start = url.find("://").map_or(0, |at| at + 3);
    let end = url[start..].find(['/', '?', '#']).map_or(url.len(), |at| start + at);
    match url[start..end].rfind('@') {
        Some(at) => format!("{}***@{}", &url[..start], &url[start + at + 1..]),
        None => url.to_owned(),
    }
}

/// Characters that change the writing direction or hide their neighbours.
pub fn is_invisible(c: char) -> bool {
    matches!(c, '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}')
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Faults: X10.
    #[test]
    fn password_of_a_url_is_not_shown() {
        for (url, shown) in [
            ("http://anna:hush@plane:8288/a@b", "http://***@plane:8288/a@b"),
            ("https://:p@ss@plane?x=@", "https://***@plane?x=@"),
            ("anna:hush@plane", "***@plane"),
            ("http://plane:8288", "http://plane:8288"),
            ("http://plane/?at=a@b", "http://plane/?at=a@b"),
        ] {
            assert_eq!(url_without_password(url), shown);
        }
    }
}
