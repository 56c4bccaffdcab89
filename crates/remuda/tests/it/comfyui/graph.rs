//! Workflows to try things with, none of which needs a model.

use serde_json::{Map, Value, json};

/// A chain of nodes, each of which takes the picture of the one before.
#[derive(Clone, Debug, Default)]
pub(crate) struct Graph(Map<String, Value>);

/// Begins with a picture of one colour; another colour is another picture, which no cache has.
pub(crate) fn picture(color: u64) -> Graph {
    let inputs = json!({ "width": 64, "height": 64, "batch_size": 1, "color": color % 0x100_0000 });
    Graph(Map::new()).add("EmptyImage", inputs)
}

impl Graph {
    /// A node that takes no picture.
    pub(crate) fn add(mut self, class: &str, inputs: Value) -> Graph {
        let mut node = Map::new();
        node.insert("class_type".to_owned(), class.into());
        node.insert("inputs".to_owned(), inputs);
        self.0.insert((self.0.len() + 1).to_string(), node.into());
        self
    }

    /// A node that takes the last one's picture and hands one on.
    pub(crate) fn then(self, class: &str, mut inputs: Value) -> Graph {
        inputs["image"] = self.last();
        self.add(class, inputs)
    }

    /// Takes its time, and tells how far it is.
    pub(crate) fn sleep(self, seconds: f64, steps: u64) -> Graph {
        self.then("RemudaSleep", json!({ "seconds": seconds, "steps": steps, "preview": false }))
    }

    /// Takes its time without a word.
    pub(crate) fn hold(self, seconds: f64) -> Graph {
        self.then("RemudaHold", json!({ "seconds": seconds }))
    }

    pub(crate) fn fail(self, kind: &str) -> Graph {
        self.then("RemudaFail", json!({ "kind": kind }))
    }

    /// The server fails in this way, half-way through; only the stand-in has it.
    pub(crate) fn fault(self, fault: &str) -> Graph {
        self.then("RemudaFault", json!({ "fault": fault }))
    }

    pub(crate) fn saved(self) -> Value {
        let images = self.last();
        self.add("SaveImage", json!({ "images": images, "filename_prefix": "picture" })).whole()
    }

    pub(crate) fn previewed(self) -> Value {
        let images = self.last();
        self.add("PreviewImage", json!({ "images": images })).whole()
    }

    pub(crate) fn whole(self) -> Value {
        Value::Object(self.0)
    }

    fn last(&self) -> Value {
        json!([self.0.len().to_string(), 0])
    }
}

/// Shows a picture that a file or an asset holds.
pub(crate) fn loaded(image: &Value) -> Value {
    let load = Graph(Map::new()).add("LoadImage", json!({ "image": image }));
    load.then("ImageInvert", json!({})).saved()
}
