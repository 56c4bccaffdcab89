//! Image embeddings, with the backbone of a vision transformer or any graph that ends in a vector.

pub(crate) mod image_file;
mod labels;
mod position_grid;
mod resize;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rten::{NodeId, ThreadPool};
use rten_tensor::Tensor;
use rten_tensor::prelude::*;
use serde::Deserialize;

use self::labels::Labels;
use super::onnx::graph::{self, OnnxGraph};
use super::onnx::header::{CubicResize, OnnxHeader};
use crate::backend::Prepare;
use crate::beacon::Beacon;
use crate::failure::{InferenceError, LoadError, ModelError};
use crate::model::ImageEmbedding;
use crate::request::{EmbeddedImage, ImageQuery, ModelRequest, RequestPart};
use crate::spec::Capability;

/// Scratch memory of a run besides the weights.
pub(crate) const WORK_BYTES: u64 = 96 << 20;

/// The usual preprocessing: ImageNet's mean and deviation, the central 7/8 of an image.
const MEAN: [f32; 3] = [0.485, 0.456, 0.406];
const DEVIATION: [f32; 3] = [0.229, 0.224, 0.225];
const SIDE: u32 = 224;
/// No model takes larger inputs.
const SIDE_MAX: u64 = 1024;
const SETTINGS_BYTES_MAX: u64 = 1 << 20;

/// The names exporters give to a transformer's last normalisation, before any head.
const LAST_NORMS: [&str; 4] = [
    "/layernorm/Add_1_output_0",
    "/layernorm/LayerNormalization_output_0",
    "/norm/Add_1_output_0",
    "/norm/LayerNormalization_output_0",
];

/// A graph that takes an image, and the value that holds its vector.
#[derive(Clone, Debug)]
pub(crate) struct Backbone {
    file: PathBuf,
    input: String,
    output: String,
    side: u32,
    is_inner: bool,
    cubics: Vec<CubicResize>,
    colors: ColorNormalization,
    labels: Option<Labels>,
}

/// The mean and deviation of the colours in training.
#[derive(Clone, Copy, Debug, PartialEq)]
struct ColorNormalization {
    mean: [f32; 3],
    deviation: [f32; 3],
}

impl ColorNormalization {
    /// Read from transformers' preprocessor file next to the graph; ImageNet's if there is none.
    fn beside(graph: &Path) -> Result<ColorNormalization, LoadError> {
        let file = graph.with_file_name("preprocessor_config.json");
        if !file.is_file() {
            return Ok(ColorNormalization { mean: MEAN, deviation: DEVIATION });
        }
        let wrong = |detail: String| LoadError::Wrong { path: file.clone(), detail };
        if file.metadata().is_ok_and(|found| found.len() > SETTINGS_BYTES_MAX) {
            return Err(wrong(format!("larger than {SETTINGS_BYTES_MAX} bytes")));
        }
        let read = std::fs::read(&file).map_err(|error| wrong(error.to_string()))?;
        let file: PreprocessorFile =
            serde_json::from_slice(&read).map_err(|error| wrong(error.to_string()))?;
        let deviation = file.image_std.unwrap_or(DEVIATION);
        if deviation.iter().any(|deviation| *deviation <= 0.0) {
            return Err(wrong("a deviation is not above zero".to_owned()));
        }
        Ok(ColorNormalization { mean: file.image_mean.unwrap_or(MEAN), deviation })
    }
}

#[derive(Deserialize)]
struct PreprocessorFile {
    image_mean: Option<[f32; 3]>,
    image_std: Option<[f32; 3]>,
}

impl Backbone {
    pub(crate) fn read(file: &Path, header: &OnnxHeader) -> Result<Backbone, LoadError> {
        let unsupported = |what: String| LoadError::Unsupported {
            path: file.to_owned(),
            what,
            hint: "; a graph must output a vector or contain the backbone of a vision transformer".to_owned(),
        };
        let Some(input) = header.inputs.first() else { return Err(unsupported("no input".to_owned())) };
        let side = match input.shape[2..] {
            [None, None] => SIDE,
            [Some(height), Some(width)] if height == width && (1..=SIDE_MAX).contains(&height) => {
                height as u32
            }
            _ => return Err(unsupported(format!("images of the shape {:?}", input.shape))),
        };
        let labels = Labels::beside(file, header)?;
        let is_label = |name: &str| labels.as_ref().is_some_and(|labels| labels.output == name);
        let of_rank = |rank: usize| {
            header.outputs.iter().find(|info| info.shape.len() == rank && !is_label(&info.name))
        };
        let output_vector = of_rank(2).or(of_rank(3)).map(|info| &info.name);
        let inner = || {
            let mut values = header.values.iter().rev().filter(|value| !value.contains("/encoder/"));
            values.find(|value| LAST_NORMS.iter().any(|name| value.ends_with(name)))
        };
        // A pure classifier has no vector other than its class scores.
        let scores = labels.as_ref().map(|labels| &labels.output);
        let (output, is_inner) = match (output_vector, inner(), scores) {
            (Some(name), _, _) | (None, None, Some(name)) => (name.clone(), false),
            (None, Some(value), _) => (value.clone(), true),
            (None, None, None) => return Err(unsupported("no output that is a vector".to_owned())),
        };
        let (input, cubics, colors) =
            (input.name.clone(), header.cubics.clone(), ColorNormalization::beside(file)?);
        Ok(Backbone { file: file.to_owned(), input, output, side, is_inner, cubics, colors, labels })
    }

    /// The values that rten would compute wrongly, by name.
    fn grids(
        &self,
        threads: &Arc<ThreadPool>,
        beacon: &Beacon,
    ) -> Result<Vec<(&String, Tensor<f32>)>, LoadError> {
        if self.cubics.is_empty() {
            return Ok(Vec::new());
        }
        let graph = OnnxGraph::load_unoptimized(&self.file, threads, beacon)?;
        let (input, side) = (graph.value(&self.input)?, self.side as usize);
        let see = |brightness, value| {
            let picture = Tensor::full(&[1, 3, side, side], brightness);
            graph.run(vec![(input, picture.into())], value)
        };
        self.cubics.iter().map(|cubic| Ok((&cubic.made, position_grid::make(&graph, cubic, see)?))).collect()
    }

    pub(crate) fn architecture(&self) -> String {
        let what = if self.is_inner {
            "the backbone of a vision transformer"
        } else {
            "a graph that gives a vector"
        };
        format!("{what}, {0} x {0} pixels", self.side)
    }

    pub(crate) fn files(&self) -> Vec<PathBuf> {
        let labels = self.labels.as_ref().map(|labels| labels.file.clone());
        std::iter::once(self.file.clone()).chain(labels).collect()
    }

    pub(crate) fn notes(&self) -> Vec<String> {
        let mut notes = vec![format!(
            "images are cropped to the central square and scaled to {0} x {0} pixels",
            self.side
        )];
        if self.is_inner {
            notes.push(format!("the vector is taken at {}, before the graph's head", self.output));
        }
        notes
    }
}

pub(crate) struct ImageModel {
    graph: OnnxGraph,
    input: NodeId,
    output: NodeId,
    side: u32,
    colors: ColorNormalization,
    labels: Option<(Labels, NodeId)>,
    /// Values that rten would compute wrongly.
    grids: Vec<(NodeId, Tensor<f32>)>,
}

impl ImageModel {
    pub(crate) fn load(backbone: &Backbone, threads: u32, beacon: &Beacon) -> Result<ImageModel, LoadError> {
        let threads = graph::threads(threads);
        let grids = backbone.grids(&threads, beacon)?;
        let graph = OnnxGraph::load_without(&backbone.cubics, &backbone.file, &threads, beacon)?;
        let (input, output) = (graph.value(&backbone.input)?, graph.value(&backbone.output)?);
        let named = |(name, places): (&String, _)| Ok((graph.value(name)?, places));
        let grids = grids.into_iter().map(named).collect::<Result<_, LoadError>>()?;
        let labels = backbone.labels.clone();
        let labels =
            labels.map(|labels| Ok::<_, LoadError>((graph.value(&labels.output)?, labels))).transpose()?;
        let labels = labels.map(|(node, labels)| (labels, node));
        Ok(ImageModel { graph, input, output, side: backbone.side, colors: backbone.colors, labels, grids })
    }
}

impl ImageEmbedding for ImageModel {
    fn embed(&mut self, image: &[u8], beacon: &Beacon) -> Result<EmbeddedImage, InferenceError> {
        beacon.step()?;
        let picture = image_file::decode(image).map_err(InferenceError::Input)?;
        beacon.step()?;
        let resized = self.side * 8 / 7;
        let square = resize::central_square(&picture, resized, self.side);
        let side = self.side as usize;
        let planes = Tensor::from_data(
            &[1, 3, side, side],
            image_file::planes(&square, self.colors.mean, self.colors.deviation),
        );
        beacon.step()?;
        let grids = self.grids.iter().map(|(node, places)| (*node, places.into()));
        let inputs = std::iter::once((self.input, planes.into())).chain(grids).collect();
        let scores = self.labels.as_ref().map(|(_, node)| *node).filter(|node| *node != self.output);
        let outputs: Vec<_> = std::iter::once(self.output).chain(scores).collect();
        let seen = self.graph.run_all(inputs, &outputs)?;
        beacon.step()?;
        let labels = match (&self.labels, seen.last()) {
            (Some((labels, _)), Some(logits)) => labels.likeliest(&logits.to_vec()),
            _ => Vec::new(),
        };
        Ok(EmbeddedImage { vector: unit(vector(seen.first())?)?, labels })
    }
}

/// Of a sequence of tokens the first one represents the image.
fn vector(seen: Option<&Tensor<f32>>) -> Result<Vec<f32>, InferenceError> {
    let seen = seen.ok_or_else(|| InferenceError::Engine("the graph has no output".to_owned()))?;
    match *seen.shape() {
        [1, _] => Ok(seen.to_vec()),
        [1, tokens, width] if tokens > 0 => Ok(seen.iter().take(width).copied().collect()),
        ref shape => Err(InferenceError::Engine(format!("expected a vector, got {shape:?}"))),
    }
}

/// Normalises to a unit vector.
pub(crate) fn unit(mut vector: Vec<f32>) -> Result<Vec<f32>, InferenceError> {
    let length = vector.iter().map(|number| number * number).sum::<f32>().sqrt();
    if !length.is_finite() || length <= f32::MIN_POSITIVE {
        return Err(InferenceError::Engine("the vector is zero or not finite".to_owned()));
    }
    vector.iter_mut().for_each(|number| *number /= length);
    Ok(vector)
}

/// Checks images before they are queued.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ImageChecks(pub(crate) Capability);

impl Prepare for ImageChecks {
    fn prepare(&self, request: ModelRequest) -> Result<Vec<RequestPart>, ModelError> {
        match request {
            ModelRequest::ImageEmbedding { images } if self.0 == Capability::ImageEmbedding => {
                let parts = images.into_iter().enumerate().map(|(place, image)| {
                    let why = |why| ModelError::Input(format!("image {}: {why}", place + 1));
                    image_file::examine(&image).map_err(why)?;
                    Ok(RequestPart::EmbedImage(image))
                });
                parts.collect()
            }
            ModelRequest::Vision(look) if self.0 == Capability::Vision => {
                if look.question.as_deref().is_some_and(|question| !question.trim().is_empty()) {
                    return Err(ModelError::Input("this model reads text and takes no question".to_owned()));
                }
                image_file::examine(&look.image).map_err(ModelError::Input)?;
                Ok(vec![RequestPart::Recognize(look)])
            }
            other => Err(ModelError::Input(format!(
                "a model for {} got a request for {}",
                self.0,
                other.capability()
            ))),
        }
    }

    fn golden(&self) -> RequestPart {
        let image = GOLDEN.to_vec();
        match self.0 {
            Capability::Vision => RequestPart::Recognize(ImageQuery { image, question: None }),
            _ => RequestPart::EmbedImage(image),
        }
    }
}

/// An image with a word in it.
const GOLDEN: &[u8] = include_bytes!("image_model/golden.png");
