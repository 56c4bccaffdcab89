//! The smallest model files whose headers are complete.

/// A language model of one layer that the engine accepts, half of it, and the beginning of an older version.
pub(crate) fn gguf_files() -> Vec<Vec<u8>> {
    // Every printable character, the space as byte tokenizers write it, and the end of an answer.
    let mut tokens: Vec<String> = ('!'..='~').map(String::from).collect();
    tokens.extend(["Ġ", "<|im_end|>"].map(str::to_owned));
    let number = |value: u32| [4_u32.to_le_bytes(), value.to_le_bytes()].concat();
    let entries = [
        ("general.architecture", gguf_text("llama")),
        ("llama.context_length", number(512)),
        ("llama.embedding_length", number(32)),
        ("llama.block_count", number(1)),
        ("llama.feed_forward_length", number(32)),
        ("llama.attention.head_count", number(1)),
        ("tokenizer.ggml.model", gguf_text("gpt2")),
        ("tokenizer.ggml.pre", gguf_text("smollm")),
        ("tokenizer.chat_template", gguf_text("{% for m in messages %}{{ m.content }}{% endfor %}")),
        ("tokenizer.ggml.tokens", gguf_list(&tokens)),
        ("tokenizer.ggml.merges", gguf_list(&["a b".to_owned()])),
    ];
    let shape = [32, tokens.len() as u64];
    let mut file = [b"GGUF".to_vec(), 3_u32.to_le_bytes().to_vec()].concat();
    file.extend(1_u64.to_le_bytes());
    file.extend((entries.len() as u64).to_le_bytes());
    file.extend(entries.iter().flat_map(|(key, value)| [written(key), value.clone()].concat()));
    file.extend(written("token_embd.weight"));
    file.extend(2_u32.to_le_bytes());
    file.extend(shape.iter().flat_map(|length| length.to_le_bytes()));
    // Type 8 is Q8_0: 34 bytes for 32 weights.
    file.extend(8_u32.to_le_bytes());
    file.extend(0_u64.to_le_bytes());
    file.resize(file.len().next_multiple_of(32), 0);
    file.resize(file.len() + 34 * tokens.len(), 0);
    let half = file[..file.len() / 2].to_vec();
    vec![file, half, b"GGUF\x02\x00\x00\x00".to_vec()]
}

fn written(text: &str) -> Vec<u8> {
    [(text.len() as u64).to_le_bytes().to_vec(), text.as_bytes().to_vec()].concat()
}

fn gguf_text(text: &str) -> Vec<u8> {
    [8_u32.to_le_bytes().to_vec(), written(text)].concat()
}

fn gguf_list(texts: &[String]) -> Vec<u8> {
    let mut list = [9_u32.to_le_bytes(), 8_u32.to_le_bytes()].concat();
    list.extend((texts.len() as u64).to_le_bytes());
    list.extend(texts.iter().flat_map(|text| written(text)));
    list
}

/// The tensors of one layer with eight values, as `config.json` of the target says; and one tensor alone.
pub(crate) fn safetensors_files() -> Vec<Vec<u8>> {
    const WIDTH: u64 = 8;
    let mut tensors = vec![
        ("embeddings.word_embeddings.weight".to_owned(), vec![WIDTH, WIDTH]),
        ("embeddings.position_embeddings.weight".to_owned(), vec![WIDTH, WIDTH]),
        ("embeddings.token_type_embeddings.weight".to_owned(), vec![2, WIDTH]),
        ("embeddings.LayerNorm.weight".to_owned(), vec![WIDTH]),
        ("embeddings.LayerNorm.bias".to_owned(), vec![WIDTH]),
    ];
    for part in
        ["attention.self.query", "attention.self.key", "attention.self.value", "attention.output.dense"]
    {
        tensors.push((format!("encoder.layer.0.{part}.weight"), vec![WIDTH, WIDTH]));
        tensors.push((format!("encoder.layer.0.{part}.bias"), vec![WIDTH]));
    }
    for part in ["intermediate.dense", "output.dense"] {
        tensors.push((format!("encoder.layer.0.{part}.weight"), vec![WIDTH, WIDTH]));
        tensors.push((format!("encoder.layer.0.{part}.bias"), vec![WIDTH]));
    }
    for part in ["attention.output.LayerNorm", "output.LayerNorm"] {
        tensors.push((format!("encoder.layer.0.{part}.weight"), vec![WIDTH]));
        tensors.push((format!("encoder.layer.0.{part}.bias"), vec![WIDTH]));
    }
    vec![safetensors(&tensors), safetensors(&tensors[4..5]), b"PK\x03\x04\x00\x00\x00\x00".to_vec()]
}

fn safetensors(tensors: &[(String, Vec<u64>)]) -> Vec<u8> {
    let (mut members, mut at) = (vec![r#""__metadata__":{"format":"pt"}"#.to_owned()], 0);
    for (name, shape) in tensors {
        let end = at + 4 * shape.iter().product::<u64>();
        members.push(format!(r#""{name}":{{"dtype":"F32","shape":{shape:?},"data_offsets":[{at},{end}]}}"#));
        at = end;
    }
    let header = format!("{{{}}}", members.join(","));
    let weights = (0..at / 4).flat_map(|number| (number as f32 / 100.0).to_le_bytes()).collect();
    [(header.len() as u64).to_le_bytes().to_vec(), header.into_bytes(), weights].concat()
}

/// A graph with one node that takes tokens, and one that takes a picture.
pub(crate) fn onnx_files() -> Vec<Vec<u8>> {
    let graph = |input: Vec<u8>, shape: &[u64]| {
        let node =
            [field(1, b"input_ids"), field(2, b"made"), field(4, b"Resize"), field(5, &field(4, b"cubic"))];
        let graph =
            [field(1, &node.concat()), field(11, &input), field(12, &info(b"made", 1, shape))].concat();
        let entry = [field(1, b"key"), field(2, b"value")].concat();
        [field(7, &graph), field(14, &entry)].concat()
    };
    vec![
        graph(info(b"input_ids", 7, &[1, 16]), &[1, 8]),
        graph(info(b"pixel_values", 1, &[1, 3, 32, 32]), &[1, 8]),
        field(7, &field(1, b"")),
    ]
}

/// A value's name, element type and shape.
fn info(name: &[u8], element: u8, shape: &[u64]) -> Vec<u8> {
    let dimension = |length: &u64| field(1, &[0x08, u8::try_from(*length).unwrap_or(1)]);
    let shape: Vec<u8> = shape.iter().flat_map(dimension).collect();
    let tensor = [vec![0x08, element], field(2, &shape)].concat();
    [field(1, name), field(2, &field(1, &tensor))].concat()
}

/// A length-delimited protobuf field. Lengths below 128 are one byte, larger ones two.
fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
    let length = match u8::try_from(bytes.len()) {
        Ok(short @ 0..=127) => vec![short],
        _ => vec![(bytes.len() & 0x7f) as u8 | 0x80, (bytes.len() >> 7) as u8],
    };
    [vec![number << 3 | 2], length, bytes.to_vec()].concat()
}
