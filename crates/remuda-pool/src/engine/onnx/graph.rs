//! One ONNX file, loaded: runs with its own threads, and says what went wrong in our words.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rten::{LoadErrorKind, Model, NodeId, RunErrorKind, RunOptions, ThreadPool, ValueOrView};
use rten_tensor::Tensor;

use crate::beacon::Beacon;
use crate::failure::{Failure, LoadError};

/// Read so much between two signs of life.
const PIECE_BYTES: u64 = 8 << 20;

pub(crate) struct Graph {
    model: Model,
    threads: Arc<ThreadPool>,
    path: PathBuf,
}

/// The threads that the graphs of one copy share: rten's own would be one for the whole process.
pub(crate) fn threads(count: u32) -> Arc<ThreadPool> {
    Arc::new(ThreadPool::with_num_threads(count.max(1) as usize))
}

impl Graph {
    pub(crate) fn load(path: &Path, threads: &Arc<ThreadPool>, beacon: &Beacon) -> Result<Graph, LoadError> {
        let wrong = |detail: String| LoadError::Wrong { path: path.to_owned(), detail };
        let mut file = File::open(path).map_err(|error| wrong(error.to_string()))?;
        let mut bytes = Vec::new();
        // From memory and never by its path: a file that names others is not followed to them.
        while file
            .by_ref()
            .take(PIECE_BYTES)
            .read_to_end(&mut bytes)
            .map_err(|error| wrong(error.to_string()))?
            > 0
        {
            beacon.step()?;
        }
        let model = threads.run(|| Model::load(bytes)).map_err(|error| match error.kind() {
            LoadErrorKind::OperatorInvalid => LoadError::Unsupported {
                path: path.to_owned(),
                what: error.to_string(),
                hint: "; export it with other operators".to_owned(),
            },
            _ => wrong(error.to_string()),
        })?;
        beacon.step()?;
        Ok(Graph { model, threads: Arc::clone(threads), path: path.to_owned() })
    }

    /// The value of this name, which may have been optimised away.
    pub(crate) fn value(&self, name: &str) -> Result<NodeId, LoadError> {
        self.model.find_node(name).ok_or_else(|| LoadError::Wrong {
            path: self.path.clone(),
            detail: format!("its graph has no value called {name}"),
        })
    }

    /// Computes one value, and no more of the graph than that takes.
    pub(crate) fn run(
        &self,
        inputs: Vec<(NodeId, ValueOrView)>,
        output: NodeId,
    ) -> Result<Tensor<f32>, Failure> {
        let options = RunOptions::default().with_thread_pool(Some(Arc::clone(&self.threads)));
        let told = |error: rten::RunError| match error.kind() {
            RunErrorKind::InvalidInput => Failure::Input(error.to_string()),
            _ => Failure::Engine(error.to_string()),
        };
        let [value] = self.model.run_n(inputs, [output], Some(options)).map_err(told)?;
        Tensor::<f32>::try_from(value).map_err(|error| Failure::Engine(error.to_string()))
    }
}
