//! Reads the structure of an ONNX file without its weights: protobuf fields that are not needed are skipped. The file
//! is untrusted: every length is checked against the rest of the file, and nothing recurses.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufReader, Read, Seek};
use std::path::Path;

use crate::failure::LoadError;

/// The limit of a name, a shape or a metadata text.
const TEXT_BYTES_MAX: u64 = 1 << 20;
/// A larger graph would take longer to inspect than to load.
const NODES_MAX: usize = 1 << 17;

// Field numbers from onnx.proto.
const MODEL_GRAPH: u64 = 7;
const MODEL_METADATA: u64 = 14;
const GRAPH_NODE: u64 = 1;
const GRAPH_INITIALIZER: u64 = 5;
const GRAPH_INPUT: u64 = 11;
const GRAPH_OUTPUT: u64 = 12;
const NODE_INPUT: u64 = 1;
const NODE_OUTPUT: u64 = 2;
const NODE_OPERATION: u64 = 4;
const NODE_ATTRIBUTE: u64 = 5;
const ATTRIBUTE_TEXT: u64 = 4;
const TENSOR_NAME: u64 = 8;
const TENSOR_LOCATION: u64 = 14;
const ENTRY_KEY: u64 = 1;
const ENTRY_VALUE: u64 = 2;
const INFO_NAME: u64 = 1;
const INFO_TYPE: u64 = 2;
const TYPE_TENSOR: u64 = 1;
const TENSOR_ELEMENT: u64 = 1;
const TENSOR_SHAPE: u64 = 2;
const SHAPE_DIMENSION: u64 = 1;
const DIMENSION_VALUE: u64 = 1;

/// The element types that models here use.
pub(crate) const FLOAT: u64 = 1;
pub(crate) const INT64: u64 = 7;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct OnnxHeader {
    /// Without initializers, which old files also list as inputs.
    pub(crate) inputs: Vec<TensorShape>,
    pub(crate) outputs: Vec<TensorShape>,
    /// The outputs of every node, in file order.
    pub(crate) values: Vec<String>,
    /// Resize operations with cubic interpolation.
    pub(crate) cubics: Vec<CubicResize>,
    pub(crate) metadata: BTreeMap<String, String>,
    /// Whether weights are in another file.
    pub(crate) is_split: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct TensorShape {
    pub(crate) name: String,
    pub(crate) element: u64,
    /// `None` for a dimension of any size.
    pub(crate) shape: Vec<Option<u64>>,
}

/// A resize operation with cubic interpolation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CubicResize {
    pub(crate) given: String,
    pub(crate) made: String,
    /// The file offset where the name of its output ends.
    pub(crate) made_end: u64,
}

impl OnnxHeader {
    pub(crate) fn read(path: &Path) -> Result<OnnxHeader, LoadError> {
        let failed = |error: io::Error| {
            let (path, detail) = (path.to_owned(), error.to_string());
            match error.kind() {
                io::ErrorKind::UnexpectedEof => LoadError::Truncated { path, detail },
                io::ErrorKind::NotFound => {
                    LoadError::Missing { path, what: "file".to_owned(), hint: String::new() }
                }
                _ => LoadError::Wrong { path, detail },
            }
        };
        let file = File::open(path).map_err(failed)?;
        let bytes = file.metadata().map_err(failed)?.len();
        let header =
            read(&mut ProtobufFields { source: BufReader::new(file), at: 0 }, bytes).map_err(failed)?;
        if header.inputs.is_empty() || header.outputs.is_empty() {
            let detail = "it has no graph with inputs and outputs".to_owned();
            return Err(LoadError::Wrong { path: path.to_owned(), detail });
        }
        Ok(header)
    }

    pub(crate) fn input(&self, name: &str) -> Option<&TensorShape> {
        self.inputs.iter().find(|info| info.name == name)
    }
}

fn read<R: Read + Seek>(fields: &mut ProtobufFields<R>, end: u64) -> io::Result<OnnxHeader> {
    let (mut header, mut initializers) = (OnnxHeader::default(), Vec::new());
    while let Some(field) = fields.next(end)? {
        match field {
            (MODEL_GRAPH, FieldValue::Bytes(end)) => graph(fields, end, &mut header, &mut initializers)?,
            (MODEL_METADATA, FieldValue::Bytes(end)) => {
                let (key, value) = entry(fields, end)?;
                header.metadata.insert(key, value);
            }
            (_, FieldValue::Bytes(end)) => fields.skip(end)?,
            (_, FieldValue::Number(_)) => {}
        }
    }
    header.inputs.retain(|info| !initializers.contains(&info.name));
    Ok(header)
}

fn graph<R: Read + Seek>(
    fields: &mut ProtobufFields<R>,
    end: u64,
    header: &mut OnnxHeader,
    initializers: &mut Vec<String>,
) -> io::Result<()> {
    while let Some((number, value)) = fields.next(end)? {
        let FieldValue::Bytes(end) = value else { continue };
        match number {
            GRAPH_NODE => node(fields, end, header)?,
            GRAPH_INITIALIZER => header.is_split |= initializer(fields, end, initializers)?,
            GRAPH_INPUT => header.inputs.push(info(fields, end)?),
            GRAPH_OUTPUT => header.outputs.push(info(fields, end)?),
            _ => fields.skip(end)?,
        }
        let count = header.values.len() + initializers.len() + header.inputs.len() + header.outputs.len();
        if count > NODES_MAX {
            return Err(wrong("its graph has too many nodes"));
        }
    }
    Ok(())
}

fn node<R: Read + Seek>(fields: &mut ProtobufFields<R>, end: u64, header: &mut OnnxHeader) -> io::Result<()> {
    let (mut input, mut output, mut is_resize, mut is_cubic) = (None, None, false, false);
    while let Some((number, value)) = fields.next(end)? {
        match (number, value) {
            (NODE_INPUT, FieldValue::Bytes(end)) if input.is_none() => input = Some(fields.text(end)?),
            (NODE_OUTPUT, FieldValue::Bytes(end)) => {
                let name = fields.text(end)?;
                output.get_or_insert_with(|| (name.clone(), fields.at));
                header.values.push(name);
            }
            (NODE_OPERATION, FieldValue::Bytes(end)) => is_resize = fields.text(end)? == "Resize",
            (NODE_ATTRIBUTE, FieldValue::Bytes(end)) => is_cubic |= is_text(fields, end, "cubic")?,
            (_, FieldValue::Bytes(end)) => fields.skip(end)?,
            (_, FieldValue::Number(_)) => {}
        }
    }
    if is_resize && is_cubic {
        let cubic = |(given, (made, made_end))| CubicResize { given, made, made_end };
        header.cubics.extend(input.zip(output).map(cubic));
    }
    Ok(())
}

/// Whether the value of an attribute is this text.
fn is_text<R: Read + Seek>(fields: &mut ProtobufFields<R>, end: u64, text: &str) -> io::Result<bool> {
    let mut is_same = false;
    while let Some((number, value)) = fields.next(end)? {
        match (number, value) {
            (ATTRIBUTE_TEXT, FieldValue::Bytes(end)) if end - fields.at == text.len() as u64 => {
                is_same = fields.text(end)? == text;
            }
            (_, FieldValue::Bytes(end)) => fields.skip(end)?,
            (_, FieldValue::Number(_)) => {}
        }
    }
    Ok(is_same)
}

/// Whether its data is in another file.
fn initializer<R: Read + Seek>(
    fields: &mut ProtobufFields<R>,
    end: u64,
    initializers: &mut Vec<String>,
) -> io::Result<bool> {
    let mut is_elsewhere = false;
    while let Some((number, value)) = fields.next(end)? {
        match (number, value) {
            (TENSOR_NAME, FieldValue::Bytes(end)) => initializers.push(fields.text(end)?),
            (TENSOR_LOCATION, FieldValue::Number(place)) => is_elsewhere = place == 1,
            (_, FieldValue::Bytes(end)) => fields.skip(end)?,
            (_, FieldValue::Number(_)) => {}
        }
    }
    Ok(is_elsewhere)
}

fn entry<R: Read + Seek>(fields: &mut ProtobufFields<R>, end: u64) -> io::Result<(String, String)> {
    let (mut key, mut text) = (String::new(), String::new());
    while let Some((number, value)) = fields.next(end)? {
        match (number, value) {
            (ENTRY_KEY, FieldValue::Bytes(end)) => key = fields.text(end)?,
            (ENTRY_VALUE, FieldValue::Bytes(end)) => text = fields.text(end)?,
            (_, FieldValue::Bytes(end)) => fields.skip(end)?,
            (_, FieldValue::Number(_)) => {}
        }
    }
    Ok((key, text))
}

fn info<R: Read + Seek>(fields: &mut ProtobufFields<R>, end: u64) -> io::Result<TensorShape> {
    let mut info = TensorShape::default();
    while let Some((number, value)) = fields.next(end)? {
        match (number, value) {
            (INFO_NAME, FieldValue::Bytes(end)) => info.name = fields.text(end)?,
            (INFO_TYPE, FieldValue::Bytes(end)) => {
                // Only the tensor type uses this field number.
                while let Some((number, value)) = fields.next(end)? {
                    match (number, value) {
                        (TYPE_TENSOR, FieldValue::Bytes(end)) => tensor(fields, end, &mut info)?,
                        (_, FieldValue::Bytes(end)) => fields.skip(end)?,
                        (_, FieldValue::Number(_)) => {}
                    }
                }
            }
            (_, FieldValue::Bytes(end)) => fields.skip(end)?,
            (_, FieldValue::Number(_)) => {}
        }
    }
    Ok(info)
}

fn tensor<R: Read + Seek>(
    fields: &mut ProtobufFields<R>,
    end: u64,
    info: &mut TensorShape,
) -> io::Result<()> {
    while let Some((number, value)) = fields.next(end)? {
        match (number, value) {
            (TENSOR_ELEMENT, FieldValue::Number(element)) => info.element = element,
            (TENSOR_SHAPE, FieldValue::Bytes(end)) => {
                while let Some((number, value)) = fields.next(end)? {
                    match (number, value) {
                        (SHAPE_DIMENSION, FieldValue::Bytes(end)) => info.shape.push(dimension(fields, end)?),
                        (_, FieldValue::Bytes(end)) => fields.skip(end)?,
                        (_, FieldValue::Number(_)) => {}
                    }
                }
            }
            (_, FieldValue::Bytes(end)) => fields.skip(end)?,
            (_, FieldValue::Number(_)) => {}
        }
    }
    Ok(())
}

fn dimension<R: Read + Seek>(fields: &mut ProtobufFields<R>, end: u64) -> io::Result<Option<u64>> {
    let mut size = None;
    while let Some((number, value)) = fields.next(end)? {
        match (number, value) {
            // Some exporters write -1 for any size.
            (DIMENSION_VALUE, FieldValue::Number(value)) => {
                size = Some(value).filter(|size| *size <= i64::MAX as u64);
            }
            (_, FieldValue::Bytes(end)) => fields.skip(end)?,
            (_, FieldValue::Number(_)) => {}
        }
    }
    Ok(size)
}

/// Iterates over the fields of a protobuf message.
struct ProtobufFields<R> {
    source: BufReader<R>,
    at: u64,
}

enum FieldValue {
    Number(u64),
    /// The end of the content: read it or skip it.
    Bytes(u64),
}

impl<R: Read + Seek> ProtobufFields<R> {
    /// The next field before `end`, with its number.
    fn next(&mut self, end: u64) -> io::Result<Option<(u64, FieldValue)>> {
        if self.at >= end {
            return if self.at == end { Ok(None) } else { Err(wrong("a field is longer than its message")) };
        }
        let key = self.varint()?;
        let value = match key & 7 {
            0 => FieldValue::Number(self.varint()?),
            1 => FieldValue::Number(u64::from_le_bytes(self.bytes()?)),
            2 => {
                let length = self.varint()?;
                match self.at.checked_add(length).filter(|until| *until <= end) {
                    Some(until) => FieldValue::Bytes(until),
                    None => {
                        let detail = format!("{length} bytes should follow byte {} of {end}", self.at);
                        return Err(io::Error::new(io::ErrorKind::UnexpectedEof, detail));
                    }
                }
            }
            5 => FieldValue::Number(u32::from_le_bytes(self.bytes()?).into()),
            _ => return Err(wrong("not an ONNX model")),
        };
        Ok(Some((key >> 3, value)))
    }

    fn varint(&mut self) -> io::Result<u64> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let [byte] = self.bytes()?;
            number |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(number);
            }
        }
        Err(wrong("not an ONNX model"))
    }

    fn bytes<const N: usize>(&mut self) -> io::Result<[u8; N]> {
        let mut bytes = [0; N];
        self.source.read_exact(&mut bytes)?;
        self.at += N as u64;
        Ok(bytes)
    }

    fn text(&mut self, end: u64) -> io::Result<String> {
        let length = end - self.at;
        if length > TEXT_BYTES_MAX {
            return Err(wrong("a name is too long"));
        }
        let mut text = vec![0; length as usize];
        self.source.read_exact(&mut text)?;
        self.at = end;
        String::from_utf8(text).map_err(|_| wrong("a name is not valid UTF-8"))
    }

    fn skip(&mut self, end: u64) -> io::Result<()> {
        let length = i64::try_from(end - self.at).map_err(|_| wrong("a field is too long"))?;
        self.source.seek_relative(length)?;
        self.at = end;
        Ok(())
    }
}

fn wrong(detail: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, detail.to_owned())
}
