//! Saves the outputs of a job in a folder. Names come from a server that runs untrusted code, so they are reduced to plain
//! file names, and existing files are never overwritten.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use remuda_store::blobs::BlobHash;
use serde_json::Value;

use remuda_worker::BlobLink;

/// More files of one name in one folder are a mistake.
const SAME_NAMES_MAX: u32 = 100_000;
/// Below the limit of file systems, with room for a number.
const NAME_BYTES_MAX: usize = 200;

/// A file in a job's result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ResultFile {
    pub(super) name: String,
    pub(super) hash: BlobHash,
}

/// The files of a result; None for a result that does not list files.
pub(super) fn result_files(result: &Value) -> Option<Vec<ResultFile>> {
    let read = |output: &Value| {
        let hash = output["hash"].as_str()?.parse().ok()?;
        Some(ResultFile { name: safe_name(output["name"].as_str()?), hash })
    };
    result["outputs"].as_array()?.iter().map(read).collect()
}

/// Fetches a file, verifies it and stores it under a free name.
pub(super) async fn save(link: &BlobLink, output: &ResultFile, folder: &Path) -> anyhow::Result<PathBuf> {
    let part = folder.join(format!(".remuda-{}", uuid::Uuid::new_v4().simple()));
    let saved = async {
        link.fetch(&output.hash, &part).await.with_context(|| format!("cannot fetch {}", output.name))?;
        rename_to_free_name(&part, folder, &output.name)
    };
    let saved = saved.await;
    if saved.is_err() {
        // The file may never have been created.
        tokio::fs::remove_file(&part).await.ok();
    }
    saved
}

fn rename_to_free_name(part: &Path, folder: &Path, name: &str) -> anyhow::Result<PathBuf> {
    for number in 1..=SAME_NAMES_MAX {
        let path = folder.join(numbered(name, number));
        match rename_to_new(part, &path) {
            Ok(()) => return Ok(path),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error).with_context(|| format!("cannot write {}", path.display())),
        }
    }
    bail!("there are {SAME_NAMES_MAX} files called {name} in {}", folder.display())
}

/// A rename that fails if the target exists.
fn rename_to_new(from: &Path, to: &Path) -> io::Result<()> {
    match fs::hard_link(from, to) {
        Ok(()) => fs::remove_file(from),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Err(error),
        // Without hard links, an empty file reserves the name and is then replaced.
        Err(_) => File::create_new(to).and_then(|_| fs::rename(from, to)),
    }
}

/// `a.png`, `a-2.png`, `a-3.png`, …
fn numbered(name: &str, number: u32) -> String {
    if number == 1 {
        return name.to_owned();
    }
    match name.rsplit_once('.') {
        Some((stem, ending)) => format!("{stem}-{number}.{ending}"),
        None => format!("{name}-{number}"),
    }
}

/// The last path component, without control characters, leading dots or dashes, shell characters and reserved names.
fn safe_name(name: &str) -> String {
    let last = name.rsplit(['/', '\\']).next().unwrap_or_default();
    let is_plain = |c: char| c.is_alphanumeric() || "._-()[] +@,=".contains(c);
    let plain: String = last.chars().map(|c| if is_plain(c) { c } else { '_' }).collect();
    let mut plain = plain.trim_start_matches(['.', ' ', '-']).trim_end_matches(['.', ' ']);
    // The extension must stay, so the name is cut at the front.
    while plain.len() > NAME_BYTES_MAX {
        plain = plain.char_indices().nth(1).map_or("", |(at, _)| &plain[at..]);
    }
    let plain = plain.trim_start_matches(['.', ' ', '-']);
    let stem = plain.split('.').next().unwrap_or_default().trim_end().to_ascii_uppercase();
    let is_reserved = matches!(stem.as_str(), "CON" | "PRN" | "AUX" | "NUL")
        || stem
            .strip_prefix("COM")
            .or_else(|| stem.strip_prefix("LPT"))
            .is_some_and(|rest| rest.chars().count() == 1 && rest.starts_with(|c: char| c.is_numeric()));
    match plain {
        "" => "output".to_owned(),
        _ if is_reserved => format!("_{plain}"),
        _ => plain.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Faults: B9, X6.
    #[test]
    fn output_name_is_reduced_to_a_plain_file_name() {
        for (name, safe) in [
            ("hello_00001_.png", "hello_00001_.png"),
            ("größe (2).png", "größe (2).png"),
            ("../../etc/passwd", "passwd"),
            ("..\\..\\autoexec.bat", "autoexec.bat"),
            ("/etc/", "output"),
            ("..", "output"),
            (". . .", "output"),
            ("", "output"),
            (".bashrc", "bashrc"),
            ("-rf", "rf"),
            ("a\0b\r\n\u{202e}gnp.exe", "a_b___gnp.exe"),
            ("\u{1b}[2J.png", "_[2J.png"),
            ("$(reboot)`x`;|&.png", "_(reboot)_x____.png"),
            ("con.png", "_con.png"),
            ("LPT1", "_LPT1"),
            ("COM10.txt", "COM10.txt"),
            ("trailing. . ", "trailing"),
        ] {
            assert_eq!(safe_name(name), safe, "{name:?}");
        }
        let long = safe_name(&format!("{}.png", "é".repeat(4096)));
        assert!(long.len() <= NAME_BYTES_MAX && long.ends_with("é.png"), "{long}");
    }

    #[test]
    fn existing_files_are_not_overwritten() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::write(at("a.png"), "old").unwrap();
        std::os::unix::fs::symlink(at("elsewhere"), at("a-2.png")).unwrap();
        for expected in ["a-3.png", "a-4.png"] {
            fs::write(at("part"), expected).unwrap();
            let path = rename_to_free_name(&at("part"), folder.path(), "a.png").unwrap();
            assert_eq!(path, at(expected));
            assert_eq!(fs::read_to_string(path).unwrap(), expected);
            assert!(!at("part").exists());
        }
        assert_eq!(fs::read_to_string(at("a.png")).unwrap(), "old");
        assert!(!at("elsewhere").exists());
    }

    #[test]
    fn only_a_result_with_a_list_of_files_has_files() {
        let hash = BlobHash::from_content(b"x");
        let result = json!({ "outputs": [{ "name": "../a.png", "hash": hash.to_string() }], "values": [] });
        assert_eq!(result_files(&result), Some(vec![ResultFile { name: "a.png".to_owned(), hash }]));
        assert_eq!(result_files(&json!({ "outputs": [] })), Some(Vec::new()));
        for other in
            [json!(null), json!("done"), json!({ "outputs": 5 }), json!({ "outputs": [{ "name": "a" }] })]
        {
            assert_eq!(result_files(&other), None, "{other}");
        }
    }
}
