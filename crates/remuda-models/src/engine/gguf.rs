//! Reads GGUF files as untrusted input.
//!
//! ```text
//!  magic, version, counts │ metadata: key, type, value … │ tensors: name, shape, type, offset … │ padding │ data
//!  └──────────────────────────────── the header, read by `Gguf::open` ────────────────────────┘           └ `Gguf::each`
//! ```
//!
//! Nothing is allocated because of a count alone: a list must fit into the rest of the file first. Every tensor is
//! known to lie inside the file, without overlap, before any of them is read.

mod reader;
#[cfg(test)]
pub(crate) mod sample;
mod tensor_type;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use self::reader::HeaderReader;
pub(crate) use self::tensor_type::TensorType;
use crate::failure::LoadError;

/// More than any model has: those of 400 billion weights stay below 2,000.
const TENSORS_MAX: u64 = 1 << 16;
/// Likewise; the token list is one entry.
const ENTRIES_MAX: u64 = 1 << 16;
const DIMENSIONS_MAX: u32 = 4;
const ALIGNMENT: u64 = 32;
/// The read size.
const READ_BYTES: usize = 1 << 20;

/// A file's header.
#[derive(Debug)]
pub(crate) struct Gguf {
    pub(crate) path: PathBuf,
    pub(crate) metadata: BTreeMap<String, MetadataValue>,
    pub(crate) tensors: BTreeMap<String, TensorInfo>,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum MetadataValue {
    Integer(i64),
    Number(f64),
    Truth(bool),
    Text(String),
    Texts(Vec<String>),
    Integers(Vec<i64>),
    /// Counted but not kept: no code needs them.
    Numbers(usize),
}

/// Where a tensor lies and how it is encoded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TensorInfo {
    pub(crate) kind: TensorType,
    /// Innermost dimension first, as in the file: the row length, then the number of rows.
    pub(crate) shape: Vec<u64>,
    at: u64,
    bytes: u64,
}

impl TensorInfo {
    pub(crate) fn elements(&self) -> u64 {
        self.shape.iter().product()
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Gguf {
    pub(crate) fn open(path: &Path) -> Result<Self, LoadError> {
        let wrong = |detail| LoadError::Wrong { path: path.to_owned(), detail };
        let file = File::open(path).map_err(|error| wrong(error.to_string()))?;
        let bytes = file.metadata().map_err(|error| wrong(error.to_string()))?.len();
        let mut header = HeaderReader::begin(path, file, bytes)?;
        let tensors_count = header.count("tensors", TENSORS_MAX)?;
        let entries = header.count("metadata entries", ENTRIES_MAX)?;
        let mut metadata = BTreeMap::new();
        for _ in 0..entries {
            let key = header.text()?;
            let value = header.value()?;
            metadata.insert(key, value);
        }
        let alignment = match metadata.get("general.alignment") {
            None => ALIGNMENT,
            Some(MetadataValue::Integer(it)) if *it > 0 && *it <= 1 << 16 && it.count_ones() == 1 => {
                it.unsigned_abs()
            }
            Some(other) => return Err(wrong(format!("general.alignment is {other:?}"))),
        };
        let mut tensors = BTreeMap::new();
        for _ in 0..tensors_count {
            let name = header.text()?;
            let tensor = header.tensor(&name)?;
            if tensors.insert(name.clone(), tensor).is_some() {
                return Err(wrong(format!("two tensors are called {name}")));
            }
        }
        let data_at = header.place().next_multiple_of(alignment);
        place(path, &mut tensors, data_at, alignment, bytes)?;
        Ok(Gguf { path: path.to_owned(), metadata, tensors })
    }

    /// A small tensor's bytes as stored.
    pub(crate) fn read(&self, name: &str) -> Result<(&TensorInfo, Vec<u8>), LoadError> {
        let tensor = self.tensor(name)?;
        let mut bytes = Vec::new();
        self.each(name, tensor.bytes, |whole| {
            bytes.extend_from_slice(whole);
            Ok(())
        })?;
        Ok((tensor, bytes))
    }

    /// A tensor's bytes in chunks: the largest tensors are a good part of a model and should not be in memory twice.
    pub(crate) fn each(
        &self,
        name: &str,
        size: u64,
        mut take: impl FnMut(&[u8]) -> Result<(), LoadError>,
    ) -> Result<(), LoadError> {
        let tensor = self.tensor(name)?;
        let wrong =
            |error: io::Error| LoadError::Wrong { path: self.path.clone(), detail: error.to_string() };
        let mut file = BufReader::with_capacity(READ_BYTES, File::open(&self.path).map_err(wrong)?);
        file.seek(SeekFrom::Start(tensor.at)).map_err(wrong)?;
        let mut piece = vec![0; usize::try_from(size.min(tensor.bytes)).unwrap_or(0)];
        for taken in 0..tensor.bytes.checked_div(size).unwrap_or(0) {
            file.read_exact(&mut piece).map_err(|_| LoadError::Truncated {
                path: self.path.clone(),
                detail: format!("{name} ends in byte {} of {}", taken * size, tensor.bytes),
            })?;
            take(&piece)?;
        }
        Ok(())
    }

    pub(crate) fn tensor(&self, name: &str) -> Result<&TensorInfo, LoadError> {
        self.tensors.get(name).ok_or_else(|| LoadError::Wrong {
            path: self.path.clone(),
            detail: format!("it has no tensor {name}"),
        })
    }

    /// The tensors' size in the file.
    pub(crate) fn bytes(&self) -> u64 {
        self.tensors.values().map(|tensor| tensor.bytes).sum()
    }

    pub(crate) fn text(&self, key: &str) -> Option<&str> {
        match self.metadata.get(key) {
            Some(MetadataValue::Text(text)) => Some(text),
            _ => None,
        }
    }

    pub(crate) fn integer(&self, key: &str) -> Option<u64> {
        match self.metadata.get(key) {
            Some(MetadataValue::Integer(number)) => u64::try_from(*number).ok(),
            _ => None,
        }
    }

    pub(crate) fn number(&self, key: &str) -> Option<f64> {
        match self.metadata.get(key) {
            Some(MetadataValue::Number(number)) => Some(*number),
            _ => None,
        }
    }

    pub(crate) fn truth(&self, key: &str) -> Option<bool> {
        match self.metadata.get(key) {
            Some(MetadataValue::Truth(truth)) => Some(*truth),
            _ => None,
        }
    }

    pub(crate) fn texts(&self, key: &str) -> Option<&[String]> {
        match self.metadata.get(key) {
            Some(MetadataValue::Texts(texts)) => Some(texts),
            _ => None,
        }
    }

    pub(crate) fn integers(&self, key: &str) -> Option<&[i64]> {
        match self.metadata.get(key) {
            Some(MetadataValue::Integers(numbers)) => Some(numbers),
            _ => None,
        }
    }

    /// The number of weights by type, most frequent first.
    pub(crate) fn kinds(&self) -> Vec<(TensorType, u64)> {
        let mut counts = BTreeMap::new();
        for tensor in self.tensors.values() {
            *counts.entry(tensor.kind).or_insert(0) += tensor.elements();
        }
        let mut kinds: Vec<_> = counts.into_iter().collect();
        kinds.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        kinds
    }
}

/// Locates each tensor in the file, and checks that it is inside and does not overlap.
fn place(
    path: &Path,
    tensors: &mut BTreeMap<String, TensorInfo>,
    data_at: u64,
    alignment: u64,
    file_bytes: u64,
) -> Result<(), LoadError> {
    let mut places = Vec::new();
    for (name, tensor) in &mut *tensors {
        let wrong = |detail| LoadError::Wrong { path: path.to_owned(), detail };
        if !tensor.at.is_multiple_of(alignment) {
            return Err(wrong(format!("{name} begins at {}, which is not aligned", tensor.at)));
        }
        tensor.at =
            tensor.at.checked_add(data_at).ok_or_else(|| wrong(format!("the offset of {name} overflows")))?;
        let end = tensor.at.checked_add(tensor.bytes).filter(|end| *end <= file_bytes);
        let end = end.ok_or_else(|| LoadError::Truncated {
            path: path.to_owned(),
            detail: format!(
                "{name} has {} bytes from byte {}, but the file has {file_bytes}",
                tensor.bytes, tensor.at
            ),
        })?;
        places.push((tensor.at, end, name));
    }
    places.sort_unstable();
    for pair in places.windows(2) {
        if let [(_, end, first), (begin, _, second)] = pair
            && begin < end
        {
            let detail = format!("{first} and {second} overlap");
            return Err(LoadError::Wrong { path: path.to_owned(), detail });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
