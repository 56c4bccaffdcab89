//! Reads a GGUF header, never beyond the end of the file.

use std::fs::File;
use std::io::{BufReader, Read};
use std::path::Path;

use super::{DIMENSIONS_MAX, MetadataValue, TensorInfo, TensorType};
use crate::failure::LoadError;

/// The first four bytes of every file.
const MAGIC: [u8; 4] = *b"GGUF";

pub(super) struct HeaderReader<'a> {
    path: &'a Path,
    from: BufReader<File>,
    read: u64,
    file_bytes: u64,
}

impl<'a> HeaderReader<'a> {
    pub(super) fn begin(path: &'a Path, file: File, file_bytes: u64) -> Result<Self, LoadError> {
        let mut header = HeaderReader { path, from: BufReader::new(file), read: 0, file_bytes };
        let magic = header.bytes::<4>("the first four bytes")?;
        if magic != MAGIC {
            return Err(header.wrong(format!("it begins with {magic:02x?} instead of GGUF")));
        }
        match header.u32("the version")? {
            2 | 3 => Ok(header),
            1 => Err(header.unsupported("version 1 of GGUF", "; convert the model again, to version 3")),
            version if version.swap_bytes() <= 3 => Err(header.unsupported("big-endian GGUF", "")),
            version => Err(header.unsupported(&format!("version {version} of GGUF"), "")),
        }
    }

    /// The offset after the header.
    pub(super) fn place(&self) -> u64 {
        self.read
    }

    pub(super) fn count(&mut self, of: &str, max: u64) -> Result<u64, LoadError> {
        let count = self.u64(of)?;
        if count > max {
            return Err(self.wrong(format!("it claims {count} {of}; the limit is {max}")));
        }
        Ok(count)
    }

    pub(super) fn text(&mut self) -> Result<String, LoadError> {
        let length = self.u64("the length of a text")?;
        let length = self.fits(length, 1, "a text")?;
        let mut bytes = vec![0; length];
        self.fill(&mut bytes, "a text")?;
        // Vocabularies contain partial characters, so invalid UTF-8 is no reason to refuse the file.
        Ok(String::from_utf8(bytes)
            .unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned()))
    }

    pub(super) fn value(&mut self) -> Result<MetadataValue, LoadError> {
        match self.u32("the type of a value")? {
            9 => self.list(),
            kind => self.scalar(kind),
        }
    }

    pub(super) fn tensor(&mut self, name: &str) -> Result<TensorInfo, LoadError> {
        let dimensions = self.u32("a shape")?;
        if dimensions == 0 || dimensions > DIMENSIONS_MAX {
            return Err(self.wrong(format!("{name} has {dimensions} dimensions")));
        }
        let shape = (0..dimensions).map(|_| self.u64("a shape")).collect::<Result<Vec<_>, LoadError>>()?;
        let code = self.u32("the type of a tensor")?;
        let kind = TensorType::of(code).ok_or_else(|| {
            self.unsupported(
                &format!("{name} has the type {code}"),
                &format!("; convert the model to one of {}", TensorType::names()),
            )
        })?;
        let at = self.u64("where a tensor begins")?;
        let (elements, size) = kind.block();
        let bytes = shape
            .iter()
            .try_fold(1_u64, |all, length| all.checked_mul(*length))
            .filter(|all| *all > 0 && shape.first().is_some_and(|row| row.is_multiple_of(elements)))
            .and_then(|all| (all / elements).checked_mul(size))
            .ok_or_else(|| self.wrong(format!("{name} of type {kind} cannot have the shape {shape:?}")))?;
        Ok(TensorInfo { kind, shape, at, bytes })
    }

    fn scalar(&mut self, kind: u32) -> Result<MetadataValue, LoadError> {
        let what = "a value";
        Ok(match kind {
            0 => MetadataValue::Integer(i64::from(u8::from_le_bytes(self.bytes(what)?))),
            1 => MetadataValue::Integer(i64::from(i8::from_le_bytes(self.bytes(what)?))),
            2 => MetadataValue::Integer(i64::from(u16::from_le_bytes(self.bytes(what)?))),
            3 => MetadataValue::Integer(i64::from(i16::from_le_bytes(self.bytes(what)?))),
            4 => MetadataValue::Integer(i64::from(self.u32(what)?)),
            5 => MetadataValue::Integer(i64::from(i32::from_le_bytes(self.bytes(what)?))),
            6 => MetadataValue::Number(f64::from(f32::from_le_bytes(self.bytes(what)?))),
            7 => MetadataValue::Truth(self.bytes::<1>(what)? != [0]),
            8 => MetadataValue::Text(self.text()?),
            10 => MetadataValue::Integer(i64::try_from(self.u64(what)?).unwrap_or(i64::MAX)),
            11 => MetadataValue::Integer(i64::from_le_bytes(self.bytes(what)?)),
            12 => MetadataValue::Number(f64::from_le_bytes(self.bytes(what)?)),
            other => return Err(self.wrong(format!("a value has the unknown type {other}"))),
        })
    }

    fn list(&mut self) -> Result<MetadataValue, LoadError> {
        let kind = self.u32("the type of a list")?;
        let length = self.u64("the length of a list")?;
        let each = match kind {
            0 | 1 | 7 => 1,
            2 | 3 => 2,
            4..=6 => 4,
            // A text takes at least its length field.
            8 | 10..=12 => 8,
            other => return Err(self.wrong(format!("a list has the unknown element type {other}"))),
        };
        let length = self.fits(length, each, "a list")?;
        if kind == 8 {
            return (0..length).map(|_| self.text()).collect::<Result<_, _>>().map(MetadataValue::Texts);
        }
        if matches!(kind, 6 | 12) {
            for _ in 0..length {
                self.scalar(kind)?;
            }
            return Ok(MetadataValue::Numbers(length));
        }
        let numbers = (0..length).map(|_| {
            self.scalar(kind).map(|value| match value {
                MetadataValue::Integer(number) => number,
                MetadataValue::Truth(truth) => i64::from(truth),
                MetadataValue::Number(_)
                | MetadataValue::Text(_)
                | MetadataValue::Texts(_)
                | MetadataValue::Integers(_)
                | MetadataValue::Numbers(_) => 0,
            })
        });
        numbers.collect::<Result<_, _>>().map(MetadataValue::Integers)
    }

    /// Checks that this many elements of at least this size are left in the file.
    fn fits(&self, length: u64, each: u64, what: &str) -> Result<usize, LoadError> {
        let left = self.file_bytes - self.read;
        match length.checked_mul(each) {
            Some(bytes) if bytes <= left => {
                usize::try_from(length).map_err(|error| self.wrong(error.to_string()))
            }
            _ => Err(self.truncated(format!("{what} of {length}, but {left} bytes are left"))),
        }
    }

    fn u32(&mut self, what: &str) -> Result<u32, LoadError> {
        self.bytes(what).map(u32::from_le_bytes)
    }

    fn u64(&mut self, what: &str) -> Result<u64, LoadError> {
        self.bytes(what).map(u64::from_le_bytes)
    }

    fn bytes<const N: usize>(&mut self, what: &str) -> Result<[u8; N], LoadError> {
        let mut bytes = [0; N];
        self.fill(&mut bytes, what)?;
        Ok(bytes)
    }

    fn fill(&mut self, bytes: &mut [u8], what: &str) -> Result<(), LoadError> {
        if self.from.read_exact(bytes).is_err() {
            return Err(self.truncated(format!("it ends inside {what}")));
        }
        self.read += bytes.len() as u64;
        Ok(())
    }

    fn wrong(&self, detail: String) -> LoadError {
        LoadError::Wrong { path: self.path.to_owned(), detail }
    }

    fn truncated(&self, detail: String) -> LoadError {
        LoadError::Truncated { path: self.path.to_owned(), detail }
    }

    fn unsupported(&self, what: &str, hint: &str) -> LoadError {
        LoadError::Unsupported { path: self.path.to_owned(), what: what.to_owned(), hint: hint.to_owned() }
    }
}
