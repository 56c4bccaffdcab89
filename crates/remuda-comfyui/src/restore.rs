//! Takes what Remuda wrote into a prompt out of its outputs again: the folder of the attempt, which begins every
//! `filename_prefix`, and the names under which inputs were uploaded. ComfyUI writes the prompt into every PNG that it saves, and
//! a user who opens such a file expects the prompt that was submitted.
//!
//! Only texts before the pixels are changed, where ComfyUI puts them; pixels are copied as they are. Other formats (WebP, video)
//! keep what ComfyUI wrote.

use std::fs::{self, File};
use std::io::{self, Read, Seek as _, SeekFrom, Write as _};
use std::path::Path;

use remuda_core::id::{Attempt, JobId};

const PNG_HEAD: &[u8] = b"\x89PNG\r\n\x1a\n";
/// Everything before the pixels; a file with more is left as it is.
const HEAD_BYTES_MAX: u64 = 16 << 20;

/// The folder, below the server's output folder, into which an attempt saves its files. It has the end of the job's id, because
/// the beginning is a time that jobs share.
pub fn attempt_folder(job: JobId, attempt: Attempt) -> String {
    let job = job.to_string();
    format!("{ROOT}/{}-{attempt}", &job[24..])
}

/// The folder of all attempts.
const ROOT: &str = "remuda";

/// A folder of the server as the user named it: without the attempt's folder.
pub fn without_attempt_folder(subfolder: &str) -> &str {
    let Some(below) = subfolder.strip_prefix(ROOT).and_then(|it| it.strip_prefix('/')) else {
        return subfolder;
    };
    let (folder, rest) = below.split_once('/').unwrap_or((below, ""));
    let is_attempt = folder.split_once('-').is_some_and(|(job, attempt)| {
        job.len() == 12
            && job.bytes().all(|byte| byte.is_ascii_hexdigit())
            && !attempt.is_empty()
            && attempt.bytes().all(|byte| byte.is_ascii_digit())
    });
    if is_attempt { rest } else { subfolder }
}

/// What is replaced in the outputs of one attempt.
#[derive(Clone, Debug, Default)]
pub struct PromptRestorer {
    /// Texts of JSON and what they were before.
    replaced: Vec<(Vec<u8>, Vec<u8>)>,
}

impl PromptRestorer {
    /// `names` are the uploaded inputs: the name on the server, and the submitted one.
    pub fn new<'a>(
        job: JobId,
        attempt: Attempt,
        names: impl IntoIterator<Item = (&'a str, &'a str)>,
    ) -> PromptRestorer {
        let folder = (format!("\"{}/", attempt_folder(job, attempt)).into_bytes(), b"\"".to_vec());
        let names = names.into_iter().map(|(placed, name)| (json_text(placed), json_text(name)));
        PromptRestorer { replaced: std::iter::once(folder).chain(names).collect() }
    }

    /// Restores the texts of a PNG file; other files stay as they are. Returns whether it was changed.
    pub fn restore_file(&self, path: &Path) -> io::Result<bool> {
        let mut file = File::open(path)?;
        let Some((head, length)) = self.restored_head(&mut file)? else { return Ok(false) };
        let changed = path.with_extension("restored");
        let written = (|| {
            let mut copy = File::create(&changed)?;
            copy.write_all(&head)?;
            file.seek(SeekFrom::Start(length))?;
            io::copy(&mut file, &mut copy)?;
            fs::rename(&changed, path)
        })();
        if written.is_err() {
            // It was not created if the disk is full.
            fs::remove_file(&changed).ok();
        }
        written.map(|()| true)
    }

    /// As `restore_file`, in memory.
    pub fn restore_bytes(&self, content: Vec<u8>) -> Vec<u8> {
        // Reading from memory does not fail; a PNG that ends early stays as it is.
        match self.restored_head(&mut content.as_slice()) {
            Ok(Some((mut head, length))) => {
                let rest = usize::try_from(length).ok().and_then(|length| content.get(length..));
                head.extend_from_slice(rest.unwrap_or_default());
                head
            }
            Ok(None) | Err(_) => content,
        }
    }

    /// The part before the pixels with its texts restored, and the length it had; `None` if nothing is to be changed.
    fn restored_head(&self, file: &mut impl Read) -> io::Result<Option<(Vec<u8>, u64)>> {
        let mut reader = file.take(HEAD_BYTES_MAX);
        let mut head = vec![0; PNG_HEAD.len()];
        if !fill(&mut reader, &mut head)? || head != PNG_HEAD {
            return Ok(None);
        }
        let (mut length, mut is_changed) = (head.len() as u64, false);
        loop {
            let mut start = [0; 8];
            if !fill(&mut reader, &mut start)? {
                return Ok(None);
            }
            let [s0, s1, s2, s3, kind @ ..] = start;
            let size = u32::from_be_bytes([s0, s1, s2, s3]);
            if matches!(&kind, b"IDAT" | b"IEND") {
                return Ok(is_changed.then_some((head, length)));
            }
            let mut data = Vec::new();
            (&mut reader).take(u64::from(size) + 4).read_to_end(&mut data)?;
            let Some(end) = data.len().checked_sub(4).filter(|end| *end as u64 == u64::from(size)) else {
                return Ok(None);
            };
            length += 8 + data.len() as u64;
            let restored = matches!(&kind, b"tEXt" | b"iTXt").then(|| self.restore(&data[..end])).flatten();
            match restored {
                Some(text) => {
                    is_changed = true;
                    write_chunk(&mut head, kind, &text);
                }
                None => head.extend(start.into_iter().chain(data)),
            }
        }
    }

    /// `None` if there is nothing to replace.
    fn restore(&self, text: &[u8]) -> Option<Vec<u8>> {
        let mut restored: Option<Vec<u8>> = None;
        for (from, to) in &self.replaced {
            let current = restored.as_deref().unwrap_or(text);
            restored = replace_all(current, from, to).or(restored);
        }
        restored
    }
}

/// False if the file is shorter.
fn fill(reader: &mut impl Read, buffer: &mut [u8]) -> io::Result<bool> {
    match reader.read_exact(buffer) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
        Err(error) => Err(error),
    }
}

fn replace_all(text: &[u8], from: &[u8], to: &[u8]) -> Option<Vec<u8>> {
    let mut replaced = None::<Vec<u8>>;
    let (mut done, mut at) = (0, 0);
    while at + from.len() <= text.len() {
        if text[at..].starts_with(from) {
            let replaced = replaced.get_or_insert_default();
            replaced.extend_from_slice(&text[done..at]);
            replaced.extend_from_slice(to);
            at += from.len();
            done = at;
        } else {
            at += 1;
        }
    }
    let mut replaced = replaced?;
    replaced.extend_from_slice(&text[done..]);
    Some(replaced)
}

/// A JSON text as Python writes it: all other than ASCII is escaped.
fn json_text(text: &str) -> Vec<u8> {
    let mut json = String::new();
    for c in serde_json::Value::from(text).to_string().chars() {
        if c.is_ascii() {
            json.push(c);
        } else {
            c.encode_utf16(&mut [0; 2]).iter().for_each(|unit| json.push_str(&format!("\\u{unit:04x}")));
        }
    }
    json.into_bytes()
}

fn write_chunk(file: &mut Vec<u8>, kind: [u8; 4], data: &[u8]) {
    file.extend(u32::try_from(data.len()).unwrap_or(0).to_be_bytes());
    let start = file.len();
    file.extend(kind);
    file.extend(data);
    let sum = checksum(&file[start..]);
    file.extend(sum.to_be_bytes());
}

/// The CRC-32 of PNG.
fn checksum(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(u32::MAX, |sum, byte| {
        (0..8).fold(sum ^ u32::from(*byte), |sum, _| (sum >> 1) ^ (0xedb8_8320 & (sum & 1).wrapping_neg()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const FOLDER: &str = "remuda/0a4b6f0e2d11-3";

    fn restorer() -> PromptRestorer {
        let job = JobId::from_u128(0x0193_e7a0_5b1c_7d52_9c7e_0a4b_6f0e_2d11);
        assert_eq!(attempt_folder(job, Attempt(3)), FOLDER);
        PromptRestorer::new(job, Attempt(3), [("remuda-af13.png", "höhe ✓.png")])
    }

    fn chunk(kind: &[u8; 4], data: &[u8]) -> Vec<u8> {
        let mut chunk = Vec::new();
        write_chunk(&mut chunk, *kind, data);
        chunk
    }

    fn png(text: &str) -> Vec<u8> {
        let text = [b"prompt\0", text.as_bytes()].concat();
        [
            PNG_HEAD,
            &chunk(b"IHDR", &[0; 13]),
            &chunk(b"tEXt", &text),
            &chunk(b"IDAT", &[7; 5000]),
            &chunk(b"IEND", b""),
        ]
        .concat()
    }

    #[test]
    fn prompt_in_a_png_is_the_one_that_was_submitted() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        let sent = format!(
            r#"{{"1": {{"inputs": {{"image": "remuda-af13.png"}}}}, "3": {{"inputs": {{"filename_prefix": "{FOLDER}/cats/x"}}}}}}"#
        );
        let submitted = r#"{"1": {"inputs": {"image": "h\u00f6he \u2713.png"}}, "3": {"inputs": {"filename_prefix": "cats/x"}}}"#;
        fs::write(&path, png(&sent)).unwrap();
        assert!(restorer().restore_file(&path).unwrap());
        assert!(
            fs::read(&path).unwrap() == png(submitted),
            "lengths and checksums fit, pixels are untouched"
        );
        assert!(!restorer().restore_file(&path).unwrap(), "there is nothing left");
        assert!(restorer().restore_bytes(png(&sent)) == png(submitted), "in memory as well");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn other_files_stay_as_they_are() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        let whole = png(&format!("\"{FOLDER}/x\""));
        let far = [PNG_HEAD, &chunk(b"IDAT", &[1]), &whole[PNG_HEAD.len()..]].concat();
        for content in [&b""[..], b"text", &whole[..60], &whole[..20], &far, &png("\"remuda/other-1/x\"")] {
            fs::write(&path, content).unwrap();
            assert!(!restorer().restore_file(&path).unwrap());
            assert_eq!(fs::read(&path).unwrap(), content);
            assert_eq!(restorer().restore_bytes(content.to_vec()), content);
        }
        let huge = [PNG_HEAD, &u32::MAX.to_be_bytes(), b"tEXt", b"x"].concat();
        fs::write(&path, &huge).unwrap();
        assert!(!restorer().restore_file(&path).unwrap());
    }

    #[test]
    fn checksum_is_that_of_png() {
        assert_eq!(chunk(b"IEND", b""), b"\0\0\0\0IEND\xaeB`\x82");
    }

    #[test]
    fn users_folder_is_what_follows_the_attempts() {
        for (subfolder, expected) in [
            (FOLDER, ""),
            ("remuda/0a4b6f0e2d11-3/cats/2026", "cats/2026"),
            ("remuda/mine", "remuda/mine"),
            ("remuda/0a4b6f0e2d11-x/a", "remuda/0a4b6f0e2d11-x/a"),
            ("cats", "cats"),
            ("", ""),
        ] {
            assert_eq!(without_attempt_folder(subfolder), expected);
        }
    }
}
