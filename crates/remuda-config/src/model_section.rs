//! Reads models from `[[model]]` sections and from `--model NAME=PATH,copies=2`, which have the same settings.

use remuda_models::ModelSpec;

use super::file::Section;
use super::key::Key;
use super::model::{ModelConfig, ModelsSettings};
use super::table::models::KEYS;
use super::value::{RawSetting, Unit};
use super::{ConfigError, ValueOrigin, suggest};

const USAGE: &str = "write --model NAME=PATH, followed by further settings separated by commas: \
                   --model embed=models/minilm,copies=2,isolation=process";

impl ModelConfig {
    /// Reads one `[[model]]` section.
    pub(super) fn read(section: &Section) -> Result<ModelConfig, ConfigError> {
        let mut model = ModelConfig::new("", section.origin());
        for pair in section.pairs() {
            let key = key(&pair.name).ok_or_else(|| section.unknown(pair, hint(&pair.name)))?;
            let entry = section.entry(key, pair)?;
            entry.key.write(&mut model, entry.value);
            model.origins.insert(entry.key.name, entry.origin);
        }
        for needed in ["name", "path"] {
            if !model.origins.contains_key(needed) {
                let declared_at = &model.declared_at;
                return Err(ConfigError::Conflict(format!(
                    "a model ({declared_at}) has no `{needed}`: give it one"
                )));
            }
        }
        Ok(model)
    }

    /// Parses the value of one `--model`. A comma that is not followed by `WORD=` belongs to the path.
    pub fn parse(text: &str) -> Result<ModelConfig, ConfigError> {
        let origin = || ValueOrigin::Flag("--model".to_owned());
        let invalid = |value: &str, why: String| ConfigError::Invalid {
            key: "model".to_owned(),
            value: value.to_owned(),
            origin: origin(),
            why,
        };
        let (name, rest) = text.split_once('=').ok_or_else(|| invalid(text, USAGE.to_owned()))?;
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
        let mut model = ModelConfig::new("", origin());
        for (name, value) in words {
            let key = key(name).ok_or_else(|| invalid(text, format!("{name}: {}", hint(name))))?;
            let entry = key.entry(&RawSetting::Text(value), Unit::Required, origin())?;
            entry.key.write(&mut model, entry.value);
            if model.origins.insert(entry.key.name, entry.origin).is_some() {
                return Err(invalid(text, format!("`{name}` is set twice")));
            }
        }
        Ok(model)
    }
}

impl ModelsSettings {
    /// The models of the file and of the command line. A name that both define is taken from the command line.
    pub fn with_flags(&self, flags: &[String]) -> Result<Vec<ModelSpec>, ConfigError> {
        let named = flags.iter().map(|text| ModelConfig::parse(text)).collect::<Result<Vec<_>, _>>()?;
        check_names(&named)?;
        let is_named = |name: &str| named.iter().any(|model| model.spec.name == name);
        let written = self.own.iter().filter(|model| !is_named(&model.spec.name));
        Ok(written.chain(&named).map(|model| model.spec.clone()).collect())
    }
}

fn key(name: &str) -> Option<&'static Key<ModelConfig>> {
    KEYS.iter().find(|key| key.name == name)
}

fn hint(written: &str) -> String {
    let names = || KEYS.iter().map(|key| key.name);
    match suggest::closest_name(written, names()) {
        Some(name) => format!("did you mean `{name}`?"),
        None => format!("settings of a model are {}", names().collect::<Vec<_>>().join(", ")),
    }
}

/// Model names must be unique.
pub(super) fn check_names(models: &[ModelConfig]) -> Result<(), ConfigError> {
    for (at, model) in models.iter().enumerate() {
        let name = &model.spec.name;
        if let Some(other) = models[..at].iter().find(|other| other.spec.name == *name) {
            return Err(ConfigError::Conflict(format!(
                "model {name} ({}) has the same name as another model ({}): choose a different one",
                model.declared_at, other.declared_at
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
    fn flag_accepts_every_setting_of_the_table() {
        let text = "embed=models/mini,lm,copies=2,isolation=process,threads=3,precision=int8,memory=1GiB,\
                    capability=text_embedding,device=cuda:1";
        let spec = ModelConfig::parse(text).unwrap().spec;
        assert_eq!((spec.name.as_str(), spec.path.as_path()), ("embed", Path::new("models/mini,lm")));
        assert_eq!((spec.copies, spec.threads, spec.memory_bytes), (2, 3, Some(1 << 30)));
        assert_eq!((spec.isolation, spec.precision), (Isolation::Process, Precision::Int8));
        assert_eq!((spec.capability, spec.device), (Some(Capability::TextEmbedding), Some(Device::Cuda(1))));
        assert_eq!(ModelConfig::parse("a=b").unwrap().spec, ModelSpec::new("a", "b"));
    }

    #[test]
    fn invalid_flag_is_refused_with_usage() {
        for (text, expected) in [
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
            let error = ModelConfig::parse(text).unwrap_err().to_string();
            assert!(error.contains(expected), "{text}: {error}");
        }
        let twice = ["a=b".to_owned(), "a=c".to_owned()];
        assert!(
            ModelsSettings::default()
                .with_flags(&twice)
                .unwrap_err()
                .to_string()
                .contains("same name as another")
        );
    }

    #[test]
    fn command_line_overrides_the_file() {
        let own = vec![ModelConfig::parse("a=old,copies=4").unwrap(), ModelConfig::parse("b=b").unwrap()];
        let settings = ModelsSettings { own, ..ModelsSettings::default() };
        let specs = settings.with_flags(&["a=new".to_owned()]).unwrap();
        assert_eq!(specs, [ModelSpec::new("b", "b"), ModelSpec::new("a", "new")]);
    }
}
