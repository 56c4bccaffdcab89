//! Reads text in images like PP-OCR: one graph finds text, an optional second one its orientation, and a third one
//! reads it.
//!
//! ```text
//!  image ─▶ frame ─▶ [det] ─▶ map of text ─▶ boxes ─▶ crop ─▶ [cls] upside down? ─▶ [rec] ─▶ characters ─▶ lines
//! ```
//!
//! Every box is read separately: boxes of one image rarely have the same width, and padding them costs more than
//! batching saves.

mod boxes;
mod charset;
mod contour;
mod crop;

use std::path::{Path, PathBuf};

use image::RgbImage;
use image::imageops::{self, FilterType};
use rten::NodeId;
use rten_tensor::Tensor;
use rten_tensor::prelude::*;

use self::boxes::{Corners, InputFrame};
use self::charset::Charset;
use super::image_model::image_file;
use super::onnx::graph::{self, OnnxGraph};
use super::onnx::header::{FLOAT, OnnxHeader};
use crate::beacon::Beacon;
use crate::failure::{InferenceError, LoadError};
use crate::model::Vision;
use crate::request::{ImageQuery, RecognizedText, TextLine};

/// Scratch memory for the largest image, besides the weights.
pub(crate) const WORK_BYTES: u64 = 768 << 20;

/// All three graphs were trained on −1 to 1.
const HALF: [f32; 3] = [0.5; 3];
/// The line height the graph was trained on, and the minimal width.
const LINE_HEIGHT: u32 = 48;
const LINE_WIDTH_MIN: u32 = 320;
/// Wider lines are compressed.
const LINE_WIDTH_MAX: u32 = 4096;
/// The width of a line when its orientation is determined.
const TURN_WIDTH: u32 = 192;
/// The minimal confidence that a line is upside down.
const TURN_CONFIDENCE_MIN: f32 = 0.9;
/// Results below this confidence are more likely patterns than text.
const LINE_CONFIDENCE_MIN: f32 = 0.5;

/// The graphs of an OCR model.
#[derive(Clone, Debug)]
pub(crate) struct OcrFiles {
    find: PathBuf,
    read: PathBuf,
    turn: Option<PathBuf>,
    charset: Charset,
    /// The file of characters, if the graph does not contain them.
    charset_file: Option<PathBuf>,
}

impl OcrFiles {
    /// Finds the detection and recognition graphs among these.
    pub(crate) fn among(graphs: &[PathBuf]) -> Result<Option<OcrFiles>, LoadError> {
        let named = |part: &str| {
            let is_named = |path: &&PathBuf| {
                path.file_stem().is_some_and(|name| {
                    let name = name.to_string_lossy().to_lowercase();
                    name.split(|c: char| !c.is_alphanumeric()).any(|word| word == part)
                })
            };
            graphs.iter().find(is_named).cloned()
        };
        let (Some(find), Some(read)) = (named("det"), named("rec")) else { return Ok(None) };
        let turn = named("cls");
        for graph in [Some(&find), turn.as_ref()].into_iter().flatten() {
            image_header(graph)?;
        }
        let header = image_header(&read)?;
        let classes = match header.outputs.first().map(|info| info.shape.as_slice()) {
            Some([_, _, Some(classes)]) => usize::try_from(*classes).ok(),
            _ => None,
        };
        let (charset, charset_file) = Charset::find(&read, &header, classes)?;
        Ok(Some(OcrFiles { find, read, turn, charset, charset_file }))
    }

    pub(crate) fn architecture(&self) -> String {
        format!("PP-OCR, {} characters", self.charset.count())
    }

    pub(crate) fn all(&self) -> Vec<PathBuf> {
        let optional = [self.turn.as_ref(), self.charset_file.as_ref()].into_iter().flatten();
        [&self.find, &self.read].into_iter().chain(optional).cloned().collect()
    }

    pub(crate) fn notes(&self) -> Vec<String> {
        match self.turn {
            Some(_) => Vec::new(),
            None => vec!["without a cls graph, upside-down lines are not read".to_owned()],
        }
    }
}

/// The header of a graph that takes one image.
fn image_header(path: &Path) -> Result<OnnxHeader, LoadError> {
    let header = OnnxHeader::read(path)?;
    if !header.cubics.is_empty() {
        return Err(LoadError::Unsupported {
            path: path.to_owned(),
            what: "cubic interpolation, which rten computes as linear".to_owned(),
            hint: "; export it with linear interpolation".to_owned(),
        });
    }
    match header.inputs.as_slice() {
        [input] if input.element == FLOAT && matches!(input.shape.as_slice(), [_, Some(3), _, _]) => {
            Ok(header)
        }
        _ => Err(LoadError::Wrong {
            path: path.to_owned(),
            detail: "an OCR graph takes one image of three colours, but this one does not".to_owned(),
        }),
    }
}

/// A graph with one image as input and one output.
struct OcrStage {
    graph: OnnxGraph,
    input: NodeId,
    output: NodeId,
}

impl OcrStage {
    fn load(
        path: &Path,
        threads: &std::sync::Arc<rten::ThreadPool>,
        beacon: &Beacon,
    ) -> Result<OcrStage, LoadError> {
        let (header, graph) = (image_header(path)?, OnnxGraph::load(path, threads, beacon)?);
        let node =
            |info: Option<&super::onnx::header::TensorShape>| graph.value(info.map_or("", |info| &info.name));
        let (input, output) = (node(header.inputs.first())?, node(header.outputs.first())?);
        Ok(OcrStage { graph, input, output })
    }

    /// Runs the graph on an image, padded with black on the right up to `width`.
    fn run(&self, picture: &RgbImage, width: u32) -> Result<Tensor<f32>, InferenceError> {
        let (height, given) = (picture.height() as usize, picture.width() as usize);
        let width = (width as usize).max(given);
        let planes = image_file::planes(picture, HALF, HALF);
        let mut input = vec![0.0; 3 * height * width];
        // Blue first: these graphs were trained on images in OpenCV's channel order.
        for (plane, source) in input.chunks_mut(height * width).zip(planes.chunks(height * given).rev()) {
            for (row, source) in plane.chunks_mut(width).zip(source.chunks(given)) {
                row[..given].copy_from_slice(source);
            }
        }
        let input = Tensor::from_data(&[1, 3, height, width], input);
        self.graph.run(vec![(self.input, input.into())], self.output)
    }
}

pub(crate) struct OcrModel {
    find: OcrStage,
    read: OcrStage,
    turn: Option<OcrStage>,
    charset: Charset,
}

impl OcrModel {
    pub(crate) fn load(files: &OcrFiles, threads: u32, beacon: &Beacon) -> Result<OcrModel, LoadError> {
        let threads = graph::threads(threads);
        Ok(OcrModel {
            find: OcrStage::load(&files.find, &threads, beacon)?,
            read: OcrStage::load(&files.read, &threads, beacon)?,
            turn: files.turn.as_deref().map(|path| OcrStage::load(path, &threads, beacon)).transpose()?,
            charset: files.charset.clone(),
        })
    }

    /// The text boxes in reading order.
    fn boxes(&self, picture: &RgbImage, beacon: &Beacon) -> Result<Vec<Corners>, InferenceError> {
        let frame = InputFrame::of(picture);
        let scaled = frame.scaled(picture);
        beacon.step()?;
        let map = self.find.run(&scaled, scaled.width())?;
        beacon.step()?;
        let expected = [1, 1, scaled.height() as usize, scaled.width() as usize];
        if map.shape() != expected {
            return Err(InferenceError::Engine(format!(
                "expected a map of {expected:?}, got {:?}",
                map.shape()
            )));
        }
        let map = map.into_shape([expected[2], expected[3]]);
        boxes::find(&map, &frame, beacon)
    }

    fn line(&self, picture: &RgbImage, mut corners: Corners) -> Result<TextLine, InferenceError> {
        let (mut strip, turns) = crop::strip(picture, &corners);
        corners.rotate_left(turns);
        if let Some(turn) = &self.turn
            && is_upside_down(&turn.run(&in_height(&strip, TURN_WIDTH), TURN_WIDTH)?)
        {
            imageops::rotate180_in_place(&mut strip);
            corners.rotate_left(2);
        }
        let read = self.read.run(&in_height(&strip, LINE_WIDTH_MAX), LINE_WIDTH_MIN)?;
        let (text, confidence) = self.charset.read(&read)?;
        Ok(TextLine { text, confidence, corners })
    }
}

impl Vision for OcrModel {
    fn look(&mut self, look: &ImageQuery, beacon: &Beacon) -> Result<RecognizedText, InferenceError> {
        beacon.step()?;
        let picture = image_file::decode(&look.image).map_err(InferenceError::Input)?;
        let mut lines = Vec::new();
        for corners in self.boxes(&picture, beacon)? {
            beacon.step()?;
            let line = self.line(&picture, corners)?;
            if line.confidence >= LINE_CONFIDENCE_MIN && !line.text.trim().is_empty() {
                lines.push(TextLine { corners: line.corners.map(|corner| within(corner, &picture)), ..line });
            }
        }
        let texts: Vec<_> = lines.iter().map(|line| line.text.as_str()).collect();
        Ok(RecognizedText { text: texts.join("\n"), lines })
    }
}

/// Scales to the line height, with a bounded width.
fn in_height(strip: &RgbImage, width_max: u32) -> RgbImage {
    let width = u64::from(LINE_HEIGHT) * u64::from(strip.width());
    let width = width.div_ceil(u64::from(strip.height().max(1))).clamp(1, u64::from(width_max));
    imageops::resize(strip, u32::try_from(width).unwrap_or(width_max), LINE_HEIGHT, FilterType::Triangle)
}

fn is_upside_down(turned: &Tensor<f32>) -> bool {
    match turned.to_vec().as_slice() {
        [upright, turned] => turned > upright && *turned > TURN_CONFIDENCE_MIN,
        _ => false,
    }
}

fn within((x, y): (f32, f32), picture: &RgbImage) -> (f32, f32) {
    (x.clamp(0.0, picture.width() as f32), y.clamp(0.0, picture.height() as f32))
}
