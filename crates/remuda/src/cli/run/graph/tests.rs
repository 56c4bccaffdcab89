use super::*;

const GRAPH: &str = r#"{
    "3": {"class_type": "KSampler", "inputs": {"seed": 18446744073709551615, "steps": 20, "model": ["4", 0]}},
    "4": {"class_type": "CheckpointLoaderSimple", "inputs": {"ckpt_name": "a.safetensors"}},
    "6": {"class_type": "CLIPTextEncode", "inputs": {"text": "", "clip": ["4", 1]}, "_meta": {"title": "Positive v1.5"}},
    "7": {"class_type": "CLIPTextEncode", "inputs": {"text": "", "clip": ["4", 1]}, "_meta": {"title": "Negative"}},
    "8": {"class_type": "Resize", "inputs": {"how.width": 64, "noise_seed": 1.5, "seed": ["3", 0]}}}"#;

fn graph() -> EditableGraph {
    EditableGraph::read(&RawValue::from_string(GRAPH.to_owned()).unwrap()).unwrap()
}

fn found(key: &str) -> String {
    graph().find(key).map_or_else(|problem| problem, |place| format!("{}|{}", place.node, place.input))
}

#[test]
fn an_input_is_found_by_the_node_s_id_title_or_class() {
    for (key, place) in [
        ("3.seed", "3|seed"),
        ("KSampler.seed", "3|seed"),
        ("Negative.text", "7|text"),
        ("Positive v1.5.text", "6|text"),
        ("8.how.width", "8|how.width"),
        ("Resize.how.width", "8|how.width"),
    ] {
        assert_eq!(found(key), place, "{key}");
    }
}

#[test]
fn what_is_not_there_is_told_with_what_is() {
    for (key, words) in [
        (
            "3.sed",
            &[
                "node 3 (KSampler) has no input \"sed\"",
                "did you mean \"seed\"?",
                "It has model, seed, steps",
            ][..],
        ),
        (
            "Ksampler.seed",
            &["no node \"Ksampler\"", "did you mean \"KSampler\"?", "6 (Positive v1.5), 7 (Negative)"],
        ),
        ("99.seed", &["no node \"99\". There are 3 (KSampler)"]),
        ("CLIPTextEncode.text", &["2 nodes are called \"CLIPTextEncode\"", "use one of the ids 6, 7"]),
        ("seed", &["NODE.INPUT", "\"seed\""]),
        ("3.\u{1b}[2J", &["\\u{1b}"]),
    ] {
        let told = found(key);
        for word in words {
            assert!(told.contains(word), "{word:?} is missing in {told:?}");
        }
        assert!(!told.contains('\u{1b}'));
    }
}

#[test]
fn many_choices_are_not_all_listed() {
    let listed = listed((0..100).map(|n| n.to_string()));
    assert!(listed.ends_with("29, and 70 more"), "{listed}");
}

#[test]
fn a_value_is_json_unless_it_is_a_text() {
    for (typed, written) in [
        ("42", "42"),
        ("18446744073709551616", "18446744073709551616"),
        ("-0.5", "-0.5"),
        ("true", "true"),
        ("null", "null"),
        ("[\"4\",0]", "[\"4\",0]"),
        ("{\"a\":1}", "{\"a\":1}"),
        ("a cat", "\"a cat\""),
        ("\"a cat\"", r#""\"a cat\"""#),
        ("", "\"\""),
        ("42 cats", "\"42 cats\""),
    ] {
        assert_eq!(parse_value(typed).get(), written);
    }
}

#[test]
fn only_what_was_set_is_changed() {
    let mut graph = graph();
    let place = graph.find("Negative.text").unwrap();
    graph.set(&place, &parse_value("blurry"));
    let mut expected: Value = serde_json::from_str(GRAPH).unwrap();
    expected["7"]["inputs"]["text"] = "blurry".into();
    let written = graph.to_json();
    assert_eq!(serde_json::from_str::<Value>(written.get()).unwrap(), expected);
    assert!(written.get().contains("18446744073709551615"));
}

#[test]
fn what_a_graph_is_wrapped_in_stays() {
    let wrapped = format!(r#"{{"prompt": {GRAPH}, "extra_data": {{"preview_method": "auto"}}}}"#);
    let mut graph = EditableGraph::read(&RawValue::from_string(wrapped).unwrap()).unwrap();
    let place = graph.find("3.steps").unwrap();
    graph.set(&place, &parse_value("4"));
    let written: Value = serde_json::from_str(graph.to_json().get()).unwrap();
    assert_eq!(written["prompt"]["3"]["inputs"]["steps"], 4);
    assert_eq!(written["extra_data"]["preview_method"], "auto");
}

#[test]
fn unset_numeric_seeds_are_drawn() {
    let drawn = |chosen: &[&str]| {
        let mut graph = graph();
        let chosen = chosen.iter().map(|key| graph.find(key).unwrap()).collect();
        graph.replace_seeds(&chosen, || 7);
        let written: Value = serde_json::from_str(graph.to_json().get()).unwrap();
        [
            &written["3"]["inputs"]["seed"],
            &written["8"]["inputs"]["noise_seed"],
            &written["8"]["inputs"]["seed"],
        ]
        .map(ToString::to_string)
    };
    assert_eq!(drawn(&[]), ["7", "7", "[\"3\",0]"]);
    assert_eq!(drawn(&["3.seed"]), ["18446744073709551615", "7", "[\"3\",0]"]);
}

#[test]
fn what_is_no_graph_has_no_inputs() {
    for odd in
        ["{}", "[1]", "5", r#"{"scene": "a horse"}"#, r#"{"1": {"inputs": {}}}"#, r#"{"prompt": "a cat"}"#]
    {
        assert!(EditableGraph::read(&RawValue::from_string(odd.to_owned()).unwrap()).is_none(), "{odd}");
    }
}
