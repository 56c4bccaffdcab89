//! The body of a creation. A refusal names every unknown property; impossible requests are refused later as missing
//! capacity, as the real one does.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::answer::Answer;
use super::catalog::{CENTRES, Cloud, Gpu};

const TOP: &[&str] = &[
    "name",
    "image",
    "gpu",
    "cpu",
    "cloud",
    "dataCenterIds",
    "disk",
    "mounts",
    "ports",
    "env",
    "args",
    "entrypoint",
    "cmd",
    "registry",
    "startSsh",
    "startJupyter",
    "globalNetworking",
    "templateId",
];
const GPU: &[&str] =
    &["id", "count", "allowedCudaVersions", "minCudaVersion", "minRamPerGpu", "minVcpuCountPerGpu"];
const NAME_MAX: usize = 191;
const ENV_MAX: usize = 50;
const HTTP_PORTS_MAX: usize = 10;
/// Default disk size.
const DISK_GB: u64 = 20;

#[derive(Clone, Debug)]
pub(super) struct Order {
    pub(super) name: String,
    pub(super) image: String,
    pub(super) gpu: &'static Gpu,
    /// Without it the real scheduler finds no machine.
    pub(super) count: Option<u32>,
    pub(super) min_cuda: Option<(u32, u32)>,
    pub(super) cloud: Cloud,
    /// Empty means anywhere.
    pub(super) centres: Vec<String>,
    pub(super) disk: u64,
    /// Id and path of a network volume.
    pub(super) volume: Option<(String, String)>,
    pub(super) mounts: Value,
    pub(super) ports: Vec<String>,
    pub(super) env: BTreeMap<String, String>,
    pub(super) args: String,
    pub(super) registry: Value,
    pub(super) is_ssh_started: bool,
    pub(super) is_global: bool,
}

impl Order {
    /// The order of a foreign pod.
    pub(super) fn foreign(gpu: &'static Gpu, number: u64) -> Order {
        Order {
            name: format!("jupyter-{number}"),
            image: "runpod/pytorch:1.0.2-cu1281-torch280-ubuntu2404".to_owned(),
            gpu,
            count: Some(1),
            min_cuda: None,
            cloud: Cloud::Secure,
            centres: Vec::new(),
            disk: DISK_GB,
            volume: None,
            mounts: Value::Object(Map::new()),
            ports: vec!["8888/http".to_owned(), "22/tcp".to_owned()],
            env: BTreeMap::new(),
            args: String::new(),
            registry: Value::Null,
            is_ssh_started: false,
            is_global: false,
        }
    }

    pub(super) fn read(body: &[u8]) -> Result<Order, Answer> {
        let Ok(Value::Object(asked)) = serde_json::from_slice(body) else {
            return Err(Answer::invalid(vec!["$: got something else, want object".to_owned()]));
        };
        let mut reader = Reader { errors: Vec::new() };
        let order = reader.order(&asked);
        match order {
            Some(order) if reader.errors.is_empty() => {
                check_rules(&asked)?;
                Ok(order)
            }
            _ => Err(Answer::invalid(reader.errors)),
        }
    }
}

/// Combinations that are well-formed and make no sense.
fn check_rules(asked: &Map<String, Value>) -> Result<(), Answer> {
    let has = |key: &str, inner: &str| asked.get(key).is_some_and(|value| is_filled(&value[inner]));
    if has("gpu", "allowedCudaVersions") && has("gpu", "minCudaVersion") {
        return Err(Answer::bad_request("allowedCudaVersions and minCudaVersion are mutually exclusive"));
    }
    if has("mounts", "persistent") && has("mounts", "network") {
        return Err(Answer::bad_request("persistent and network mounts are mutually exclusive"));
    }
    Ok(())
}

fn is_filled(value: &Value) -> bool {
    match value {
        Value::Null => false,
        Value::String(text) => !text.is_empty(),
        Value::Array(list) => !list.is_empty(),
        _ => true,
    }
}

/// Collects all errors, so that one refusal names them all.
struct Reader {
    errors: Vec<String>,
}

impl Reader {
    fn order(&mut self, asked: &Map<String, Value>) -> Option<Order> {
        self.only("$", asked, TOP);
        let name = self.text(asked, "name").unwrap_or_default();
        if name.is_empty() || name.chars().count() > NAME_MAX {
            self.wrong("$.name", "length must be between 1 and 191");
        }
        if !asked.contains_key("image") && !asked.contains_key("templateId") {
            self.wrong("$", "missing property 'image'");
        }
        if asked.contains_key("gpu") == asked.contains_key("cpu") {
            self.wrong("$", "exactly one of 'gpu' and 'cpu' is required");
        }
        let cloud = match asked.get("cloud").map(Value::as_str) {
            None | Some(Some("SECURE")) => Cloud::Secure,
            Some(Some("COMMUNITY")) => Cloud::Community,
            Some(_) => {
                self.wrong("$.cloud", "value must be one of 'SECURE', 'COMMUNITY'");
                Cloud::Secure
            }
        };
        let (gpu, count, min_cuda) = self.gpu(asked.get("gpu"));
        let order = Order {
            name,
            image: self.text(asked, "image").unwrap_or_default(),
            gpu: gpu?,
            count,
            min_cuda,
            cloud,
            centres: self.centres(asked),
            disk: self.at_least_one(asked, "disk", "$.disk").unwrap_or(DISK_GB),
            volume: self.volume(asked),
            mounts: asked.get("mounts").cloned().unwrap_or_else(|| Value::Object(Map::new())),
            ports: self.ports(asked),
            env: self.env(asked),
            args: self.text(asked, "args").unwrap_or_default(),
            registry: asked.get("registry").cloned().unwrap_or_default(),
            is_ssh_started: self.flag(asked, "startSsh"),
            is_global: self.flag(asked, "globalNetworking"),
        };
        Some(order)
    }

    fn wrong(&mut self, place: &str, what: &str) {
        self.errors.push(format!("{place}: {what}"));
    }

    fn only(&mut self, place: &str, asked: &Map<String, Value>, known: &[&str]) {
        for key in asked.keys().filter(|key| !known.contains(&key.as_str())) {
            self.errors.push(format!("{place}: additional properties '{key}' not allowed"));
        }
    }

    fn text(&mut self, asked: &Map<String, Value>, key: &str) -> Option<String> {
        match asked.get(key)? {
            Value::String(text) => Some(text.clone()),
            _ => {
                self.errors.push(format!("$.{key}: want string"));
                None
            }
        }
    }

    fn flag(&mut self, asked: &Map<String, Value>, key: &str) -> bool {
        match asked.get(key) {
            None => false,
            Some(Value::Bool(flag)) => *flag,
            Some(_) => {
                self.errors.push(format!("$.{key}: want boolean"));
                false
            }
        }
    }

    fn at_least_one(&mut self, asked: &Map<String, Value>, key: &str, place: &str) -> Option<u64> {
        let value = asked.get(key)?;
        let number = value.as_u64().filter(|number| *number >= 1);
        if number.is_none() {
            self.wrong(place, "minimum: want 1");
        }
        number
    }

    fn gpu(&mut self, asked: Option<&Value>) -> (Option<&'static Gpu>, Option<u32>, Option<(u32, u32)>) {
        let asked = match asked {
            Some(Value::Object(asked)) => asked,
            Some(_) => {
                self.wrong("$.gpu", "want object");
                return (None, None, None);
            }
            None => {
                self.wrong("$.cpu", "this stand-in has no machines without a GPU");
                return (None, None, None);
            }
        };
        self.only("$.gpu", asked, GPU);
        let gpu = asked.get("id").and_then(Value::as_str).and_then(Gpu::find);
        if gpu.is_none() {
            self.wrong("$.gpu.id", "value must be one of the ids of /v2/catalog/gpus");
        }
        let count = self.at_least_one(asked, "count", "$.gpu.count").and_then(|count| count.try_into().ok());
        let min_cuda = asked.get("minCudaVersion").and_then(Value::as_str).and_then(|text| {
            let (major, minor) = text.split_once('.')?;
            Some((major.parse().ok()?, minor.parse().ok()?))
        });
        (gpu, count, min_cuda)
    }

    fn centres(&mut self, asked: &Map<String, Value>) -> Vec<String> {
        let Some(list) = asked.get("dataCenterIds") else { return Vec::new() };
        let ids: Option<Vec<String>> =
            list.as_array().and_then(|list| list.iter().map(|id| id.as_str().map(str::to_owned)).collect());
        let ids = ids.unwrap_or_else(|| {
            self.wrong("$.dataCenterIds", "want array of strings");
            Vec::new()
        });
        for id in &ids {
            if !CENTRES.iter().any(|(known, _)| known == id) {
                self.wrong("$.dataCenterIds", &format!("'{id}' is no data center"));
            }
        }
        ids
    }

    fn volume(&mut self, asked: &Map<String, Value>) -> Option<(String, String)> {
        let mounts = asked.get("mounts")?;
        let Some(mounts) = mounts.as_object() else {
            self.wrong("$.mounts", "want object");
            return None;
        };
        self.only("$.mounts", mounts, &["persistent", "network"]);
        let network = mounts.get("network")?.as_array().map(Vec::as_slice).unwrap_or_default();
        match network {
            [] => None,
            [volume] => {
                let text = |key: &str| volume[key].as_str().filter(|text| !text.is_empty());
                let both = text("volumeId").zip(text("path"));
                if both.is_none() {
                    self.wrong("$.mounts.network[0]", "missing properties 'volumeId', 'path'");
                }
                both.map(|(id, path)| (id.to_owned(), path.to_owned()))
            }
            _ => {
                self.wrong("$.mounts.network", "maxItems: want 1");
                None
            }
        }
    }

    fn ports(&mut self, asked: &Map<String, Value>) -> Vec<String> {
        let Some(list) = asked.get("ports") else { return Vec::new() };
        let mut ports = Vec::new();
        for port in list.as_array().map(Vec::as_slice).unwrap_or_default() {
            match port.as_str().filter(|port| split_port(port).is_some()) {
                Some(port) => ports.push(port.to_owned()),
                None => self.wrong("$.ports", &format!("{port} is no port: write 22/tcp or 8000/http")),
            }
        }
        if ports.iter().filter(|port| port.ends_with("/http")).count() > HTTP_PORTS_MAX {
            self.wrong("$.ports", "at most 10 HTTP ports");
        }
        ports
    }

    fn env(&mut self, asked: &Map<String, Value>) -> BTreeMap<String, String> {
        let mut env = BTreeMap::new();
        let Some(asked) = asked.get("env") else { return env };
        let Some(asked) = asked.as_object() else {
            self.wrong("$.env", "want object");
            return env;
        };
        if asked.len() > ENV_MAX {
            self.wrong("$.env", "maxProperties: want 50");
        }
        for (key, value) in asked {
            match value.as_str() {
                Some(value) => drop(env.insert(key.clone(), value.to_owned())),
                None => self.wrong(&format!("$.env.{key}"), "want string"),
            }
        }
        env
    }
}

/// `22/tcp` as its two parts. Numbers above 70000 request the same port inside and outside.
pub(super) fn split_port(port: &str) -> Option<(u32, &str)> {
    let (number, kind) = port.split_once('/')?;
    let number = number.parse().ok().filter(|number| *number > 0)?;
    matches!(kind, "tcp" | "http").then_some((number, kind))
}

/// A change; everything else of a pod stays.
#[derive(Debug, Default)]
pub(super) struct Change {
    pub(super) name: Option<String>,
    pub(super) image: Option<String>,
    pub(super) ports: Option<Vec<String>>,
    pub(super) env: Option<BTreeMap<String, String>>,
    pub(super) is_locked: Option<bool>,
}

impl Change {
    pub(super) fn read(body: &[u8]) -> Result<Change, Answer> {
        let Ok(Value::Object(asked)) = serde_json::from_slice(body) else {
            return Err(Answer::invalid(vec!["$: got something else, want object".to_owned()]));
        };
        let mut reader = Reader { errors: Vec::new() };
        reader.only("$", &asked, &["name", "image", "ports", "env", "locked"]);
        let change = Change {
            name: reader.text(&asked, "name"),
            image: reader.text(&asked, "image"),
            ports: asked.contains_key("ports").then(|| reader.ports(&asked)),
            env: asked.contains_key("env").then(|| reader.env(&asked)),
            is_locked: asked.contains_key("locked").then(|| reader.flag(&asked, "locked")),
        };
        if reader.errors.is_empty() { Ok(change) } else { Err(Answer::invalid(reader.errors)) }
    }

    /// Whether it requires a new container.
    pub(super) fn is_reset(&self) -> bool {
        self.image.is_some() || self.ports.is_some() || self.env.is_some()
    }
}
