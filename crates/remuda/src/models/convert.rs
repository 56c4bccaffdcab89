//! Weights that come as a Python pickle, made into an ONNX file once. Nothing of the pickle is ever run: a reader of our own
//! knows the few instructions that a dictionary of numbers is written with, and refuses every other.

mod lite;
mod onnx;
mod pickle;

use super::Pinned;

/// What is made of a file of a package. The same bytes always make the same: what is made is pinned as well.
#[derive(Clone, Copy, Debug)]
pub struct Conversion {
    /// The file that was taken out, and goes again.
    pub from: &'static str,
    pub into: Pinned,
    pub how: How,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// A state dictionary of torch, as EfficientNet-Lite0 computes.
    EfficientnetLite0,
}

impl How {
    pub(super) fn convert(self, bytes: &[u8]) -> Result<Vec<u8>, String> {
        match self {
            How::EfficientnetLite0 => lite::graph(&pickle::tensors(bytes)?),
        }
    }
}
