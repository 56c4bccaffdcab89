//! Fleets that grow and shrink: real machines as far as one computer has them, which is processes.

mod account;
mod bootstrapped;
mod joining;
mod machine_history;
mod ops;
mod process;
mod process_fleet;
mod readme;
mod runpod;
