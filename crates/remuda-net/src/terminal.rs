//! Output for people: lines, tables, and text that cannot control the terminal.

use std::io::Write as _;

/// Prints a line to standard output. A reader that has gone away (`| head`) ends the program quietly.
pub fn print_line(text: &str) {
    let mut out = std::io::stdout().lock();
    if writeln!(out, "{text}").and_then(|()| out.flush()).is_err() {
        std::process::exit(0);
    }
}

/// Formats rows in columns under their titles.
pub fn table(titles: &[&str], rows: &[Vec<String>]) -> String {
    let rows: Vec<Vec<String>> =
        rows.iter().map(|row| row.iter().map(|cell| escape_control(cell)).collect()).collect();
    let widths: Vec<usize> = titles
        .iter()
        .enumerate()
        .map(|(at, title)| {
            let cells = rows.iter().filter_map(|row| row.get(at)).map(|cell| cell.chars().count());
            cells.chain([title.len()]).max().unwrap_or(0)
        })
        .collect();
    let line = |cells: &[String]| {
        let padded = cells.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}"));
        padded.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    let titles: Vec<String> = titles.iter().map(ToString::to_string).collect();
    let lines: Vec<_> = std::iter::once(line(&titles)).chain(rows.iter().map(|row| line(row))).collect();
    lines.join("\n")
}

/// Escapes control and text-direction characters: what a worker or client wrote must not move the cursor.
pub fn escape_control(text: &str) -> String {
    let is_control = |c: char| {
        c.is_control()
            || matches!(c, '\u{200e}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    text.chars().map(|c| if is_control(c) { c.escape_unicode().to_string() } else { c.to_string() }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned_and_control_characters_escaped() {
        let rows =
            [vec!["a\u{1b}[2J".to_owned(), "long cell".to_owned()], vec!["bcd".to_owned(), "x".to_owned()]];
        let text = table(&["ID", "WHAT"], &rows);
        assert_eq!(text, "ID          WHAT\na\\u{1b}[2J  long cell\nbcd         x");
    }
}
