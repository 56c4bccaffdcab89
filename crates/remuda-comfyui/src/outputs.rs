//! What a prompt put out, read from its history: files, and values that are none.
//!
//! ```text
//!   {"9": {"images": [{"filename", "subfolder", "type"}, ..], "animated": [false]}, "12": {"text": ["a cat"]}}
//!     node   key         a file                                 a flag: ignored                a value: kept
//! ```
//!
//! Keys vary by node (`images`, `gifs`, `audio`, `video`, `3d`, whatever a custom node likes), so a file is known by having a
//! `filename`. Names come from a server that runs other people's code: they are asked for, and shown, but never a path here.

use serde::Deserialize;
use serde_json::value::RawValue;

use super::json::{self, Members, Text};
use remuda_net::text::one_line;

/// Of these nodes speak to the web interface, not to whoever wanted the result.
const FLAGS: [&str; 1] = ["animated"];

/// Longer names no file system has.
const NAME_CHARS_MAX: usize = 255;

#[derive(Clone, Debug, Default)]
pub struct Outputs {
    /// In the order in which the nodes ended.
    pub files: Vec<File>,
    pub values: Vec<Value>,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct File {
    pub node: String,
    /// Under which word the node put it out: `images`, `gifs`, ...
    pub key: String,
    pub filename: String,
    pub subfolder: String,
    /// ComfyUI's `type`: `output`, or `temp`, which is gone after a restart.
    pub kind: String,
    /// As far as its ending tells.
    pub media: &'static str,
}

/// A text, a number, a list: what a node put out under `key` that is no file.
#[derive(Clone, Debug)]
pub struct Value {
    pub node: String,
    pub key: String,
    pub json: Box<RawValue>,
}

pub fn files(outputs: &RawValue) -> Vec<File> {
    read(outputs).files
}

/// What one node put out, as it says it while the prompt runs.
pub fn files_of(node: &str, output: &RawValue) -> Vec<File> {
    let keys: Members<Box<RawValue>> = json::read(output.get().as_bytes()).unwrap_or_default();
    let mut read = Outputs::default();
    read.take_all(node, keys);
    read.files
}

/// Whether no node put anything out.
pub fn is_empty(outputs: &RawValue) -> bool {
    json::read::<Members<serde::de::IgnoredAny>>(outputs.get().as_bytes())
        .is_ok_and(|nodes| nodes.0.is_empty())
}

/// What does not look like outputs is no error: it is simply not there.
pub fn read(outputs: &RawValue) -> Outputs {
    let nodes: Members<Members<Box<RawValue>>> = json::read(outputs.get().as_bytes()).unwrap_or_default();
    let mut read = Outputs::default();
    for (node, keys) in nodes.0 {
        read.take_all(&node, keys);
    }
    read
}

impl Outputs {
    fn take_all(&mut self, node: &str, keys: Members<Box<RawValue>>) {
        for (key, value) in keys.0 {
            if !FLAGS.contains(&key.as_str()) {
                self.take(node, &key, value);
            }
        }
    }

    fn take(&mut self, node: &str, key: &str, value: Box<RawValue>) {
        let items: Vec<Box<RawValue>> = match serde_json::from_str(value.get()) {
            Ok(items) => items,
            Err(_) => vec![value.clone()],
        };
        let before = self.files.len();
        self.files.extend(items.iter().filter_map(|item| File::read(node, key, item)));
        // What stands beside a file belongs to it.
        if self.files.len() == before && !items.is_empty() {
            self.values.push(Value { node: node.to_owned(), key: key.to_owned(), json: value });
        }
    }
}

#[derive(Deserialize)]
struct Listed {
    filename: String,
    #[serde(default)]
    subfolder: Text,
    #[serde(default, rename = "type")]
    kind: Text,
}

impl File {
    fn read(node: &str, key: &str, item: &RawValue) -> Option<Self> {
        let listed: Listed = serde_json::from_str(item.get()).ok()?;
        if listed.filename.is_empty() {
            return None;
        }
        Some(File {
            node: node.to_owned(),
            key: key.to_owned(),
            media: media(&listed.filename),
            filename: listed.filename,
            subfolder: listed.subfolder.0.unwrap_or_default(),
            kind: listed.kind.0.unwrap_or_else(|| "output".to_owned()),
        })
    }

    /// Where the server says it is, for people.
    pub fn path(&self) -> String {
        let parts = [&*self.kind, &*self.subfolder, &*self.filename];
        let parts: Vec<&str> = parts.into_iter().filter(|part| !part.is_empty()).collect();
        one_line(&parts.join("/"), NAME_CHARS_MAX)
    }

    /// A name that is safe to show, to offer for saving and to put into a header: no folder, no dot in front, no quotes.
    pub fn name(&self) -> String {
        let last = self.filename.rsplit(['/', '\\']).next().unwrap_or_default();
        let plain: String = last
            .chars()
            .map(|c| if c.is_alphanumeric() || "._-()[] +@".contains(c) { c } else { '_' })
            .collect();
        let plain = plain.trim_start_matches(['.', ' ']).trim_end_matches(['.', ' ']);
        // The ending is what tells people and programs apart what it is, so the cut is made in front.
        let skip = plain.chars().count().saturating_sub(128);
        let plain: String = plain.chars().skip(skip).collect();
        if plain.is_empty() { "file".to_owned() } else { plain }
    }
}

fn media(filename: &str) -> &'static str {
    let ending = filename.rsplit_once('.').map(|(_, ending)| ending.to_ascii_lowercase()).unwrap_or_default();
    match ending.as_str() {
        "png" => "image/png",
        "jpg" | "jpeg" => "image/jpeg",
        "webp" => "image/webp",
        "gif" => "image/gif",
        "avif" => "image/avif",
        "bmp" => "image/bmp",
        "tif" | "tiff" => "image/tiff",
        "exr" => "image/x-exr",
        "svg" => "image/svg+xml",
        "mp4" | "m4v" => "video/mp4",
        "webm" => "video/webm",
        "mov" => "video/quicktime",
        "mkv" => "video/x-matroska",
        "avi" => "video/x-msvideo",
        "flac" => "audio/flac",
        "mp3" => "audio/mpeg",
        "wav" => "audio/wav",
        "ogg" | "opus" => "audio/ogg",
        "m4a" => "audio/mp4",
        "glb" => "model/gltf-binary",
        "gltf" => "model/gltf+json",
        "obj" => "model/obj",
        "stl" => "model/stl",
        "txt" => "text/plain",
        "json" => "application/json",
        _ => "application/octet-stream",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outputs(json: &str) -> Outputs {
        read(&RawValue::from_string(json.to_owned()).unwrap())
    }

    fn file(filename: &str) -> File {
        let (node, key) = (String::new(), String::new());
        File {
            node,
            key,
            filename: filename.to_owned(),
            subfolder: String::new(),
            kind: String::new(),
            media: "",
        }
    }

    #[test]
    fn files_of_every_kind_are_found_in_the_order_they_were_made() {
        let read = outputs(
            r#"{"10": {"images": [{"filename": "a_00001_.png", "subfolder": "remuda/x-1", "type": "output"},
                                  {"filename": "b.PNG", "subfolder": "", "type": "temp", "new": {}}], "animated": [false]},
                "2": {"gifs": [{"filename": "c.mp4", "format": "video/h264-mp4", "fullpath": "/x/c.mp4"}],
                      "audio": [{"filename": "d.flac", "subfolder": null, "type": "output"}]},
                "3": {"3d": {"filename": "e.glb", "subfolder": "mesh", "type": "output"}, "result": ["e.glb", null]},
                "4": {"text": ["a cat"], "score": 0.5, "images": []}}"#,
        );
        let files: Vec<_> = read.files.iter().map(|f| (&*f.node, &*f.key, f.path(), f.media)).collect();
        let expected = [
            ("10", "images", "output/remuda/x-1/a_00001_.png", "image/png"),
            ("10", "images", "temp/b.PNG", "image/png"),
            ("2", "gifs", "output/c.mp4", "video/mp4"),
            ("2", "audio", "output/d.flac", "audio/flac"),
            ("3", "3d", "output/mesh/e.glb", "model/gltf-binary"),
        ];
        assert_eq!(files, expected.map(|(node, key, path, media)| (node, key, path.to_owned(), media)));
        let values: Vec<_> = read.values.iter().map(|v| (&*v.node, &*v.key, v.json.get())).collect();
        let expected =
            [("3", "result", r#"["e.glb", null]"#), ("4", "text", r#"["a cat"]"#), ("4", "score", "0.5")];
        assert_eq!(values, expected);
    }

    #[test]
    fn odd_outputs_are_no_outputs() {
        for odd in ["{}", "[]", "null", r#"{"1": null}"#, r#"{"1": {"images": [{"filename": ""}]}}"#] {
            assert!(outputs(odd).files.is_empty(), "{odd}");
        }
    }

    #[test]
    fn a_name_for_showing_is_no_path_and_no_markup() {
        for (filename, name) in [
            ("höhe ✓.png", "höhe _.png"),
            ("../../etc/passwd", "passwd"),
            ("..\\..\\x.png", "x.png"),
            (".htaccess", "htaccess"),
            ("<img src=x>.svg", "_img src_x_.svg"),
            ("a\"\r\nb.png", "a___b.png"),
            ("..", "file"),
            ("x/", "file"),
        ] {
            assert_eq!(file(filename).name(), name);
        }
        let long = file(&format!("{}.png", "é".repeat(300))).name();
        assert!(long.ends_with(".png") && long.chars().count() == 128, "{long}");
    }
}
