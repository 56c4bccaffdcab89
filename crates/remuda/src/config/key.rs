//! A key: its names, what it may be, what it means, and which field it fills.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use remuda_core::settings::{BlockOn, StuckPolicy};

use super::store::{StoreUrl, masked};
use super::value::{Kind, Unit, Value, size};
use super::{AllowPrivate, ConfigError, Origin, Resolved, table};

pub(super) struct Key {
    /// As in `remuda.toml`; what stands before the dot is the section.
    pub(super) name: &'static str,
    pub(super) kind: Kind,
    /// One line for people.
    pub(super) meaning: &'static str,
    /// The name it had in the environment of the programs before this one, and the unit it had there.
    pub(super) seed: Option<(&'static str, Unit)>,
    slot: Slot,
}

impl Key {
    pub(super) const fn new(name: &'static str, slot: Slot, kind: Kind, meaning: &'static str) -> Key {
        Key { name, kind, meaning, seed: None, slot }
    }

    pub(super) const fn seed(mut self, name: &'static str, unit: Unit) -> Key {
        self.seed = Some((name, unit));
        self
    }

    pub(super) fn all() -> impl Iterator<Item = &'static Key> {
        table::GROUPS.iter().flat_map(|group| group.keys)
    }

    pub(super) fn named(name: &str) -> Option<&'static Key> {
        Key::all().find(|key| key.name == name)
    }

    /// Its uniform name in the environment: `beat.idle` is `REMUDA_BEAT_IDLE`.
    pub(super) fn variable(&self) -> String {
        format!("REMUDA_{}", self.name.replace('.', "_").to_uppercase())
    }

    pub(super) fn read(&self, resolved: &Resolved) -> Value {
        (self.slot.read)(resolved)
    }

    /// Its value as one would write it.
    pub(super) fn shown(&self, resolved: &Resolved) -> String {
        match (self.kind, self.read(resolved)) {
            (Kind::Bytes { .. }, Value::Number(bytes)) => size(bytes),
            (_, value) => value.to_string(),
        }
    }

    pub(super) fn write(&self, resolved: &mut Resolved, value: Value) {
        (self.slot.write)(resolved, value);
    }

    /// What someone wrote for this key, if it may be that.
    pub(super) fn entry(&'static self, text: &str, unit: Unit, origin: Origin) -> Result<Entry, ConfigError> {
        match self.kind.parse(text, unit) {
            Ok(value) => Ok(Entry { key: self, value, origin }),
            Err(why) => Err(ConfigError::Illegal { key: self.name, value: masked(text), origin, why }),
        }
    }
}

/// A legal value for a key, and who gave it.
pub(super) struct Entry {
    pub(super) key: &'static Key,
    pub(super) value: Value,
    pub(super) origin: Origin,
}

/// The field behind a key; made by `slot!`.
pub(super) struct Slot {
    pub(super) read: fn(&Resolved) -> Value,
    pub(super) write: fn(&mut Resolved, Value),
}

/// `slot!(settings.lease)` is the field of that name in `Resolved`.
macro_rules! slot {
    ($($field:ident).+) => {
        $crate::config::key::Slot {
            read: |resolved| $crate::config::key::Field::value(&resolved.$($field).+),
            write: |resolved, value| $crate::config::key::Field::fill(&mut resolved.$($field).+, value),
        }
    };
}
pub(super) use slot;

/// A field that values of one kind go into. That the table gives each field a kind that fits is for the table's author
/// to see to; a test tries every key.
pub(super) trait Field {
    fn value(&self) -> Value;
    fn fill(&mut self, value: Value);
}

macro_rules! field {
    ($type:ty, $kind:ident) => {
        impl Field for $type {
            fn value(&self) -> Value {
                Value::$kind(self.clone())
            }

            fn fill(&mut self, value: Value) {
                match value {
                    Value::$kind(it) => *self = it,
                    other => panic!("the table gives a {} field {other:?}", stringify!($kind)),
                }
            }
        }
    };
}

field!(Duration, Duration);
field!(bool, Switch);
field!(PathBuf, Folder);
field!(Option<PathBuf>, File);
field!(Vec<String>, List);
field!(SocketAddr, Address);
field!(StoreUrl, Store);

macro_rules! number_field {
    ($($type:ty)+) => {$(
        impl Field for $type {
            fn value(&self) -> Value {
                Value::Number(u64::try_from(*self).expect("no number is wider than 64 bits"))
            }

            fn fill(&mut self, value: Value) {
                match value {
                    Value::Number(it) => *self = it.try_into().expect("the key's bounds fit its field"),
                    other => panic!("the table gives a number field {other:?}"),
                }
            }
        }
    )+};
}

number_field!(u8 u32 u64 usize);

macro_rules! choice_field {
    ($type:ty: $($word:literal is $variant:ident),+) => {
        impl Field for $type {
            fn value(&self) -> Value {
                Value::Word(match self { $(<$type>::$variant => $word),+ })
            }

            fn fill(&mut self, value: Value) {
                *self = match value {
                    $(Value::Word($word) => <$type>::$variant,)+
                    other => panic!("the table gives a choice field {other:?}"),
                }
            }
        }
    };
}

choice_field!(StuckPolicy: "progress" is Progress, "age" is Age);
choice_field!(AllowPrivate: "auto" is Auto, "yes" is Yes, "no" is No);
choice_field!(BlockOn: "shape" is Shape, "exact" is Exact);
