//! `[[model]]` and `--model NAME=PATH,copies=2`: the same keys, whichever way they are written.

use std::collections::BTreeMap;
use std::time::Duration;

use remuda_models::ModelSpec;

use super::file::Section;
use super::key::Key;
use super::table::models::KEYS;
use super::value::{Unit, Written};
use super::{ConfigError, Origin, nearest};

/// What is said about models.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelsSettings {
    /// What all copies together may take; by default a share of what the machine has.
    pub memory_bytes: Option<u64>,
    /// How long a call may take.
    pub request_timeout: Duration,
    /// Each `[[model]]`.
    pub own: Vec<Model>,
}

impl Default for ModelsSettings {
    fn default() -> Self {
        // As long as OpenAI's own clients wait.
        ModelsSettings { memory_bytes: None, request_timeout: Duration::from_secs(600), own: Vec::new() }
    }
}

/// A model that this machine is to serve.
#[derive(Clone, Debug, PartialEq)]
pub struct Model {
    pub spec: ModelSpec,
    /// Where it begins, and each of its keys that was written.
    began: Origin,
    origins: BTreeMap<&'static str, Origin>,
}

const HOW: &str = "write --model NAME=PATH, and behind it, with commas, what else is to be said: \
                   --model embed=models/minilm,copies=2,isolation=process";

impl Model {
    pub(super) fn new(name: &str, began: Origin) -> Model {
        Model { spec: ModelSpec::new(name, ""), began, origins: BTreeMap::new() }
    }

    /// What is written under one `[[model]]`.
    pub(super) fn read(section: &Section) -> Result<Model, ConfigError> {
        let mut model = Model::new("", section.origin());
        for pair in section.pairs() {
            let key = key(&pair.name).ok_or_else(|| section.unknown(pair, hint(&pair.name)))?;
            let entry = section.entry(key, pair)?;
            entry.key.write(&mut model, entry.value);
            model.origins.insert(entry.key.name, entry.origin);
        }
        for needed in ["name", "path"] {
            if !model.origins.contains_key(needed) {
                let began = &model.began;
                return Err(ConfigError::Conflict(format!(
                    "a model ({began}) has no `{needed}`: give it one"
                )));
            }
        }
        Ok(model)
    }

    /// What stands behind one `--model`. A comma that is not followed by `WORD=` belongs to the path.
    pub fn parse(text: &str) -> Result<Model, ConfigError> {
        let origin = || Origin::Flag("--model".to_owned());
        let illegal = |value: &str, why: String| ConfigError::Illegal {
            key: "model".to_owned(),
            value: value.to_owned(),
            origin: origin(),
            why,
        };
        let (name, rest) = text.split_once('=').ok_or_else(|| illegal(text, HOW.to_owned()))?;
        let mut words = vec![("name", name.to_owned())];
        for word in rest.split(',') {
            match word.split_once('=') {
                _ if words.len() == 1 => words.push(("path", word.to_owned())),
                Some((key, value)) => words.push((key.trim(), value.to_owned())),
                None => {
                    let last = words.last_mut().map(|(_, value)| value);
                    last.into_iter().for_each(|value| value.extend([",", word]));
                }
            }
        }
        let mut model = Model::new("", origin());
        for (name, value) in words {
            let key = key(name).ok_or_else(|| illegal(text, format!("{name}: {}", hint(name))))?;
            let entry = key.entry(&Written::Text(value), Unit::Written, origin())?;
            entry.key.write(&mut model, entry.value);
            if model.origins.insert(entry.key.name, entry.origin).is_some() {
                return Err(illegal(text, format!("it says `{name}` twice")));
            }
        }
        Ok(model)
    }

    /// Where the value of a key came from.
    pub(super) fn origin(&self, key: &str) -> Origin {
        self.origins.get(key).cloned().unwrap_or(Origin::Default)
    }
}

impl ModelsSettings {
    /// Those of the file and those of the command line, which speaks last: a name that both have is as it says there.
    pub fn with(&self, flags: &[String]) -> Result<Vec<ModelSpec>, ConfigError> {
        let named = flags.iter().map(|text| Model::parse(text)).collect::<Result<Vec<_>, _>>()?;
        check_names(&named)?;
        let is_named = |name: &str| named.iter().any(|model| model.spec.name == name);
        let written = self.own.iter().filter(|model| !is_named(&model.spec.name));
        Ok(written.chain(&named).map(|model| model.spec.clone()).collect())
    }
}

fn key(name: &str) -> Option<&'static Key<Model>> {
    KEYS.iter().find(|key| key.name == name)
}

fn hint(written: &str) -> String {
    let names = || KEYS.iter().map(|key| key.name);
    match nearest(written, names()) {
        Some(name) => format!("did you mean `{name}`?"),
        None => format!("a model has {}", names().collect::<Vec<_>>().join(", ")),
    }
}

/// No two models share a name.
pub(super) fn check_names(models: &[Model]) -> Result<(), ConfigError> {
    for (at, model) in models.iter().enumerate() {
        let name = &model.spec.name;
        if let Some(other) = models[..at].iter().find(|other| other.spec.name == *name) {
            return Err(ConfigError::Conflict(format!(
                "model {name} ({}) has the name of another ({}): choose a new one",
                model.began, other.began
            )));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use remuda_models::{Capability, Device, Isolation, Precision};

    use super::*;

    #[test]
    fn a_flag_says_what_a_table_says() {
        let text = "embed=models/mini,lm,copies=2,isolation=process,threads=3,precision=int8,memory=1GiB,\
                    capability=text_embedding,device=cuda:1";
        let spec = Model::parse(text).unwrap().spec;
        assert_eq!((spec.name.as_str(), spec.path.as_path()), ("embed", Path::new("models/mini,lm")));
        assert_eq!((spec.copies, spec.threads, spec.memory_bytes), (2, 3, Some(1 << 30)));
        assert_eq!((spec.isolation, spec.precision), (Isolation::Process, Precision::Int8));
        assert_eq!((spec.capability, spec.device), (Some(Capability::TextEmbedding), Some(Device::Cuda(1))));
        assert_eq!(Model::parse("a=b").unwrap().spec, ModelSpec::new("a", "b"));
    }

    #[test]
    fn what_a_flag_cannot_mean_is_refused_with_what_to_write() {
        for (text, told) in [
            ("models/minilm", "write --model NAME=PATH"),
            ("embed=", "must be a path"),
            ("=models/minilm", "must be a name"),
            ("a b=models/minilm", "must be a name"),
            ("embed=models/minilm,copys=2", "did you mean `copies`?"),
            ("embed=models/minilm,copies=0", "from 1 to 1024"),
            ("embed=models/minilm,copies=2,copies=3", "twice"),
            ("embed=models/minilm,isolation=box", "`thread`"),
            ("embed=models/minilm,device=tpu", "`cuda:1`"),
        ] {
            let error = Model::parse(text).unwrap_err().to_string();
            assert!(error.contains(told), "{text}: {error}");
        }
        let twice = ["a=b".to_owned(), "a=c".to_owned()];
        assert!(ModelsSettings::default().with(&twice).unwrap_err().to_string().contains("name of another"));
    }

    #[test]
    fn the_command_line_has_the_last_word() {
        let own = vec![Model::parse("a=old,copies=4").unwrap(), Model::parse("b=b").unwrap()];
        let settings = ModelsSettings { own, ..ModelsSettings::default() };
        let specs = settings.with(&["a=new".to_owned()]).unwrap();
        assert_eq!(specs, [ModelSpec::new("b", "b"), ModelSpec::new("a", "new")]);
    }
}
