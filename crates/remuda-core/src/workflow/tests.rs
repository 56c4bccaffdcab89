//! Stories of workflows that are taken in or refused, and properties of their hashes on generated ones.

use std::fmt::Write;

use proptest::prelude::*;

use super::{InvalidKind, InvalidWorkflow, JobKeys, WorkflowFacts, WorkflowLimits, canonical_hash, reads};
use crate::id::Hash;

fn examine(text: &str, limits: &WorkflowLimits) -> Result<(WorkflowFacts, Option<JobKeys>), InvalidWorkflow> {
    super::examine(text, limits, None).map(|examined| (examined.facts, examined.keys))
}

const LINE: &str = r#"{
  "1": {"class_type": "Load", "inputs": {"ckpt_name": "XL\\Base.SafeTensors"}, "_meta": {"title": "old.ckpt"}},
  "2": {"class_type": "Sample", "inputs": {"model": ["1", 0], "seed": 7, "cfg": 7.5, "text": "a cat"}},
  "3": {"class_type": "Save", "inputs": {"images": ["2", 0]}}
}"#;

fn look(body: &str) -> WorkflowFacts {
    examine(body, &WorkflowLimits::default()).unwrap_or_else(|why| panic!("{why}: {body}")).0
}

fn refusal(body: &str) -> InvalidWorkflow {
    examine(body, &WorkflowLimits::default()).expect_err(body)
}

fn hash(value: &str) -> Hash {
    canonical_hash(value, &WorkflowLimits::default()).unwrap_or_else(|why| panic!("{why}: {value}"))
}

/// Changes one place of [`LINE`].
fn changed(from: &str, to: &str) -> String {
    assert!(LINE.contains(from), "{from}");
    LINE.replacen(from, to, 1)
}

fn names(names: &[&str]) -> Vec<String> {
    names.iter().map(|&name| name.to_owned()).collect()
}

#[test]
fn a_graph_tells_its_service_its_classes_and_its_model_files() {
    let line = look(LINE);
    assert_eq!(line.service.map(|service| service.to_string()).as_deref(), Some("comfyui"));
    assert_eq!(line.nodes, 3);
    assert!(line.classes.iter().eq(["Load", "Sample", "Save"]));
    assert!(line.models.iter().eq(["XL/Base.SafeTensors"]), "a title is no model file: {:?}", line.models);
}

/// As the adapter for ComfyUI reads it: what goes with a graph does not make it another one.
#[test]
fn a_wrapped_graph_is_that_graph() {
    let wrapped = |extra: &str| format!(r#"{{"prompt": {LINE}, "extra_data": {extra}, "client_id": "me"}}"#);
    let (bare, one, other) =
        (look(LINE), look(&wrapped("{}")), look(&wrapped(r#"{"a": {"class_type": "X"}}"#)));
    for it in [&one, &other] {
        let body_hash = it.body_hash;
        assert_eq!(*it, WorkflowFacts { body_hash, ..bare.clone() });
    }
    assert_eq!(bare.body_hash, bare.workflow_hash);
    assert!(one.body_hash != other.body_hash && one.body_hash != bare.body_hash);
    let node_called_prompt = LINE.replace(r#""1""#, r#""prompt""#);
    assert_eq!(look(&node_called_prompt).nodes, bare.nodes);
    assert_eq!(look(r#"{"prompt": {"text": "a horse"}}"#).service, None, "words are no graph");
}

#[test]
fn without_nodes_it_is_a_model_and_its_input() {
    let plain = look(r#"{"model": "minilm", "input": ["one", "two"], "adapter": "x.bin", "n": 3}"#);
    assert_eq!((plain.service, plain.nodes, plain.classes.len()), (None, 0, 0));
    assert!(plain.models.iter().eq(["minilm", "x.bin"]));
}

#[test]
fn a_model_file_is_known_by_its_ending_alone_but_prose_is_not() {
    let models = |text: &str| look(&changed("a cat", text)).models.len() - 1;
    for file in
        ["a.safetensors", "a.sft", "a.ckpt", "a.pt", "a.PTH", "d/a.bin", "a.gguf", "a.onnx", "a.b.engine"]
    {
        assert_eq!(models(file), 1, "{file}");
    }
    let long = format!("{}.bin", "x".repeat(600));
    for text in ["", ".bin", "bin", "a.bin.png", "a.safetensors ", r"line\nline.pt", &long] {
        assert_eq!(models(text), 0, "{text}");
    }
    assert_eq!(
        look(&changed("7.5", r#"{"on": true, "lora": "deep.pt"}"#)).models.len(),
        2,
        "deep inside a value"
    );
}

#[test]
fn every_spelling_of_a_value_has_one_hash() {
    let same = [
        &["1", "1.0", "1e0", "10e-1", "100E-2"][..],
        &["0", "-0", "0.0", "-0.0e5"],
        &["18446744073709551615"],
        &["18446744073709551616", "18446744073709551616.0"],
        &["2e19", "20000000000000000000"],
        &["-1e19", "-10000000000000000000.0"],
        &["1e20", "100000000000000000000", "1.0E+20"],
        &["-9223372036854775808", "-9223372036854775808.0"],
        &["0.5", "5e-1", "0.50"],
        &[r#""A\n/é""#, r#""\u0041\u000a\/\u00e9""#],
        &[r#""😀\"\\""#, r#""\ud83d\ude00\u0022\u005c""#],
        &[r#"{"a":1,"b":[],"é":{}}"#, " { \"é\" : { } ,\n\"b\" : [ ], \"\\u0061\":1.0 } "],
        &["[1,2]"],
        &["[2,1]"],
        &["null"],
        &["true"],
        &[r#""1""#],
    ];
    let hashes: Vec<Hash> = same.iter().map(|spellings| hash(spellings[0])).collect();
    for (at, spellings) in same.iter().enumerate() {
        assert!(spellings.iter().all(|spelling| hash(spelling) == hashes[at]), "{spellings:?}");
        assert!(!hashes[..at].contains(&hashes[at]), "{spellings:?}");
    }
}

#[test]
fn hashes_are_kept_in_stores_and_stay_as_they_are() {
    assert_eq!(
        hash(r#"{"b": [1.0, 0.25, -3], "a": "x\ty"}"#),
        Hash::digest(br#"{"a":"x\ty","b":[1,2.5e-1,-3]}"#)
    );
    let line = look(LINE);
    assert_eq!(
        (line.workflow_hash.short(), line.shape.short()),
        ("6cb95ab9".to_owned(), "50b696e7".to_owned())
    );
    assert_eq!(look(r#"{"model": "m", "input": [1, "a"]}"#).shape.short(), "575deecc");
}

#[test]
fn texts_seeds_sizes_titles_and_names_of_nodes_leave_the_shape_alone() {
    let line = look(LINE);
    let swapped = LINE.replace("\"1\"", "\"x\"").replace("\"3\"", "\"1\"");
    let spelled = changed("[\"1\", 0]", "[\"1\", 0.0]");
    for same in
        [changed("a cat", "two cats"), changed("7,", "8,"), changed("old.ckpt", "new.ckpt"), swapped, spelled]
    {
        assert_eq!(look(&same).shape, line.shape, "{same}");
    }
    assert_ne!(look(&changed("a cat", "two cats")).workflow_hash, line.workflow_hash);
}

#[test]
fn class_link_slot_input_name_model_and_number_of_nodes_make_the_shape() {
    let others = [
        changed("Sample", "Resample"),
        changed("\"images\": [\"2\", 0]", "\"images\": [\"1\", 0]"),
        changed("[\"1\", 0]", "[\"1\", 1]"),
        changed("[\"1\", 0]", "7"),
        changed("seed", "noise_seed"),
        changed("Base", "Other"),
        changed("\"3\":", "\"4\": {\"class_type\": \"Save\", \"inputs\": {\"images\": [\"2\", 0]}}, \"3\":"),
        LINE.to_owned(),
    ];
    let shapes: std::collections::BTreeSet<Hash> = others.iter().map(|other| look(other).shape).collect();
    assert_eq!(shapes.len(), others.len());
}

#[test]
fn the_shape_of_a_plain_workflow_is_its_structure_and_its_models() {
    let shape = |body: &str| look(body).shape;
    let plain = shape(r#"{"model": "m", "input": ["a", "b", 1], "n": 1}"#);
    assert_eq!(plain, shape(r#"{"n": 2.5, "input": [7, "c"], "model": "m"}"#));
    for other in [
        r#"{"model": "o", "input": ["a", 1], "n": 1}"#,
        r#"{"model": "m", "input": ["a"], "n": 1}"#,
        r#"{"model": "m", "input": ["a", 1], "n": "1"}"#,
        r#"{"model": "m", "input": ["a", 1], "k": 1}"#,
        r#"{"model": "m", "input": ["a.pt", "b", 1], "n": 1}"#,
        r#"{"model": "m", "input": {"a": 1}, "n": 1}"#,
    ] {
        assert_ne!(shape(other), plain, "{other}");
    }
}

#[test]
fn what_is_no_json_is_malformed_and_says_where() {
    assert_eq!(
        refusal("{\"a\":\n NaN}"),
        InvalidWorkflow::NotJson { line: 2, column: 2, message: "expected value".to_owned() }
    );
    let bodies = [
        "",
        "{",
        "{}x",
        "{} {}",
        "{\"a\":1,}",
        "{\"a\" 1}",
        "{\"a\":\"\\ud800\"}",
        "{\"a\":\"\0\"}",
        "{\"a\":1e999}",
    ];
    for body in bodies {
        let why = refusal(body);
        assert_eq!(why.kind(), InvalidKind::Malformed, "{body}: {why}");
        assert!(why.to_string().starts_with("line 1, column "), "{why}");
    }
}

#[test]
fn nothing_over_a_limit_is_taken() {
    let limits = WorkflowLimits { depth_max: 4, nodes_max: 3, values_max: 22, bytes_max: LINE.len() };
    assert_eq!(examine(LINE, &limits).map(|line| line.0.nodes), Ok(3), "all of them are just enough");
    let refused = |limits: WorkflowLimits| examine(LINE, &limits).expect_err("a limit");
    assert_eq!(
        refused(WorkflowLimits { depth_max: 3, ..limits }),
        InvalidWorkflow::TooDeep { line: 3, column: 53, max: 3 }
    );
    assert_eq!(
        refused(WorkflowLimits { nodes_max: 2, ..limits }),
        InvalidWorkflow::TooWide { what: "nodes", max: 2 }
    );
    assert_eq!(
        refused(WorkflowLimits { values_max: 21, ..limits }),
        InvalidWorkflow::TooWide { what: "values", max: 21 }
    );
    let (bytes, max) = (LINE.len(), LINE.len() - 1);
    let too_big = refused(WorkflowLimits { bytes_max: max, ..limits });
    assert_eq!((too_big.kind(), too_big), (InvalidKind::TooLarge, InvalidWorkflow::TooBig { bytes, max }));
}

#[test]
fn however_deep_it_is_the_stack_does_not_grow() {
    for opening in ["[", "{\"a\":"] {
        let why = refusal(&opening.repeat(100_000));
        assert!(matches!(why, InvalidWorkflow::TooDeep { max: 64, .. }), "{why}");
        let generous = WorkflowLimits { depth_max: usize::MAX, ..WorkflowLimits::default() };
        let why = canonical_hash(&opening.repeat(100_000), &generous);
        assert!(matches!(why, Err(InvalidWorkflow::TooDeep { max: 126, .. })), "{why:?}");
    }
    let deep = |levels: usize| format!("{{\"a\":{}{}}}", "[".repeat(levels), "]".repeat(levels));
    look(&deep(63));
    assert!(matches!(refusal(&deep(64)), InvalidWorkflow::TooDeep { .. }));
}

#[test]
fn a_key_given_twice_is_refused_however_it_is_written() {
    for body in [r#"{"a":1,"a":1}"#, r#"{"b":1,"a":2,"\u0062":3}"#, r#"{"x":[{"k":1,"k":2}]}"#] {
        assert!(matches!(refusal(body), InvalidWorkflow::DuplicateKey { line: 1, .. }), "{body}");
    }
    assert_eq!(
        refusal("{\"b\":1,\n\"b\":2}").to_string(),
        "the object that ends at line 2, column 6 has the key \"b\" twice: keep one of them"
    );
}

#[test]
fn a_nul_character_is_refused_in_texts_and_keys() {
    for body in [r#"{"a":"x\u0000y"}"#, r#"{"x\u0000y":1}"#] {
        let why = refusal(body);
        assert!(matches!(&why, InvalidWorkflow::Nul { text, line: 1, .. } if text == r"x\0y"), "{why}");
    }
}

#[test]
fn a_workflow_is_an_object_with_something_in_it() {
    for body in ["[]", "1", "null", "\"{}\""] {
        assert_eq!(refusal(body), InvalidWorkflow::NotAnObject);
    }
    assert_eq!(refusal(" {} "), InvalidWorkflow::Empty);
}

#[test]
fn once_there_is_a_node_all_must_be_nodes() {
    for bad in ["7", "{}", r#"{"class_type": 7}"#, r#"{"class_type": ""}"#] {
        let why = refusal(&format!(r#"{{"1": {{"class_type": "A"}}, "2": {bad}}}"#));
        assert_eq!(
            (why.kind(), why),
            (InvalidKind::Invalid, InvalidWorkflow::NoClass { node: "2".to_owned() }),
            "{bad}"
        );
    }
    let why = refusal(r#"{"1": {"class_type": "A", "inputs": []}}"#);
    assert_eq!(why, InvalidWorkflow::BadInputs { node: "1".to_owned() });
}

#[test]
fn a_link_to_nowhere_names_the_node_the_input_and_the_target() {
    for literal in [r#"["9", 0]"#, r#"["some text", 3]"#, r#"["", -1.5]"#, r#"["a-long-node-id-10", 0]"#] {
        let body = format!(r#"{{"a-long-node-id-1": {{"class_type": "A", "inputs": {{"in": {literal}}}}}}}"#);
        let why = refusal(&body);
        assert!(
            matches!(&why, InvalidWorkflow::DanglingLink { node, input, .. } if node == "a-long-node-id-1" && input == "in")
        );
        assert_eq!(why.kind(), InvalidKind::Invalid);
    }
    for data in
        [r#"["9"]"#, r#"["9", "0"]"#, r#"["9", 0, 0]"#, "[9, 0]", r#"[["9", 0]]"#, r#"{"x": ["9", 0]}"#]
    {
        look(&format!(r#"{{"1": {{"class_type": "A", "inputs": {{"in": {data}}}}}}}"#));
    }
}

#[test]
fn a_link_finds_its_node_among_names_that_begin_alike() {
    let ids = ["prefix-of-all", "prefix-of-all-1", "prefix-of-all-2", "prefix-o", "prefix-", "p"];
    let mut body = String::from("{\"last\": {\"class_type\": \"Z\"}");
    for id in ids {
        write!(body, r#", "{id}": {{"class_type": "A{id}"}}, "to {id}": {{"class_type": "B", "inputs": {{"in": ["{id}", 0]}}}}"#)
            .unwrap();
    }
    body.push('}');
    assert_eq!(look(&body).nodes, 13);
    let shapes: std::collections::BTreeSet<Hash> =
        ids.iter().map(|id| look(&body.replace(&format!("[\"{id}\", 0]"), "[\"last\", 0]")).shape).collect();
    assert_eq!(shapes.len(), ids.len(), "each link led somewhere of its own");
}

#[test]
fn a_loop_is_named_in_the_order_in_which_data_would_flow() {
    let node =
        |id: &str, from: &str| format!(r#""{id}": {{"class_type": "A", "inputs": {{"in": ["{from}", 0]}}}}"#);
    let looped = |pairs: &[(&str, &str)]| {
        let nodes: Vec<String> = pairs.iter().map(|(id, from)| node(id, from)).collect();
        refusal(&format!("{{{}}}", nodes.join(",")))
    };
    let why = looped(&[("0", "c"), ("a", "c"), ("b", "a"), ("c", "b"), ("z", "b")]);
    assert_eq!(why, InvalidWorkflow::Loop { nodes: names(&["a", "b", "c"]) });
    assert_eq!(
        why.to_string(),
        "the nodes \"a\" -> \"b\" -> \"c\" -> \"a\" feed each other in a loop: remove one of these links"
    );
    assert_eq!(looped(&[("self", "self")]), InvalidWorkflow::Loop { nodes: names(&["self"]) });
}

/// Nodes in a row, each fed by the one before; the first by the last if `is_closed`.
fn chain(length: usize, is_closed: bool) -> String {
    let mut body = format!(r#"{{"0": {{"class_type": "A", "inputs": {{"in": ["{}", 0]}}}}"#, length - 1);
    if !is_closed {
        body = body.replace(&format!("[\"{}\", 0]", length - 1), "0");
    }
    for node in 1..length {
        write!(body, r#","{node}":{{"class_type":"A","inputs":{{"in":["{}",0]}}}}"#, node - 1).unwrap();
    }
    body + "}"
}

#[test]
fn ten_thousand_nodes_in_a_row_are_fine_and_in_a_ring_are_not() {
    assert_eq!(look(&chain(10_000, false)).nodes, 10_000);
    assert!(matches!(
        refusal(&chain(10_001, false)),
        InvalidWorkflow::TooWide { what: "nodes", max: 10_000 }
    ));
    let why = refusal(&chain(10_000, true));
    assert!(
        matches!(&why, InvalidWorkflow::Loop { nodes } if nodes.len() == 10_000 && nodes[..2] == ["0", "1"])
    );
    assert!(why.to_string().len() < 300, "{why}");
}

#[test]
fn texts_in_errors_are_cut_and_cannot_act_on_a_terminal() {
    let id = format!("\\u001b[2J\\u202e{}", "é".repeat(200));
    let why = refusal(&format!(r#"{{"1": {{"class_type": "A"}}, "{id}": 7}}"#)).to_string();
    assert!(why.contains(r"\u{1b}[2J\u{202e}é") && why.contains('…'), "{why}");
    assert!(why.chars().count() < 250 && !why.contains(char::is_control), "{why}");
}

/// Whole numbers up to here mean the same with a point or an exponent; ten times it is still a double.
const DOUBLE_EXACT: i64 = 1 << 49;

/// A node: its class, and its inputs with either the node that feeds it (counted back) or a text and a number.
type Sketch = (u8, Vec<(u8, Result<usize, (String, i64)>)>);

fn sketches() -> impl Strategy<Value = Vec<Sketch>> {
    let feed = prop_oneof![
        (0..9_usize).prop_map(Ok),
        ("[a-z \"\\\\é]{0,9}", -DOUBLE_EXACT..DOUBLE_EXACT).prop_map(Err)
    ];
    prop::collection::vec((0..4_u8, prop::collection::vec((0..6_u8, feed), 0..5)), 1..12)
}

/// Writes the graph with `name` naming the nodes; other values if `is_other`, other spelling if `is_reversed`.
fn written(sketch: &[Sketch], name: impl Fn(usize) -> String, is_other: bool, is_reversed: bool) -> String {
    let object = |mut members: Vec<String>| {
        if is_reversed {
            members.reverse();
        }
        format!("{{{}}}", members.join(if is_reversed { " ,\n" } else { "," }))
    };
    let nodes = sketch.iter().enumerate().map(|(at, (class, inputs))| {
        let inputs = inputs.iter().enumerate().map(|(nth, (input, feed))| match feed {
            Ok(back) if *back < at => format!("\"i{nth}{input}\":[{:?},{input}]", name(at - back - 1)),
            Ok(_) => format!("\"i{nth}{input}\":null"),
            Err(_) if is_other => format!("\"i{nth}{input}\":{at}"),
            Err((text, number)) => {
                let text = serde_json::to_string(text).unwrap();
                let spelled = if is_reversed { format!("{number}0e-1") } else { number.to_string() };
                format!("\"i{nth}{input}\":[{text},{spelled},{text}]")
            }
        });
        let inputs = object(inputs.collect());
        format!(
            "{:?}:{}",
            name(at),
            object(vec![format!("\"class_type\":\"C{class}\""), format!("\"inputs\":{inputs}")])
        )
    });
    object(nodes.collect())
}

proptest! {
    #[test]
    fn key_order_and_spelling_leave_the_hash_alone(sketch in sketches()) {
        let name = |at: usize| format!("n{at}");
        let (one, two) = (written(&sketch, name, false, false), written(&sketch, name, false, true));
        prop_assert_eq!(look(&one), look(&two));
    }

    #[test]
    fn names_of_nodes_and_values_leave_the_shape_alone(sketch in sketches(), salt in any::<u32>()) {
        let one = look(&written(&sketch, |at| format!("n{at}"), false, false));
        let renamed = |at: usize| format!("{}:{at}", (at as u32 + 1).wrapping_mul(salt | 1) % 97);
        let two = look(&written(&sketch, renamed, true, false));
        prop_assert_eq!((one.shape, &one.classes, one.nodes), (two.shape, &two.classes, two.nodes));
    }

    #[test]
    fn another_class_or_one_more_input_is_another_shape(sketch in sketches(), at in any::<prop::sample::Index>()) {
        let name = |at: usize| format!("n{at}");
        let before = look(&written(&sketch, name, false, false)).shape;
        let at = at.index(sketch.len());
        let (mut class, mut input) = (sketch.clone(), sketch);
        class[at].0 = 9;
        input[at].1.push((9, Err((String::new(), 0))));
        prop_assert_ne!(look(&written(&class, name, false, false)).shape, before);
        prop_assert_ne!(look(&written(&input, name, false, false)).shape, before);
    }

    #[test]
    fn a_decimal_has_one_hash_wherever_its_point_stands(digits in 1..10_i64.pow(14), point in 0..14_usize) {
        let spelled = format!("{digits}e-{point}");
        let text = format!("{digits:0>width$}", width = point + 1);
        let (whole, part) = text.split_at(text.len() - point);
        let dotted = if part.is_empty() { whole.to_owned() } else { format!("{whole}.{part}") };
        prop_assert_eq!(hash(&spelled), hash(&dotted));
        prop_assert_ne!(hash(&spelled), hash(&format!("{}e-{point}", digits + 1)));
    }

    #[test]
    fn whatever_comes_it_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = examine(&String::from_utf8_lossy(&bytes), &WorkflowLimits::default());
    }

    #[test]
    fn almost_json_never_panics_and_is_json_exactly_when_serde_says_so(body in "[\\[\\]{}\",:0-9.eE+\\-\\\\ua tr\n]{0,12}") {
        let ours = canonical_hash(&body, &WorkflowLimits::default());
        let is_json = serde_json::from_str::<serde_json::Value>(&body).is_ok();
        let is_malformed = ours.is_err_and(|why| why.kind() == InvalidKind::Malformed);
        prop_assert_eq!(is_malformed, !is_json);
    }

    #[test]
    fn a_damaged_graph_never_panics(at in 0..LINE.len(), byte in 0..128_u8, cut in any::<bool>()) {
        let mut body = LINE.as_bytes().to_vec();
        body[at] = byte;
        body.truncate(if cut { at } else { body.len() });
        let _ = examine(&String::from_utf8_lossy(&body), &WorkflowLimits::default());
    }
}

/// Blobs that a job names must be found however they are written.
#[test]
fn content_hashes_are_found_with_escapes_and_in_other_texts() {
    let digits = "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262";
    let name = format!("blake3:{digits}");
    for body in [
        format!(r#"{{"a": {{"hash": "{name}"}}}}"#),
        format!(r#"{{"a": "x blake3:blake3:{digits} y"}}"#),
        format!(r#"{{"a": "\u0062lake3\u003a{digits}"}}"#),
        format!(r#"{{"{name}": 1}}"#),
    ] {
        assert!(look(&body).content_hashes.contains(&name), "{body}");
    }
    assert!(look(r#"{"a": "blake3:", "b": "blake3:äöü"}"#).content_hashes.is_empty());
}

#[test]
fn a_parse_counts_as_one_read() {
    let before = reads();
    look(LINE);
    assert_eq!(reads() - before, 1);
}
