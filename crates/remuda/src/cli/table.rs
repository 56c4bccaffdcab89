//! Tables for people: columns as wide as they need to be, nothing that a terminal could take for a command.

/// Lines up rows under their titles.
pub(super) fn table(titles: &[&str], rows: &[Vec<String>]) -> String {
    let rows: Vec<Vec<String>> =
        rows.iter().map(|row| row.iter().map(|cell| plain(cell)).collect()).collect();
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

/// Control and direction-changing characters as escapes: what a worker or client wrote must not move the cursor.
pub(super) fn plain(text: &str) -> String {
    let is_odd = |c: char| {
        c.is_control()
            || matches!(c, '\u{200e}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    text.chars().map(|c| if is_odd(c) { c.escape_unicode().to_string() } else { c.to_string() }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up_and_nothing_moves_the_cursor() {
        let rows =
            [vec!["a\u{1b}[2J".to_owned(), "long cell".to_owned()], vec!["bcd".to_owned(), "x".to_owned()]];
        let shown = table(&["ID", "WHAT"], &rows);
        assert_eq!(shown, "ID          WHAT\na\\u{1b}[2J  long cell\nbcd         x");
    }
}
