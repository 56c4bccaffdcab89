//! A server's node classes and model files. Both are in `/object_info`; model files are among the choices of inputs:
//!
//! ```text
//!   "ckpt_name": [["a.safetensors", "b/c.safetensors"], {..}]                 older nodes
//!   "ckpt_name": ["COMBO", {"options": ["a.safetensors", ..], ..}]            newer nodes
//!   "model": ["COMFY_DYNAMICCOMBO_V3", {"options": [{"key", "inputs": {"required": {..}}}]}]   choices with nested inputs
//! ```
//!
//! The core's rule for model files in workflows also decides which choice is a model file, so that the two match.

use std::collections::BTreeSet;
use std::time::Duration;

use remuda_core::workflow::model_file;
use serde_json::Value;
use serde_json::value::RawValue;

use super::client::ComfyuiClient;
use super::error::{ComfyuiError, unreadable};
use super::json::JsonMembers;

/// The server lists every model folder for this request, possibly on a slow network drive.
const INVENTORY_TIMEOUT: Duration = Duration::from_secs(30);

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Inventory {
    pub classes: BTreeSet<String>,
    /// With `/` between folders, as in the core.
    pub models: BTreeSet<String>,
}

impl ComfyuiClient {
    pub async fn inventory(&self) -> Result<Inventory, ComfyuiError> {
        Ok(self.inventory_and_object_info().await?.0)
    }

    /// The inventory and the unchanged `/object_info`.
    pub async fn inventory_and_object_info(&self) -> Result<(Inventory, Box<RawValue>), ComfyuiError> {
        let object_info: Box<RawValue> = self.read_within("object_info", &[], INVENTORY_TIMEOUT).await?;
        let classes: JsonMembers<Value> = serde_json::from_str(object_info.get())
            .map_err(|error| unreadable("object_info", &error.to_string()))?;
        let inventory = Inventory::read(classes);
        if inventory.classes.is_empty() {
            return Err(unreadable("object_info", "it contains no node class"));
        }
        Ok((inventory, object_info))
    }
}

impl Inventory {
    fn read(classes: JsonMembers<Value>) -> Self {
        let mut inventory = Inventory::default();
        for (class, info) in classes.0.into_iter().filter(|(_, info)| info.is_object()) {
            note_inputs(&info["input"], &mut inventory.models);
            inventory.classes.insert(class);
        }
        inventory
    }
}

/// `{"required": {name: spec}, "optional": {..}, "hidden": {..}}`
fn note_inputs(sections: &Value, models: &mut BTreeSet<String>) {
    let sections = sections.as_object().into_iter().flat_map(|sections| sections.values());
    let inputs = sections.filter_map(Value::as_object).flat_map(|inputs| inputs.values());
    for spec in inputs.filter_map(Value::as_array) {
        let old = spec.first();
        let new = spec.get(1).and_then(|options| options.get("options"));
        for choices in [old, new].into_iter().flatten().filter_map(Value::as_array) {
            choices.iter().for_each(|choice| note_choice(choice, models));
        }
    }
}

/// The JSON parser limits the depth, so the recursion is bounded.
fn note_choice(choice: &Value, models: &mut BTreeSet<String>) {
    match choice {
        Value::String(text) => models.extend(model_file(text).map(|name| name.into_owned())),
        Value::Object(_) => note_inputs(&choice["inputs"], models),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::json;

    #[test]
    fn models_are_found_in_old_new_and_nested_choices() {
        let object_info = br#"{
            "CheckpointLoaderSimple": {"input": {"required": {
                "ckpt_name": [["xl/base.safetensors", "v1\\old.ckpt", "None"], {"default": "not-there.ckpt"}]}}},
            "LoraLoader": {"input": {"required": {"lora_name": ["COMBO", {"options": ["detail.SFT", 3, null]}]}}},
            "Vendor": {"input": {"optional": {"model": ["COMFY_DYNAMICCOMBO_V3", {"options": [
                {"key": "a", "inputs": {"required": {"file": ["COMBO", {"options": ["deep.gguf"]}]}}}]}]}}},
            "KSampler": {"input": {"required": {"model": ["MODEL"], "cfg": ["FLOAT", {"max": Infinity}],
                "sampler_name": [["euler", "dpmpp_2m"], {"tooltip": "see x.pt"}]}}},
            "Odd": null, "Odder": {"input": []}, "Oddest": {"input": {"required": {"x": "y.ckpt", "z": []}}}}"#;
        let inventory = Inventory::read(json::parse(object_info).unwrap());
        assert_eq!(inventory.classes.len(), 6);
        let models: Vec<&str> = inventory.models.iter().map(String::as_str).collect();
        assert_eq!(models, ["deep.gguf", "detail.SFT", "v1/old.ckpt", "xl/base.safetensors"]);
    }
}
