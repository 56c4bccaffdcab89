//! Settings of a model: the keys under `[[model]]` and after `--model NAME=PATH,`.

use super::super::key::{AUTO, Key, model_slot};
use super::super::model::ModelConfig;
use super::super::value::Kind::{Choice, Folder, Name, OptionalBytes};
use super::number;

const DEVICES: &[&str] =
    &[AUTO, "cpu", "cuda", "cuda:1", "cuda:2", "cuda:3", "cuda:4", "cuda:5", "cuda:6", "cuda:7"];

const CAPABILITIES: &[&str] =
    &[AUTO, "text_embedding", "text_to_text", "vision", "image_embedding", "text_to_image"];

pub(crate) const KEYS: &[Key<ModelConfig>] = &[
    Key::new("name", model_slot!(spec.name), Name, "Name that callers use; required."),
    Key::new("path", model_slot!(spec.path), Folder, "Folder or file of the model; required."),
    Key::new(
        "capability",
        model_slot!(spec.capability),
        Choice(CAPABILITIES),
        "Task of the model, if its files allow more than one.",
    ),
    Key::new(
        "copies",
        model_slot!(spec.copies),
        number(1, 1024),
        "Copies to load; while one is down, the others answer.",
    ),
    Key::new(
        "isolation",
        model_slot!(spec.isolation),
        Choice(&["auto", "thread", "process"]),
        "Run each copy in a thread, or in a process whose crash affects nothing else; `auto` follows the engine.",
    ),
    Key::new("threads", model_slot!(spec.threads), number(1, 1024), "Compute threads per copy."),
    Key::new(
        "precision",
        model_slot!(spec.precision),
        Choice(&["native", "int8"]),
        "Compute with the precision of the files, or in int8, which is refused if the answers would differ too much.",
    ),
    Key::new(
        "device",
        model_slot!(spec.device),
        Choice(DEVICES),
        "Compute on the CPU, or on an NVIDIA GPU in builds with CUDA; `auto` takes the first GPU if the engine supports one.",
    ),
    Key::new(
        "memory",
        model_slot!(spec.memory_bytes),
        OptionalBytes { min: 1 << 20, max: 1 << 50 },
        "Device memory per copy; by default estimated from the files.",
    ),
];
