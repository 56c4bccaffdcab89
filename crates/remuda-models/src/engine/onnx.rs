//! ONNX models, run by rten: image embeddings, text recognition, and text embeddings for models that exist only as
//! ONNX.
//!
//! The inputs and outputs of a path's graphs decide what it holds; folder names do not.
//!
//! | files | inputs | what it is |
//! |---|---|---|
//! | two graphs called `…det…` and `…rec…` | an image of any size | reads text: [`super::ocr`] |
//! | one graph | `[N, 3, H, W]` | embeds images: [`super::image_model`] |
//! | one graph and `tokenizer.json` | `input_ids`, … | embeds texts: [`text`] |

pub(crate) mod graph;
pub(crate) mod header;
mod text;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use self::header::{FLOAT, OnnxHeader};
use self::text::TextModelFolder;
use super::{image_model, ocr};
use crate::backend::{Backend, ModelInfo, Prepare};
use crate::beacon::Beacon;
use crate::failure::LoadError;
use crate::model::LoadedModel;
use crate::spec::{Capability, Device, Isolation, ModelSpec, Precision};

/// Runs ONNX files on CPUs.
#[derive(Clone, Copy, Debug, Default)]
pub struct Onnx;

/// What a path holds.
enum OnnxPlan {
    Reader(ocr::OcrFiles),
    Picture(image_model::Backbone),
    Text(TextModelFolder),
}

impl Backend for Onnx {
    fn name(&self) -> &'static str {
        "rten"
    }

    fn inspect(&self, spec: &ModelSpec) -> Result<Option<ModelInfo>, LoadError> {
        let Some(plan) = plan(&spec.path)? else { return Ok(None) };
        if spec.capability.is_some_and(|asked| asked != plan.capability()) {
            return Ok(None);
        }
        if spec.precision != Precision::Native {
            return Err(LoadError::Unsupported {
                path: spec.path.clone(),
                what: "converting an ONNX file to int8".to_owned(),
                hint: "; use a quantised file".to_owned(),
            });
        }
        let files = plan.files();
        let weights: u64 = files.iter().filter_map(|file| file.metadata().ok()).map(|file| file.len()).sum();
        Ok(Some(ModelInfo {
            engine: self.name(),
            capability: plan.capability(),
            architecture: plan.architecture(),
            device: Device::Cpu,
            device_bytes: None,
            memory_bytes: 2 * weights + plan.work_bytes(),
            files,
            // A failing graph affects only itself: rten is memory-safe and its runs share no state.
            isolation: Isolation::Thread,
            notes: plan.notes(),
        }))
    }

    fn load(&self, spec: &ModelSpec, beacon: &Beacon) -> Result<LoadedModel, LoadError> {
        match plan(&spec.path)?.ok_or_else(|| missing_file(&spec.path))? {
            OnnxPlan::Reader(files) => {
                Ok(LoadedModel::Vision(Box::new(ocr::OcrModel::load(&files, spec.threads, beacon)?)))
            }
            OnnxPlan::Picture(backbone) => Ok(LoadedModel::ImageEmbedding(Box::new(
                image_model::ImageModel::load(&backbone, spec.threads, beacon)?,
            ))),
            OnnxPlan::Text(folder) => Ok(LoadedModel::TextEmbedding(Box::new(text::OnnxTextModel::load(
                &folder,
                spec.threads,
                beacon,
            )?))),
        }
    }

    fn prepare(&self, spec: &ModelSpec) -> Result<Arc<dyn Prepare>, LoadError> {
        match plan(&spec.path)?.ok_or_else(|| missing_file(&spec.path))? {
            OnnxPlan::Reader(_) => Ok(Arc::new(image_model::ImageChecks(Capability::Vision))),
            OnnxPlan::Picture(_) => Ok(Arc::new(image_model::ImageChecks(Capability::ImageEmbedding))),
            OnnxPlan::Text(folder) => Ok(Arc::new(folder.words()?)),
        }
    }
}

impl OnnxPlan {
    fn capability(&self) -> Capability {
        match self {
            OnnxPlan::Reader(_) => Capability::Vision,
            OnnxPlan::Picture(_) => Capability::ImageEmbedding,
            OnnxPlan::Text(_) => Capability::TextEmbedding,
        }
    }

    fn architecture(&self) -> String {
        match self {
            OnnxPlan::Reader(files) => files.architecture(),
            OnnxPlan::Picture(backbone) => backbone.architecture(),
            OnnxPlan::Text(_) => "text embedding as an ONNX graph".to_owned(),
        }
    }

    fn files(&self) -> Vec<PathBuf> {
        match self {
            OnnxPlan::Reader(files) => files.all(),
            OnnxPlan::Picture(backbone) => backbone.files(),
            OnnxPlan::Text(folder) => folder.files(),
        }
    }

    /// Scratch memory besides the weights.
    fn work_bytes(&self) -> u64 {
        match self {
            OnnxPlan::Reader(_) => ocr::WORK_BYTES,
            OnnxPlan::Picture(_) => image_model::WORK_BYTES,
            OnnxPlan::Text(_) => text::WORK_BYTES,
        }
    }

    fn notes(&self) -> Vec<String> {
        match self {
            OnnxPlan::Reader(files) => files.notes(),
            OnnxPlan::Picture(backbone) => backbone.notes(),
            OnnxPlan::Text(folder) => folder.notes(),
        }
    }
}

fn plan(path: &Path) -> Result<Option<OnnxPlan>, LoadError> {
    let graphs = graphs(path);
    if let Some(files) = ocr::OcrFiles::among(&graphs)? {
        return Ok(Some(OnnxPlan::Reader(files)));
    }
    let named = |name: &str| graphs.iter().find(|graph| graph.file_name().is_some_and(|it| it == name));
    let Some(file) = named("model.onnx").or_else(|| graphs.first().filter(|_| graphs.len() == 1)) else {
        return match graphs.is_empty() {
            true => Ok(None),
            false => Err(LoadError::Unsupported {
                path: path.to_owned(),
                what: "several ONNX files, none of them called model.onnx".to_owned(),
                hint: "; name one of them".to_owned(),
            }),
        };
    };
    let header = OnnxHeader::read(file)?;
    if header.is_split {
        return Err(LoadError::Unsupported {
            path: file.clone(),
            what: "an ONNX file with external weights".to_owned(),
            hint: "; save it as one file".to_owned(),
        });
    }
    if header.input("input_ids").is_some() {
        return TextModelFolder::read(file, &header).map(|folder| Some(OnnxPlan::Text(folder)));
    }
    if let [input] = header.inputs.as_slice()
        && input.element == FLOAT
        && matches!(input.shape.as_slice(), [_, Some(3), _, _])
    {
        return image_model::Backbone::read(file, &header).map(|backbone| Some(OnnxPlan::Picture(backbone)));
    }
    let taken: Vec<_> = header.inputs.iter().map(|info| info.name.as_str()).collect();
    Err(LoadError::Unsupported {
        path: file.clone(),
        what: format!("an ONNX graph that takes {}", taken.join(", ")),
        hint: "; supported are graphs that take one image or tokens".to_owned(),
    })
}

/// The ONNX files at a path; exports of transformers put them in a subfolder.
fn graphs(path: &Path) -> Vec<PathBuf> {
    let is_graph = |path: &Path| path.extension().is_some_and(|extension| extension == "onnx");
    if path.is_file() {
        return Some(path.to_owned()).filter(|path| is_graph(path)).into_iter().collect();
    }
    let in_folder = |folder: &Path| {
        let entries = std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
        let mut graphs: Vec<_> = entries.filter(|path| is_graph(path) && path.is_file()).collect();
        graphs.sort();
        graphs
    };
    let here = in_folder(path);
    if here.is_empty() { in_folder(&path.join("onnx")) } else { here }
}

fn missing_file(path: &Path) -> LoadError {
    LoadError::Missing { path: path.to_owned(), what: "ONNX file".to_owned(), hint: String::new() }
}
