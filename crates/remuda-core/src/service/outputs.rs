//! What counts as success without outputs. A service may report success although its outputs are lost: it answered from
//! a cache whose files are gone, or images were sent over a socket that was closed. Success without outputs is success
//! only if no node of the workflow always produces some, or if the workflow itself blocked its nodes.

/// Nodes of these classes always produce files.
const FILE_CLASSES: [&str; 2] = ["SaveImage", "PreviewImage"];
/// Nodes of this class send their images over the socket instead of storing them.
const SOCKET_CLASS: &str = "SaveImageWebsocket";

/// How much a successful run produced.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RunOutputs {
    pub files: usize,
    pub values: usize,
    pub socket_images: usize,
}

/// Outputs that a successful run must have and has not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MissingOutputs {
    Listed,
    SocketImages,
}

/// Whether nodes of this class send images over the socket.
pub fn sends_images(class: &str) -> bool {
    class == SOCKET_CLASS
}

/// Whether a node of this class, once it has run, always has outputs to show.
pub fn shows_outputs(class: &str) -> bool {
    FILE_CLASSES.contains(&class)
}

/// What is missing from a run of these classes; empty classes mean that the workflow is not known any more. A run that
/// produced nothing because the workflow itself blocked its nodes misses nothing.
pub fn missing_outputs<'a>(
    classes: impl Iterator<Item = &'a str>,
    produced: RunOutputs,
    was_blocked: bool,
) -> Option<MissingOutputs> {
    if was_blocked {
        return None;
    }
    let (mut has_file_class, mut has_socket_class) = (false, false);
    for class in classes {
        has_file_class |= shows_outputs(class);
        has_socket_class |= sends_images(class);
    }
    if has_socket_class && produced.socket_images == 0 {
        return Some(MissingOutputs::SocketImages);
    }
    (has_file_class && produced.files == 0 && produced.values == 0).then_some(MissingOutputs::Listed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn success_without_outputs_counts_if_no_node_had_to_produce_any() {
        let nothing = RunOutputs::default();
        for (classes, produced, expected) in [
            (&["KSampler"][..], nothing, None),
            (&[], nothing, None),
            (&["KSampler", "SaveImage"], nothing, Some(MissingOutputs::Listed)),
            (&["PreviewImage"], RunOutputs { values: 1, ..nothing }, None),
            (&["SaveImage"], RunOutputs { files: 1, ..nothing }, None),
            (&["SaveImageWebsocket"], RunOutputs { files: 1, ..nothing }, Some(MissingOutputs::SocketImages)),
            (&["SaveImageWebsocket"], RunOutputs { socket_images: 1, ..nothing }, None),
        ] {
            assert_eq!(missing_outputs(classes.iter().copied(), produced, false), expected, "{classes:?}");
            assert_eq!(missing_outputs(classes.iter().copied(), produced, true), None, "blocked {classes:?}");
        }
    }
}
