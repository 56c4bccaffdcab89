//! Fleets that grow and shrink: real machines as far as one computer has them, which is processes.

mod books;
mod joining;
mod ops;
mod process;
mod yard;
