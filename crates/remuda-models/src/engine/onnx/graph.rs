//! A loaded ONNX file with its own threads and our error messages.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rten::{
    LoadErrorKind, Model, ModelOptions, NodeId, RunErrorKind, RunOptions, ShapeInferenceMode, ThreadPool,
    ValueOrView,
};
use rten_tensor::Tensor;

use super::header::CubicResize;
use crate::beacon::Beacon;
use crate::failure::{InferenceError, LoadError};

/// Bytes read between two beacon steps.
const PIECE_BYTES: u64 = 8 << 20;

pub(crate) struct OnnxGraph {
    model: Model,
    threads: Arc<ThreadPool>,
    path: PathBuf,
}

/// The threads that the graphs of one copy share; rten's default pool would be shared by the whole process.
pub(crate) fn threads(count: u32) -> Arc<ThreadPool> {
    Arc::new(ThreadPool::with_num_threads(count.max(1) as usize))
}

impl OnnxGraph {
    pub(crate) fn load(
        path: &Path,
        threads: &Arc<ThreadPool>,
        beacon: &Beacon,
    ) -> Result<OnnxGraph, LoadError> {
        OnnxGraph::read(path, threads, Some(&[]), beacon)
    }

    /// Without optimisation: slower, but with every value of the file.
    pub(crate) fn load_unoptimized(
        path: &Path,
        threads: &Arc<ThreadPool>,
        beacon: &Beacon,
    ) -> Result<OnnxGraph, LoadError> {
        OnnxGraph::read(path, threads, None, beacon)
    }

    /// Without the nodes that compute these values: every run provides them.
    pub(crate) fn load_without(
        made: &[CubicResize],
        path: &Path,
        threads: &Arc<ThreadPool>,
        beacon: &Beacon,
    ) -> Result<OnnxGraph, LoadError> {
        OnnxGraph::read(path, threads, Some(made), beacon)
    }

    /// Optimised unless `without` is empty.
    fn read(
        path: &Path,
        threads: &Arc<ThreadPool>,
        without: Option<&[CubicResize]>,
        beacon: &Beacon,
    ) -> Result<OnnxGraph, LoadError> {
        let wrong = |detail: String| LoadError::Wrong { path: path.to_owned(), detail };
        let mut file = File::open(path).map_err(|error| wrong(error.to_string()))?;
        let mut bytes = Vec::new();
        // From memory and never by path, so that references to other files are not followed.
        while file
            .by_ref()
            .take(PIECE_BYTES)
            .read_to_end(&mut bytes)
            .map_err(|error| wrong(error.to_string()))?
            > 0
        {
            beacon.step()?;
        }
        for cubic in without.unwrap_or_default() {
            // The node writes to another name instead, which no other node uses.
            if let Some(last) =
                usize::try_from(cubic.made_end).ok().and_then(|end| bytes.get_mut(end.checked_sub(1)?))
            {
                *last = b'~';
            }
        }
        let load = || {
            let mut options = ModelOptions::with_all_ops();
            options.enable_optimization(without.is_some());
            if without.is_some_and(|made| !made.is_empty()) {
                // Shape inference stops at a value without a producer.
                options.shape_inference(ShapeInferenceMode::Off);
            }
            options.load(bytes)
        };
        let model = threads.run(load).map_err(|error| match error.kind() {
            LoadErrorKind::OperatorInvalid => LoadError::Unsupported {
                path: path.to_owned(),
                what: error.to_string(),
                hint: "; export it with other operators".to_owned(),
            },
            _ => wrong(error.to_string()),
        })?;
        beacon.step()?;
        Ok(OnnxGraph { model, threads: Arc::clone(threads), path: path.to_owned() })
    }

    /// The value of this name, which may have been optimised away.
    pub(crate) fn value(&self, name: &str) -> Result<NodeId, LoadError> {
        self.model.find_node(name).ok_or_else(|| LoadError::Wrong {
            path: self.path.clone(),
            detail: format!("its graph has no value called {name}"),
        })
    }

    /// The graph needs something that rten would compute wrongly.
    pub(crate) fn unsupported(&self, what: &str) -> LoadError {
        LoadError::Unsupported {
            path: self.path.clone(),
            what: what.to_owned(),
            hint: "; export it with other operators".to_owned(),
        }
    }

    /// Computes one value and only the part of the graph it needs.
    pub(crate) fn run(
        &self,
        inputs: Vec<(NodeId, ValueOrView)>,
        output: NodeId,
    ) -> Result<Tensor<f32>, InferenceError> {
        let made = self.run_all(inputs, &[output])?.pop();
        made.ok_or_else(|| InferenceError::Engine("the graph has no output".to_owned()))
    }

    pub(crate) fn run_all(
        &self,
        inputs: Vec<(NodeId, ValueOrView)>,
        outputs: &[NodeId],
    ) -> Result<Vec<Tensor<f32>>, InferenceError> {
        let options = RunOptions::default().with_thread_pool(Some(Arc::clone(&self.threads)));
        let classify = |error: rten::RunError| match error.kind() {
            RunErrorKind::InvalidInput => InferenceError::Input(error.to_string()),
            _ => InferenceError::Engine(error.to_string()),
        };
        let values = self.model.run(inputs, outputs, Some(options)).map_err(classify)?;
        let floats = values.into_iter().map(Tensor::<f32>::try_from);
        floats.collect::<Result<_, _>>().map_err(|error| InferenceError::Engine(error.to_string()))
    }
}
