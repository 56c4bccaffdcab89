//! Renders a job's result for people: files and values of a ComfyUI job as tables, any other result as JSON.

use std::path::PathBuf;

use serde_json::Value;

use super::save;
use remuda_net::terminal::table;

/// Longer values are cut; `--json` has the rest.
const VALUE_CHARS_MAX: usize = 120;

/// `saved` has a path for each output that was saved, in the order of the result.
pub(super) fn render_result(result: &Value, saved: &[Option<PathBuf>]) -> String {
    let Some(files) = save::result_files(result) else {
        return serde_json::to_string_pretty(result).unwrap_or_default();
    };
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let cell = |value: &Value| if value.is_null() { "-".to_owned() } else { text(value) };
    let mut parts = Vec::new();
    let listed = result["outputs"].as_array().into_iter().flatten();
    let rows: Vec<Vec<String>> = listed
        .zip(&files)
        .enumerate()
        .map(|(at, (output, file))| {
            let size = output["size_bytes"].as_u64().map_or_else(|| "-".to_owned(), format_size);
            let location = match saved.get(at).and_then(Option::as_ref) {
                Some(path) => path.display().to_string(),
                None => file.hash.to_string(),
            };
            vec![
                cell(&output["node"]),
                cell(&output["key"]),
                file.name.clone(),
                cell(&output["media"]),
                size,
                location,
            ]
        })
        .collect();
    if !rows.is_empty() {
        let location = if saved.is_empty() { "HASH" } else { "FILE" };
        parts.push(table(&["NODE", "OUTPUT", "NAME", "TYPE", "SIZE", location], &rows));
    }
    let values = result["values"].as_array().into_iter().flatten();
    let rows: Vec<Vec<String>> = values
        .map(|value| vec![cell(&value["node"]), cell(&value["key"]), truncate(&text(&value["value"]))])
        .collect();
    if !rows.is_empty() {
        parts.push(table(&["NODE", "OUTPUT", "VALUE"], &rows));
    }
    if parts.is_empty() { "no outputs".to_owned() } else { parts.join("\n\n") }
}

fn truncate(text: &str) -> String {
    let one_line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    if one_line.chars().count() <= VALUE_CHARS_MAX {
        return one_line;
    }
    one_line.chars().take(VALUE_CHARS_MAX - 1).chain(['…']).collect()
}

fn format_size(bytes: u64) -> String {
    match bytes {
        0..1024 => format!("{bytes} B"),
        1024..1_048_576 => format!("{:.1} KiB", bytes as f64 / 1024.0),
        1_048_576..1_073_741_824 => format!("{:.1} MiB", bytes as f64 / 1_048_576.0),
        _ => format!("{:.1} GiB", bytes as f64 / 1_073_741_824.0),
    }
}

#[cfg(test)]
mod tests {
    use remuda_store::blobs::BlobHash;
    use serde_json::json;

    use super::*;

    #[test]
    fn files_and_values_are_tables_and_other_results_json() {
        let hash = BlobHash::from_content(b"x").to_string();
        let output = |name: &str, size: u64| json!({ "node": "9", "key": "images", "name": name, "media": "image/png", "hash": hash, "size_bytes": size });
        let result = json!({
            "outputs": [output("a.png", 48_213), output("../b\u{1b}.png", 3)],
            "values": [{ "node": "12", "key": "text", "value": ["a\ncat"] }, { "node": "12", "key": "n", "value": 5 }],
        });
        let saved = [Some(PathBuf::from("out/a-2.png")), None];
        let expected = format!(
            "\
NODE  OUTPUT  NAME    TYPE       SIZE      FILE
9     images  a.png   image/png  47.1 KiB  out/a-2.png
9     images  b_.png  image/png  3 B       {hash}

NODE  OUTPUT  VALUE
12    text    [\"a\\ncat\"]
12    n       5"
        );
        assert_eq!(render_result(&result, &saved), expected);
        assert!(render_result(&result, &[]).contains("SIZE      HASH"));
        assert_eq!(render_result(&json!({ "outputs": [], "values": [] }), &[]), "no outputs");
        assert_eq!(render_result(&json!({ "picture": 1 }), &[]), "{\n  \"picture\": 1\n}");
        assert_eq!(truncate(&"x ".repeat(500)).chars().count(), VALUE_CHARS_MAX);
    }

    #[test]
    fn sizes_have_a_fitting_unit() {
        assert_eq!([0, 1536, 5 << 20, 3 << 30].map(format_size), ["0 B", "1.5 KiB", "5.0 MiB", "3.0 GiB"]);
    }
}
