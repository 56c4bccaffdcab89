//! `remuda.toml`: what the user wrote, with the line of each key. Sections and dotted keys come to the same; unknown
//! keys are refused with the one that was likely meant.

use std::fs;
use std::path::{Path, PathBuf};

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::key::{Entry, Key};
use super::value::Unit;
use super::{ConfigError, Origin, nearest};

/// A configuration file as it was written.
#[derive(Debug)]
pub struct File {
    path: PathBuf,
    pairs: Vec<Pair>,
}

#[derive(Debug)]
struct Pair {
    /// With its section: `beat.idle`.
    name: String,
    /// `None` for what no key can be: a list, a date.
    text: Option<String>,
    line: usize,
}

impl File {
    pub fn read(path: &Path) -> Result<File, ConfigError> {
        match fs::read_to_string(path) {
            Ok(text) => File::parse(path, &text),
            Err(source) => Err(ConfigError::Unreadable { path: path.to_path_buf(), source }),
        }
    }

    pub fn parse(path: &Path, text: &str) -> Result<File, ConfigError> {
        let table = DeTable::parse(text).map_err(|error| ConfigError::NotToml {
            path: path.to_path_buf(),
            line: line_of(text, error.span().map_or(0, |span| span.start)),
            // Without the line it stands in, which `Display` would show: there may be a secret in it.
            message: error.message().to_owned(),
        })?;
        let mut file = File { path: path.to_path_buf(), pairs: Vec::new() };
        file.collect(text, "", table.get_ref());
        file.pairs.sort_by_key(|pair| pair.line);
        Ok(file)
    }

    fn collect(&mut self, source: &str, section: &str, table: &DeTable<'_>) {
        for (key, value) in table {
            let name = format!("{section}{}", key.get_ref());
            match value.get_ref() {
                DeValue::Table(inner) if is_section(&name) || !inner.is_empty() => {
                    self.collect(source, &format!("{name}."), inner);
                }
                _ => self.pairs.push(Pair {
                    name,
                    text: text_of(value),
                    line: line_of(source, key.span().start),
                }),
            }
        }
    }

    /// What it says, key by key. A relative path counts from the folder the file is in.
    pub(super) fn entries(&self) -> Result<Vec<Entry>, ConfigError> {
        self.pairs.iter().map(|pair| self.entry(pair)).collect()
    }

    fn entry(&self, pair: &Pair) -> Result<Entry, ConfigError> {
        let Pair { name, text, line } = pair;
        let key = Key::named(name).ok_or_else(|| ConfigError::UnknownKey {
            name: name.clone(),
            path: self.path.clone(),
            line: *line,
            hint: nearest::hint(name, Key::all().map(|key| key.name)),
        })?;
        let origin = Origin::File { path: self.path.clone(), line: *line };
        let Some(text) = text else {
            let (value, why) = ("…".to_owned(), format!("it must be {}", key.kind.bounds()));
            return Err(ConfigError::Illegal { key: key.name, value, origin, why });
        };
        let mut entry = key.entry(text, Unit::Written, origin)?;
        if let Some(folder) = self.path.parent() {
            entry.value = entry.value.beneath(folder);
        }
        Ok(entry)
    }
}

/// Whether keys stand in it. `[beat]` with all of them commented out is fine, an empty `[beats]` is not.
fn is_section(name: &str) -> bool {
    Key::all().any(|key| key.name.strip_prefix(name).is_some_and(|rest| rest.starts_with('.')))
}

fn text_of(value: &Spanned<DeValue<'_>>) -> Option<String> {
    match value.get_ref() {
        DeValue::String(text) => Some(text.to_string()),
        DeValue::Integer(number) => Some(number.to_string()),
        DeValue::Float(number) => Some(number.to_string()),
        DeValue::Boolean(on) => Some(on.to_string()),
        DeValue::Array(words) => {
            let words: Option<Vec<_>> =
                words.iter().map(|word| Some(word.get_ref().as_str()?.to_owned())).collect();
            Some(words?.join(", "))
        }
        DeValue::Datetime(_) | DeValue::Table(_) => None,
    }
}

fn line_of(text: &str, offset: usize) -> usize {
    1 + text.bytes().take(offset).filter(|byte| *byte == b'\n').count()
}
