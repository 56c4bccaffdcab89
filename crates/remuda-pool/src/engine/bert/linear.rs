//! Products of rows with a weight matrix, which is laid out for the processor once, when it is loaded.

use rten_gemm::{GemmError, GemmExecutor, GemmInputA, GemmInputB, GemmOptions, PackedBMatrix};
use rten_tensor::Matrix;

use crate::failure::{Failure, LoadError};

thread_local! {
    /// Cannot be handed from thread to thread, and is no larger than the choice it stands for.
    static GEMM: GemmExecutor = GemmExecutor::default();
}

/// A weight matrix in float.
pub(super) struct Linear {
    weights: PackedBMatrix<f32>,
    inputs: usize,
}

/// What a product is to do with what already stands where it is written to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Onto {
    Nothing,
    /// Adds to it: what a layer does beside what it was given.
    Itself,
}

impl Linear {
    /// From a matrix as files have it: a row for each output.
    pub(super) fn new(weights: &[f32], inputs: usize) -> Result<Self, LoadError> {
        let outputs = weights.len() / inputs;
        let columns = view(weights, [inputs, outputs], [1, inputs])?;
        Ok(Linear { weights: GEMM.with(|gemm| gemm.prepack_b(columns)), inputs })
    }

    pub(super) fn apply(&self, rows: &[f32], out: &mut [f32], onto: Onto) -> Result<(), Failure> {
        let rows = view(rows, [rows.len() / self.inputs, self.inputs], [self.inputs, 1])?;
        let beta = if onto == Onto::Itself { 1.0 } else { 0.0 };
        let options = GemmOptions { beta, ..GemmOptions::default() };
        multiply(rows, GemmInputB::Packed(&self.weights), out, options)
    }
}

/// A product in float.
pub(super) fn multiply(
    rows: Matrix<'_>,
    columns: GemmInputB<'_, f32>,
    out: &mut [f32],
    options: GemmOptions<'_, f32, f32, f32>,
) -> Result<(), Failure> {
    GEMM.with(|gemm| gemm.gemm(out, GemmInputA::Unpacked(rows), columns, options)).map_err(failed)
}

/// A matrix over numbers that lie at these distances.
pub(super) fn view<T>(numbers: &[T], shape: [usize; 2], strides: [usize; 2]) -> Result<Matrix<'_, T>, Unfit> {
    Matrix::from_slice_with_strides(shape, numbers, strides).map_err(|error| Unfit(error.to_string()))
}

/// Shapes that do not fit each other: checked when the model is loaded, so a mistake of ours.
#[derive(Debug)]
pub(super) struct Unfit(String);

impl From<Unfit> for Failure {
    fn from(Unfit(what): Unfit) -> Self {
        Failure::Engine(what)
    }
}

impl From<Unfit> for LoadError {
    fn from(Unfit(what): Unfit) -> Self {
        LoadError::Engine(what)
    }
}

pub(super) fn failed(error: GemmError) -> Failure {
    Failure::Engine(error.to_string())
}
