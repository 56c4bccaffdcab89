//! `remuda.toml`: what the user wrote, with the line of each key. Sections and dotted keys come to the same; unknown
//! keys are refused with the one that was likely meant. Each `[[fleet]]` and `[[model]]` is a section of its own.

use std::fs;
use std::path::{Path, PathBuf};

use toml::Spanned;
use toml::de::{DeString, DeTable, DeValue};

use super::key::{Entry, Key};
use super::value::{Unit, Written};
use super::{ConfigError, Origin, nearest};

/// A configuration file as it was written.
#[derive(Debug)]
pub struct File {
    path: PathBuf,
    pairs: Vec<Pair>,
    fleets: Vec<Section>,
    models: Vec<Section>,
}

#[derive(Debug)]
pub(super) struct Pair {
    /// With its section: `beat.idle`.
    pub(super) name: String,
    written: Written,
    pub(super) line: usize,
}

impl Pair {
    pub(super) fn is(&self, name: &str, text: &str) -> bool {
        self.name == name && matches!(&self.written, Written::Text(written) if written == text)
    }
}

/// One `[[fleet]]` or `[[model]]`.
#[derive(Debug)]
pub(super) struct Section {
    /// Which of them.
    of: &'static str,
    path: PathBuf,
    line: usize,
    pairs: Vec<Pair>,
}

/// What fleets and models are written under.
const FLEET: &str = "fleet";
const MODEL: &str = "model";

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
        let path = path.to_path_buf();
        let mut file = File { path, pairs: Vec::new(), fleets: Vec::new(), models: Vec::new() };
        let mut rest = table.into_inner();
        file.fleets = file.sections(text, FLEET, rest.remove_entry(FLEET))?;
        file.models = file.sections(text, MODEL, rest.remove_entry(MODEL))?;
        file.collect(text, "", &rest);
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
                    written: written(value),
                    line: line_of(source, key.span().start),
                }),
            }
        }
    }

    fn sections(
        &self,
        source: &str,
        of: &'static str,
        written_under: Option<(Spanned<DeString<'_>>, Spanned<DeValue<'_>>)>,
    ) -> Result<Vec<Section>, ConfigError> {
        let Some((key, all)) = written_under else { return Ok(Vec::new()) };
        let tables = all.get_ref().as_array().filter(|all| all.iter().all(|it| it.get_ref().is_table()));
        let tables = tables.ok_or_else(|| ConfigError::Illegal {
            key: of.to_owned(),
            value: "…".to_owned(),
            origin: Origin::File { path: self.path.clone(), line: line_of(source, key.span().start) },
            why: format!("there may be several: write `[[{of}]]`, with two brackets, above each"),
        })?;
        let section = |table: &Spanned<DeValue<'_>>| {
            let mut pairs: Vec<_> = table
                .get_ref()
                .as_table()
                .into_iter()
                .flatten()
                .map(|(key, value)| Pair {
                    name: key.get_ref().to_string(),
                    written: written(value),
                    line: line_of(source, key.span().start),
                })
                .collect();
            pairs.sort_by_key(|pair| pair.line);
            Section { of, path: self.path.clone(), line: line_of(source, table.span().start), pairs }
        };
        Ok(tables.iter().map(section).collect())
    }

    pub(super) fn fleets(&self) -> &[Section] {
        &self.fleets
    }

    pub(super) fn models(&self) -> &[Section] {
        &self.models
    }

    /// What it says, key by key. A relative path counts from the folder the file is in.
    pub(super) fn entries(&self) -> Result<Vec<Entry>, ConfigError> {
        self.pairs.iter().map(|pair| self.entry(pair)).collect()
    }

    fn entry(&self, pair: &Pair) -> Result<Entry, ConfigError> {
        let Pair { name, line, .. } = pair;
        let key = Key::named(name).ok_or_else(|| ConfigError::UnknownKey {
            name: name.clone(),
            path: self.path.clone(),
            line: *line,
            hint: nearest::hint(name, Key::all().map(|key| key.name)),
        })?;
        entry_of(key, pair, &self.path)
    }
}

impl Section {
    pub(super) fn pairs(&self) -> &[Pair] {
        &self.pairs
    }

    pub(super) fn origin(&self) -> Origin {
        self.at(self.line)
    }

    pub(super) fn at(&self, line: usize) -> Origin {
        Origin::File { path: self.path.clone(), line }
    }

    pub(super) fn entry<T>(&self, key: &'static Key<T>, pair: &Pair) -> Result<Entry<T>, ConfigError> {
        entry_of(key, pair, &self.path)
    }

    pub(super) fn unknown(&self, pair: &Pair, hint: String) -> ConfigError {
        let (name, path) = (format!("{}.{}", self.of, pair.name), self.path.clone());
        ConfigError::UnknownKey { name, path, line: pair.line, hint }
    }
}

fn entry_of<T>(key: &'static Key<T>, pair: &Pair, path: &Path) -> Result<Entry<T>, ConfigError> {
    let origin = Origin::File { path: path.to_path_buf(), line: pair.line };
    let mut entry = key.entry(&pair.written, Unit::Written, origin)?;
    if let Some(folder) = path.parent() {
        entry.value = entry.value.beneath(folder);
    }
    Ok(entry)
}

/// Whether keys stand in it. `[beat]` with all of them commented out is fine, an empty `[beats]` is not.
fn is_section(name: &str) -> bool {
    Key::all().any(|key| key.name.strip_prefix(name).is_some_and(|rest| rest.starts_with('.')))
}

fn written(value: &Spanned<DeValue<'_>>) -> Written {
    let text = match value.get_ref() {
        DeValue::Array(words) => {
            let words: Option<Vec<_>> = words.iter().map(|word| word.get_ref().as_str()).collect();
            words.map(|words| words.join(", "))
        }
        DeValue::Table(inner) => {
            let pair = |(name, value): (&Spanned<_>, &Spanned<_>)| {
                Some((ToString::to_string(name.get_ref()), text_of(value)?))
            };
            let pairs: Option<Vec<_>> = inner.iter().map(pair).collect();
            return pairs.map_or(Written::Other, Written::Pairs);
        }
        _ => text_of(value),
    };
    text.map_or(Written::Other, Written::Text)
}

fn text_of(value: &Spanned<DeValue<'_>>) -> Option<String> {
    match value.get_ref() {
        DeValue::String(text) => Some(text.to_string()),
        DeValue::Integer(number) => Some(number.to_string()),
        DeValue::Float(number) => Some(number.to_string()),
        DeValue::Boolean(on) => Some(on.to_string()),
        DeValue::Datetime(_) | DeValue::Array(_) | DeValue::Table(_) => None,
    }
}

fn line_of(text: &str, offset: usize) -> usize {
    1 + text.bytes().take(offset).filter(|byte| *byte == b'\n').count()
}
