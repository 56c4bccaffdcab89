//! A configuration file. Besides not panicking:
//!
//! - the same file means the same the second time;
//! - what was accepted can be shown;
//! - an error says something, in a line of readable length.

use crate::input_file::folder_with;

/// A message is shown in a terminal and in the log.
const MESSAGE_BYTES_MAX: usize = 16 << 10;

pub(crate) fn run(bytes: &[u8]) -> bool {
    let folder = folder_with(&[("remuda.toml", bytes)]);
    let path = folder.path().join("remuda.toml");
    let environment = || [("HOME".to_owned(), folder.path().display().to_string())];
    let load = || remuda_config::load(Some(&path), environment(), &[]);
    match (load(), load()) {
        (Ok(first), Ok(second)) => {
            assert_eq!(first, second, "the same file was read as two configurations");
            let _ = remuda_config::show(&first, true);
            true
        }
        (Err(first), Err(second)) => {
            let message = first.to_string();
            assert_eq!(message, second.to_string(), "the same file was refused for two reasons");
            assert!(
                !message.is_empty() && message.len() <= MESSAGE_BYTES_MAX + bytes.len(),
                "{} bytes",
                message.len()
            );
            false
        }
        (first, second) => panic!("the same file was once accepted: {first:?}, {second:?}"),
    }
}
