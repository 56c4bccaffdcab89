//! one suite
