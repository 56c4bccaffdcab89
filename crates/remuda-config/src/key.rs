//! A key: its names, what it may be, what it means, and which field it fills.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use remuda_core::id::{FleetId, Service};
use remuda_core::money::Money;
use remuda_core::settings::{BlockOn, StuckPolicy};
use remuda_models::{Capability, Device, Isolation, Precision};

use super::fleet::{PolicyName, ProviderKind, Start};
use super::store::{StoreUrl, masked};
use super::value::{Kind, Unit, Value, Written, size};
use super::{AllowPrivate, ConfigError, Origin, Resolved, table};
use remuda_net::secret::Secret;

/// `T` is what it fills a field of: everything the program runs with, one fleet, or one model.
pub(super) struct Key<T = Resolved> {
    /// As in `remuda.toml`; what stands before the dot is the section.
    pub(super) name: &'static str,
    pub(super) kind: Kind,
    /// One line for people.
    pub(super) meaning: &'static str,
    /// The name it had in the environment of the programs before this one, and the unit it had there.
    pub(super) seed: Option<(&'static str, Unit)>,
    slot: Slot<T>,
}

impl<T> Key<T> {
    pub(super) const fn new(name: &'static str, slot: Slot<T>, kind: Kind, meaning: &'static str) -> Key<T> {
        Key { name, kind, meaning, seed: None, slot }
    }

    pub(super) const fn seed(mut self, name: &'static str, unit: Unit) -> Key<T> {
        self.seed = Some((name, unit));
        self
    }

    pub(super) fn read(&self, target: &T) -> Value {
        (self.slot.read)(target)
    }

    /// Its value as one would write it.
    pub(super) fn shown(&self, target: &T) -> String {
        match (self.kind, self.read(target)) {
            (
                Kind::Bytes { .. } | Kind::MaybeBytes { .. },
                Value::Number(bytes) | Value::MaybeNumber(Some(bytes)),
            ) => size(bytes),
            (_, value) => value.to_string(),
        }
    }

    pub(super) fn write(&self, target: &mut T, value: Value) {
        (self.slot.write)(target, value);
    }

    /// What someone wrote for this key, if it may be that.
    pub(super) fn entry(
        &'static self,
        written: &Written,
        unit: Unit,
        origin: Origin,
    ) -> Result<Entry<T>, ConfigError> {
        let illegal = |value, why| {
            Err(ConfigError::Illegal { key: self.name.to_owned(), value, origin: origin.clone(), why })
        };
        match written {
            Written::Text(text) => match self.kind.parse(text, unit) {
                Ok(value) => Ok(Entry { key: self, value, origin }),
                Err(why) => illegal(masked(text), why),
            },
            Written::Pairs(pairs) => match self.kind.pairs(pairs) {
                Ok(value) => Ok(Entry { key: self, value, origin }),
                Err(why) => illegal("…".to_owned(), why),
            },
            Written::Other => illegal("…".to_owned(), format!("it must be {}", self.kind.bounds())),
        }
    }
}

impl Key {
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
}

/// A legal value for a key, and who gave it.
pub(super) struct Entry<T: 'static = Resolved> {
    pub(super) key: &'static Key<T>,
    pub(super) value: Value,
    pub(super) origin: Origin,
}

/// The field behind a key; made by `slot!`, `fleet_slot!` and `model_slot!`.
pub(super) struct Slot<T = Resolved> {
    pub(super) read: fn(&T) -> Value,
    pub(super) write: fn(&mut T, Value),
}

/// `slot!(settings.lease)` is the field of that name in `Resolved`.
macro_rules! slot {
    ($($field:ident).+) => { $crate::key::slot_in!($crate::Resolved, $($field).+) };
}
pub(super) use slot;

/// The same in a fleet.
macro_rules! fleet_slot {
    ($($field:ident).+) => { $crate::key::slot_in!($crate::Fleet, $($field).+) };
}
pub(super) use fleet_slot;

/// The same in a model.
macro_rules! model_slot {
    ($($field:ident).+) => { $crate::key::slot_in!($crate::Model, $($field).+) };
}
pub(super) use model_slot;

macro_rules! slot_in {
    ($target:ty, $($field:ident).+) => {
        $crate::key::Slot {
            read: |target: &$target| $crate::key::Field::value(&target.$($field).+),
            write: |target: &mut $target, value| $crate::key::Field::fill(&mut target.$($field).+, value),
        }
    };
}
pub(super) use slot_in;

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
field!(Option<u64>, MaybeNumber);
field!(Option<Duration>, MaybeDuration);
field!(Option<Money>, Money);
field!(Option<String>, Text);
field!(BTreeMap<String, String>, Pairs);
field!(BTreeMap<String, Secret>, Environment);

impl Field for FleetId {
    fn value(&self) -> Value {
        Value::Text(Some(self.to_string()))
    }

    fn fill(&mut self, value: Value) {
        match value {
            Value::Text(Some(name)) => *self = name.parse().expect("the key's kind lets only names through"),
            other => panic!("the table gives a name {other:?}"),
        }
    }
}

impl Field for BTreeSet<Service> {
    fn value(&self) -> Value {
        Value::List(self.iter().map(ToString::to_string).collect())
    }

    fn fill(&mut self, value: Value) {
        match value {
            Value::List(names) => *self = names.iter().filter_map(|name| name.parse().ok()).collect(),
            other => panic!("the table gives a list of services {other:?}"),
        }
    }
}

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

impl Field for String {
    fn value(&self) -> Value {
        Value::Text(Some(self.clone()))
    }

    fn fill(&mut self, value: Value) {
        match value {
            Value::Text(text) => *self = text.unwrap_or_default(),
            other => panic!("the table gives a text {other:?}"),
        }
    }
}

impl Field for Option<Capability> {
    fn value(&self) -> Value {
        Value::Word(self.map_or(AS_FOUND, Capability::name))
    }

    fn fill(&mut self, value: Value) {
        match value {
            Value::Word(word) => *self = word.parse().ok(),
            other => panic!("the table gives a capability {other:?}"),
        }
    }
}

impl Field for Option<Device> {
    fn value(&self) -> Value {
        Value::Word(self.map_or(AS_FOUND, Device::name))
    }

    fn fill(&mut self, value: Value) {
        match value {
            Value::Word(word) => *self = word.parse().ok(),
            other => panic!("the table gives a device {other:?}"),
        }
    }
}

/// A model does what its files are for, where it does it best.
pub(super) const AS_FOUND: &str = "auto";

choice_field!(StuckPolicy: "progress" is Progress, "age" is Age);
choice_field!(AllowPrivate: "auto" is Auto, "yes" is Yes, "no" is No);
choice_field!(BlockOn: "shape" is Shape, "exact" is Exact);
choice_field!(ProviderKind: "fixed" is Fixed, "process" is Process, "runpod" is Runpod);
choice_field!(PolicyName: "queue" is Queue, "latency" is Latency);
choice_field!(Start: "image" is Image, "ssh" is Ssh);
choice_field!(Isolation: "auto" is Auto, "thread" is Thread, "process" is Process);
choice_field!(Precision: "native" is Native, "int8" is Int8);
