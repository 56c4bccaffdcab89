//! Classifies an exception of a node by its type and message. Python has few exception types for GPU errors, so most of the
//! rules match messages. An unrecognized exception is attributed to the node.
//!
//! | fault | for example |
//! |---|---|
//! | disk | `OSError: [Errno 28] No space left on device` |
//! | memory | `torch.OutOfMemoryError`, `CUDA error: out of memory`, `Allocation on device` |
//! | missing | a model file that is not there or does not parse, a GPU the build has no code for |
//! | device | `CUDA error: an illegal memory access was encountered`, `torch.AcceleratorError`, `HIP error`, ECC |
//! | node | the rest, a missing input file included |

use remuda_core::service::{ServiceFailure, ServiceFault};
use remuda_core::workflow::model_file;
use serde::Deserialize;

use super::json::Text;
use super::shortage::shortage;
use remuda_net::text::one_line;

/// The whole of a CUDA error with its hints; tensors and tracebacks stay on the server. Lists cut it, `why --verbose` does not.
const MESSAGE_CHARS_MAX: usize = 1500;

/// The content of `execution_error`, on the socket and in history.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct NodeException {
    pub node_id: Text,
    pub node_type: Text,
    pub exception_type: Text,
    pub exception_message: Text,
}

impl NodeException {
    /// Whether a node was blocked, which ends only the nodes that depend on it.
    pub fn is_block(&self) -> bool {
        self.exception_type.0.as_deref() == Some("ExecutionBlocked")
    }

    pub fn failure(&self) -> ServiceFailure {
        let part = |text: &Text| text.0.clone().unwrap_or_default();
        let failure =
            classify(&part(&self.exception_type), &part(&self.exception_message), &part(&self.node_type));
        match &self.node_id.0 {
            Some(node) => {
                let id = one_line(node, 40);
                let class = self.node_type.0.as_deref().map(|class| one_line(class, 80));
                ServiceFailure::new(failure.fault, format!("node {id} {}", failure.message))
                    .at_node(id, class.filter(|class| !class.is_empty()))
                    .with_exception(one_line(&part(&self.exception_type), 80))
                    .with_shortage(failure.shortage)
            }
            None => failure,
        }
    }
}

/// The failure for an exception in a node, with a readable message.
pub fn classify(exception_type: &str, exception_message: &str, node_type: &str) -> ServiceFailure {
    let what = one_line(exception_message, MESSAGE_CHARS_MAX);
    let kind = one_line(exception_type, 80);
    let text = match (kind.is_empty(), what.is_empty()) {
        (true, true) => "an error without a message".to_owned(),
        (true, false) => what,
        (false, true) => kind,
        (false, false) => format!("{kind}: {what}"),
    };
    let message = if node_type.is_empty() { text } else { format!("({}): {text}", one_line(node_type, 80)) };
    let fault = fault(exception_type, exception_message);
    let asked = if fault == ServiceFault::Memory { shortage(exception_message) } else { None };
    ServiceFailure::new(fault, message).with_shortage(asked)
}

/// The order matters: `CUDA error: out of memory` does not damage the device, and `No space left on device` means a disk.
fn fault(exception_type: &str, exception_message: &str) -> ServiceFault {
    // The beginning of a long message says what happened; the rest is a hint or a dump.
    let head: String = exception_message.chars().take(4000).collect();
    let text = format!("{exception_type}: {head}").to_lowercase();
    let contains_any = |signs: &[&str]| signs.iter().any(|sign| text.contains(sign));
    if contains_any(DISK) {
        ServiceFault::Disk
    } else if contains_any(MEMORY) {
        ServiceFault::Memory
    } else if contains_any(MISSING) || contains_any(NO_FILE) && names_model(&head) {
        ServiceFault::Missing
    } else if contains_any(DEVICE) && !contains_any(NOT_DEVICE) {
        ServiceFault::Device
    } else {
        ServiceFault::Node
    }
}

const DISK: &[&str] = &[
    "errno 28]",
    "no space left on device",
    "errno 122]",
    "disk quota exceeded",
    "winerror 112]",
    "not enough space on the disk",
];

const MEMORY: &[&str] = &[
    "outofmemoryerror",
    "out of memory",
    "memoryerror",
    "allocation on device",
    "can't allocate memory",
    "cannot allocate memory",
    "not enough memory",
    "cublas_status_alloc_failed",
    "cudnn_status_alloc_failed",
];

/// A model file may be elsewhere; any other missing file is an input that the job names.
const NO_FILE: &[&str] = &["filenotfounderror", "no such file or directory"];

/// Whether a word of the message is the name of a model file.
fn names_model(message: &str) -> bool {
    let is_quote = |character: char| character.is_whitespace() || "'\"`,;:()[]".contains(character);
    message.split(is_quote).any(|word| model_file(word.trim_end_matches('.')).is_some())
}

const MISSING: &[&str] = &[
    "modulenotfounderror",
    "importerror",
    "no module named",
    // The file exists but is damaged, for example a partial download or an HTML page.
    "safetensorerror",
    "headertoolarge",
    "pytorchstreamreader failed",
    // Built for other GPUs; a restart does not help.
    "no kernel image is available",
];

const DEVICE: &[&str] = &[
    "acceleratorerror",
    "cuda error",
    "hip error",
    "device-side assert",
    "illegal memory access",
    "unspecified launch failure",
    "uncorrectable ecc",
    "cudnn error",
    "cudnn_status_",
    "cublas_status_",
    "nccl error",
    "no cuda gpus are available",
    "cuda driver initialization failed",
    "gpu is lost",
    "device lost",
];

/// The library refused the operation; the device is not affected.
const NOT_DEVICE: &[&str] = &[
    "cudnn_status_not_supported",
    "cudnn_status_bad_param",
    "cublas_status_not_supported",
    "cublas_status_invalid_value",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[expect(clippy::too_many_lines, reason = "one row for each exception")]
    fn exceptions_are_classified_by_type_and_message() {
        let cases = [
            ("ValueError", "research: deliberate failure\n", ServiceFault::Node),
            (
                "RuntimeError",
                "The size of tensor a (3) must match the size of tensor b (2)",
                ServiceFault::Node,
            ),
            ("ExecutionBlocked", "Execution Blocked: research: blocked", ServiceFault::Node),
            ("torch.OutOfMemoryError", "", ServiceFault::Memory),
            (
                "torch.OutOfMemoryError",
                "Allocation on device 0 would exceed allowed memory.",
                ServiceFault::Memory,
            ),
            (
                "torch.cuda.OutOfMemoryError",
                "CUDA out of memory. Tried to allocate 20.00 MiB",
                ServiceFault::Memory,
            ),
            ("RuntimeError", "CUDA error: out of memory\nCUDA kernel errors might be", ServiceFault::Memory),
            ("torch.AcceleratorError", "CUDA error: out of memory", ServiceFault::Memory),
            (
                "RuntimeError",
                "[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory",
                ServiceFault::Memory,
            ),
            ("MemoryError", "", ServiceFault::Memory),
            (
                "RuntimeError",
                "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate`",
                ServiceFault::Memory,
            ),
            ("RuntimeError", "CUDA error: an illegal memory access was encountered", ServiceFault::Device),
            ("torch.AcceleratorError", "CUDA error: device-side assert triggered", ServiceFault::Device),
            (
                "torch.AcceleratorError",
                "CUDA error: uncorrectable ECC error encountered",
                ServiceFault::Device,
            ),
            ("RuntimeError", "cuDNN error: CUDNN_STATUS_EXECUTION_FAILED", ServiceFault::Device),
            (
                "RuntimeError",
                "cuDNN error: CUDNN_STATUS_NOT_SUPPORTED. This error may appear",
                ServiceFault::Node,
            ),
            ("RuntimeError", "HIP error: unspecified launch failure", ServiceFault::Device),
            (
                "RuntimeError",
                "CUDA error: no kernel image is available for execution on the device",
                ServiceFault::Missing,
            ),
            ("OSError", "[Errno 28] No space left on device: '/out/x.png'", ServiceFault::Disk),
            (
                "FileNotFoundError",
                "Model in folder 'checkpoints' with filename 'x.ckpt' not found.",
                ServiceFault::Missing,
            ),
            ("FileNotFoundError", "[Errno 2] No such file or directory: 'input/a.png'", ServiceFault::Node),
            ("ModuleNotFoundError", "No module named 'insightface'", ServiceFault::Missing),
            (
                "safetensors_rust.SafetensorError",
                "Error while deserializing header: HeaderTooLarge",
                ServiceFault::Missing,
            ),
            ("", "", ServiceFault::Node),
        ];
        for (exception_type, message, expected) in cases {
            let failure = classify(exception_type, message, "KSampler");
            assert_eq!(failure.fault, expected, "{exception_type}: {message}");
            assert!(failure.message.starts_with("(KSampler): "), "{}", failure.message);
        }
    }

    #[test]
    fn failure_names_its_node_and_class() {
        let raised = |node: Option<&str>, class: &str| {
            let exception = NodeException {
                node_id: Text(node.map(str::to_owned)),
                node_type: Text(Some(class.to_owned()).filter(|class| !class.is_empty())),
                exception_type: Text(Some("ValueError".to_owned())),
                exception_message: Text(Some("no (such): thing".to_owned())),
            };
            exception.failure().node.map(|node| (node.id, node.class))
        };
        let named = |id: &str, class: Option<&str>| Some((id.to_owned(), class.map(str::to_owned)));
        assert_eq!(raised(Some("12:3"), "KSampler (Advanced)"), named("12:3", Some("KSampler (Advanced)")));
        assert_eq!(raised(Some("5"), ""), named("5", None));
        assert_eq!(raised(None, "KSampler"), None);
    }

    #[test]
    fn message_is_one_short_line() {
        let failure = classify("ValueError", &format!("a\n\x1b[31mb\u{202e}{}", "x".repeat(100_000)), "N");
        assert!(failure.message.starts_with("(N): ValueError: a [31mbxxx"), "{}", failure.message);
        assert!(failure.message.chars().count() < 1600);
    }
}
