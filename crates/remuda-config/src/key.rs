//! A setting: its names, its type, its description, and the field that it fills.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use remuda_core::id::{FleetId, Service};
use remuda_core::money::Money;
use remuda_core::settings::{BlockOn, StuckPolicy};
use remuda_models::{Capability, Device, Isolation, Precision};

use super::fleet::{PolicyName, ProviderKind, WorkerStart};
use super::store::{StoreUrl, mask_secrets};
use super::value::{Kind, RawSetting, Unit, Value, format_bytes};
use super::{ConfigError, ResolvedConfig, ValueOrigin};
use remuda_net::private_target::PrivateTarget;
use remuda_net::secret::Secret;

/// One setting. `T` is the struct whose field it fills: the whole configuration, one fleet, one model, or one tenant.
pub(super) struct Key<T = ResolvedConfig> {
    /// As in `remuda.toml`; the part before the dot is the section.
    pub(super) name: &'static str,
    pub(super) kind: Kind,
    /// One sentence for `docs/configuration.md`.
    pub(super) meaning: &'static str,
    /// The variable's name in the predecessor programs (the seeds), and its unit there.
    pub(super) seed: Option<(&'static str, Unit)>,
    field: FieldAccess<T>,
}

impl<T> Key<T> {
    pub(super) const fn new(
        name: &'static str,
        field: FieldAccess<T>,
        kind: Kind,
        meaning: &'static str,
    ) -> Key<T> {
        Key { name, kind, meaning, seed: None, field }
    }

    pub(super) const fn seed(mut self, name: &'static str, unit: Unit) -> Key<T> {
        self.seed = Some((name, unit));
        self
    }

    pub(super) fn read(&self, target: &T) -> Value {
        (self.field.read)(target)
    }

    /// The value in the notation of `remuda.toml`.
    pub(super) fn display(&self, target: &T) -> String {
        match (self.kind, self.read(target)) {
            (
                Kind::Bytes { .. } | Kind::OptionalBytes { .. },
                Value::Number(bytes) | Value::OptionalNumber(Some(bytes)),
            ) => format_bytes(bytes),
            (_, value) => value.to_string(),
        }
    }

    pub(super) fn write(&self, target: &mut T, value: Value) {
        (self.field.write)(target, value);
    }

    /// Parses and checks a raw value.
    pub(super) fn entry(
        &'static self,
        written: &RawSetting,
        unit: Unit,
        origin: ValueOrigin,
    ) -> Result<Entry<T>, ConfigError> {
        let invalid = |value, why| {
            Err(ConfigError::Invalid { key: self.name.to_owned(), value, origin: origin.clone(), why })
        };
        match written {
            RawSetting::Text(text) => match self.kind.parse(text, unit) {
                Ok(value) => Ok(Entry { key: self, value, origin }),
                Err(why) => invalid(mask_secrets(text), why),
            },
            RawSetting::Pairs(pairs) => match self.kind.pairs(pairs) {
                Ok(value) => Ok(Entry { key: self, value, origin }),
                Err(why) => invalid("…".to_owned(), why),
            },
            RawSetting::Other => invalid("…".to_owned(), format!("it must be {}", self.kind.bounds())),
        }
    }
}

impl Key {
    /// Its name in the environment: `REMUDA_BEAT_IDLE` for `beat.idle`.
    pub(super) fn variable(&self) -> String {
        format!("REMUDA_{}", self.name.replace('.', "_").to_uppercase())
    }
}

/// A valid value of a setting, and its origin.
pub(super) struct Entry<T: 'static = ResolvedConfig> {
    pub(super) key: &'static Key<T>,
    pub(super) value: Value,
    pub(super) origin: ValueOrigin,
}

/// Reads and writes the field of a setting; made by `slot!`, `fleet_slot!`, `model_slot!` and `tenant_slot!`.
pub(super) struct FieldAccess<T = ResolvedConfig> {
    pub(super) read: fn(&T) -> Value,
    pub(super) write: fn(&mut T, Value),
}

/// `slot!(settings.lease)` accesses that field of `ResolvedConfig`.
macro_rules! slot {
    ($($field:ident).+) => { $crate::key::slot_in!($crate::ResolvedConfig, $($field).+) };
}
pub(super) use slot;

/// The same for `FleetConfig`.
macro_rules! fleet_slot {
    ($($field:ident).+) => { $crate::key::slot_in!($crate::FleetConfig, $($field).+) };
}
pub(super) use fleet_slot;

/// The same for `ModelConfig`.
macro_rules! model_slot {
    ($($field:ident).+) => { $crate::key::slot_in!($crate::ModelConfig, $($field).+) };
}
pub(super) use model_slot;

/// The same for `TenantConfig`.
macro_rules! tenant_slot {
    ($($field:ident).+) => { $crate::key::slot_in!($crate::TenantConfig, $($field).+) };
}
pub(super) use tenant_slot;

macro_rules! slot_in {
    ($target:ty, $($field:ident).+) => {
        $crate::key::FieldAccess {
            read: |target: &$target| $crate::key::Field::value(&target.$($field).+),
            write: |target: &mut $target, value| $crate::key::Field::fill(&mut target.$($field).+, value),
        }
    };
}
pub(super) use slot_in;

/// A field that holds values of one kind. A table entry whose kind does not match its field panics; a test writes every
/// setting.
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
                    other => panic!("a {} field cannot hold {other:?}", stringify!($kind)),
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
field!(Option<u64>, OptionalNumber);
field!(Option<Duration>, OptionalDuration);
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
            Value::Text(Some(name)) => {
                *self = name.parse().expect("the kind of this setting accepts only names");
            }
            other => panic!("a name cannot be {other:?}"),
        }
    }
}

/// A list of entries with a notation of their own; its kind accepts only what can be read.
macro_rules! list_field {
    ($($type:ty)+) => {$(
        impl Field for Vec<$type> {
            fn value(&self) -> Value {
                Value::List(self.iter().map(ToString::to_string).collect())
            }

            fn fill(&mut self, value: Value) {
                match value {
                    Value::List(entries) => *self = entries.iter().filter_map(|it| it.parse().ok()).collect(),
                    other => panic!("a list cannot be {other:?}"),
                }
            }
        }
    )+};
}

list_field!(PrivateTarget);

impl Field for BTreeSet<Service> {
    fn value(&self) -> Value {
        Value::List(self.iter().map(ToString::to_string).collect())
    }

    fn fill(&mut self, value: Value) {
        match value {
            Value::List(names) => *self = names.iter().filter_map(|name| name.parse().ok()).collect(),
            other => panic!("a list of services cannot be {other:?}"),
        }
    }
}

macro_rules! number_field {
    ($($type:ty)+) => {$(
        impl Field for $type {
            fn value(&self) -> Value {
                Value::Number(u64::try_from(*self).expect("the number types have at most 64 bits"))
            }

            fn fill(&mut self, value: Value) {
                match value {
                    Value::Number(it) => *self = it.try_into().expect("the bounds of the setting fit its field"),
                    other => panic!("a number field cannot hold {other:?}"),
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
                    other => panic!("a choice field cannot hold {other:?}"),
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
            other => panic!("a text field cannot hold {other:?}"),
        }
    }
}

impl Field for Option<Capability> {
    fn value(&self) -> Value {
        Value::Word(self.map_or(AUTO, Capability::name))
    }

    fn fill(&mut self, value: Value) {
        match value {
            Value::Word(word) => *self = word.parse().ok(),
            other => panic!("a capability cannot be {other:?}"),
        }
    }
}

impl Field for Option<Device> {
    fn value(&self) -> Value {
        Value::Word(self.map_or(AUTO, Device::name))
    }

    fn fill(&mut self, value: Value) {
        match value {
            Value::Word(word) => *self = word.parse().ok(),
            other => panic!("a device cannot be {other:?}"),
        }
    }
}

/// Choose by the model's files and the machine's devices.
pub(super) const AUTO: &str = "auto";

choice_field!(StuckPolicy: "progress" is Progress, "age" is Age);
choice_field!(BlockOn: "shape" is Shape, "exact" is Exact);
choice_field!(ProviderKind: "fixed" is Fixed, "process" is Process, "runpod" is Runpod);
choice_field!(PolicyName: "queue" is Queue, "latency" is Latency);
choice_field!(WorkerStart: "image" is Image, "ssh" is Ssh);
choice_field!(Isolation: "auto" is Auto, "thread" is Thread, "process" is Process);
choice_field!(Precision: "native" is Native, "int8" is Int8);
