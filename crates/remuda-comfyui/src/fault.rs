//! Whose fault an error is, by the words in which a node raised it. Python has few types for what can go wrong on a GPU, so
//! most of this is reading messages; what is not recognised is the node's own affair.
//!
//! | fault | for example |
//! |---|---|
//! | disk | `OSError: [Errno 28] No space left on device` |
//! | memory | `torch.OutOfMemoryError`, `CUDA error: out of memory`, `Allocation on device` |
//! | missing | `FileNotFoundError`, a model file that does not parse, a GPU the build has no code for |
//! | device | `CUDA error: an illegal memory access was encountered`, `torch.AcceleratorError`, `HIP error`, ECC |
//! | node | the rest |

use remuda_core::service::{ServiceFailure, ServiceFault};
use serde::Deserialize;

use super::json::Text;
use remuda_net::text::one_line;

/// Long enough for what a person needs; tensors and tracebacks stay on the server.
const MESSAGE_CHARS_MAX: usize = 500;

/// What an `execution_error` tells of the error, on the socket and in history alike.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Raised {
    pub node_id: Text,
    pub node_type: Text,
    pub exception_type: Text,
    pub exception_message: Text,
}

impl Raised {
    /// Whether a node barred the way, which ends only what lies behind it.
    pub fn is_block(&self) -> bool {
        self.exception_type.0.as_deref() == Some("ExecutionBlocked")
    }

    pub fn failure(&self) -> ServiceFailure {
        let part = |text: &Text| text.0.clone().unwrap_or_default();
        let failure =
            classify(&part(&self.exception_type), &part(&self.exception_message), &part(&self.node_type));
        match &self.node_id.0 {
            Some(node) => {
                ServiceFailure::new(failure.fault, format!("node {} {}", one_line(node, 40), failure.message))
            }
            None => failure,
        }
    }
}

/// The node that a failure's message speaks of, and its class if that was known: what `Raised::failure` put in front, also
/// where somebody put more words in front of that.
pub fn place(message: &str) -> Option<(&str, Option<&str>)> {
    let said = match message.strip_prefix("node ") {
        Some(said) => said,
        None => message.split_once(": node ")?.1,
    };
    let (node, said) = said.split_once(' ')?;
    let class = said.strip_prefix('(').and_then(|said| {
        let end = [said.find("): "), said.find("), ")].into_iter().flatten().min()?;
        Some(&said[..end])
    });
    Some((node.trim_end_matches(','), class))
}

/// The failure that an exception in a node means, with a message for people.
pub fn classify(exception_type: &str, exception_message: &str, node_type: &str) -> ServiceFailure {
    let what = one_line(exception_message, MESSAGE_CHARS_MAX);
    let kind = one_line(exception_type, 80);
    let said = match (kind.is_empty(), what.is_empty()) {
        (true, true) => "an error without a word".to_owned(),
        (true, false) => what,
        (false, true) => kind,
        (false, false) => format!("{kind}: {what}"),
    };
    let message = if node_type.is_empty() { said } else { format!("({}): {said}", one_line(node_type, 80)) };
    ServiceFailure::new(fault(exception_type, exception_message), message)
}

/// The order matters: `CUDA error: out of memory` leaves the device whole, and `No space left on device` is about a disk.
fn fault(exception_type: &str, exception_message: &str) -> ServiceFault {
    // The tail of a long message is a hint or a dump; the head says what happened.
    let head: String = exception_message.chars().take(4000).collect();
    let said = format!("{exception_type}: {head}").to_lowercase();
    let tells = |signs: &[&str]| signs.iter().any(|sign| said.contains(sign));
    if tells(DISK) {
        ServiceFault::Disk
    } else if tells(MEMORY) {
        ServiceFault::Memory
    } else if tells(MISSING) {
        ServiceFault::Missing
    } else if tells(DEVICE) && !tells(NOT_DEVICE) {
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

const MISSING: &[&str] = &[
    "filenotfounderror",
    "no such file or directory",
    "modulenotfounderror",
    "importerror",
    "no module named",
    // The file is there, but is not what it should be: half a download, or a page of a web server.
    "safetensorerror",
    "headertoolarge",
    "pytorchstreamreader failed",
    // Built for other GPUs: no restart changes that.
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

/// The library refused what it was asked to compute, and is well.
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
    fn an_error_is_known_by_its_words() {
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
    fn where_it_failed_is_found_again_in_the_words() {
        let raised = |node: &str, class: &str| Raised {
            node_id: Text(Some(node.to_owned())),
            node_type: Text(Some(class.to_owned()).filter(|class| !class.is_empty())),
            exception_type: Text(Some("ValueError".to_owned())),
            exception_message: Text(Some("no (such): thing".to_owned())),
        };
        let message = raised("12:3", "KSampler (Advanced)").failure().message;
        assert_eq!(place(&message), Some(("12:3", Some("KSampler (Advanced)"))));
        assert_eq!(place(&format!("3 attempts ended, the last: {message}")), place(&message));
        assert_eq!(place(&raised("5", "").failure().message), Some(("5", None)));
        let refused = "node 2 (RemudaFail), input kind: Value not in list: kind: 'a' not in ['b']";
        assert_eq!(place(refused), Some(("2", Some("RemudaFail"))));
        assert_eq!(place("node 7, input image: no sound JSON"), Some(("7", None)));
        assert_eq!(place("the worker went silent"), None);
    }

    #[test]
    fn the_message_is_one_short_line_whatever_the_node_said() {
        let failure = classify("ValueError", &format!("a\n\x1b[31mb\u{202e}{}", "x".repeat(100_000)), "N");
        assert!(failure.message.starts_with("(N): ValueError: a [31mbxxx"), "{}", failure.message);
        assert!(failure.message.chars().count() < 600);
    }
}
