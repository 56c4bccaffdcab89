//! Outputs of a prompt, parsed from its history: files and other values.
//!
//! ```text
//!   {"9": {"images": [{"filename", "subfolder", "type"}, ..], "animated": [false]}, "12": {"text": ["a cat"]}}
//!     node   key         a file                                 a flag: ignored                a value: returned
//! ```
//!
//! Keys vary by node (`images`, `gifs`, `audio`, `video`, `3d`, or any key of a custom node), so a file is recognized by its
//! `filename`. File names come from a server that runs untrusted code: they are requested and displayed, but never used as
//! a local path.

use serde::Deserialize;
use serde_json::value::RawValue;

use super::json::{self, JsonMembers, Text};
use super::restore::without_attempt_folder;
use remuda_net::text::{is_invisible, one_line};

/// Keys for the web interface only.
const FLAGS: [&str; 1] = ["animated"];

/// The longest name of common file systems.
const NAME_CHARS_MAX: usize = 255;

#[derive(Clone, Debug, Default)]
pub struct Outputs {
    /// In the order in which the nodes finished.
    pub files: Vec<OutputFile>,
    pub values: Vec<OutputValue>,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct OutputFile {
    pub node: String,
    /// The node's output key: `images`, `gifs`, ...
    pub key: String,
    pub filename: String,
    pub subfolder: String,
    /// ComfyUI's `type`: `output`, or `temp`, which a restart deletes.
    pub kind: String,
    /// By the file extension.
    pub media: &'static str,
}

/// A text, number or list that a node returned under `key`.
#[derive(Clone, Debug)]
pub struct OutputValue {
    pub node: String,
    pub key: String,
    pub json: Box<RawValue>,
}

pub fn files(outputs: &RawValue) -> Vec<OutputFile> {
    parse(outputs).files
}

/// The output files of one node, from its `executed` message.
pub fn node_files(node: &str, output: &RawValue) -> Vec<OutputFile> {
    let keys: JsonMembers<Box<RawValue>> = json::parse(output.get().as_bytes()).unwrap_or_default();
    let mut read = Outputs::default();
    read.add_all(node, keys);
    read.files
}

/// Whether no node has outputs.
pub fn is_empty(outputs: &RawValue) -> bool {
    json::parse::<JsonMembers<serde::de::IgnoredAny>>(outputs.get().as_bytes())
        .is_ok_and(|nodes| nodes.0.is_empty())
}

/// Parses outputs; values of an unknown form are skipped.
pub fn parse(outputs: &RawValue) -> Outputs {
    let nodes: JsonMembers<JsonMembers<Box<RawValue>>> =
        json::parse(outputs.get().as_bytes()).unwrap_or_default();
    let mut read = Outputs::default();
    for (node, keys) in nodes.0 {
        read.add_all(&node, keys);
    }
    read
}

impl Outputs {
    fn add_all(&mut self, node: &str, keys: JsonMembers<Box<RawValue>>) {
        for (key, value) in keys.0 {
            if !FLAGS.contains(&key.as_str()) {
                self.add(node, &key, value);
            }
        }
    }

    fn add(&mut self, node: &str, key: &str, value: Box<RawValue>) {
        let items: Vec<Box<RawValue>> = match serde_json::from_str(value.get()) {
            Ok(items) => items,
            Err(_) => vec![value.clone()],
        };
        let before = self.files.len();
        self.files.extend(items.iter().filter_map(|item| OutputFile::read(node, key, item)));
        // Values next to a file describe that file.
        if self.files.len() == before && !items.is_empty() {
            self.values.push(OutputValue { node: node.to_owned(), key: key.to_owned(), json: value });
        }
    }
}

#[derive(Deserialize)]
struct ListedFile {
    filename: String,
    #[serde(default)]
    subfolder: Text,
    #[serde(default, rename = "type")]
    kind: Text,
}

impl OutputFile {
    fn read(node: &str, key: &str, item: &RawValue) -> Option<Self> {
        let listed: ListedFile = serde_json::from_str(item.get()).ok()?;
        if listed.filename.is_empty() {
            return None;
        }
        Some(OutputFile {
            node: node.to_owned(),
            key: key.to_owned(),
            media: media(&listed.filename),
            filename: listed.filename,
            subfolder: listed.subfolder.0.unwrap_or_default(),
            kind: listed.kind.0.unwrap_or_else(|| "output".to_owned()),
        })
    }

    /// The path on the server, for messages.
    pub fn display_path(&self) -> String {
        let parts = [&*self.kind, &*self.subfolder, &*self.filename];
        let parts: Vec<&str> = parts.into_iter().filter(|part| !part.is_empty()).collect();
        one_line(&parts.join("/"), NAME_CHARS_MAX)
    }

    /// The folder in which the user sees it: without the attempt's own, and as safe as the name.
    pub fn display_folder(&self) -> String {
        let folder = without_attempt_folder(&self.subfolder);
        let parts = folder.split(['/', '\\']).filter(|part| !matches!(*part, "" | "." | ".."));
        one_line(&parts.map(safe_name).collect::<Vec<_>>().join("/"), NAME_CHARS_MAX)
    }

    /// A name that is safe to display, to save under and to put into a header: no folder, no leading dot, no quotes, nothing
    /// invisible. It is the server's name otherwise: clients look for the file that they named.
    pub fn display_name(&self) -> String {
        safe_name(self.filename.rsplit(['/', '\\']).next().unwrap_or_default())
    }
}

fn safe_name(name: &str) -> String {
    let safe: String = name.chars().map(|c| if is_safe(c) { c } else { '_' }).collect();
    let safe = safe.trim_start_matches(['.', ' ']).trim_end_matches(['.', ' ']);
    // The extension identifies the type, so a long name is cut at the front.
    let skip = safe.chars().count().saturating_sub(128);
    let safe: String = safe.chars().skip(skip).collect();
    if safe.is_empty() { "file".to_owned() } else { safe }
}

/// Markup, quotes, and what a file system somewhere does not take are not.
fn is_safe(c: char) -> bool {
    let is_printed = c == ' ' || !(c.is_control() || c.is_whitespace() || is_invisible(c));
    is_printed && !"/\\<>&\"'`:|?*".contains(c)
}

fn media(filename: &str) -> &'static str {
    let extension =
        filename.rsplit_once('.').map(|(_, extension)| extension.to_ascii_lowercase()).unwrap_or_default();
    match extension.as_str() {
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
        parse(&RawValue::from_string(json.to_owned()).unwrap())
    }

    fn file(filename: &str) -> OutputFile {
        let (node, key) = (String::new(), String::new());
        OutputFile {
            node,
            key,
            filename: filename.to_owned(),
            subfolder: String::new(),
            kind: String::new(),
            media: "",
        }
    }

    #[test]
    fn output_files_are_found_in_order() {
        let read = outputs(
            r#"{"10": {"images": [{"filename": "a_00001_.png", "subfolder": "remuda/x-1", "type": "output"},
                                  {"filename": "b.PNG", "subfolder": "", "type": "temp", "new": {}}], "animated": [false]},
                "2": {"gifs": [{"filename": "c.mp4", "format": "video/h264-mp4", "fullpath": "/x/c.mp4"}],
                      "audio": [{"filename": "d.flac", "subfolder": null, "type": "output"}]},
                "3": {"3d": {"filename": "e.glb", "subfolder": "mesh", "type": "output"}, "result": ["e.glb", null]},
                "4": {"text": ["a cat"], "score": 0.5, "images": []}}"#,
        );
        let files: Vec<_> =
            read.files.iter().map(|f| (&*f.node, &*f.key, f.display_path(), f.media)).collect();
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
    fn malformed_outputs_are_skipped() {
        for malformed in ["{}", "[]", "null", r#"{"1": null}"#, r#"{"1": {"images": [{"filename": ""}]}}"#] {
            assert!(outputs(malformed).files.is_empty(), "{malformed}");
        }
    }

    #[test]
    fn display_name_is_neither_path_nor_markup() {
        for (filename, name) in [
            ("höhe ✓, 50% #1!.png", "höhe ✓, 50% #1!.png"),
            ("a\u{202e}gnp\u{200b}\u{a0}.png", "a_gnp__.png"),
            ("it's `a` & b: c|d?*.png", "it_s _a_ _ b_ c_d__.png"),
            ("../../etc/passwd", "passwd"),
            ("..\\..\\x.png", "x.png"),
            (".htaccess", "htaccess"),
            ("<img src=x>.svg", "_img src=x_.svg"),
            ("a\"\r\nb.png", "a___b.png"),
            ("..", "file"),
            ("x/", "file"),
        ] {
            assert_eq!(file(filename).display_name(), name);
        }
        let long = file(&format!("{}.png", "é".repeat(300))).display_name();
        assert!(long.ends_with(".png") && long.chars().count() == 128, "{long}");
    }
}
