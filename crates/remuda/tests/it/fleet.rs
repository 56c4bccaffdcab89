//! Fleets that grow and shrink: real machines as far as one computer has them, which is processes.

mod account;
mod books;
mod demonstration;
mod joining;
mod ops;
mod process;
mod runpod;
mod visited;
mod yard;
