//! What the servers of a fleet say about their node classes: ComfyUI's `/object_info`, read once per change into what a
//! check asks for.
//!
//! Servers differ, and what any of them accepts is accepted: choices are joined, bounds widened, an input is required only
//! if all require it, and where two servers contradict each other the input is left to them.
//!
//! A class may validate its inputs itself, and `/object_info` does not say which do. ComfyUI's own are known by name; for
//! custom nodes and nodes that call a vendor's API everything that such code can override is left to the server.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};

/// The node classes of a fleet.
#[derive(Clone, Debug, Default)]
pub struct NodeCatalog {
    classes: BTreeMap<String, ClassRule>,
}

#[derive(Clone, Debug)]
pub(super) struct ClassRule {
    /// Required and optional ones, sorted by name.
    pub(super) inputs: Vec<(String, InputRule)>,
    /// The type of each output; `None` if servers differ.
    pub(super) outputs: Vec<Option<Value>>,
    pub(super) is_output: bool,
    pub(super) own: OwnChecks,
    /// Written for the newer node interface, whose exceptions read differently.
    pub(super) is_v3: bool,
}

#[derive(Clone, Debug)]
pub(super) struct InputRule {
    pub(super) is_required: bool,
    pub(super) kind: InputKind,
    /// `[type, {..}]`, as ComfyUI reports it in errors.
    pub(super) config: Value,
    accepts_uploads: bool,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum InputKind {
    Int(Bounds),
    Float(Bounds),
    Text,
    Bool,
    Choice(Choices),
    /// Comes over a link; the name of its type.
    Linked(String),
    /// Appears under other names in the graph, or servers contradict each other.
    Unchecked,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Bounds {
    pub(super) min: Option<Value>,
    pub(super) max: Option<Value>,
}

/// The values of a combo; without a list nothing is known about them.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Choices {
    pub(super) list: Option<Vec<Value>>,
    texts: BTreeSet<String>,
    /// Several values may be given.
    pub(super) is_multiple: bool,
}

/// What a class validates in its own code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OwnChecks {
    Nothing,
    /// Ranges and choices of these inputs.
    Values(&'static [&'static str]),
    /// That this input names a file; the word is for the message.
    File {
        input: &'static str,
        word: &'static str,
    },
    /// Ranges and choices of every input.
    AllValues,
    /// Possibly anything that code can override: ranges, choices and the types of links.
    Unknown,
}

/// ComfyUI's own classes that validate inputs themselves (0.30.0).
const OWN_CHECKS: [(&str, OwnChecks); 13] = [
    ("LoadImage", OwnChecks::File { input: "image", word: "image" }),
    ("LoadImageMask", OwnChecks::File { input: "image", word: "image" }),
    ("LoadImageOutput", OwnChecks::File { input: "image", word: "image" }),
    ("LoadLatent", OwnChecks::File { input: "latent", word: "latent" }),
    ("LoadAudio", OwnChecks::File { input: "audio", word: "audio" }),
    ("LoadVideo", OwnChecks::File { input: "file", word: "video" }),
    ("Load3D", OwnChecks::AllValues),
    ("Load3DAdvanced", OwnChecks::AllValues),
    ("CustomCombo", OwnChecks::AllValues),
    ("ComfySoftSwitchNode", OwnChecks::Values(&["switch", "on_false", "on_true"])),
    ("SelectModelDevice", OwnChecks::Values(&["device"])),
    ("SelectCLIPDevice", OwnChecks::Values(&["device"])),
    ("SelectVAEDevice", OwnChecks::Values(&["device"])),
];

/// Modules whose classes may validate anything themselves.
const FOREIGN_MODULES: [&str; 2] = ["custom_nodes", "comfy_api_nodes"];

/// Inputs of types with this prefix expand into others.
const DYNAMIC: &str = "COMFY_";
/// Any type, as far as a server can check.
pub(super) const MATCH_TYPE: &str = "COMFY_MATCHTYPE_V3";

impl NodeCatalog {
    /// Adds a class as one server describes it.
    pub fn add(&mut self, name: &str, info: &Value) {
        if !info.is_object() {
            return;
        }
        let rule = ClassRule::read(name, info);
        match self.classes.get_mut(name) {
            Some(known) => known.join(rule),
            None => drop(self.classes.insert(name.to_owned(), rule)),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.classes.is_empty()
    }

    pub fn has_class(&self, class: &str) -> bool {
        self.classes.contains_key(class)
    }

    /// Whether nodes of this class are outputs; `None` if the class is unknown.
    pub fn is_output(&self, class: &str) -> Option<bool> {
        self.classes.get(class).map(|class| class.is_output)
    }

    /// Whether this input chooses a file that clients upload.
    pub fn accepts_uploads(&self, class: &str, input: &str) -> bool {
        let rule = self.classes.get(class).and_then(|class| class.input(input));
        rule.is_some_and(|rule| rule.accepts_uploads)
    }

    pub(super) fn class(&self, name: &str) -> Option<&ClassRule> {
        self.classes.get(name)
    }
}

impl ClassRule {
    fn read(name: &str, info: &Value) -> ClassRule {
        let mut inputs = BTreeMap::new();
        for (section, is_required) in [("optional", false), ("required", true)] {
            let specs = info["input"][section].as_object().into_iter().flatten();
            inputs.extend(specs.map(|(name, spec)| (name.clone(), InputRule::read(spec, is_required))));
        }
        let has = |key: &str| info.get(key).is_some();
        ClassRule {
            inputs: inputs.into_iter().collect(),
            outputs: info["output"].as_array().into_iter().flatten().cloned().map(Some).collect(),
            is_output: info["output_node"] == true,
            own: OwnChecks::of(name, info["python_module"].as_str().unwrap_or_default()),
            // The older interface has these only where they are true.
            is_v3: has("deprecated") && has("experimental") && has("api_node"),
        }
    }

    pub(super) fn input(&self, name: &str) -> Option<&InputRule> {
        let found = self.inputs.binary_search_by(|(other, _)| other.as_str().cmp(name));
        found.ok().map(|at| &self.inputs[at].1)
    }

    /// The type of an output, `None` if servers differ; or the kind and the text of Python's exception.
    pub(super) fn output_at(&self, slot: &Value) -> Result<Option<&Value>, (&'static str, String)> {
        let list = if self.is_v3 { "list" } else { "tuple" };
        let at = match slot {
            Value::Bool(truth) => i64::from(*truth),
            Value::Number(number) if !number.is_f64() => number.as_i64().unwrap_or(i64::MAX),
            other => {
                let kind = super::python::type_name(other);
                return Err(("TypeError", format!("{list} indices must be integers or slices, not {kind}")));
            }
        };
        // A negative one counts from the end.
        let length = i64::try_from(self.outputs.len()).unwrap_or(i64::MAX);
        let at = usize::try_from(if at < 0 { at.saturating_add(length) } else { at }).ok();
        let output = at.and_then(|at| self.outputs.get(at));
        output.map(Option::as_ref).ok_or_else(|| ("IndexError", format!("{list} index out of range")))
    }

    /// Whether inputs of a node may have names that the class does not list.
    pub(super) fn is_dynamic(&self) -> bool {
        self.inputs.iter().any(|(_, rule)| rule.kind == InputKind::Unchecked)
    }

    fn join(&mut self, other: ClassRule) {
        for (name, rule) in &mut self.inputs {
            match other.input(name) {
                Some(more) => rule.join(more),
                None => rule.is_required = false,
            }
        }
        let new = other.inputs.into_iter().filter(|(name, _)| self.input(name).is_none());
        let new: Vec<_> = new.map(|(name, rule)| (name, InputRule { is_required: false, ..rule })).collect();
        self.inputs.extend(new);
        self.inputs.sort_by(|(left, _), (right, _)| left.cmp(right));
        for (at, kind) in other.outputs.into_iter().enumerate() {
            match self.outputs.get_mut(at) {
                Some(known) if *known == kind => {}
                Some(known) => *known = None,
                None => self.outputs.push(kind),
            }
        }
        self.is_output |= other.is_output;
        if self.own != other.own {
            self.own = OwnChecks::Unknown;
        }
    }
}

impl InputRule {
    fn read(spec: &Value, is_required: bool) -> InputRule {
        let options = spec[1].as_object().cloned().unwrap_or_default();
        let accepts_uploads = options.iter().any(|(key, value)| key.ends_with("_upload") && *value == true);
        let kind = InputKind::read(&spec[0], &options);
        InputRule { is_required, kind, config: json!([spec[0], options]), accepts_uploads }
    }

    fn join(&mut self, other: &InputRule) {
        self.is_required &= other.is_required;
        self.accepts_uploads |= other.accepts_uploads;
        self.kind.join(&other.kind);
        if let InputKind::Choice(Choices { list: Some(list), .. }) = &self.kind {
            match self.config[0].is_array() {
                true => self.config[0] = json!(list),
                false => self.config[1]["options"] = json!(list),
            }
        }
    }

    pub(super) fn is_checked(&self) -> bool {
        self.kind != InputKind::Unchecked
    }

    /// The type, as it is compared with those of links.
    pub(super) fn type_value(&self) -> &Value {
        &self.config[0]
    }
}

impl InputKind {
    fn read(kind: &Value, options: &Map<String, Value>) -> InputKind {
        // A bound that is no number was an infinity: none.
        let bound = |key: &str| options.get(key).filter(|it| it.is_number()).cloned();
        let bounds = || Bounds { min: bound("min"), max: bound("max") };
        let is_multiple = options.get("multiselect").is_some_and(|it| *it == true);
        match kind {
            Value::Array(list) => InputKind::Choice(Choices::new(Some(list.clone()), is_multiple)),
            Value::String(name) => match name.as_str() {
                "INT" => InputKind::Int(bounds()),
                "FLOAT" => InputKind::Float(bounds()),
                "STRING" => InputKind::Text,
                "BOOLEAN" => InputKind::Bool,
                "COMBO" => {
                    let list = options.get("options").and_then(Value::as_array).cloned();
                    InputKind::Choice(Choices::new(list, is_multiple))
                }
                name if name.starts_with(DYNAMIC) && name != MATCH_TYPE => InputKind::Unchecked,
                name => InputKind::Linked(name.to_owned()),
            },
            _ => InputKind::Unchecked,
        }
    }

    fn join(&mut self, other: &InputKind) {
        match (&mut *self, other) {
            (InputKind::Int(known), InputKind::Int(more))
            | (InputKind::Float(known), InputKind::Float(more)) => known.widen(more),
            (InputKind::Choice(known), InputKind::Choice(more)) => known.join(more),
            (known, more) if known == more => {}
            _ => *self = InputKind::Unchecked,
        }
    }
}

impl Bounds {
    fn widen(&mut self, other: &Bounds) {
        let number = |bound: &Value| bound.as_f64().unwrap_or_default();
        let outer = |known: Option<Value>, more: &Option<Value>, is_wider: fn(f64, f64) -> bool| {
            let (known, more) = (known?, more.clone()?);
            Some(if is_wider(number(&more), number(&known)) { more } else { known })
        };
        self.min = outer(self.min.take(), &other.min, |more, known| more < known);
        self.max = outer(self.max.take(), &other.max, |more, known| more > known);
    }
}

impl Choices {
    fn new(list: Option<Vec<Value>>, is_multiple: bool) -> Choices {
        let texts = list.iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect();
        Choices { list, texts, is_multiple }
    }

    /// Python's `value in list`; true if there is no list.
    pub(super) fn contain(&self, value: &Value) -> bool {
        let Some(list) = &self.list else { return true };
        match value {
            Value::String(text) => self.texts.contains(text),
            other => list.iter().any(|choice| equals(choice, other)),
        }
    }

    fn join(&mut self, other: &Choices) {
        self.is_multiple |= other.is_multiple;
        let (Some(list), Some(more)) = (&mut self.list, &other.list) else {
            *self = Choices { is_multiple: self.is_multiple, ..Choices::default() };
            return;
        };
        for choice in more {
            let is_known = match choice {
                Value::String(text) => !self.texts.insert(text.clone()),
                other => list.contains(other),
            };
            if !is_known {
                list.push(choice.clone());
            }
        }
    }
}

/// Python's `==`: `1 == 1.0 == True`.
fn equals(left: &Value, right: &Value) -> bool {
    let number = |value: &Value| match value {
        Value::Bool(truth) => Some(f64::from(u8::from(*truth))),
        value => value.as_f64(),
    };
    match (number(left), number(right)) {
        (Some(left), Some(right)) => left == right,
        _ => left == right,
    }
}

impl OwnChecks {
    fn of(class: &str, module: &str) -> OwnChecks {
        if FOREIGN_MODULES.iter().any(|foreign| module.starts_with(foreign)) {
            return OwnChecks::Unknown;
        }
        let known = OWN_CHECKS.iter().find(|(name, _)| *name == class);
        known.map_or(OwnChecks::Nothing, |(_, own)| *own)
    }

    /// Whether the server compares this input with its range or list.
    pub(super) fn leaves_value(&self, input: &str) -> bool {
        match self {
            OwnChecks::Nothing => true,
            OwnChecks::Values(inputs) => !inputs.contains(&input),
            OwnChecks::File { input: file, .. } => *file != input,
            OwnChecks::AllValues | OwnChecks::Unknown => false,
        }
    }
}
