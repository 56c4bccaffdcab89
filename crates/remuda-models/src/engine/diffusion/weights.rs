//! The weights of one part: tensors by name from safetensors files, each read separately, checked and converted to 32
//! bits.
//!
//! Files are read and not mapped, because truncating a mapped file kills the process. Header contents are verified
//! before use, and a pickle is never read, whatever its name.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use candle_core::{Device, Tensor};
use half::{bf16, f16};
use safetensors::Dtype;
use safetensors::tensor::Metadata;
use serde::Deserialize;

use super::config::{read, unsupported, wrong};
use crate::beacon::Beacon;
use crate::engine::candle_device;
use crate::failure::LoadError;

/// The format's own header limit.
const HEADER_BYTES_MAX: u64 = 100_000_000;

/// The location of every tensor of a part.
#[derive(Debug)]
pub(super) struct DiffusionWeights {
    pub(super) files: Vec<PathBuf>,
    tensors: BTreeMap<String, TensorLocation>,
    folder: PathBuf,
}

#[derive(Clone, Debug)]
struct TensorLocation {
    file: usize,
    dtype: Dtype,
    shape: Vec<usize>,
    begin: u64,
    bytes: usize,
}

#[derive(Deserialize)]
struct ShardIndex {
    weight_map: BTreeMap<String, String>,
}

impl DiffusionWeights {
    /// Finds `stem.safetensors`, its shards or its 16-bit variant in a folder, and reads their headers.
    pub(super) fn open(folder: &Path, stem: &str) -> Result<Self, LoadError> {
        let mut weights = DiffusionWeights {
            files: files(folder, stem)?,
            tensors: BTreeMap::new(),
            folder: folder.to_owned(),
        };
        for number in 0..weights.files.len() {
            let (header_bytes, header) = header(&weights.files[number])?;
            for (name, info) in header.tensors() {
                let (begin, end) = info.data_offsets;
                let place = TensorLocation {
                    file: number,
                    dtype: info.dtype,
                    shape: info.shape.clone(),
                    begin: header_bytes + begin as u64,
                    bytes: end - begin,
                };
                weights.tensors.insert(name, place);
            }
        }
        Ok(weights)
    }

    /// Whether a tensor name begins with this prefix.
    pub(super) fn has(&self, prefix: &str) -> bool {
        self.tensors.keys().any(|name| name.starts_with(prefix))
    }

    /// Memory of the tensors with these name prefixes.
    pub(super) fn bytes(&self, prefixes: &[&str]) -> u64 {
        let of = |(_, place): (&String, &TensorLocation)| place.shape.iter().product::<usize>() as u64 * 4;
        let is_wanted = |name: &str| prefixes.iter().any(|prefix| name.starts_with(prefix));
        self.tensors.iter().filter(|(name, _)| is_wanted(name)).map(of).sum()
    }

    /// A source at the root of the names.
    pub(super) fn source<'a>(&'a self, device: &'a Device, beacon: &'a Beacon) -> TensorSource<'a> {
        TensorSource { weights: self, prefix: String::new(), device, beacon }
    }
}

/// A name prefix from which tensors are read.
#[derive(Clone, Debug)]
pub(super) struct TensorSource<'a> {
    weights: &'a DiffusionWeights,
    prefix: String,
    device: &'a Device,
    beacon: &'a Beacon,
}

impl TensorSource<'_> {
    pub(super) fn at(&self, name: impl std::fmt::Display) -> Self {
        let prefix =
            if self.prefix.is_empty() { name.to_string() } else { format!("{}.{name}", self.prefix) };
        TensorSource { prefix, ..self.clone() }
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.weights.tensors.contains_key(&self.at(name).prefix)
    }

    /// Reads a tensor of exactly this shape, with one beacon step.
    pub(super) fn tensor(&self, name: &str, shape: &[usize]) -> Result<Tensor, LoadError> {
        self.beacon.step()?;
        let name = self.at(name).prefix;
        let Some(place) = self.weights.tensors.get(&name) else {
            let what = format!("tensor {name}");
            let hint = "; the weights and config.json are not of the same model".to_owned();
            return Err(LoadError::Missing { path: self.weights.folder.clone(), what, hint });
        };
        let path = &self.weights.files[place.file];
        // A 1 x 1 convolution is a matrix with two more dimensions.
        let is_same = place.shape == shape
            || (shape.len() == 2
                && place.shape.len() == 4
                && place.shape[..2] == *shape
                && place.shape[2..] == [1, 1]);
        if !is_same {
            let detail =
                format!("{name} has the shape {:?}, but by config.json it should be {shape:?}", place.shape);
            return Err(wrong(path, detail));
        }
        let numbers = widened(&read_bytes(path, place)?, place.dtype)
            .ok_or_else(|| unsupported(path, format!("{name} of type {:?}", place.dtype), TYPES))?;
        Tensor::from_vec(numbers, shape, self.device).map_err(|error| {
            let need_bytes = self.weights.bytes(&[""]);
            candle_device::load_error(self.device, need_bytes, &error)
        })
    }
}

const TYPES: &str = "; supported are F32, F16, BF16 and F64";

fn read_bytes(path: &Path, place: &TensorLocation) -> Result<Vec<u8>, LoadError> {
    let cut =
        |error: std::io::Error| LoadError::Truncated { path: path.to_owned(), detail: error.to_string() };
    let mut file = File::open(path).map_err(|error| wrong(path, error.to_string()))?;
    file.seek(SeekFrom::Start(place.begin)).map_err(cut)?;
    let mut bytes = vec![0; place.bytes];
    file.read_exact(&mut bytes).map_err(cut)?;
    Ok(bytes)
}

/// To 32 bits, because masks and norms in half precision produce NaN on CPUs.
fn widened(bytes: &[u8], dtype: Dtype) -> Option<Vec<f32>> {
    let (twos, _) = bytes.as_chunks::<2>();
    let numbers = match dtype {
        Dtype::F32 => bytes.as_chunks::<4>().0.iter().map(|four| f32::from_le_bytes(*four)).collect(),
        Dtype::F64 => {
            bytes.as_chunks::<8>().0.iter().map(|eight| f64::from_le_bytes(*eight) as f32).collect()
        }
        Dtype::F16 => twos.iter().map(|two| f16::from_le_bytes(*two).to_f32()).collect(),
        Dtype::BF16 => twos.iter().map(|two| bf16::from_le_bytes(*two).to_f32()).collect(),
        _ => return None,
    };
    Some(numbers)
}

fn files(folder: &Path, stem: &str) -> Result<Vec<PathBuf>, LoadError> {
    for variant in ["", ".fp16"] {
        let single = folder.join(format!("{stem}{variant}.safetensors"));
        if single.is_file() {
            return Ok(vec![single]);
        }
        let index = folder.join(format!("{stem}.safetensors.index{variant}.json"));
        if index.is_file() {
            return shards(folder, &index);
        }
    }
    if let Some(pickle) = pickle_in(folder) {
        return Err(LoadError::Pickle { path: pickle });
    }
    let hint = "; download the safetensors files of the folder as well".to_owned();
    Err(LoadError::Missing { path: folder.to_owned(), what: format!("{stem}.safetensors"), hint })
}

fn shards(folder: &Path, index: &Path) -> Result<Vec<PathBuf>, LoadError> {
    let ShardIndex { weight_map } = read(index)?;
    let mut names: Vec<String> = weight_map.into_values().collect();
    names.sort();
    names.dedup();
    let shard = |name: String| {
        let is_plain = Path::new(&name).file_name().is_some_and(|plain| plain == name.as_str());
        if !is_plain || !name.ends_with(".safetensors") {
            return Err(wrong(index, format!("{name} is not a safetensors file of this folder")));
        }
        Ok(folder.join(name))
    };
    names.into_iter().map(shard).collect()
}

fn pickle_in(folder: &Path) -> Option<PathBuf> {
    let is_pickle = |path: &PathBuf| {
        path.extension()
            .is_some_and(|kind| ["bin", "ckpt", "pt", "pth", "pkl"].iter().any(|name| kind == *name))
    };
    folder.read_dir().ok()?.flatten().map(|entry| entry.path()).find(is_pickle)
}

/// Whether a file begins like a Python pickle, plain or in torch's zip archive.
pub(super) fn is_pickle(path: &Path) -> bool {
    let mut first = [0; 4];
    let is_read = File::open(path).and_then(|mut file| file.read_exact(&mut first)).is_ok();
    is_read && (first == *b"PK\x03\x04" || (first[0] == 0x80 && (2..=5).contains(&first[1])))
}

/// The length of the header including its prefix, and its contents.
pub(super) fn header(path: &Path) -> Result<(u64, Metadata), LoadError> {
    let truncated = |detail: String| LoadError::Truncated { path: path.to_owned(), detail };
    let Ok(mut file) = File::open(path) else {
        let hint = "; download the whole folder again".to_owned();
        return Err(LoadError::Missing { path: path.to_owned(), what: "safetensors file".to_owned(), hint });
    };
    if is_pickle(path) {
        return Err(LoadError::Pickle { path: path.to_owned() });
    }
    let length = file.metadata().map_err(|error| wrong(path, error.to_string()))?.len();
    let mut number = [0; 8];
    file.read_exact(&mut number).map_err(|_| truncated(format!("{length} bytes")))?;
    let header_bytes = u64::from_le_bytes(number);
    if header_bytes > HEADER_BYTES_MAX {
        return Err(wrong(path, "not a safetensors file: it does not begin with a header length"));
    }
    if header_bytes + 8 > length {
        return Err(truncated(format!("{length} bytes, but the header alone has {header_bytes}")));
    }
    let mut text = vec![0; usize::try_from(header_bytes).unwrap_or_default()];
    file.read_exact(&mut text).map_err(|error| truncated(error.to_string()))?;
    let header: Metadata = serde_json::from_slice(&text).map_err(|error| wrong(path, error.to_string()))?;
    let whole = 8 + header_bytes + header.data_len() as u64;
    if length < whole {
        return Err(truncated(format!("{length} of {whole} bytes")));
    }
    if length > whole {
        return Err(wrong(path, format!("{length} bytes, but its header describes {whole}")));
    }
    Ok((8 + header_bytes, header))
}
