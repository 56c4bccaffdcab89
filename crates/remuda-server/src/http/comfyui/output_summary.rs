//! How a list of jobs shows what a job made, as ComfyUI 0.30.0 decides it: how many outputs there are, and which one stands for
//! all. Saved pictures come first, then other pictures, saved texts, and texts that only the list shows.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

/// Keys of outputs that can be shown.
const SHOWN_KEYS: [&str; 5] = ["images", "video", "audio", "3d", "text"];
const MODEL_ENDINGS: [&str; 5] = [".obj", ".fbx", ".gltf", ".glb", ".usdz"];
const TEXT_ENDINGS: [&str; 3] = [".txt", ".md", ".json"];
/// Longer texts are cut.
const TEXT_CHARS_MAX: usize = 1024;

/// Ranks of previews, best first.
const SAVED: usize = 0;
const SHOWN: usize = 1;
const TEXT_FILE: usize = 2;
const TEXT: usize = 3;

/// The number of outputs, and the one to show. Texts under `text` are no outputs.
pub(super) fn output_summary(outputs: &BTreeMap<String, Map<String, Value>>) -> (usize, Option<Value>) {
    let (mut count, mut previews) = (0, [const { None::<Value> }; 4]);
    for (node, keys) in outputs {
        for (key, list) in keys.iter().filter(|(key, _)| *key != "animated") {
            for item in list.as_array().into_iter().flatten() {
                let shown = match item {
                    Value::Object(file) => Some((rank(key, file), item.clone())),
                    Value::String(name) if has_ending(name, &MODEL_ENDINGS) => {
                        let file =
                            json!({ "filename": name, "type": "output", "subfolder": "", "mediaType": "3d" });
                        Some((Some(SAVED), file))
                    }
                    Value::String(text) if key == "text" => {
                        keep(&mut previews[TEXT], text_preview(text), node, key);
                        None
                    }
                    _ => None,
                };
                let Some((rank, file)) = shown else { continue };
                count += 1;
                if let Some(rank) = rank {
                    keep(&mut previews[rank], file, node, key);
                }
            }
        }
    }
    (count, previews.into_iter().flatten().next())
}

/// The first of its rank is kept.
fn keep(kept: &mut Option<Value>, mut preview: Value, node: &str, key: &str) {
    if kept.is_none() {
        preview["nodeId"] = node.into();
        if preview.get("mediaType").is_none() {
            preview["mediaType"] = key.into();
        }
        *kept = Some(preview);
    }
}

/// `None` for a file that cannot be shown.
fn rank(key: &str, file: &Map<String, Value>) -> Option<usize> {
    let part = |key: &str| file.get(key).and_then(Value::as_str).unwrap_or_default();
    let (name, format) = (part("filename"), part("format"));
    let is_text = key == "text" || has_ending(name, &TEXT_ENDINGS);
    let is_shown = SHOWN_KEYS.contains(&key)
        || format.starts_with("video/")
        || format.starts_with("audio/")
        || has_ending(name, &MODEL_ENDINGS);
    match (is_text, is_shown, part("type")) {
        (true, ..) => Some(TEXT_FILE),
        (false, false, _) => None,
        (false, true, "output") => Some(SAVED),
        (false, true, _) => Some(SHOWN),
    }
}

fn has_ending(name: &str, endings: &[&str]) -> bool {
    let name = name.to_lowercase();
    endings.iter().any(|ending| name.ends_with(ending))
}

fn text_preview(text: &str) -> Value {
    match text.char_indices().nth(TEXT_CHARS_MAX) {
        None => json!({ "content": text }),
        Some((end, _)) => json!({ "content": text[..end], "truncated": true }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn summary(outputs: Value) -> (usize, Value) {
        let (count, preview) = output_summary(&serde_json::from_value(outputs).unwrap());
        (count, preview.unwrap_or_default())
    }

    #[test]
    fn saved_picture_stands_for_all_and_texts_are_not_counted() {
        let file = |name: &str, kind: &str| json!({ "filename": name, "subfolder": "", "type": kind });
        let shown = |name: &str, kind: &str, node: &str, key: &str| json!({ "filename": name, "subfolder": "", "type": kind, "nodeId": node, "mediaType": key });
        let text = json!({ "content": "hello", "nodeId": "1", "mediaType": "text" });
        let texts = json!({ "text": ["hello", "you"], "value": [null, 1, "x"] });
        assert_eq!(summary(json!({ "1": texts })), (0, text));
        let saved_text = json!({ "1": texts, "2": { "files": [file("a.TXT", "output")] } });
        assert_eq!(summary(saved_text), (1, shown("a.TXT", "output", "2", "files")));
        let previewed = json!({ "1": texts, "2": { "files": [file("a.txt", "output")] },
            "3": { "images": [file("t.png", "temp")], "animated": [true] } });
        assert_eq!(summary(previewed), (2, shown("t.png", "temp", "3", "images")));
        let saved = json!({ "1": { "images": [file("t.png", "temp")] }, "2": { "images": [file("s.png", "output")] },
            "3": { "odd": [file("x.bin", "output")] } });
        assert_eq!(summary(saved), (3, shown("s.png", "output", "2", "images")));
        assert_eq!(summary(json!({ "1": { "odd": [file("x.bin", "output")] } })), (1, Value::Null));
        assert_eq!(
            summary(json!({ "1": { "result": ["m.glb"] } })),
            (1, shown("m.glb", "output", "1", "3d"))
        );
    }

    #[test]
    fn long_text_is_cut_between_characters() {
        let (_, preview) = summary(json!({ "1": { "text": ["é".repeat(1025)] } }));
        assert_eq!(preview["content"], "é".repeat(1024));
        assert_eq!(preview["truncated"], true);
    }
}
