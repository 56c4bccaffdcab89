//! Valid, odd and broken requests, of classes that every server and the stand-in have. `UNIQUE` stands for a text that no
//! other case has: file names begin with it.
#![expect(clippy::needless_pass_by_value, reason = "graphs are written where they are used")]

use serde_json::{Value, json};

/// One request, and what the client does besides.
#[derive(Debug)]
pub(super) struct Case {
    pub(super) name: &'static str,
    request: Value,
    /// The whole text of the body, if it is no JSON object.
    text: Option<&'static str>,
    client: ClientId,
    /// The client takes previews with metadata.
    pub(super) takes_metadata: bool,
    /// The same request was sent before, and its results are cached.
    pub(super) is_repeated: bool,
    pub(super) interrupted: Option<InterruptPoint>,
    /// Servers before 0.30.0 do not have what it asks for.
    pub(super) is_new: bool,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum ClientId {
    Field,
    ExtraData,
    None,
}

/// When a run is interrupted, and how; `ITS_ID` is its prompt id.
#[derive(Debug)]
pub(super) struct InterruptPoint {
    pub(super) message: &'static str,
    pub(super) path: &'static str,
    pub(super) body: Value,
}

impl Case {
    fn graph(name: &'static str, graph: Value) -> Case {
        Case::request(name, json!({ "prompt": graph }))
    }

    fn request(name: &'static str, request: Value) -> Case {
        let client = ClientId::Field;
        Case {
            name,
            request,
            text: None,
            client,
            takes_metadata: false,
            is_repeated: false,
            interrupted: None,
            is_new: false,
        }
    }

    /// A valid graph in a request with other fields.
    fn fields(name: &'static str, fields: Value) -> Case {
        let mut case = Case::graph(name, saved(empty(json!({}))));
        case.request.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        case
    }

    fn body_text(name: &'static str, text: &'static str) -> Case {
        Case { text: Some(text), client: ClientId::None, ..Case::request(name, json!({})) }
    }

    fn with(mut self, fields: Value) -> Case {
        self.request.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        self
    }

    fn without_client(self) -> Case {
        Case { client: ClientId::None, ..self }
    }

    fn client_in_extra_data(self) -> Case {
        Case { client: ClientId::ExtraData, ..self }
    }

    fn taking_metadata(self) -> Case {
        Case { takes_metadata: true, ..self }
    }

    fn repeated(self) -> Case {
        Case { is_repeated: true, ..self }
    }

    fn since_0_30(self) -> Case {
        Case { is_new: true, ..self }
    }

    fn interrupted(self, message: &'static str, path: &'static str, body: Value) -> Case {
        Case { interrupted: Some(InterruptPoint { message, path, body }), ..self }
    }

    pub(super) fn has_client(&self) -> bool {
        self.client != ClientId::None
    }

    /// Whether the client chose the number in the queue.
    pub(super) fn has_number(&self) -> bool {
        self.request.get("number").is_some()
    }

    /// The body to send.
    pub(super) fn body(&self, unique: &str, client: &str) -> String {
        if let Some(text) = self.text {
            return text.to_owned();
        }
        let mut request = self.request.clone();
        match self.client {
            ClientId::Field => request["client_id"] = client.into(),
            ClientId::ExtraData => request["extra_data"]["client_id"] = client.into(),
            ClientId::None => {}
        }
        // Each request has an id of its own, also if it is sent twice.
        let id = uuid::Uuid::new_v4().to_string();
        request.to_string().replace("UNIQUE", unique).replace("NEW_ID", &id)
    }
}

pub(in super::super) fn node(class: &str, inputs: Value) -> Value {
    json!({ "class_type": class, "inputs": inputs })
}

fn save(from: &str) -> Value {
    node("SaveImage", json!({ "images": [from, 0], "filename_prefix": "UNIQUE" }))
}

fn save_as(prefix: &str) -> Value {
    node("SaveImage", json!({ "images": ["1", 0], "filename_prefix": prefix }))
}

fn preview(from: &str) -> Value {
    node("PreviewImage", json!({ "images": [from, 0] }))
}

fn invert(from: &str) -> Value {
    node("ImageInvert", json!({ "image": [from, 0] }))
}

pub(in super::super) fn empty(change: Value) -> Value {
    let mut inputs = json!({ "width": 64, "height": 64, "batch_size": 1, "color": 255 });
    inputs.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
    node("EmptyImage", inputs)
}

fn saved(first: Value) -> Value {
    json!({ "1": first, "3": save("1") })
}

/// A picture that goes through a node.
fn through(class: &str, mut inputs: Value) -> Value {
    inputs["image"] = json!(["1", 0]);
    json!({ "1": empty(json!({})), "2": node(class, inputs), "3": save("2") })
}

fn sleep(seconds: f64, steps: u64, has_previews: bool) -> Value {
    through("RemudaSleep", json!({ "seconds": seconds, "steps": steps, "preview": has_previews }))
}

fn blend(change: Value) -> Value {
    let mut inputs =
        json!({ "image1": ["1", 0], "image2": ["1", 0], "blend_factor": 0.5, "blend_mode": "normal" });
    inputs.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
    json!({ "1": empty(json!({})), "2": node("ImageBlend", inputs), "3": save("2") })
}

pub(super) fn cases() -> Vec<Case> {
    [runs(), ends(), requests(), refused_requests(), values(), links_and_classes()]
        .into_iter()
        .flatten()
        .collect()
}

/// Prompts that are executed.
fn runs() -> Vec<Case> {
    let texts = json!({ "1": node("RemudaText", json!({ "text": "höhe ✓\nUNIQUE" })) });
    let diamond = json!({ "1": empty(json!({})), "2": invert("1"), "4": invert("1"),
        "5": node("ImageBlend", json!({ "image1": ["2", 0], "image2": ["4", 0], "blend_factor": 0.5, "blend_mode": "normal" })),
        "3": save("5") });
    let named = |prefix: &str| json!({ "1": empty(json!({})), "3": save_as(prefix) });
    vec![
        Case::graph("picture is saved", saved(empty(json!({})))),
        Case::graph("three nodes", json!({ "1": empty(json!({})), "2": invert("1"), "3": save("2") })),
        Case::graph("batch is saved", saved(empty(json!({ "batch_size": 3, "width": 8 })))),
        Case::graph("picture is previewed", json!({ "1": empty(json!({})), "3": preview("1") })),
        Case::graph("picture is saved in a folder", named("UNIQUE/cats/x")),
        Case::graph("size in the name", named("UNIQUE-%width%x%height%-%year%")),
        Case::graph("name in other letters", named("UNIQUE ✓, 50%/höhe ✓ #1")),
        Case::graph("picture saved twice", saved(empty(json!({})))).repeated(),
        Case::graph(
            "saved and previewed",
            json!({ "1": empty(json!({})), "2": invert("1"), "3": save("1"), "4": preview("2") }),
        ),
        Case::graph(
            "two nodes with one prefix",
            json!({ "1": empty(json!({})), "2": invert("1"), "3": save("1"), "4": save("2") }),
        ),
        Case::graph("diamond", diamond),
        Case::graph("text is shown", texts),
        Case::graph("not a number is shown", json!({ "1": node("RemudaNan", json!({})) })),
        Case::graph("previewed twice", json!({ "1": empty(json!({})), "2": invert("1"), "3": preview("2") }))
            .repeated(),
        Case::graph("previewed twice without client", json!({ "1": empty(json!({})), "3": preview("1") }))
            .repeated()
            .without_client(),
        Case::graph("text shown twice", json!({ "1": node("RemudaText", json!({ "text": "again" })) }))
            .repeated(),
        Case::graph("saved without client", saved(empty(json!({})))).without_client(),
        Case::graph("steps without client", sleep(0.4, 2, false)).without_client(),
        Case::graph("steps", sleep(0.6, 3, false)),
        Case::graph("steps with previews", sleep(0.9, 3, true)),
        Case::graph("steps with previews and metadata", sleep(0.9, 3, true)).taking_metadata(),
        Case::graph(
            "picture over the socket",
            json!({ "1": empty(json!({})), "3": node("SaveImageWebsocket", json!({ "images": ["1", 0] })) }),
        ),
        Case::graph(
            "picture over the socket with metadata",
            json!({ "1": empty(json!({})), "3": node("SaveImageWebsocket", json!({ "images": ["1", 0] })) }),
        )
        .taking_metadata(),
        Case::graph("text while it runs", through("RemudaProgressText", json!({ "text": "höhe: 64" }))),
    ]
}

/// Prompts that do not end well, or not by themselves.
fn ends() -> Vec<Case> {
    let two_failing = json!({ "1": empty(json!({})), "2": node("RemudaFail", json!({ "image": ["1", 0], "kind": "error" })),
        "3": save("2"), "4": save("1") });
    let sizes = json!({ "1": empty(json!({ "batch_size": 3 })), "2": empty(json!({ "batch_size": 2 })),
        "4": node("ImageBlend", json!({ "image1": ["1", 0], "image2": ["2", 0], "blend_factor": 0.5, "blend_mode": "normal" })),
        "3": save("4") });
    let long = || sleep(600.0, 6000, false);
    vec![
        Case::graph("node fails", through("RemudaFail", json!({ "kind": "error" }))),
        Case::graph("node fails without client", through("RemudaFail", json!({ "kind": "error" })))
            .without_client(),
        Case::graph("node fails beside another output", two_failing),
        Case::graph("out of memory", through("RemudaFail", json!({ "kind": "oom" }))),
        Case::graph("node fails on its inputs", sizes),
        Case::graph("output is blocked", through("RemudaBlocker", json!({ "message": "not today" }))),
        Case::graph("output is blocked silently", through("RemudaSilentBlocker", json!({}))),
        Case::graph("interrupted", long()).interrupted(
            "progress",
            "/interrupt",
            json!({ "prompt_id": "ITS_ID" }),
        ),
        Case::graph("cancelled by its id", long())
            .interrupted("progress", "/api/jobs/ITS_ID/cancel", json!({}))
            .since_0_30(),
        Case::graph("cancelled in a list", long())
            .interrupted("progress", "/api/jobs/cancel", json!({ "job_ids": ["ITS_ID"] }))
            .since_0_30(),
        Case::graph("interrupted by anyone", long()).interrupted("progress", "/interrupt", json!({})),
    ]
}

/// Fields beside the graph.
fn requests() -> Vec<Case> {
    let workflow = json!({ "id": "11111111-2222-4333-8444-555555555555", "nodes": [{ "id": 1, "title": "höhe ✓" }], "links": [] });
    let titled = json!({ "1": { "class_type": "EmptyImage", "_meta": { "title": "A picture" },
        "inputs": { "width": 64, "height": 64, "batch_size": 1, "color": 255 } }, "3": save("1") });
    let two = || json!({ "1": empty(json!({})), "2": save("1"), "3": preview("1") });
    vec![
        Case::fields("id of its own", json!({ "prompt_id": "NEW_ID" })),
        Case::fields("null for the id", json!({ "prompt_id": null })),
        Case::fields("in front", json!({ "front": true })),
        Case::fields("not in front", json!({ "front": false })),
        Case::fields("number", json!({ "number": 7 })),
        Case::fields("number as text", json!({ "number": "2.5" })),
        Case::fields("negative number", json!({ "number": -3.5, "front": true })),
        Case::fields("client in extra data", json!({ "extra_data": {} })).client_in_extra_data(),
        Case::fields(
            "workflow in extra data",
            json!({ "extra_data": { "extra_pnginfo": { "workflow": workflow, "note": [1, "✓"] } } }),
        ),
        Case::fields("own fields in extra data", json!({ "extra_data": { "mine": { "a": [1, null] } } })),
        Case::fields("keys in extra data", json!({ "extra_data": { "api_key_comfy_org": "secret" } })),
        Case::fields("unknown fields", json!({ "bogus": 1, "extra": {} })),
        Case::graph("title of a node", titled),
        Case::graph(
            "ids that are no numbers",
            json!({ "a:1": empty(json!({})), "höhe ✓": node("ImageInvert", json!({ "image": ["a:1", 0] })),
            "save.0": save("höhe ✓") }),
        ),
        Case::graph("one of two outputs is wanted", two())
            .with(json!({ "partial_execution_targets": ["2"] })),
        Case::graph("all outputs are wanted", two()).with(json!({ "partial_execution_targets": null })),
        Case::graph("wanted and unknown outputs", two())
            .with(json!({ "partial_execution_targets": ["3", "99"] })),
    ]
}

/// Requests that are refused for something beside the graph.
fn refused_requests() -> Vec<Case> {
    vec![
        Case::request("no prompt", json!({})),
        Case::request("empty prompt", json!({ "prompt": {} })),
        Case::request("empty list for a prompt", json!({ "prompt": [] })),
        Case::fields("no output is wanted", json!({ "partial_execution_targets": [] })),
        Case::fields("wanted node is no output", json!({ "partial_execution_targets": ["1"] })),
        Case::fields("null for extra data", json!({ "extra_data": null })),
        Case::fields("word for a number", json!({ "number": "abc" })),
        Case::request("null for a prompt", json!({ "prompt": null })),
        Case::body_text("no JSON", "{"),
        Case::body_text("empty body", ""),
    ]
}

/// Values of inputs.
fn values() -> Vec<Case> {
    let checkpoint = |name: Value| {
        json!({ "1": node("CheckpointLoaderSimple", json!({ "ckpt_name": name })),
            "2": node("EmptyLatentImage", json!({ "width": 64, "height": 64, "batch_size": 1 })),
            "4": node("VAEDecode", json!({ "samples": ["2", 0], "vae": ["1", 2] })), "3": save("4") })
    };
    let load = |image: Value| saved(node("LoadImage", json!({ "image": image })));
    let sampler = json!({ "1": node("CheckpointLoaderSimple", json!({ "ckpt_name": "none.safetensors" })),
        "2": node("KSampler", json!({ "model": ["1", 0], "seed": -1, "steps": 0, "cfg": 101, "sampler_name": "no",
            "scheduler": 3, "positive": ["1", 1], "negative": ["1", 1], "latent_image": ["1", 2], "denoise": 2 })),
        "4": node("VAEDecode", json!({ "samples": ["2", 0], "vae": ["1", 2] })), "3": save("4") });
    vec![
        Case::graph("number as text in a node", saved(empty(json!({ "width": "64" })))),
        Case::graph("number as fraction", saved(empty(json!({ "width": 64.9 })))),
        Case::graph("wrapped number", saved(empty(json!({ "width": { "__value__": 64 } })))),
        Case::graph("unknown input", saved(empty(json!({ "bogus": [1, 2, 3] })))),
        Case::graph("not a number", saved(empty(json!({ "width": "wide" })))),
        Case::graph("null for a number", saved(empty(json!({ "width": null })))),
        Case::graph("object for a number", saved(empty(json!({ "width": { "a": 1 } })))),
        Case::graph("below the minimum", saved(empty(json!({ "batch_size": 0 })))),
        Case::graph("true below the minimum", saved(empty(json!({ "batch_size": false })))),
        Case::graph("above the maximum", saved(empty(json!({ "batch_size": 4097 })))),
        Case::graph("two errors in one node", saved(empty(json!({ "batch_size": 0, "width": "wide" })))),
        Case::graph("fraction above the maximum", blend(json!({ "blend_factor": 2 }))),
        Case::graph("not a fraction", blend(json!({ "blend_factor": "half" }))),
        Case::graph("null for a fraction", blend(json!({ "blend_factor": null }))),
        Case::graph("word not in the list", blend(json!({ "blend_mode": "mix" }))),
        Case::graph("null not in the list", blend(json!({ "blend_mode": null }))),
        Case::graph("number not in the list", blend(json!({ "blend_mode": 7 }))),
        Case::graph("link for a word", blend(json!({ "blend_mode": ["1", 0] }))),
        Case::graph("model missing", checkpoint(json!("v1-5.safetensors"))),
        Case::graph("null for a model", checkpoint(json!(null))),
        Case::graph("many errors", sampler),
        Case::graph("file missing", load(json!("missing.png"))),
        Case::graph("null for a file", load(json!(null))),
    ]
}

/// Links, classes and outputs.
fn links_and_classes() -> Vec<Case> {
    let images = |value: Value| {
        json!({ "1": empty(json!({})),
            "3": node("SaveImage", json!({ "images": value, "filename_prefix": "UNIQUE" })) })
    };
    vec![
        Case::graph(
            "required input missing",
            json!({ "1": empty(json!({})), "3": node("SaveImage", json!({ "filename_prefix": "UNIQUE" })) }),
        ),
        Case::graph("all inputs missing", saved(node("ImageInvert", json!({})))),
        Case::graph("no inputs at the output", json!({ "3": { "class_type": "SaveImage" } })),
        Case::graph("no inputs behind the output", saved(json!({ "class_type": "ImageInvert" }))),
        Case::graph(
            "wrong type",
            saved(node("EmptyLatentImage", json!({ "width": 64, "height": 64, "batch_size": 1 }))),
        ),
        Case::graph("link of three", images(json!(["1", 0, 0]))),
        Case::graph("empty list for a link", images(json!([]))),
        Case::graph("slot out of range", images(json!(["1", 7]))),
        Case::graph("negative slot", images(json!(["1", -1]))),
        Case::graph("slot as text", images(json!(["1", "0"]))),
        Case::graph("link by number", images(json!([1, 0]))),
        Case::graph("link to null", images(json!([null, 0]))),
        Case::graph("link by list", images(json!([["1"], 0]))),
        Case::graph("link to nothing", images(json!(["99", 0]))),
        Case::graph("link to nothing behind the output", saved(invert("99"))),
        Case::graph("cycle", json!({ "1": invert("2"), "2": invert("1"), "3": save("2") })),
        Case::graph("node that feeds itself", saved(invert("1"))),
        Case::graph("unknown class", saved(node("NoSuchNode", json!({})))),
        Case::graph(
            "unknown class that nothing needs",
            json!({ "1": empty(json!({})), "3": save("1"), "7": node("NoSuchNode", json!({})) }),
        ),
        Case::graph("no class", saved(json!({ "inputs": {} }))),
        Case::graph("no output", json!({ "1": empty(json!({})) })),
        Case::graph(
            "half is valid",
            json!({ "1": empty(json!({})), "2": save("1"), "3": node("SaveImage", json!({ "filename_prefix": "x" })) }),
        ),
        Case::graph(
            "half is valid, the rest loops",
            json!({ "1": empty(json!({})), "2": save("1"), "4": invert("5"), "5": invert("4"), "6": save("5") }),
        ),
        Case::graph(
            "loose node that is wrong",
            json!({ "1": empty(json!({})), "3": save("1"), "5": invert("99") }),
        ),
    ]
}
