//! Checks of this code base that no compiler makes. `cargo run -p remuda-tidy` prints the measures, `cargo run -p
//! remuda-tidy -- graph` the module graph of every crate; `cargo test -p remuda-tidy` fails where a measure is exceeded.
//!
//! | part | looks at |
//! |---|---|
//! | `source` | every Rust file, cut into production and test lines |
//! | `comments` | the text of comments, apart from code and strings |
//! | `words` | words we do not use, in comments and documents |
//! | `types` | type names that are defined more than once |
//! | `modules` | which module uses which, and cycles between them |
//! | `supply` | dependencies: where they come from, licences, known flaws, the list of parts of a release |

pub mod comments;
pub mod modules;
pub mod source;
pub mod supply;
pub mod types;
pub mod words;
