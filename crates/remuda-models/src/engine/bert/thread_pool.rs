//! The threads of a copy. Several texts are divided among them; a single text is shared by all threads, product by
//! product.
//!
//! Even a single-threaded copy has its own pool: rayon work outside a pool would run in the global one of the process.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

use rayon::{ThreadPool, ThreadPoolBuilder};

use super::layer::LayerBuffers;
use super::net::BertNet;
use crate::beacon::Beacon;
use crate::failure::{InferenceError, LoadError};
use crate::model::TextEmbedding;

/// Rows that go through the layers together: their activations stay in a core's L2 cache, and weights are fetched
/// rarely enough.
const GROUP_TOKENS: usize = 128;

/// More threads than one copy could use on any machine.
const THREADS_MAX: usize = 256;

pub(super) struct EmbedThreads {
    /// One single-thread pool per thread.
    lanes: Vec<ThreadPool>,
    /// A pool of all threads, if there are several.
    whole: Option<ThreadPool>,
}

/// A model with its threads.
pub(super) struct Embedder {
    net: BertNet,
    threads: EmbedThreads,
    rooms: Vec<LayerBuffers>,
}

impl EmbedThreads {
    pub(super) fn new(threads: usize) -> Result<Self, LoadError> {
        let threads = threads.min(THREADS_MAX);
        let lanes = (0..threads).map(|_| pool(1)).collect::<Result<Vec<_>, _>>()?;
        let whole = if threads > 1 { Some(pool(threads)?) } else { None };
        Ok(EmbedThreads { lanes, whole })
    }

    /// Runs work on one thread.
    pub(super) fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        match self.lanes.first() {
            Some(lane) => lane.install(work),
            None => work(),
        }
    }

    pub(super) fn with(self, net: BertNet) -> Embedder {
        let rooms = self.lanes.iter().map(|_| LayerBuffers::default()).collect();
        Embedder { net, threads: self, rooms }
    }
}

fn pool(threads: usize) -> Result<ThreadPool, LoadError> {
    let builder =
        ThreadPoolBuilder::new().num_threads(threads).thread_name(|number| format!("embed-{number}"));
    builder
        .build()
        .map_err(|error| LoadError::Engine(format!("compute threads could not be started: {error}")))
}

impl TextEmbedding for Embedder {
    fn embed(&mut self, texts: &[&[u32]], beacon: &Beacon) -> Result<Vec<Vec<f32>>, InferenceError> {
        texts.iter().try_for_each(|text| self.net.tables.check(text))?;
        let Embedder { net, threads, rooms } = self;
        let groups = groups(texts, threads.lanes.len());
        let embed = |group: &Range<usize>, buffers: &mut LayerBuffers| {
            net.embed(&texts[group.clone()], buffers, beacon)
        };
        if let ([group], Some(whole), Some(buffers)) = (&groups[..], &threads.whole, rooms.first_mut()) {
            return whole.install(|| embed(group, buffers));
        }
        let next = AtomicUsize::new(0);
        let work = |buffers: &mut LayerBuffers| {
            let mut done = Vec::new();
            while let Some(group) = groups.get(next.fetch_add(1, Ordering::Relaxed)) {
                done.push((group.start, embed(group, buffers)?));
            }
            Ok::<_, InferenceError>(done)
        };
        let mut done = Vec::new();
        for some in scatter(&threads.lanes, rooms, &work) {
            done.extend(some?);
        }
        done.sort_by_key(|(first, _)| *first);
        Ok(done.into_iter().flat_map(|(_, vectors)| vectors).collect())
    }
}

/// Runs the work in every lane in parallel.
fn scatter<T: Send>(
    lanes: &[ThreadPool],
    rooms: &mut [LayerBuffers],
    work: &(impl Fn(&mut LayerBuffers) -> T + Sync),
) -> Vec<T> {
    let ([lane, lanes @ ..], [buffers, rooms @ ..]) = (lanes, rooms) else { return Vec::new() };
    let mut own = None;
    let mut all = lane.in_place_scope(|scope| {
        scope.spawn(|_| own = Some(work(buffers)));
        scatter(lanes, rooms, work)
    });
    all.extend(own);
    all
}

/// Groups consecutive texts; at least as many groups as threads, if there are as many texts.
fn groups(texts: &[&[u32]], threads: usize) -> Vec<Range<usize>> {
    let tokens: usize = texts.iter().map(|text| text.len()).sum();
    let most = GROUP_TOKENS.min(tokens.div_ceil(threads));
    let mut groups: Vec<Range<usize>> = Vec::new();
    let mut held = 0;
    for (place, text) in texts.iter().enumerate() {
        match groups.last_mut() {
            Some(group) if held + text.len() <= most => group.end = place + 1,
            _ => {
                groups.push(place..place + 1);
                held = 0;
            }
        }
        held += text.len();
    }
    groups
}
