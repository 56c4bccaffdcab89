//! Remuda as a program and a library: the loop around the core, what carries its decisions out, and configuration.

pub mod config;
