//! Tiny models of the Stable Diffusion family, written like `diffusers` does: names, shapes and configurations are in
//! `diffusion.json`, and every weight comes from the formula in `diffusion.py`.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde_json::{Value, json};

/// The layout of a folder.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct TinyStyle {
    /// Older names, 16 bits, and a tokenizer.json instead of its parts.
    pub(crate) is_old: bool,
    pub(crate) is_half: bool,
}

/// The results of the reference implementation, `first` and `second`.
pub(crate) fn reference() -> Value {
    serde_json::from_str(include_str!("diffusion.json")).unwrap()
}

/// Writes one of the two models.
pub(crate) fn write(model: &Value, folder: &Path, style: TinyStyle) {
    for (path, config) in model["configs"].as_object().unwrap() {
        put(&folder.join(path), config.to_string().as_bytes());
    }
    for (part, shapes) in model["shapes"].as_object().unwrap() {
        let stem = if part == "text_encoder" { "model" } else { "diffusion_pytorch_model" };
        let variant = if style.is_half { ".fp16" } else { "" };
        let file = folder.join(part).join(format!("{stem}{variant}.safetensors"));
        put(&file, &safetensors(part, shapes, style));
    }
    write_tokenizer(model, &folder.join("tokenizer"));
}

fn put(path: &Path, bytes: &[u8]) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, bytes).unwrap();
}

fn safetensors(part: &str, shapes: &Value, style: TinyStyle) -> Vec<u8> {
    let (mut header, mut data) = (BTreeMap::new(), Vec::new());
    for (name, shape) in shapes.as_object().unwrap() {
        let shape: Vec<usize> = serde_json::from_value(shape.clone()).unwrap();
        let begin = data.len();
        for number in tensor(name, &shape) {
            match style.is_half {
                true => data.extend(half::f16::from_f32(number).to_le_bytes()),
                false => data.extend(number.to_le_bytes()),
            }
        }
        let kind = if style.is_half { "F16" } else { "F32" };
        let name = if style.is_old { old_name(part, name) } else { name.clone() };
        header.insert(name, json!({"dtype": kind, "shape": shape, "data_offsets": [begin, data.len()]}));
    }
    let header = serde_json::to_vec(&header).unwrap();
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header);
    file.extend(data);
    file
}

fn old_name(part: &str, name: &str) -> String {
    if part == "text_encoder" {
        return format!("text_model.{name}");
    }
    if part != "vae" {
        return name.to_owned();
    }
    let names = [("to_q.", "query."), ("to_k.", "key."), ("to_v.", "value."), ("to_out.0.", "proj_attn.")];
    names.iter().fold(name.to_owned(), |name, (new, old)| name.replace(new, old))
}

/// The formula of `diffusion.py`.
fn tensor(name: &str, shape: &[usize]) -> Vec<f32> {
    let count = shape.iter().product::<usize>();
    let fan_in = shape.iter().skip(1).product::<usize>() as f64;
    let scaled = |number: f64| match shape.len() {
        _ if name.ends_with(".bias") => number * 0.1,
        1 => 1.0 + number * 0.1,
        _ => number * (3.0 / fan_in).sqrt(),
    };
    let seed = name.bytes().fold(0xCBF2_9CE4_8422_2325_u64, |value, byte| {
        (value ^ u64::from(byte)).wrapping_mul(0x100_0000_01B3)
    });
    let uniform = |place: u64| {
        let x = seed.wrapping_add((place + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15));
        let x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((x ^ (x >> 31)) >> 40) as f64 / f64::from(1 << 23) - 1.0
    };
    (0..count as u64).map(|place| scaled(uniform(place)) as f32).collect()
}

/// 256 characters for bytes, the same at the end of a word, and a few pairs of them.
fn write_tokenizer(model: &Value, folder: &Path) {
    let plain: Vec<u32> = (33..127).chain(161..173).chain(174..256).collect();
    let others = (0..256 - plain.len() as u32).map(|number| 256 + number);
    let letters: Vec<char> = plain.iter().copied().chain(others).filter_map(char::from_u32).collect();
    let merges: Vec<String> = serde_json::from_value(model["merges"].clone()).unwrap();
    let mut words: Vec<String> = letters.iter().map(char::to_string).collect();
    words.extend(letters.iter().map(|letter| format!("{letter}</w>")));
    words.extend(merges.iter().map(|pair| pair.replace(' ', "")));
    words.extend(["<|startoftext|>".to_owned(), "<|endoftext|>".to_owned()]);
    let vocab: BTreeMap<&String, usize> = words.iter().enumerate().map(|(id, word)| (word, id)).collect();
    put(&folder.join("vocab.json"), &serde_json::to_vec(&vocab).unwrap());
    put(&folder.join("merges.txt"), format!("#version: 0.2\n{}\n", merges.join("\n")).as_bytes());
    let settings = json!({"pad_token": model["pad"], "model_max_length": 77});
    put(&folder.join("tokenizer_config.json"), settings.to_string().as_bytes());
}
