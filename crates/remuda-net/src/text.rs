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

/// Characters that change the writing direction or hide their neighbours.
pub fn is_invisible(c: char) -> bool {
    matches!(c, '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}')
}
