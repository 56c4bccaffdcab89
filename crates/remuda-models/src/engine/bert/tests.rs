mod tiny;

use serde_json::json;

use self::tiny::{HIDDEN, PLACES, Tiny, TinyFamily, dot};
use super::Bert;
use crate::backend::Backend;
use crate::beacon::Beacon;
use crate::failure::{InferenceError, LoadError, ModelError};
use crate::model::LoadedModel;
use crate::request::{ModelRequest, PartAnswer, RequestPart};
use crate::spec::{ModelSpec, Precision};

/// Lengths that fill tiles and vectors and lengths that do not.
fn texts() -> Vec<Vec<u32>> {
    [2, 1, 13, 5, 22, 3, 12, 17]
        .iter()
        .map(|length| (0..*length).map(|at| (at * 5 + length) % 29).collect())
        .collect()
}

fn spec(tiny: &Tiny) -> ModelSpec {
    ModelSpec::new("tiny", tiny.path())
}

fn load(spec: &ModelSpec) -> Result<LoadedModel, LoadError> {
    Bert.load(spec, &Beacon::default())
}

fn embed(model: &mut LoadedModel, texts: &[Vec<u32>]) -> Vec<Vec<f32>> {
    let parts: Vec<RequestPart> = texts.iter().cloned().map(RequestPart::Tokens).collect();
    let answers = model.answer(&parts, &Beacon::default(), &mut |_| {}).unwrap();
    let vector = |answer| match answer {
        PartAnswer::Vector(vector) => vector,
        other => panic!("{other:?} for a text"),
    };
    answers.into_iter().map(vector).collect()
}

/// The smallest cosine between computed and expected vectors.
fn worst(computed: &[Vec<f32>], expected: &[Vec<f64>]) -> f64 {
    assert_eq!(computed.len(), expected.len());
    let cosine = |(computed, expected): (&Vec<f32>, &Vec<f64>)| {
        let computed: Vec<f64> = computed.iter().map(|number| f64::from(*number)).collect();
        assert!((dot(&computed, &computed) - 1.0).abs() < 1e-5, "not a unit vector");
        dot(&computed, expected) / dot(expected, expected).sqrt()
    };
    computed.iter().zip(expected).map(cosine).fold(1.0, f64::min)
}

fn mean(rows: &[Vec<f64>]) -> Vec<f64> {
    (0..HIDDEN).map(|at| rows.iter().map(|row| row[at]).sum::<f64>() / rows.len() as f64).collect()
}

/// By numerical integration, without an approximation of erf.
fn gelu(x: f64) -> f64 {
    let (steps, mut erf) = (2000, 0.0);
    let width = x / 2.0_f64.sqrt() / f64::from(steps);
    for step in 0..steps {
        let middle = (f64::from(step) + 0.5) * width;
        erf += (-middle * middle).exp() * width * 2.0 / std::f64::consts::PI.sqrt();
    }
    0.5 * x * (1.0 + erf)
}

fn gelu_tanh(x: f64) -> f64 {
    0.5 * x * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044_715 * x.powi(3))).tanh())
}

#[test]
fn every_family_matches_plain_arithmetic() {
    for kind in [TinyFamily::Bert, TinyFamily::Roberta, TinyFamily::Distilbert] {
        let tiny = Tiny::new(kind);
        let expected: Vec<_> = texts().iter().map(|text| mean(&tiny.rows(kind, text, gelu))).collect();
        let computed = embed(&mut load(&spec(&tiny)).unwrap(), &texts());
        assert!(worst(&computed, &expected) > 1.0 - 1e-6, "{}", worst(&computed, &expected));
    }
}

#[test]
fn activation_and_pooling_follow_the_configuration() {
    for activation in ["gelu_new", "relu"] {
        let mut tiny = Tiny::new(TinyFamily::Bert);
        tiny.config["hidden_act"] = json!(activation);
        tiny.write();
        let plain = |x: f64| if activation == "relu" { x.max(0.0) } else { gelu_tanh(x) };
        let expected: Vec<_> =
            texts().iter().map(|text| mean(&tiny.rows(TinyFamily::Bert, text, plain))).collect();
        let computed = embed(&mut load(&spec(&tiny)).unwrap(), &texts());
        assert!(worst(&computed, &expected) > 1.0 - 1e-6, "{activation}");
    }
    let tiny = Tiny::new(TinyFamily::Bert);
    let rows: Vec<_> = texts().iter().map(|text| tiny.rows(TinyFamily::Bert, text, gelu)).collect();
    let first: Vec<_> = rows.iter().map(|rows| rows[0].clone()).collect();
    let most = |rows: &Vec<Vec<f64>>| {
        (0..HIDDEN).map(|at| rows.iter().map(|row| row[at]).fold(f64::MIN, f64::max)).collect()
    };
    let most: Vec<Vec<f64>> = rows.iter().map(most).collect();
    for (mode, expected) in
        [(json!({ "pooling_mode": "cls" }), first), (json!({ "pooling_mode_max_tokens": true }), most)]
    {
        tiny.json("modules.json", &modules("sentence_transformers.models.Pooling"));
        tiny.json("1_Pooling/config.json", &mode);
        let computed = embed(&mut load(&spec(&tiny)).unwrap(), &texts());
        assert!(worst(&computed, &expected) > 1.0 - 1e-6, "{mode}");
    }
}

fn modules(second: &str) -> serde_json::Value {
    json!([{ "path": "", "type": "sentence_transformers.models.Transformer" }, { "path": "1_Pooling", "type": second }])
}

/// A text's vector does not depend on other texts in the batch or on the number of threads.
#[test]
fn batch_and_threads_do_not_change_vectors() {
    let tiny = Tiny::new(TinyFamily::Bert);
    for precision in [Precision::Native, Precision::Int8] {
        let mut one = ModelSpec { precision, ..spec(&tiny) };
        let mut model = load(&one).unwrap();
        let alone: Vec<_> =
            texts().iter().flat_map(|text| embed(&mut model, std::slice::from_ref(text))).collect();
        one.threads = 3;
        let mut many = load(&one).unwrap();
        let crowd: Vec<_> = (0..40).flat_map(|_| texts()).collect();
        for (computed, alone) in embed(&mut many, &crowd).iter().zip(alone.iter().cycle()) {
            for (a, b) in computed.iter().zip(alone) {
                assert!((a - b).abs() < 1e-5, "{a} and {b} in {precision:?}");
            }
        }
        assert_eq!(embed(&mut many, &texts()[4..5]).len(), 1);
    }
}

#[test]
fn int8_is_accurate_or_refused() {
    let mut tiny = Tiny::new(TinyFamily::Bert);
    let int8 = ModelSpec { precision: Precision::Int8, ..spec(&tiny) };
    let float = embed(&mut load(&spec(&tiny)).unwrap(), &texts());
    let expected: Vec<Vec<f64>> =
        float.iter().map(|vector| vector.iter().map(|x| f64::from(*x)).collect()).collect();
    let computed = embed(&mut load(&int8).unwrap(), &texts());
    assert!(worst(&computed, &expected) > 0.99, "{}", worst(&computed, &expected));

    // A huge column that is always multiplied by zero has no effect in float, but leaves no int8 levels for the other
    // columns.
    for (name, (_, numbers)) in &mut tiny.tensors {
        if name.contains("LayerNorm") {
            numbers[1] = 0.0;
        } else if name.contains("self.") && name.ends_with("weight")
            || name.ends_with("intermediate.dense.weight")
        {
            numbers.chunks_mut(HIDDEN).for_each(|row| row[1] = 1e4);
        }
    }
    tiny.write();
    load(&spec(&tiny)).unwrap();
    let LoadError::Unsupported { what, .. } = load(&int8).unwrap_err() else { panic!("loaded") };
    assert!(what.contains("a cosine of"), "{what}");
}

#[test]
fn texts_are_truncated_including_special_tokens_and_never_padded() {
    let mut tiny = Tiny::new(TinyFamily::Bert);
    let tokens = |tiny: &Tiny, text: &str| {
        let request = ModelRequest::TextEmbedding { texts: vec![text.to_owned()] };
        let parts = Bert.prepare(&spec(tiny)).unwrap().prepare(request).unwrap();
        let [RequestPart::Tokens(tokens)] = &parts[..] else { panic!("{parts:?}") };
        tokens.clone()
    };
    assert_eq!(tokens(&tiny, ""), [2, 3]);
    assert_eq!(tokens(&tiny, "a c ☂ b b"), [2, 4, 6, 1, 5, 5, 3]);
    assert_eq!(tokens(&tiny, &"a ".repeat(100)).len(), PLACES);
    tiny.json("sentence_bert_config.json", &json!({ "max_seq_length": 5, "do_lower_case": true }));
    assert_eq!(tokens(&tiny, "A B C D E"), [2, 4, 5, 6, 3]);
    tiny.config["model_type"] = json!("roberta");
    tiny.json("sentence_bert_config.json", &json!({}));
    tiny.write();
    assert_eq!(tokens(&tiny, &"a ".repeat(100)).len(), PLACES - 2, "the first positions are padding");
    tiny.json("sentence_bert_config.json", &json!({ "max_seq_length": 2 }));
    assert!(matches!(Bert.prepare(&spec(&tiny)), Err(LoadError::Wrong { .. })));
}

#[test]
fn token_lists_the_tokenizer_cannot_produce_are_refused() {
    let tiny = Tiny::new(TinyFamily::Bert);
    let mut model = load(&spec(&tiny)).unwrap();
    for tokens in [vec![], vec![29], vec![u32::MAX], vec![4; PLACES + 1]] {
        let refused = model.answer(&[RequestPart::Tokens(tokens)], &Beacon::default(), &mut |_| {});
        assert!(matches!(refused, Err(InferenceError::Input(_))), "{refused:?}");
    }
    let request = ModelRequest::ImageEmbedding { images: Vec::new() };
    let refused = Bert.prepare(&spec(&tiny)).unwrap().prepare(request);
    assert!(matches!(refused, Err(ModelError::Input(_))), "{refused:?}");
    assert_eq!(embed(&mut model, &texts()).len(), texts().len());
}

#[test]
fn stopped_model_ends_within_one_layer() {
    let tiny = Tiny::new(TinyFamily::Bert);
    let beacon = Beacon::default();
    beacon.stop();
    assert_eq!(Bert.load(&spec(&tiny), &beacon).unwrap_err(), LoadError::Stopped);
    let mut model = load(&spec(&tiny)).unwrap();
    let steps = beacon.steps();
    let stopped = model.answer(&[RequestPart::Tokens(vec![2, 3])], &beacon, &mut |_| {});
    assert_eq!(stopped, Err(InferenceError::Stopped));
    assert_eq!(beacon.steps(), steps + 1);
}

/// Faults: T2.
#[test]
fn unloadable_files_are_errors_with_a_reason() {
    let error = |change: &dyn Fn(&mut Tiny)| {
        let mut tiny = Tiny::new(TinyFamily::Bert);
        change(&mut tiny);
        let found = Bert.inspect(&spec(&tiny)).err();
        found.unwrap_or_else(|| load(&spec(&tiny)).expect_err("it should not load"))
    };
    let weights = |tiny: &Tiny| tiny.path().join("model.safetensors");
    let set = |key: &'static str, value: serde_json::Value| {
        move |tiny: &mut Tiny| {
            tiny.config[key] = value.clone();
            tiny.json("config.json", &tiny.config);
        }
    };

    let cut = error(&|tiny| {
        let bytes = std::fs::read(weights(tiny)).unwrap();
        std::fs::write(weights(tiny), &bytes[..bytes.len() - 1]).unwrap();
    });
    assert!(matches!(cut, LoadError::Truncated { .. }), "{cut}");
    let cut = error(&|tiny| std::fs::write(weights(tiny), [9, 0, 0]).unwrap());
    assert!(matches!(cut, LoadError::Truncated { .. }), "{cut}");
    let huge = error(&|tiny| std::fs::write(weights(tiny), [0xff; 64]).unwrap());
    assert!(matches!(huge, LoadError::Wrong { .. }), "{huge}");
    let pickle = error(&|tiny| std::fs::write(weights(tiny), b"PK\x03\x04 archive").unwrap());
    assert!(matches!(pickle, LoadError::Pickle { .. }), "{pickle}");
    let pickle = error(&|tiny| {
        std::fs::rename(weights(tiny), tiny.path().join("pytorch_model.bin")).unwrap();
    });
    assert!(matches!(pickle, LoadError::Pickle { .. }), "{pickle}");
    let missing = error(&|tiny| {
        tiny.tensors.remove("encoder.layer.1.output.dense.weight");
        tiny.write();
    });
    assert!(
        missing.to_string().contains("no tensor called encoder.layer.1.output.dense.weight"),
        "{missing}"
    );
    let missing = error(&|tiny| std::fs::remove_file(tiny.path().join("tokenizer.json")).unwrap());
    assert!(matches!(missing, LoadError::Missing { .. }), "{missing}");
    let nan = error(&|tiny| {
        tiny.tensors.get_mut("encoder.layer.0.output.dense.bias").unwrap().1[3] = f32::NAN;
        tiny.write();
    });
    assert!(nan.to_string().contains("non-finite"), "{nan}");
    let wrong = error(&set("intermediate_size", json!(37)));
    assert!(wrong.to_string().contains("[36, 20], but by config.json it should be [37, 20]"), "{wrong}");
    for (key, value) in [
        ("num_attention_heads", json!(0)),
        ("num_attention_heads", json!(3)),
        ("hidden_size", json!(1_u64 << 40)),
        ("num_hidden_layers", json!(-1)),
        ("max_position_embeddings", json!(0)),
        ("layer_norm_eps", json!(0)),
        ("vocab_size", json!(28)),
    ] {
        let wrong = error(&set(key, value));
        assert!(matches!(wrong, LoadError::Wrong { .. }), "{key}: {wrong}");
    }
    for (key, value) in [("hidden_act", "swish"), ("position_embedding_type", "relative_key")] {
        let unsupported = error(&set(key, json!(value)));
        assert!(matches!(unsupported, LoadError::Unsupported { .. }), "{key}: {unsupported}");
    }
    let step = error(&|tiny| tiny.json("modules.json", &modules("sentence_transformers.models.Dense")));
    assert!(matches!(step, LoadError::Unsupported { .. }), "{step}");
    let out = error(&|tiny| {
        tiny.json(
            "modules.json",
            &json!([{ "path": "../elsewhere", "type": "sentence_transformers.models.Pooling" }]),
        );
    });
    assert!(out.to_string().contains("leads out of the folder"), "{out}");
}

#[test]
fn files_of_other_engines_are_not_claimed() {
    let mut tiny = Tiny::new(TinyFamily::Bert);
    let found = Bert.inspect(&spec(&tiny)).unwrap().unwrap();
    assert_eq!(found.architecture, "bert (2 layers, 20 dimensions)");
    std::fs::remove_file(tiny.path().join("model.safetensors")).unwrap();
    assert_eq!(Bert.inspect(&spec(&tiny)).unwrap(), None, "there may be an ONNX file");
    tiny.config["model_type"] = json!("llama");
    tiny.write();
    assert_eq!(Bert.inspect(&spec(&tiny)).unwrap(), None);
}
