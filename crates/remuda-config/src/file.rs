//! Parses `remuda.toml` into raw settings with their line numbers. Sections and dotted keys are equivalent; an unknown key
//! is refused with the most similar name. Each `[[fleet]]`, `[[model]]` and `[[tenant]]` is a separate section.

use std::fs;
use std::path::{Path, PathBuf};

use toml::Spanned;
use toml::de::{DeString, DeTable, DeValue};

use super::key::{Entry, Key};
use super::value::{RawSetting, Unit};
use super::{ConfigError, ValueOrigin, table};

/// A parsed configuration file whose values are not checked yet.
#[derive(Debug)]
pub struct ConfigFile {
    path: PathBuf,
    pairs: Vec<Pair>,
    fleets: Vec<Section>,
    models: Vec<Section>,
    tenants: Vec<Section>,
}

#[derive(Debug)]
pub(super) struct Pair {
    /// Including the section: `beat.idle`.
    pub(super) name: String,
    written: RawSetting,
    pub(super) line: usize,
}

impl Pair {
    pub(super) fn is(&self, name: &str, text: &str) -> bool {
        self.name == name && matches!(&self.written, RawSetting::Text(written) if written == text)
    }
}

/// One `[[fleet]]`, `[[model]]` or `[[tenant]]`.
#[derive(Debug)]
pub(super) struct Section {
    /// `fleet`, `model` or `tenant`.
    table: &'static str,
    path: PathBuf,
    line: usize,
    pairs: Vec<Pair>,
}

/// Names of the arrays of tables.
const FLEET: &str = "fleet";
const MODEL: &str = "model";
const TENANT: &str = "tenant";

impl ConfigFile {
    pub fn read(path: &Path) -> Result<ConfigFile, ConfigError> {
        match fs::read_to_string(path) {
            Ok(text) => ConfigFile::parse(path, &text),
            Err(source) => Err(ConfigError::Unreadable { path: path.to_path_buf(), source }),
        }
    }

    pub fn parse(path: &Path, text: &str) -> Result<ConfigFile, ConfigError> {
        let table = DeTable::parse(text).map_err(|error| ConfigError::NotToml {
            path: path.to_path_buf(),
            line: line_at(text, error.span().map_or(0, |span| span.start)),
            // `Display` would also print the offending line, which may contain a secret.
            message: error.message().to_owned(),
        })?;
        let path = path.to_path_buf();
        let mut file = ConfigFile {
            path,
            pairs: Vec::new(),
            fleets: Vec::new(),
            models: Vec::new(),
            tenants: Vec::new(),
        };
        let mut rest = table.into_inner();
        file.fleets = file.sections(text, FLEET, rest.remove_entry(FLEET))?;
        file.models = file.sections(text, MODEL, rest.remove_entry(MODEL))?;
        file.tenants = file.sections(text, TENANT, rest.remove_entry(TENANT))?;
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
                    written: raw_setting(value),
                    line: line_at(source, key.span().start),
                }),
            }
        }
    }

    fn sections(
        &self,
        source: &str,
        table: &'static str,
        written_under: Option<(Spanned<DeString<'_>>, Spanned<DeValue<'_>>)>,
    ) -> Result<Vec<Section>, ConfigError> {
        let Some((key, all)) = written_under else { return Ok(Vec::new()) };
        let tables = all.get_ref().as_array().filter(|all| all.iter().all(|it| it.get_ref().is_table()));
        let tables = tables.ok_or_else(|| ConfigError::Invalid {
            key: table.to_owned(),
            value: "…".to_owned(),
            origin: ValueOrigin::File { path: self.path.clone(), line: line_at(source, key.span().start) },
            why: format!("it is a list of tables: write `[[{table}]]`, with two brackets, above each"),
        })?;
        let section = |body: &Spanned<DeValue<'_>>| {
            let mut pairs: Vec<_> = body
                .get_ref()
                .as_table()
                .into_iter()
                .flatten()
                .map(|(key, value)| Pair {
                    name: key.get_ref().to_string(),
                    written: raw_setting(value),
                    line: line_at(source, key.span().start),
                })
                .collect();
            pairs.sort_by_key(|pair| pair.line);
            Section { table, path: self.path.clone(), line: line_at(source, body.span().start), pairs }
        };
        Ok(tables.iter().map(section).collect())
    }

    pub(super) fn fleets(&self) -> &[Section] {
        &self.fleets
    }

    pub(super) fn models(&self) -> &[Section] {
        &self.models
    }

    pub(super) fn tenants(&self) -> &[Section] {
        &self.tenants
    }

    /// The settings outside of fleets, models and tenants. Relative paths are resolved against the file's folder.
    pub(super) fn entries(&self) -> Result<Vec<Entry>, ConfigError> {
        self.pairs.iter().map(|pair| self.entry(pair)).collect()
    }

    fn entry(&self, pair: &Pair) -> Result<Entry, ConfigError> {
        let Pair { name, line, .. } = pair;
        let key = table::find(name).ok_or_else(|| ConfigError::UnknownKey {
            name: name.clone(),
            path: self.path.clone(),
            line: *line,
            hint: table::hint(name),
        })?;
        parse_pair(key, pair, &self.path)
    }
}

impl Section {
    pub(super) fn pairs(&self) -> &[Pair] {
        &self.pairs
    }

    pub(super) fn origin(&self) -> ValueOrigin {
        self.at(self.line)
    }

    pub(super) fn at(&self, line: usize) -> ValueOrigin {
        ValueOrigin::File { path: self.path.clone(), line }
    }

    pub(super) fn entry<T>(&self, key: &'static Key<T>, pair: &Pair) -> Result<Entry<T>, ConfigError> {
        parse_pair(key, pair, &self.path)
    }

    pub(super) fn unknown(&self, pair: &Pair, hint: String) -> ConfigError {
        let (name, path) = (format!("{}.{}", self.table, pair.name), self.path.clone());
        ConfigError::UnknownKey { name, path, line: pair.line, hint }
    }
}

fn parse_pair<T>(key: &'static Key<T>, pair: &Pair, path: &Path) -> Result<Entry<T>, ConfigError> {
    let origin = ValueOrigin::File { path: path.to_path_buf(), line: pair.line };
    let mut entry = key.entry(&pair.written, Unit::Required, origin)?;
    if let Some(folder) = path.parent() {
        entry.value = entry.value.resolve_path(folder);
    }
    Ok(entry)
}

/// Whether settings exist in this section. `[beat]` with all keys commented out is fine, an empty `[beats]` is not.
fn is_section(name: &str) -> bool {
    table::all().any(|key| key.name.strip_prefix(name).is_some_and(|rest| rest.starts_with('.')))
}

fn raw_setting(value: &Spanned<DeValue<'_>>) -> RawSetting {
    let text = match value.get_ref() {
        DeValue::Array(words) => {
            let words: Option<Vec<_>> = words.iter().map(|word| word.get_ref().as_str()).collect();
            words.map(|words| words.join(", "))
        }
        DeValue::Table(inner) => {
            let pair = |(name, value): (&Spanned<_>, &Spanned<_>)| {
                Some((ToString::to_string(name.get_ref()), scalar_text(value)?))
            };
            let pairs: Option<Vec<_>> = inner.iter().map(pair).collect();
            return pairs.map_or(RawSetting::Other, RawSetting::Pairs);
        }
        _ => scalar_text(value),
    };
    text.map_or(RawSetting::Other, RawSetting::Text)
}

fn scalar_text(value: &Spanned<DeValue<'_>>) -> Option<String> {
    match value.get_ref() {
        DeValue::String(text) => Some(text.to_string()),
        DeValue::Integer(number) => Some(number.to_string()),
        DeValue::Float(number) => Some(number.to_string()),
        DeValue::Boolean(on) => Some(on.to_string()),
        DeValue::Datetime(_) | DeValue::Array(_) | DeValue::Table(_) => None,
    }
}

fn line_at(text: &str, offset: usize) -> usize {
    1 + text.bytes().take(offset).filter(|byte| *byte == b'\n').count()
}
