//! Pictures as vectors, by the backbone of a vision transformer or any graph that ends in a vector.

pub(crate) mod picture;

use std::path::{Path, PathBuf};

use rten::NodeId;
use rten_tensor::Tensor;
use rten_tensor::prelude::*;

use super::onnx::graph::{self, Graph};
use super::onnx::header::Header;
use crate::backend::Prepare;
use crate::beacon::Beacon;
use crate::failure::{Failure, LoadError, PoolError};
use crate::model::ImageEmbedding;
use crate::request::{Embedded, Look, Part, Request};
use crate::spec::Capability;

/// What a run takes beside the weights.
pub(crate) const WORK_BYTES: u64 = 96 << 20;

/// How nearly all of these models were trained to see: ImageNet's mean and deviation, the middle 7/8 of a picture.
const MEAN: [f32; 3] = [0.485, 0.456, 0.406];
const DEVIATION: [f32; 3] = [0.229, 0.224, 0.225];
const SIDE: u32 = 224;
/// No model looks at more than this at once.
const SIDE_MAX: u64 = 1024;

/// What the last normalisation of a transformer is called by those who export it, before any head is put on it.
const LAST_NORMS: [&str; 4] = [
    "/layernorm/Add_1_output_0",
    "/layernorm/LayerNormalization_output_0",
    "/norm/Add_1_output_0",
    "/norm/LayerNormalization_output_0",
];

/// A graph that sees, and which of its values is what it sees.
#[derive(Clone, Debug)]
pub(crate) struct Backbone {
    file: PathBuf,
    input: String,
    output: String,
    side: u32,
    is_inner: bool,
}

impl Backbone {
    pub(crate) fn read(file: &Path, header: &Header) -> Result<Backbone, LoadError> {
        let unsupported = |what: String| LoadError::Unsupported {
            path: file.to_owned(),
            what,
            hint: "; a graph has to give a vector, or to have the backbone of a vision transformer"
                .to_owned(),
        };
        let Some(input) = header.inputs.first() else { return Err(unsupported("no input".to_owned())) };
        let side = match input.shape[2..] {
            [None, None] => SIDE,
            [Some(height), Some(width)] if height == width && (1..=SIDE_MAX).contains(&height) => {
                height as u32
            }
            _ => return Err(unsupported(format!("pictures of the shape {:?}", input.shape))),
        };
        let ranks = [2, 3];
        let given =
            ranks.iter().find_map(|rank| header.outputs.iter().find(|info| info.shape.len() == *rank));
        let inner = || {
            let mut values = header.values.iter().rev().filter(|value| !value.contains("/encoder/"));
            values.find(|value| LAST_NORMS.iter().any(|name| value.ends_with(name)))
        };
        let (output, is_inner) = match (given, inner()) {
            (Some(info), _) => (&info.name, false),
            (None, Some(value)) => (value, true),
            (None, None) => return Err(unsupported("no output that is a vector".to_owned())),
        };
        let (input, output) = (input.name.clone(), output.clone());
        Ok(Backbone { file: file.to_owned(), input, output, side, is_inner })
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
        vec![self.file.clone()]
    }

    pub(crate) fn notes(&self) -> Vec<String> {
        let mut notes =
            vec![format!("it sees the middle square of a picture, at {0} x {0} pixels", self.side)];
        if self.is_inner {
            notes.push(format!("the vector is taken at {}, before what the graph was made for", self.output));
        }
        notes
    }
}

pub(crate) struct Sight {
    graph: Graph,
    input: NodeId,
    output: NodeId,
    side: u32,
}

impl Sight {
    pub(crate) fn load(backbone: Backbone, threads: u32, beacon: &Beacon) -> Result<Sight, LoadError> {
        let graph = Graph::load(&backbone.file, &graph::threads(threads), beacon)?;
        let (input, output) = (graph.value(&backbone.input)?, graph.value(&backbone.output)?);
        Ok(Sight { graph, input, output, side: backbone.side })
    }
}

impl ImageEmbedding for Sight {
    fn embed(&mut self, image: &[u8], beacon: &Beacon) -> Result<Embedded, Failure> {
        beacon.step()?;
        let picture = picture::decode(image).map_err(Failure::Input)?;
        beacon.step()?;
        let resized = self.side * 8 / 7;
        let square = picture::middle(&picture, resized, self.side);
        let side = self.side as usize;
        let planes = Tensor::from_data(&[1, 3, side, side], picture::planes(&square, MEAN, DEVIATION));
        beacon.step()?;
        let seen = self.graph.run(vec![(self.input, planes.into())], self.output)?;
        beacon.step()?;
        // Of a row of tokens the first is the one that stands for all.
        let vector: Vec<f32> = match *seen.shape() {
            [1, _] => seen.to_vec(),
            [1, tokens, width] if tokens > 0 => seen.iter().take(width).copied().collect(),
            ref shape => return Err(Failure::Engine(format!("a vector was expected and {shape:?} came"))),
        };
        Ok(Embedded { vector: unit(vector)?, labels: Vec::new() })
    }
}

/// Of length 1.
pub(crate) fn unit(mut vector: Vec<f32>) -> Result<Vec<f32>, Failure> {
    let length = vector.iter().map(|number| number * number).sum::<f32>().sqrt();
    if !length.is_finite() || length <= f32::MIN_POSITIVE {
        return Err(Failure::Engine("the vector has no direction".to_owned()));
    }
    vector.iter_mut().for_each(|number| *number /= length);
    Ok(vector)
}

/// Looks at pictures before they wait for anybody.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Checks(pub(crate) Capability);

impl Prepare for Checks {
    fn prepare(&self, request: Request) -> Result<Vec<Part>, PoolError> {
        match request {
            Request::ImageEmbedding { images } if self.0 == Capability::ImageEmbedding => {
                let parts = images.into_iter().enumerate().map(|(place, image)| {
                    let why = |why| PoolError::Input(format!("picture {}: {why}", place + 1));
                    picture::examine(&image).map_err(why)?;
                    Ok(Part::Picture(image))
                });
                parts.collect()
            }
            Request::Vision(look) if self.0 == Capability::Vision => {
                if look.question.as_deref().is_some_and(|question| !question.trim().is_empty()) {
                    return Err(PoolError::Input(
                        "this model reads text and cannot be asked anything".to_owned(),
                    ));
                }
                picture::examine(&look.image).map_err(PoolError::Input)?;
                Ok(vec![Part::Look(look)])
            }
            other => {
                Err(PoolError::Input(format!("a model for {} was asked for {}", self.0, other.capability())))
            }
        }
    }

    fn golden(&self) -> Part {
        let image = GOLDEN.to_vec();
        match self.0 {
            Capability::Vision => Part::Look(Look { image, question: None }),
            _ => Part::Picture(image),
        }
    }
}

/// A picture with a word in it, drawn for this.
const GOLDEN: &[u8] = include_bytes!("sight/golden.png");
