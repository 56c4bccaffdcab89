//! Joins the `/object_info` answers of several servers as texts: the order of keys is kept, since clients take inputs by
//! position, and what all servers agree on stays byte for byte. Only lists of choices are joined.

use std::collections::HashSet;

use remuda_comfyui::json::JsonMembers;
use serde_json::value::RawValue;

/// Files that workers uploaded for jobs are not offered as choices.
const WORKER_FILE_PREFIX: &str = "remuda-";

/// A class with the choices of another server's; `None` if nothing changes.
pub(super) fn join_class(known: &RawValue, more: &RawValue) -> Option<Box<RawValue>> {
    if known.get() == more.get() {
        return None;
    }
    let more = inputs(more);
    replace_inputs(known, |section, name, spec| {
        let (_, inputs) = more.iter().find(|(other, _)| other == section)?;
        let (_, other) = inputs.0.iter().find(|(other, _)| other == name)?;
        join_spec(spec, other)
    })
}

/// A class whose inputs that choose files also list these names; `None` if nothing changes.
pub(super) fn with_uploads(class: &RawValue, uploads: &[String]) -> Option<Box<RawValue>> {
    replace_inputs(class, |_, _, spec| {
        if !is_upload(spec) {
            return None;
        }
        replace_choices(spec, |choices| {
            let is_offered =
                |choice: &RawValue| text_of(choice).is_none_or(|it| !it.starts_with(WORKER_FILE_PREFIX));
            let mut offered: Vec<Box<RawValue>> =
                choices.iter().filter(|choice| is_offered(choice)).cloned().collect();
            let known: HashSet<String> = offered.iter().filter_map(|choice| text_of(choice)).collect();
            let new = uploads.iter().filter(|name| !known.contains(*name));
            offered.extend(new.filter_map(|name| serde_json::value::to_raw_value(name).ok()));
            Some(offered)
        })
    })
}

/// Whether an input of the class accepts uploaded files.
pub(super) fn takes_uploads(class: &RawValue) -> bool {
    // Few classes do, and the word is in their text.
    class.get().contains("_upload")
        && inputs(class).iter().flat_map(|(_, inputs)| &inputs.0).any(|(_, spec)| is_upload(spec))
}

fn is_upload(spec: &RawValue) -> bool {
    let parts = elements(spec).unwrap_or_default();
    let options = parts.get(1).map(|options| members(options)).unwrap_or_default();
    options.0.iter().any(|(key, value)| key.ends_with("_upload") && value.get() == "true")
}

/// The inputs of each section.
fn inputs(class: &RawValue) -> Vec<(String, JsonMembers<Box<RawValue>>)> {
    let class = members(class).0;
    let Some((_, sections)) = class.iter().find(|(name, _)| name == "input") else { return Vec::new() };
    members(sections).0.into_iter().map(|(section, inputs)| (section, members(&inputs))).collect()
}

fn replace_inputs(
    class: &RawValue,
    mut replace: impl FnMut(&str, &str, &RawValue) -> Option<Box<RawValue>>,
) -> Option<Box<RawValue>> {
    replace_members(class, |name, sections| {
        let is_input = name == "input";
        is_input.then(|| {
            replace_members(sections, |section, inputs| {
                replace_members(inputs, |name, spec| replace(section, name, spec))
            })
        })?
    })
}

fn join_spec(known: &RawValue, more: &RawValue) -> Option<Box<RawValue>> {
    if known.get() == more.get() {
        return None;
    }
    let more = choices_of(more)?;
    replace_choices(known, |choices| {
        let known: HashSet<&str> = choices.iter().map(|choice| choice.get()).collect();
        let new: Vec<_> = more.iter().filter(|choice| !known.contains(choice.get())).cloned().collect();
        (!new.is_empty()).then(|| choices.iter().cloned().chain(new).collect())
    })
}

/// The choices of `[[..], {..}]` or of `["COMBO", {"options": [..]}]`.
fn choices_of(spec: &RawValue) -> Option<Vec<Box<RawValue>>> {
    let parts = elements(spec)?;
    elements(parts.first()?).or_else(|| {
        let options = members(parts.get(1)?).0;
        elements(&options.iter().find(|(name, _)| name == "options")?.1)
    })
}

/// A spec with other choices, wherever it has a list of them.
fn replace_choices(
    spec: &RawValue,
    change: impl FnOnce(&[Box<RawValue>]) -> Option<Vec<Box<RawValue>>>,
) -> Option<Box<RawValue>> {
    let mut parts = elements(spec)?;
    if let Some(choices) = parts.first().and_then(|choices| elements(choices)) {
        parts[0] = list(&change(&choices)?);
        return Some(list(&parts));
    }
    let mut change = Some(change);
    parts[1] = replace_members(parts.get(1)?, |name, choices| {
        let choices = elements(choices).filter(|_| name == "options")?;
        Some(list(&change.take()?(&choices)?))
    })?;
    Some(list(&parts))
}

/// An object with some members replaced; `None` if none was.
fn replace_members(
    object: &RawValue,
    mut replace: impl FnMut(&str, &RawValue) -> Option<Box<RawValue>>,
) -> Option<Box<RawValue>> {
    let (mut members, mut is_changed) = (members(object).0, false);
    for (name, value) in &mut members {
        if let Some(new) = replace(name, value) {
            (*value, is_changed) = (new, true);
        }
    }
    is_changed.then(|| raw(write_members(members.iter().map(|(name, value)| (name.as_str(), &**value)))))
}

/// An object as text, in this order.
pub(super) fn write_members<'a>(members: impl Iterator<Item = (&'a str, &'a RawValue)>) -> String {
    let mut text = String::from("{");
    for (name, value) in members {
        if text.len() > 1 {
            text.push_str(", ");
        }
        text.push_str(&serde_json::Value::from(name).to_string());
        text.push_str(": ");
        text.push_str(value.get());
    }
    text.push('}');
    text
}

fn list(elements: &[Box<RawValue>]) -> Box<RawValue> {
    let texts: Vec<&str> = elements.iter().map(|element| element.get()).collect();
    raw(format!("[{}]", texts.join(", ")))
}

fn raw(text: String) -> Box<RawValue> {
    RawValue::from_string(text).expect("texts of JSON values, joined, are JSON")
}

fn elements(value: &RawValue) -> Option<Vec<Box<RawValue>>> {
    serde_json::from_str(value.get()).ok()
}

fn members(value: &RawValue) -> JsonMembers<Box<RawValue>> {
    serde_json::from_str(value.get()).unwrap_or_default()
}

fn text_of(value: &RawValue) -> Option<String> {
    serde_json::from_str(value.get()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> Box<RawValue> {
        RawValue::from_string(text.to_owned()).unwrap()
    }

    #[test]
    fn choices_are_joined_in_order_and_everything_else_keeps_its_text() {
        let known = text(
            r#"{"input":{"required":{"z":["INT",{"min":1.50,"default":  2}],"ckpt":[["a"],{}],"a":["COMBO",{"tip":"\u00e9","options":["x"]}]}},"name":"N"}"#,
        );
        let more = text(
            r#"{"name":"M","input":{"required":{"ckpt":[["b","a"],{}],"a":["COMBO",{"options":["y"]}],"z":["INT",{"min":0}],"new":["INT"]}}}"#,
        );
        let joined = join_class(&known, &more).unwrap();
        assert_eq!(
            joined.get(),
            r#"{"input": {"required": {"z": ["INT",{"min":1.50,"default":  2}], "ckpt": [["a", "b"], {}], "a": ["COMBO", {"tip": "\u00e9", "options": ["x", "y"]}]}}, "name": "N"}"#
        );
        assert!(join_class(&known, &known).is_none());
        assert!(join_class(&joined, &more).is_none(), "nothing is joined twice");
    }

    #[test]
    fn uploads_are_listed_only_where_there_is_a_list() {
        let load =
            text(r#"{"input":{"required":{"image":[["remuda-1.png","b.png"],{"image_upload":true}]}}}"#);
        let shown = with_uploads(&load, &["b.png".to_owned(), "sub/a.png".to_owned()]).unwrap();
        assert!(shown.get().contains(r#"[["b.png", "sub/a.png"], {"image_upload":true}]"#), "{shown}");
        assert!(takes_uploads(&load));
        // LoadImageOutput: the list is fetched by the client.
        let remote = text(
            r#"{"input":{"required":{"image":["COMBO",{"image_upload":true,"remote":{"route":"/x"}}]}}}"#,
        );
        assert!(with_uploads(&remote, &["b.png".to_owned()]).is_none());
        let plain = text(r#"{"input":{"required":{"image":[["a"],{"image_upload":false}]}}}"#);
        assert!(!takes_uploads(&plain) && with_uploads(&plain, &[]).is_none());
    }

    #[test]
    fn malformed_inputs_are_kept_unchanged() {
        let odd = text(
            r#"{"input":{"required":{"a":[],"b":{},"c":[["x"]]},"hidden":{"prompt":"PROMPT"},"optional":1}}"#,
        );
        let other = text(r#"{"input":{"required":{"a":1,"c":"x","b":[["y"]]},"hidden":[]}}"#);
        for (known, more) in [(&odd, &other), (&other, &odd)] {
            assert_eq!(join_class(known, more).map(|it| it.get().to_owned()), None);
            assert!(with_uploads(known, &["a".to_owned()]).is_none());
        }
        assert!(join_class(&text("\"not a class\""), &odd).is_none());
    }
}
