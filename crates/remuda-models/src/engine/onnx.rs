//! Models in ONNX files, run by rten: pictures as vectors, text in pictures, and texts as vectors where nothing but an ONNX
//! file is to be had.
//!
//! What a path holds is told by what its graphs take and give, and by nothing else: names of folders promise nothing.
//!
//! | files | inputs | what it is |
//! |---|---|---|
//! | two graphs called `…det…` and `…rec…` | a picture of any size | reads text: [`super::ocr`] |
//! | one graph | `[N, 3, H, W]` | embeds pictures: [`super::sight`] |
//! | one graph and `tokenizer.json` | `input_ids`, … | embeds texts: [`text`] |

pub(crate) mod graph;
pub(crate) mod header;
mod text;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use self::header::{FLOAT, Header};
use self::text::Folder;
use super::{ocr, sight};
use crate::backend::{Backend, Found, Prepare};
use crate::beacon::Beacon;
use crate::failure::LoadError;
use crate::model::Model;
use crate::spec::{Capability, Device, Isolation, ModelSpec, Precision};

/// Runs ONNX files on CPUs.
#[derive(Clone, Copy, Debug, Default)]
pub struct Onnx;

/// What a path turned out to hold.
enum Plan {
    Reader(ocr::Files),
    Picture(sight::Backbone),
    Text(Folder),
}

impl Backend for Onnx {
    fn name(&self) -> &'static str {
        "rten"
    }

    fn inspect(&self, spec: &ModelSpec) -> Result<Option<Found>, LoadError> {
        let Some(plan) = plan(&spec.path)? else { return Ok(None) };
        if spec.capability.is_some_and(|asked| asked != plan.capability()) {
            return Ok(None);
        }
        if spec.precision != Precision::Native {
            return Err(LoadError::Unsupported {
                path: spec.path.clone(),
                what: "eight bits made of an ONNX file".to_owned(),
                hint: "; take a file that has them".to_owned(),
            });
        }
        let files = plan.files();
        let weights: u64 = files.iter().filter_map(|file| file.metadata().ok()).map(|file| file.len()).sum();
        Ok(Some(Found {
            engine: self.name(),
            capability: plan.capability(),
            architecture: plan.architecture(),
            device: Device::Cpu,
            device_bytes: None,
            memory_bytes: 2 * weights + plan.work_bytes(),
            files,
            // A graph that fails fails alone: rten is memory-safe and has no state that its runs share.
            isolation: Isolation::Thread,
            notes: plan.notes(),
        }))
    }

    fn load(&self, spec: &ModelSpec, beacon: &Beacon) -> Result<Model, LoadError> {
        match plan(&spec.path)?.ok_or_else(|| nothing(&spec.path))? {
            Plan::Reader(files) => {
                Ok(Model::Vision(Box::new(ocr::Reader::load(&files, spec.threads, beacon)?)))
            }
            Plan::Picture(backbone) => {
                Ok(Model::ImageEmbedding(Box::new(sight::Sight::load(&backbone, spec.threads, beacon)?)))
            }
            Plan::Text(folder) => {
                Ok(Model::TextEmbedding(Box::new(text::Texts::load(&folder, spec.threads, beacon)?)))
            }
        }
    }

    fn prepare(&self, spec: &ModelSpec) -> Result<Arc<dyn Prepare>, LoadError> {
        match plan(&spec.path)?.ok_or_else(|| nothing(&spec.path))? {
            Plan::Reader(_) => Ok(Arc::new(sight::Checks(Capability::Vision))),
            Plan::Picture(_) => Ok(Arc::new(sight::Checks(Capability::ImageEmbedding))),
            Plan::Text(folder) => Ok(Arc::new(folder.words()?)),
        }
    }
}

impl Plan {
    fn capability(&self) -> Capability {
        match self {
            Plan::Reader(_) => Capability::Vision,
            Plan::Picture(_) => Capability::ImageEmbedding,
            Plan::Text(_) => Capability::TextEmbedding,
        }
    }

    fn architecture(&self) -> String {
        match self {
            Plan::Reader(files) => files.architecture(),
            Plan::Picture(backbone) => backbone.architecture(),
            Plan::Text(_) => "text embedding, as an ONNX graph".to_owned(),
        }
    }

    fn files(&self) -> Vec<PathBuf> {
        match self {
            Plan::Reader(files) => files.all(),
            Plan::Picture(backbone) => backbone.files(),
            Plan::Text(folder) => folder.files(),
        }
    }

    /// What computing takes beside the weights.
    fn work_bytes(&self) -> u64 {
        match self {
            Plan::Reader(_) => ocr::WORK_BYTES,
            Plan::Picture(_) => sight::WORK_BYTES,
            Plan::Text(_) => text::WORK_BYTES,
        }
    }

    fn notes(&self) -> Vec<String> {
        match self {
            Plan::Reader(files) => files.notes(),
            Plan::Picture(backbone) => backbone.notes(),
            Plan::Text(folder) => folder.notes(),
        }
    }
}

fn plan(path: &Path) -> Result<Option<Plan>, LoadError> {
    let graphs = graphs(path);
    if let Some(files) = ocr::Files::among(&graphs)? {
        return Ok(Some(Plan::Reader(files)));
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
    let header = Header::read(file)?;
    if header.is_split {
        return Err(LoadError::Unsupported {
            path: file.clone(),
            what: "an ONNX file whose weights lie in another file".to_owned(),
            hint: "; save it as one file".to_owned(),
        });
    }
    if header.input("input_ids").is_some() {
        return Folder::read(file, &header).map(|folder| Some(Plan::Text(folder)));
    }
    if let [input] = header.inputs.as_slice()
        && input.element == FLOAT
        && matches!(input.shape.as_slice(), [_, Some(3), _, _])
    {
        return sight::Backbone::read(file, &header).map(|backbone| Some(Plan::Picture(backbone)));
    }
    let taken: Vec<_> = header.inputs.iter().map(|info| info.name.as_str()).collect();
    Err(LoadError::Unsupported {
        path: file.clone(),
        what: format!("an ONNX graph that takes {}", taken.join(", ")),
        hint: "; those that take one picture or tokens are".to_owned(),
    })
}

/// The ONNX files at a path; exports of transformers have theirs in a folder of its own.
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

fn nothing(path: &Path) -> LoadError {
    LoadError::Missing { path: path.to_owned(), what: "ONNX file".to_owned(), hint: String::new() }
}
