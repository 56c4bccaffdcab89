//! The graphs of the recordings, with the fake's nodes. Where a recording kept only the list of classes, an equivalent
//! graph is made up: the same nodes cached, the same duration, the same end.

use std::collections::HashMap;

use serde_json::{Map, Value, json};

use crate::recording::Recording;

/// What the messages say about a run.
#[derive(Debug, Default)]
struct Hints {
    cached: Vec<String>,
    /// File name prefixes by node.
    prefixes: HashMap<String, String>,
    /// Steps and seconds by node.
    times: HashMap<String, (u64, f64)>,
    /// Nothing was recorded of the run.
    is_unheard: bool,
    error: Option<String>,
    text: Option<String>,
}

#[derive(Debug, Default)]
pub(crate) struct Graphs {
    color: u32,
    /// The previous graph, whose nodes may be cached.
    last: Map<String, Value>,
    starts_used: HashMap<String, usize>,
    loads: usize,
}

/// The names under which the recorded uploads are loaded, in order.
const LOADS: [&str; 6] =
    ["up.png", "up.png [output]", "a/b/up.png [temp]", "missing.png", "up.png", "up.png"];

impl Graphs {
    /// The graph to send instead of the recorded one.
    pub(crate) fn translate(
        &mut self,
        recording: &Recording,
        at: usize,
        answer: &Value,
        graph: &Value,
        chosen: Option<&str>,
    ) -> Value {
        let id = answer["json"]["prompt_id"].as_str().or(chosen);
        let translated = match graph {
            Value::Object(nodes) => nodes.iter().map(|(id, node)| (id.clone(), known(node))).collect(),
            Value::String(classes) if classes.starts_with("<graph: ") => {
                self.make_up(recording, at, id, classes)
            }
            other => return other.clone(),
        };
        if answer["status"] == 200 {
            self.last.clone_from(&translated);
        }
        Value::Object(translated)
    }

    fn make_up(
        &mut self,
        recording: &Recording,
        at: usize,
        id: Option<&str>,
        classes: &str,
    ) -> Map<String, Value> {
        let used = self.starts_used.entry(id.unwrap_or_default().to_owned()).or_default();
        let hints = hints(recording, at, id.unwrap_or_default(), *used);
        *used += 1;
        let list = classes.trim_start_matches("<graph: ").trim_end_matches('>');
        let nodes: Vec<(&str, &str)> = list.split(", ").map(|node| node.split_once(' ').unwrap()).collect();
        let mut graph = Map::new();
        let mut source = "1";
        for (id, class) in nodes {
            let node = self.node(recording, id, class, source, &hints);
            if !matches!(class, "SaveImage" | "PreviewImage" | "SaveImageWebsocket") {
                source = id;
            }
            graph.insert(id.to_owned(), node);
        }
        if classes.contains("ImageBlend") {
            graph["2"]["inputs"]["batch_size"] = json!(2);
            graph["4"]["inputs"]["batch_size"] = json!(3);
            let inputs =
                json!({"image1": ["4", 0], "image2": ["2", 0], "blend_factor": 0.5, "blend_mode": "normal"});
            graph["3"]["inputs"] = inputs;
            graph["5"]["inputs"]["images"] = json!(["3", 0]);
        }
        if let Some(node) = graph.get_mut("9").filter(|_| classes.contains("9 ImageInvert")) {
            node.as_object_mut().unwrap().remove("inputs");
        }
        graph
    }

    fn node(&mut self, recording: &Recording, id: &str, class: &str, source: &str, hints: &Hints) -> Value {
        let link = json!([source, 0]);
        let (steps, seconds) = hints.times.get(id).copied().unwrap_or((1, 3000.0));
        let prefix = match (recording.name.as_str(), hints.prefixes.get(id)) {
            ("poison-filename-prefix", Some(prefix)) if prefix.starts_with("64x") => "sub/dir/%width%x%year%",
            ("poison-filename-prefix", None) => "../../escape",
            (_, prefix) => prefix.map_or("trivial", String::as_str),
        };
        match class {
            "EmptyImage" => self.picture(recording, id, hints),
            "ImageInvert" => json!({"class_type": class, "inputs": {"image": link}}),
            "ImageBlend" => json!({"class_type": class, "inputs": {}}),
            "SaveImage" => {
                json!({"class_type": class, "inputs": {"images": link, "filename_prefix": prefix}})
            }
            "PreviewImage" | "SaveImageWebsocket" => json!({"class_type": class, "inputs": {"images": link}}),
            "LoadImage" => {
                self.loads += 1;
                json!({"class_type": class, "inputs": {"image": LOADS[self.loads - 1]}})
            }
            "ResearchSleepProgress" => {
                self.color += 1;
                let seconds = seconds + f64::from(self.color) * 1e-6;
                let preview = recording.name == "ws-binary-frames";
                let inputs = json!({"image": link, "seconds": seconds, "steps": steps, "preview": preview});
                json!({"class_type": "RemudaSleep", "inputs": inputs})
            }
            "ResearchSleepBlock" => {
                json!({"class_type": "RemudaHold", "inputs": {"image": link, "seconds": 3.0}})
            }
            "ResearchFail" => {
                let kind = match (recording.name.as_str(), hints.error.as_deref()) {
                    ("poison-node-calls-sys-exit", _) => "exit",
                    ("server-crash-in-node", _) => "crash",
                    (_, Some("torch.OutOfMemoryError")) => "oom",
                    (_, Some(_)) => "error",
                    (_, None) => {
                        return json!({"class_type": "RemudaFault", "inputs": {"image": link, "fault": "none"}});
                    }
                };
                json!({"class_type": "RemudaFail", "inputs": {"image": link, "kind": kind}})
            }
            "ResearchNeverCached" => {
                json!({"class_type": "RemudaFault", "inputs": {"image": link, "fault": "none"}})
            }
            "ResearchProgressText" => {
                json!({"class_type": "RemudaProgressText", "inputs": {"image": link, "text": "half way ✓"}})
            }
            "ResearchTextOut" => {
                json!({"class_type": "RemudaText", "inputs": {"text": hints.text.as_deref().unwrap_or("")}})
            }
            "ResearchNanOut" => json!({"class_type": "RemudaNan", "inputs": {}}),
            other => panic!("no stand-in for {other}"),
        }
    }

    /// The same image as before where the recording had it cached, otherwise a new one.
    fn picture(&mut self, recording: &Recording, id: &str, hints: &Hints) -> Value {
        let before = self.last.values().find(|node| node["class_type"] == "EmptyImage").cloned();
        if let Some(before) =
            before.filter(|_| hints.is_unheard || hints.cached.iter().any(|cached| cached == id))
        {
            return before;
        }
        self.color += 1;
        // The recorded image of 36 megapixels took six seconds to write; this one takes long enough.
        let is_large =
            recording.name == "ws-interrupted-run" && hints.prefixes.values().any(|prefix| prefix == "x");
        let size = if is_large { 4000 } else { 64 };
        let inputs = json!({"width": size, "height": size, "batch_size": 1, "color": self.color});
        json!({"class_type": "EmptyImage", "inputs": inputs})
    }
}

/// What a server had cached when the recording started: the part of its first graph that was cached then.
pub(crate) fn warm_part(recording: &Recording, at: usize, answer: &Value, graph: &Value) -> Option<Value> {
    let id = answer["json"]["prompt_id"].as_str()?;
    let cached = match recording.name.as_str() {
        // No socket was open when it started; the later messages do not mention this node.
        "ws-connect-after-submit" => vec!["1".to_owned()],
        _ => hints(recording, at, id, 0).cached,
    };
    let mut nodes: Map<String, Value> = graph
        .as_object()?
        .iter()
        .filter(|(id, _)| cached.contains(id))
        .map(|(id, node)| (id.clone(), node.clone()))
        .collect();
    let last = cached.last()?;
    if nodes[last]["class_type"] != "SaveImage" {
        nodes.insert("end".into(), json!({"class_type": "PreviewImage", "inputs": {"images": [last, 0]}}));
    }
    Some(nodes.into())
}

/// A recorded node of a complete graph.
fn known(node: &Value) -> Value {
    let inputs = &node["inputs"];
    let image = &inputs["image"];
    match node["class_type"].as_str() {
        Some("ResearchSleepProgress") => {
            let steps = inputs["steps"].as_u64().unwrap();
            let seconds = inputs["seconds_per_step"].as_f64().unwrap() * steps as f64;
            // The seed distinguishes two of them.
            let seconds = seconds + inputs["seed"].as_f64().unwrap() * 1e-15;
            let inputs = json!({"image": image, "seconds": seconds, "steps": steps, "preview": inputs["preview"] != "none"});
            json!({"class_type": "RemudaSleep", "inputs": inputs})
        }
        Some("ResearchFail") => match inputs["how"].as_str().unwrap() {
            "blocker" => {
                json!({"class_type": "RemudaBlocker", "inputs": {"image": image, "message": "research: blocked"}})
            }
            "blocker_silent" => {
                json!({"class_type": "RemudaSilentBlocker", "inputs": {"image": image}})
            }
            _ => json!({"class_type": "RemudaFail", "inputs": {"image": image, "kind": "error"}}),
        },
        _ => node.clone(),
    }
}

/// Looks ahead to how a prompt runs: the messages from its start to its end.
fn hints(recording: &Recording, at: usize, id: &str, used: usize) -> Hints {
    let mut hints = Hints::default();
    let messages: Vec<(f64, Value)> = recording
        .values()
        .filter(|(_, line)| line["json"]["data"]["prompt_id"] == id)
        .map(|(at, line)| (recording.lines[at].time, line["json"].clone()))
        .collect();
    let starts: Vec<usize> =
        (0..messages.len()).filter(|&at| messages[at].1["type"] == "execution_start").collect();
    let Some(&first) = starts.get(used) else { return from_history(recording, at, id) };
    let last = starts.get(used + 1).copied().unwrap_or(messages.len());
    let mut entered: Option<(String, f64)> = None;
    for (time, message) in &messages[first..last] {
        let data = &message["data"];
        let node = data["node"].as_str().unwrap_or_default().to_owned();
        match message["type"].as_str().unwrap() {
            "execution_cached" => hints.cached = texts(&data["nodes"]),
            "executing" => {
                if let Some((node, since)) = entered.take() {
                    hints.times.entry(node).or_insert((1, round(time - since)));
                }
                entered = Some((node, *time));
            }
            "progress" => {
                let since = entered.as_ref().map_or(*time, |(_, since)| *since);
                let (value, max) = (data["value"].as_u64().unwrap(), data["max"].as_u64().unwrap());
                if value > 0 {
                    hints
                        .times
                        .entry(node)
                        .or_insert((max, round((time - since) / value as f64) * max as f64));
                }
            }
            "executed" => hints.shown(&node, &data["output"]),
            "execution_error" => hints.error = data["exception_type"].as_str().map(str::to_owned),
            _ => {}
        }
    }
    hints
}

impl Hints {
    fn shown(&mut self, node: &str, output: &Value) {
        if let Some(name) = output["images"][0]["filename"].as_str() {
            let prefix = name.rsplitn(3, '_').nth(2).unwrap_or(name);
            self.prefixes.insert(node.to_owned(), prefix.to_owned());
        }
        self.text = output["text"][0].as_str().map(str::to_owned);
    }
}

/// A prompt without messages has at least its history.
fn from_history(recording: &Recording, at: usize, id: &str) -> Hints {
    let mut hints = Hints::default();
    let entry = recording
        .values()
        .skip(at)
        .find_map(|(_, line)| line["json"].get(id).filter(|entry| entry.is_object()).cloned());
    let Some(entry) = entry else {
        hints.is_unheard = true;
        return hints;
    };
    for (node, output) in entry["outputs"].as_object().into_iter().flatten() {
        hints.shown(node, output);
    }
    hints.cached = texts(&entry["status"]["messages"][1][1]["nodes"]);
    hints
}

fn texts(list: &Value) -> Vec<String> {
    list.as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
}

/// Recorded times are slightly late; the nodes had round ones.
fn round(seconds: f64) -> f64 {
    ((seconds * 20.0).round() / 20.0).max(0.05)
}
