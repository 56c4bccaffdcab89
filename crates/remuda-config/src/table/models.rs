//! Keys of a model, as they stand under `[[model]]` and behind `--model NAME=PATH,`.

use super::super::key::{AS_FOUND, Key, model_slot};
use super::super::model::Model;
use super::super::value::Kind::{Choice, Folder, MaybeBytes, Name};
use super::number;

const DEVICES: &[&str] =
    &[AS_FOUND, "cpu", "cuda", "cuda:1", "cuda:2", "cuda:3", "cuda:4", "cuda:5", "cuda:6", "cuda:7"];

const CAPABILITIES: &[&str] =
    &[AS_FOUND, "text_embedding", "text_to_text", "vision", "image_embedding", "text_to_image"];

pub(crate) const KEYS: &[Key<Model>] = &[
    Key::new("name", model_slot!(spec.name), Name, "What callers name it by; needed."),
    Key::new("path", model_slot!(spec.path), Folder, "The folder or file it lies in; needed."),
    Key::new(
        "capability",
        model_slot!(spec.capability),
        Choice(CAPABILITIES),
        "What it is to do, where its files would allow several things.",
    ),
    Key::new(
        "copies",
        model_slot!(spec.copies),
        number(1, 1024),
        "How many of it are loaded side by side; while one is dead, the others answer.",
    ),
    Key::new(
        "isolation",
        model_slot!(spec.isolation),
        Choice(&["auto", "thread", "process"]),
        "What a copy runs in: a thread, or a process that takes nobody with it when it ends; `auto` is as its engine advises.",
    ),
    Key::new("threads", model_slot!(spec.threads), number(1, 1024), "How many threads a copy computes with."),
    Key::new(
        "precision",
        model_slot!(spec.precision),
        Choice(&["native", "int8"]),
        "As its files have it, or in eight bits, which is refused where the answers would differ too much.",
    ),
    Key::new(
        "device",
        model_slot!(spec.device),
        Choice(DEVICES),
        "What a copy computes on: the CPU, or an NVIDIA card in builds for one; `auto` is the first card if there is one and its engine knows cards.",
    ),
    Key::new(
        "memory",
        model_slot!(spec.memory_bytes),
        MaybeBytes { min: 1 << 20, max: 1 << 50 },
        "What a copy may take of its device's memory; by default what its files let expect.",
    ),
];
