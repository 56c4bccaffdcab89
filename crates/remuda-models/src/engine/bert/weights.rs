//! Reads a safetensors file tensor by tensor; sizes are checked before anything is allocated.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use half::{bf16, f16};
use safetensors::Dtype;
use safetensors::tensor::Metadata;

use super::config::wrong;
use crate::failure::LoadError;

/// Many times the names and shapes of a thousand layers.
const HEADER_BYTES_MAX: u64 = 16 << 20;

/// The first bytes of `torch.save` archives, new and old.
const PICKLES: [&[u8]; 2] = [b"PK\x03\x04", b"\x80\x02"];

#[derive(Debug)]
pub(super) struct BertWeights {
    path: PathBuf,
    file: File,
    metadata: Metadata,
    /// The offset of the data.
    begin: u64,
    prefix: &'static str,
}

impl BertWeights {
    pub(super) fn open(path: &Path) -> Result<Self, LoadError> {
        let io = |error: std::io::Error| wrong(path, error);
        let truncated = |detail: String| LoadError::Truncated { path: path.to_owned(), detail };
        let mut file = File::open(path).map_err(io)?;
        let size = file.metadata().map_err(io)?.len();
        let mut length = [0; size_of::<u64>()];
        if size < length.len() as u64 {
            return Err(truncated(format!("{size} bytes")));
        }
        file.read_exact(&mut length).map_err(io)?;
        if PICKLES.iter().any(|begin| length.starts_with(begin)) {
            return Err(LoadError::Pickle { path: path.to_owned() });
        }
        let header = u64::from_le_bytes(length);
        if header > HEADER_BYTES_MAX {
            return Err(wrong(
                path,
                format!("it claims a header of {header} bytes, so it is not a safetensors file"),
            ));
        }
        let begin = length.len() as u64 + header;
        if size < begin {
            return Err(truncated(format!("{size} bytes, but its header alone has {begin}")));
        }
        let mut json = vec![0; header as usize];
        file.read_exact(&mut json).map_err(io)?;
        let metadata: Metadata = serde_json::from_slice(&json).map_err(|error| wrong(path, error))?;
        let whole = begin.saturating_add(metadata.data_len() as u64);
        if size < whole {
            return Err(truncated(format!("{size} bytes of {whole}")));
        }
        Ok(BertWeights { path: path.to_owned(), file, metadata, begin, prefix: "" })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Selects the prefix under which the file stores `name`: models with a head put their encoder below a prefix.
    pub(super) fn strip_prefixes(&mut self, prefixes: &[&'static str], name: &str) {
        let has = |prefix: &&&str| self.metadata.info(&format!("{prefix}{name}")).is_some();
        self.prefix = prefixes.iter().find(has).copied().unwrap_or_default();
    }

    /// Reads a tensor as floats, whichever float type the file has.
    pub(super) fn read(&mut self, name: &str, shape: &[usize]) -> Result<Vec<f32>, LoadError> {
        let name = format!("{}{name}", self.prefix);
        let Some(info) = self.metadata.info(&name) else {
            let what = format!("tensor called {name}");
            return Err(LoadError::Missing { path: self.path.clone(), what, hint: String::new() });
        };
        if info.shape != shape {
            let detail = format!("{name} is {:?}, but by config.json it should be {shape:?}", info.shape);
            return Err(wrong(&self.path, detail));
        }
        let (begin, end) = info.data_offsets;
        let dtype = info.dtype;
        let mut bytes = vec![0; end - begin];
        let at = SeekFrom::Start(self.begin + begin as u64);
        let io = |error: std::io::Error| wrong(&self.path, format!("{name}: {error}"));
        self.file.seek(at).map_err(io)?;
        self.file.read_exact(&mut bytes).map_err(io)?;
        let numbers = floats(&bytes, dtype).ok_or_else(|| LoadError::Unsupported {
            path: self.path.clone(),
            what: format!("{name} in {dtype:?}"),
            hint: "; supported are F32, F16 and BF16".to_owned(),
        })?;
        if numbers.iter().any(|number| !number.is_finite()) {
            return Err(wrong(&self.path, format!("{name} has non-finite values")));
        }
        Ok(numbers)
    }
}

fn floats(bytes: &[u8], dtype: Dtype) -> Option<Vec<f32>> {
    let pairs = || bytes.as_chunks::<2>().0.iter().copied();
    match dtype {
        Dtype::F32 => Some(bytes.as_chunks::<4>().0.iter().copied().map(f32::from_le_bytes).collect()),
        Dtype::F16 => Some(pairs().map(|pair| f16::from_le_bytes(pair).to_f32()).collect()),
        Dtype::BF16 => Some(pairs().map(|pair| bf16::from_le_bytes(pair).to_f32()).collect()),
        _ => None,
    }
}
