//! Malformed graphs and ComfyUI's answers to them: recorded on 0.7.0, and where it changed, read from `execution.py` of
//! 0.30.0.
#![expect(clippy::needless_pass_by_value, reason = "graphs are written where they are used")]

use serde_json::value::{RawValue, to_raw_value};

use super::super::{InvalidWorkflow, Workflow, WorkflowLimits};
use super::*;

fn object_info() -> Json {
    let size = json!(["INT", {"default": 512, "min": 1, "max": 16384, "step": 1}]);
    let long: Vec<String> = (0..21).map(|number| format!("s{number}")).collect();
    json!({
        "EmptyImage": {"input": {"required": {"width": size, "height": size,
            "batch_size": ["INT", {"default": 1, "min": 1, "max": 4096}],
            "color": ["INT", {"default": 0, "min": 0, "max": 16777215, "step": 1, "display": "color"}]}},
            "output": ["IMAGE"], "python_module": "nodes"},
        "EmptyLatentImage": {"input": {"required": {"width": size}}, "output": ["LATENT"], "python_module": "nodes"},
        "ImageInvert": {"input": {"required": {"image": ["IMAGE"]}}, "output": ["IMAGE"], "python_module": "nodes"},
        "ImageBlend": {"input": {"required": {"image1": ["IMAGE"], "image2": ["IMAGE"],
            "blend_factor": ["FLOAT", {"default": 0.5, "min": 0.0, "max": 1.0, "step": 0.01}],
            "blend_mode": [["normal", "it's"]]}, "optional": {"note": ["STRING", {}], "mask": ["MASK"]}},
            "output": ["IMAGE"], "python_module": "nodes"},
        "SaveImage": {"input": {"required": {"images": ["IMAGE", {"tooltip": "The images to save."}],
            "filename_prefix": ["STRING", {"default": "ComfyUI"}]}, "hidden": {"prompt": "PROMPT"}},
            "output": [], "output_node": true, "python_module": "nodes"},
        "CheckpointLoaderSimple": {"input": {"required": {"ckpt_name":
            [["a.safetensors"], {"tooltip": "The name of the checkpoint (model) to load."}]}},
            "output": ["MODEL", "CLIP", "VAE"], "python_module": "nodes"},
        "VAEDecode": {"input": {"required": {"samples": ["LATENT"], "vae": ["VAE"]}}, "output": ["IMAGE"], "python_module": "nodes"},
        "LoadImage": {"input": {"required": {"image": [["there.png"], {"image_upload": true}]}},
            "output": ["IMAGE", "MASK"], "python_module": "nodes"},
        "LoadImageOutput": {"input": {"required": {"image": ["COMBO", {"image_upload": true}]}},
            "output": ["IMAGE", "MASK"], "python_module": "nodes"},
        "Sampler": {"input": {"required": {"name": ["COMBO", {"options": long}], "on": ["BOOLEAN", {}]}},
            "output": ["IMAGE"], "python_module": "comfy_extras.x", "deprecated": null, "experimental": null, "api_node": null},
        "Any": {"input": {"required": {"a": ["*"], "b": ["IMAGE,MASK"], "c": ["COMFY_MATCHTYPE_V3", {}]}}, "output": ["*"],
            "output_node": true, "python_module": "nodes"},
        "Grow": {"input": {"required": {"images": ["COMFY_AUTOGROW_V3", {}]}}, "output": ["IMAGE"], "python_module": "nodes"},
        "Custom": {"input": {"required": {"n": ["INT", {"max": 3}], "mode": [["x"]], "image": ["IMAGE"]}},
            "output": ["IMAGE"], "python_module": "custom_nodes.pack"},
    })
}

fn catalog(infos: &[Json]) -> NodeCatalog {
    let mut catalog = NodeCatalog::default();
    for (name, info) in infos.iter().flat_map(|info| info.as_object().unwrap()) {
        catalog.add(name, info);
    }
    catalog
}

fn raw(workflow: &Json) -> Box<RawValue> {
    to_raw_value(workflow).unwrap()
}

fn check_with(
    graph: &Json,
    change: impl FnOnce(&mut GraphCheck<'_>),
) -> Result<(Vec<String>, Json), (Json, Json)> {
    let catalog = catalog(&[object_info()]);
    let mut check = GraphCheck { catalog: &catalog, targets: None, may_come: false, knows_files: true };
    change(&mut check);
    match Workflow::parse_checked(raw(graph), &WorkflowLimits::default(), Some(&check)) {
        Ok(workflow) => {
            let GraphVerdict { outputs, node_errors } = workflow.verdict().unwrap().clone();
            Ok((outputs, node_errors.into()))
        }
        Err(InvalidWorkflow::Refused(refusal)) => Err((refusal.error, refusal.node_errors.into())),
        Err(other) => panic!("{other}"),
    }
}

fn check(graph: &Json) -> Result<(Vec<String>, Json), (Json, Json)> {
    check_with(graph, |_| {})
}

fn empty(change: Json) -> Json {
    let mut inputs = json!({"width": 64, "height": 64, "batch_size": 1, "color": 255});
    inputs.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
    json!({"class_type": "EmptyImage", "inputs": inputs})
}

fn save(from: &str) -> Json {
    json!({"class_type": "SaveImage", "inputs": {"images": [from, 0], "filename_prefix": "x"}})
}

/// `{"1": node, "3": SaveImage of it}`
fn saved(node: Json) -> Json {
    json!({"1": node, "3": save("1")})
}

fn node(class: &str, inputs: Json) -> Json {
    json!({"class_type": class, "inputs": inputs})
}

fn reason(kind: &str, message: &str, details: &str, extra: Json) -> Json {
    json!({"type": kind, "message": message, "details": details, "extra_info": extra})
}

/// ComfyUI refuses the graph because of this error of this node, on which output 3 depends.
#[track_caller]
fn refused(graph: Json, id: &str, expected: Json) {
    let (error, node_errors) = check(&graph).unwrap_err();
    let is_own = id == "3";
    let summary =
        format!("{}: {}", expected["message"].as_str().unwrap(), expected["details"].as_str().unwrap());
    let details = if is_own { summary } else { String::new() };
    let message = "Prompt outputs failed validation";
    assert_eq!(error, reason("prompt_outputs_failed_validation", message, &details, json!({})));
    let class = &graph[id]["class_type"];
    let entry = json!({"errors": [expected], "dependent_outputs": ["3"], "class_type": class});
    assert_eq!(node_errors, json!({id: entry}));
}

#[test]
fn number_that_is_none_is_refused() {
    let config = json!(["INT", {"default": 512, "min": 1, "max": 16384, "step": 1}]);
    let wide = "invalid literal for int() with base 10: 'wide'";
    let none = "int() argument must be a string, a bytes-like object or a real number, not 'NoneType'";
    let dict = "int() argument must be a string, a bytes-like object or a real number, not 'dict'";
    for (given, shown, why) in
        [(json!("wide"), "wide", wide), (json!(null), "None", none), (json!({"a": 1}), "{'a': 1}", dict)]
    {
        let message = "Failed to convert an input value to a INT value";
        let extra = json!({"input_name": "width", "input_config": config, "received_value": given, "exception_message": why});
        let expected = reason("invalid_input_type", message, &format!("width, {shown}, {why}"), extra);
        refused(saved(empty(json!({"width": given}))), "1", expected);
    }
    let why = "could not convert string to float: 'half'";
    let blend =
        json!({"image1": ["2", 0], "image2": ["2", 0], "blend_factor": "half", "blend_mode": "normal"});
    let config = json!(["FLOAT", {"default": 0.5, "min": 0.0, "max": 1.0, "step": 0.01}]);
    let extra = json!({"input_name": "blend_factor", "input_config": config, "received_value": "half", "exception_message": why});
    let message = "Failed to convert an input value to a FLOAT value";
    let graph = json!({"1": node("ImageBlend", blend), "2": empty(json!({})), "3": save("1")});
    refused(graph, "1", reason("invalid_input_type", message, &format!("blend_factor, half, {why}"), extra));
}

#[test]
fn value_out_of_range_is_refused() {
    let config = json!(["INT", {"default": 1, "min": 1, "max": 4096}]);
    for (given, kind, message, received) in [
        (json!(0), "value_smaller_than_min", "Value 0 smaller than min of 1", json!(0)),
        (json!("-5"), "value_smaller_than_min", "Value -5 smaller than min of 1", json!(-5)),
        (json!(0.9), "value_smaller_than_min", "Value 0 smaller than min of 1", json!(0)),
        (json!(false), "value_smaller_than_min", "Value 0 smaller than min of 1", json!(0)),
        (json!(4097), "value_bigger_than_max", "Value 4097 bigger than max of 4096", json!(4097)),
    ] {
        let extra = json!({"input_name": "batch_size", "input_config": config, "received_value": received});
        refused(saved(empty(json!({"batch_size": given}))), "1", reason(kind, message, "batch_size", extra));
    }
    let blend = json!({"image1": ["2", 0], "image2": ["2", 0], "blend_factor": 2, "blend_mode": "normal"});
    let graph = json!({"1": node("ImageBlend", blend), "2": empty(json!({})), "3": save("1")});
    let (_, errors) = check(&graph).unwrap_err();
    let error = &errors["1"]["errors"][0];
    assert_eq!(error["message"], "Value 2.0 bigger than max of 1.0");
    assert_eq!(error["extra_info"]["received_value"], json!(2.0));
}

#[test]
fn required_input_that_is_missing_is_refused() {
    let expected = reason(
        "required_input_missing",
        "Required input is missing",
        "images",
        json!({"input_name": "images"}),
    );
    let graph = json!({"1": empty(json!({})), "3": node("SaveImage", json!({"filename_prefix": "x"}))});
    refused(graph, "3", expected);
}

#[test]
fn value_that_is_not_in_the_list_is_refused() {
    let missing = json!({"1": node("CheckpointLoaderSimple", json!({"ckpt_name": "v1-5.safetensors"})),
        "2": node("EmptyLatentImage", json!({"width": 64})),
        "4": node("VAEDecode", json!({"samples": ["2", 0], "vae": ["1", 2]})), "3": save("4")});
    let config = json!([["a.safetensors"], {"tooltip": "The name of the checkpoint (model) to load."}]);
    let extra =
        json!({"input_name": "ckpt_name", "input_config": config, "received_value": "v1-5.safetensors"});
    let details = "ckpt_name: 'v1-5.safetensors' not in ['a.safetensors']";
    refused(missing.clone(), "1", reason("value_not_in_list", "Value not in list", details, extra));
    // Unless a worker may come that has the file. A word of a list comes with no worker.
    assert_eq!(check_with(&missing, |check| check.may_come = true), Ok((vec!["3".to_owned()], json!({}))));

    for (given, shown) in [(json!("no"), "'no'"), (json!(null), "None"), (json!(7), "7")] {
        let sampler = node("Sampler", json!({"name": given, "on": true}));
        let extra = json!({"input_name": "name", "input_config": null, "received_value": given});
        let details = format!("name: {shown} not in (list of length 21)");
        let expected = reason("value_not_in_list", "Value not in list", &details, extra);
        refused(saved(sampler.clone()), "1", expected);
        assert!(check_with(&saved(sampler), |check| check.may_come = true).is_err());
    }
    let blend = json!({"image1": ["2", 0], "image2": ["2", 0], "blend_factor": 1, "blend_mode": "its"});
    let graph = json!({"1": node("ImageBlend", blend), "2": empty(json!({})), "3": save("1")});
    let (_, errors) = check(&graph).unwrap_err();
    assert_eq!(errors["1"]["errors"][0]["details"], "blend_mode: 'its' not in ['normal', \"it's\"]");
    assert_eq!(errors["1"]["errors"][0]["extra_info"]["input_config"], json!([["normal", "it's"], {}]));
}

#[test]
fn file_that_no_server_has_is_refused_as_far_as_it_is_known() {
    let load = |image: Json| saved(node("LoadImage", json!({"image": image})));
    let expected = |name: &str| {
        let details = format!("image - Invalid image file: {name}");
        let message = "Custom validation failed for node";
        reason("custom_validation_failed", message, &details, json!({"input_name": "image"}))
    };
    refused(load(json!("gone.png")), "1", expected("gone.png"));
    let asset = json!({"__type": "core/ASSET", "info": {"hash": "blake3:00"}});
    for known in [json!("there.png"), asset, json!("sub/a.png"), json!("a.png [output]")] {
        assert!(check(&load(known)).is_ok());
    }
    let (_, errors) = check(&load(json!(null))).unwrap_err();
    let error = &errors["1"]["errors"][0];
    assert_eq!(error["type"], "exception_during_inner_validation");
    assert_eq!(error["details"], "'NoneType' object has no attribute 'endswith'");
    let left_to_servers = check_with(&load(json!("gone.png")), |check| check.knows_files = false);
    assert!(left_to_servers.is_ok());
    assert!(check(&saved(node("LoadImageOutput", json!({"image": "x.png"})))).is_ok(), "nobody lists those");
}

#[test]
fn link_of_another_type_is_refused() {
    let graph = saved(node("EmptyLatentImage", json!({"width": 64})));
    let details = "images, received_type(LATENT) mismatch input_type(IMAGE)";
    let extra = json!({"input_name": "images", "input_config": ["IMAGE", {"tooltip": "The images to save."}],
        "received_type": "LATENT", "linked_node": ["1", 0]});
    let message = "Return type mismatch between linked nodes";
    refused(graph, "3", reason("return_type_mismatch", message, details, extra));

    let any = |b: Json| {
        json!({"1": node("LoadImage", json!({"image": "there.png"})),
        "3": node("Any", json!({"a": ["1", 1], "b": b, "c": ["1", 0]}))})
    };
    assert!(check(&any(json!(["1", 1]))).is_ok(), "one of several types is enough");
    assert!(check(&any(json!(["1", -1]))).is_ok(), "Python counts from the end");
    // A link where a combo expects a word.
    let blend = json!({"image1": ["2", 0], "image2": ["2", 0], "blend_factor": 1, "blend_mode": ["2", 0]});
    let graph = json!({"1": node("ImageBlend", blend), "2": empty(json!({})), "3": save("1")});
    let (_, errors) = check(&graph).unwrap_err();
    let details = "blend_mode, received_type(IMAGE) mismatch input_type(['normal', \"it's\"])";
    assert_eq!(errors["1"]["errors"][0]["details"], details);
}

#[test]
fn link_that_is_no_link_is_refused() {
    for value in [json!(["1", 0, 0]), json!(["1"]), json!([])] {
        let graph = json!({"1": empty(json!({})), "3": node("SaveImage", json!({"images": value, "filename_prefix": "x"}))});
        let message = "Bad linked input, must be a length-2 list of [node_id, slot_index]";
        let config = json!(["IMAGE", {"tooltip": "The images to save."}]);
        let extra = json!({"input_name": "images", "input_config": config, "received_value": value});
        refused(graph, "3", reason("bad_linked_input", message, "images", extra));
    }
}

#[test]
fn link_to_nothing_is_refused_with_the_exception_of_python() {
    for (link, kind, text) in [
        (json!(["99", 0]), "KeyError", "'99'"),
        (json!([1, 0]), "KeyError", "1"),
        (json!([null, 0]), "KeyError", "None"),
        (json!([["1"], 0]), "TypeError", "unhashable type: 'list'"),
        (json!(["1", 7]), "IndexError", "tuple index out of range"),
        (json!(["1", "0"]), "TypeError", "tuple indices must be integers or slices, not str"),
        (json!(["2", 1]), "IndexError", "list index out of range"),
    ] {
        let sampler = node("Sampler", json!({"name": "s0", "on": true}));
        let save = node("SaveImage", json!({"images": link, "filename_prefix": "x"}));
        let extra = json!({"exception_type": kind, "traceback": []});
        let expected = reason("exception_during_validation", "Exception when validating node", text, extra);
        refused(json!({"1": empty(json!({})), "2": sampler, "3": save}), "3", expected);
    }
    // Behind the output it is an error of the inner node, which names the link to it.
    let graph = saved(node("ImageInvert", json!({"image": ["99", 0]})));
    let config = json!(["IMAGE", {"tooltip": "The images to save."}]);
    let extra = json!({"input_name": "images", "input_config": config, "exception_message": "'99'",
        "exception_type": "KeyError", "traceback": [], "linked_node": ["1", 0]});
    let message = "Exception when validating inner node";
    refused(graph, "1", reason("exception_during_inner_validation", message, "'99'", extra));
    // ComfyUI cannot read a node without inputs.
    let extra = json!({"exception_type": "KeyError", "traceback": []});
    let expected = reason("exception_during_validation", "Exception when validating node", "'inputs'", extra);
    refused(json!({"3": {"class_type": "SaveImage"}}), "3", expected);
}

#[test]
fn cycle_is_refused_and_its_nodes_are_named() {
    let invert = |from: &str| node("ImageInvert", json!({"image": [from, 0]}));
    let graph = json!({"1": invert("2"), "2": invert("1"), "3": save("2")});
    let (error, errors) = check(&graph).unwrap_err();
    assert_eq!((&error["type"], &error["details"]), (&json!("prompt_outputs_failed_validation"), &json!("")));
    let path = "2 (ImageInvert) -> 1 (ImageInvert) -> 2 (ImageInvert)";
    for id in ["1", "2"] {
        let extra = json!({"node_id": id, "cycle_nodes": ["2", "1"]});
        let expected = reason("dependency_cycle", "Dependency cycle detected", path, extra);
        let entry = json!({"errors": [expected], "dependent_outputs": ["3"], "class_type": "ImageInvert"});
        assert_eq!(errors[id], entry);
    }
    let (_, errors) = check(&json!({"1": invert("1"), "3": save("1")})).unwrap_err();
    assert_eq!(errors["1"]["errors"][0]["details"], "1 (ImageInvert) -> 1 (ImageInvert)");
}

#[test]
fn unknown_class_is_refused_wherever_it_stands() {
    let unknown = json!({"class_type": "NoSuchNode", "inputs": {}, "_meta": {"title": "My node"}});
    let graph = json!({"1": empty(json!({})), "3": save("1"), "7": unknown, "10": node("Other", json!({}))});
    let message = "Node 'My node' not found. The custom node may not be installed.";
    let extra = json!({"node_id": "7", "class_type": "NoSuchNode", "node_title": "My node"});
    let expected = reason("missing_node_type", message, "Node ID '#7'", extra);
    assert_eq!(check(&graph), Err((expected, json!({}))));
    let (outputs, _) = check_with(&graph, |check| check.may_come = true).unwrap();
    assert_eq!(outputs, ["3", "7", "10"], "they may be outputs");
}

#[test]
fn graph_without_wanted_outputs_is_refused() {
    let expected = || Err((reason("prompt_no_outputs", "Prompt has no outputs", "", json!({})), json!({})));
    assert_eq!(check(&json!({"1": empty(json!({}))})), expected());
    let graph = saved(empty(json!({})));
    assert_eq!(check_with(&graph, |check| check.targets = Some(&[])), expected());
    let wrapped = json!({"prompt": graph, "partial_execution_targets": ["1"]});
    assert_eq!(check(&wrapped), expected());
}

#[test]
fn half_of_a_graph_runs_and_the_rest_is_reported() {
    let graph = json!({
        "1": empty(json!({})), "2": save("1"),
        "3": node("SaveImage", json!({"filename_prefix": "half"})),
        "4": node("CheckpointLoaderSimple", json!({"ckpt_name": "no.safetensors"})),
        "5": node("VAEDecode", json!({"samples": ["99", 0], "vae": ["4", 2]})), "6": save("5"),
    });
    let catalog = catalog(&[object_info()]);
    let check = GraphCheck { catalog: &catalog, targets: None, may_come: false, knows_files: true };
    let parse =
        |graph: &Json| Workflow::parse_checked(raw(graph), &WorkflowLimits::default(), Some(&check)).unwrap();
    let workflow = parse(&graph);
    let verdict = workflow.verdict().unwrap();
    assert_eq!(verdict.outputs, ["2"]);
    let names: Vec<_> = verdict.node_errors.keys().collect();
    assert_eq!(names, ["3", "5"], "an exception ends the check of a node before its other inputs");
    assert_eq!(verdict.node_errors["3"]["dependent_outputs"], json!(["3", "6"]), "as ComfyUI counts them");
    let sent: Json = serde_json::from_str(workflow.text().get()).unwrap();
    assert_eq!(sent, json!({"prompt": graph, "partial_execution_targets": ["2"]}));
    assert!(workflow.facts().models.is_empty(), "what does not run needs no model");

    for wrapped in [
        json!({"prompt": graph, "extra_data": {"a": 1}}),
        json!({"prompt": graph, "extra_data": {"a": 1}, "partial_execution_targets": ["2", "3"]}),
    ] {
        let again = parse(&wrapped);
        let sent: Json = serde_json::from_str(again.text().get()).unwrap();
        let expected = json!({"prompt": graph, "extra_data": {"a": 1}, "partial_execution_targets": ["2"]});
        assert_eq!(sent, expected);
        assert_eq!(again.facts().workflow_hash, workflow.facts().workflow_hash);
    }
}

#[test]
fn nodes_that_do_not_run_need_not_be_valid() {
    let loose = json!({"1": empty(json!({})), "3": save("1"),
        "5": node("ImageInvert", json!({"image": ["99", 0]})), "6": node("ImageInvert", json!({"image": ["6", 0]})),
        "7": node("CheckpointLoaderSimple", json!({"ckpt_name": "no.safetensors"})), "8": {"class_type": "LoadImage"}});
    assert_eq!(check(&loose), Ok((vec!["3".to_owned()], json!({}))));
}

#[test]
fn what_a_class_may_check_itself_is_left_to_its_server() {
    let custom = |n: Json| {
        let custom = node("Custom", json!({"n": n, "mode": "other", "image": ["2", 0]}));
        json!({"1": custom, "2": node("EmptyLatentImage", json!({"width": 64})), "3": save("1")})
    };
    assert!(check(&custom(json!(99))).is_ok());
    assert!(check(&custom(json!("many"))).is_err(), "no class converts inputs itself");
    // Inputs that expand have other names in the graph.
    let grow = |from: &str| saved(node("Grow", json!({"images.image0": [from, 0]})));
    let mut graph = grow("2");
    graph["2"] = empty(json!({}));
    assert!(check(&graph).is_ok());
    assert!(check(&grow("99")).is_err());
}

#[test]
fn valid_graph_passes_and_values_are_converted_as_in_python() {
    for change in [
        json!({}),
        json!({"width": "64"}),
        json!({"width": 64.7}),
        json!({"bogus": [1, 2, 3]}),
        json!({"width": {"__value__": 64}}),
    ] {
        assert_eq!(check(&saved(empty(change))), Ok((vec!["3".to_owned()], json!({}))));
    }
}

/// Where workers differ, what any of them accepts is accepted.
#[test]
fn what_any_server_accepts_is_accepted() {
    let mut other = object_info();
    other["EmptyImage"]["input"]["required"]["batch_size"] = json!(["INT", {"min": 0, "max": 5000}]);
    other["CheckpointLoaderSimple"]["input"]["required"]["ckpt_name"] = json!([["b.safetensors"], {}]);
    other["SaveImage"]["input"]["required"].as_object_mut().unwrap().remove("filename_prefix");
    other["EmptyLatentImage"]["output"] = json!(["IMAGE"]);
    other["ImageInvert"]["input"]["required"]["image"] = json!(["STRING"]);
    other["New"] = json!({"output_node": true});
    let both = catalog(&[object_info(), other]);
    let graph = json!({
        "1": empty(json!({"batch_size": 0})), "2": node("SaveImage", json!({"images": ["1", 0]})),
        "4": node("CheckpointLoaderSimple", json!({"ckpt_name": "b.safetensors"})),
        "5": node("VAEDecode", json!({"samples": ["6", 0], "vae": ["4", 2]})),
        "6": node("EmptyLatentImage", json!({"width": 64})), "7": node("SaveImage", json!({"images": ["5", 0]})),
        "8": node("ImageInvert", json!({"image": "a"})), "9": node("SaveImage", json!({"images": ["8", 0]})),
        "10": node("New", json!({})),
    });
    let check = GraphCheck { catalog: &both, targets: None, may_come: false, knows_files: true };
    let parse = |graph: &Json| Workflow::parse_checked(raw(graph), &WorkflowLimits::default(), Some(&check));
    assert_eq!(parse(&graph).unwrap().verdict().unwrap().outputs, ["2", "7", "9", "10"]);
    let mut wrong = graph;
    wrong["1"] = empty(json!({"batch_size": 5001}));
    wrong["4"] = node("CheckpointLoaderSimple", json!({"ckpt_name": "c.safetensors"}));
    let workflow = parse(&wrong).unwrap();
    let errors = &workflow.verdict().unwrap().node_errors;
    assert_eq!(errors["1"]["errors"][0]["message"], "Value 5001 bigger than max of 5000");
    let details = "ckpt_name: 'c.safetensors' not in ['a.safetensors', 'b.safetensors']";
    assert_eq!(errors["4"]["errors"][0]["details"], details);
}

/// Every output depends on every invalid node: the answer must not be their product. A long chain must not end the process.
///
/// Faults: X7.
#[test]
fn answer_to_a_large_graph_is_bounded() {
    let mut nodes = Map::new();
    let mut last = "none".to_owned();
    for number in 0..4000 {
        let id = format!("a{number}");
        nodes.insert(id.clone(), node("ImageBlend", json!({"image1": [last, 0], "blend_factor": 9})));
        last = id;
    }
    for number in 0..4000 {
        nodes.insert(format!("z{number}"), save(&last));
    }
    let (error, node_errors) = check(&nodes.clone().into()).unwrap_err();
    let reported = node_errors.as_object().unwrap();
    assert_eq!(reported.len(), REPORTED_NODES_MAX);
    assert!(reported.values().all(|it| it["dependent_outputs"].as_array().unwrap().len() == DEPENDENT_MAX));
    assert!(error["details"].as_str().unwrap().lines().count() <= REPORTED_NODES_MAX);
    // One cycle of all of them.
    nodes.insert("a0".to_owned(), node("ImageInvert", json!({"image": ["a3999", 0]})));
    let (_, node_errors) = check(&nodes.into()).unwrap_err();
    assert_eq!(node_errors.as_object().unwrap().len(), REPORTED_NODES_MAX);
}

#[test]
fn refusal_is_readable() {
    let catalog = catalog(&[object_info()]);
    let check = GraphCheck { catalog: &catalog, targets: None, may_come: false, knows_files: true };
    let told = |graph: Json| {
        Workflow::parse_checked(raw(&graph), &WorkflowLimits::default(), Some(&check))
            .unwrap_err()
            .to_string()
    };
    let told_one = told(saved(empty(json!({"batch_size": 0}))));
    assert_eq!(told_one, "node \"1\" (EmptyImage): Value 0 smaller than min of 1: batch_size");
    let two = told(saved(empty(json!({"batch_size": 0, "width": 0}))));
    assert!(two.ends_with("(and 1 more)"), "{two}");
    let dangling = told(saved(node("ImageInvert", json!({"image": ["99", 0]}))));
    assert_eq!(dangling, "node \"1\" (ImageInvert): an input links to node \"99\", which is not there");
    let unknown = told(saved(node("NoSuchNode", json!({}))));
    assert_eq!(unknown, "Node 'NoSuchNode' not found. The custom node may not be installed. (Node ID '#1')");
}
