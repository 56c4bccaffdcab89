//! Who computes a model, how many tokens it may hold, and what that takes.

#[cfg(feature = "candle")]
use super::super::card;
#[cfg(feature = "candle")]
use super::candle::{self, Candle};
use super::dimensions::{Dimensions, architecture, room};
use super::lean::Lean;
use super::talk::Network;
use super::template::Template;
use crate::beacon::Beacon;
use crate::engine::gguf::{Gguf, Kind};
use crate::failure::LoadError;
use crate::spec::{Device, Isolation, ModelSpec};

pub(super) struct Plan {
    engine: Engine,
    pub(super) context: usize,
    pub(super) memory_bytes: u64,
}

enum Engine {
    Lean(Dimensions),
    #[cfg(feature = "candle")]
    Candle(Device),
}

impl Plan {
    pub(super) fn of(gguf: &Gguf, spec: &ModelSpec) -> Result<Self, LoadError> {
        let engine = Engine::of(gguf, spec)?;
        let (dimensions, tokens_max) = match &engine {
            Engine::Lean(dimensions) => (Some(dimensions), u64::MAX),
            #[cfg(feature = "candle")]
            Engine::Candle(_) => (None, candle::POSITIONS_MAX),
        };
        let (context, memory_bytes) = room(gguf, dimensions, engine.besides_bytes(), tokens_max, spec)?;
        let context = usize::try_from(context).unwrap_or(usize::MAX);
        Ok(Plan { engine, context, memory_bytes })
    }

    pub(super) fn load(
        &self,
        gguf: &Gguf,
        spec: &ModelSpec,
        beacon: &Beacon,
    ) -> Result<Box<dyn Network>, LoadError> {
        match &self.engine {
            Engine::Lean(dimensions) => Ok(Box::new(Lean::load(gguf, dimensions, spec.threads, beacon)?)),
            #[cfg(feature = "candle")]
            Engine::Candle(device) => {
                let on = (*device, self.memory_bytes);
                Ok(Box::new(Candle::load(gguf, architecture(gguf)?, on, beacon)?))
            }
        }
    }

    pub(super) fn device(&self) -> Device {
        match &self.engine {
            Engine::Lean(_) => Device::Cpu,
            #[cfg(feature = "candle")]
            Engine::Candle(device) => *device,
        }
    }

    /// What that device has, if it is a card.
    pub(super) fn device_bytes(&self) -> Result<Option<u64>, LoadError> {
        match &self.engine {
            Engine::Lean(_) => Ok(None),
            #[cfg(feature = "candle")]
            Engine::Candle(device) => card::memory_bytes(*device),
        }
    }

    pub(super) fn isolation(&self) -> Isolation {
        match &self.engine {
            Engine::Lean(_) => Isolation::Thread,
            #[cfg(feature = "candle")]
            Engine::Candle(_) => Isolation::Process,
        }
    }

    /// What somebody who uses it should know.
    pub(super) fn notes(&self, gguf: &Gguf, kinds: &[(Kind, u64)]) -> Vec<String> {
        let mut notes = Vec::new();
        match &self.engine {
            Engine::Lean(_) => {
                let others = kinds
                    .iter()
                    .map(|(kind, _)| *kind)
                    .filter(|kind| !matches!(kind, Kind::Q8_0 | Kind::F32));
                let others: Vec<String> = others.map(|kind| kind.to_string()).collect();
                if !others.is_empty() {
                    notes.push(format!(
                        "{} becomes Q8_0 when it is loaded: a byte a weight",
                        others.join(", ")
                    ));
                }
            }
            #[cfg(feature = "candle")]
            Engine::Candle(device) => {
                for kind in candle::slow(gguf, *device) {
                    notes.push(format!(
                        "{kind} has no SIMD kernel in candle and would be 10 to 50 times slower: it becomes Q8_0 when it is loaded"
                    ));
                }
            }
        }
        let able = architecture(gguf).ok().and_then(|name| gguf.integer(&format!("{name}.context_length")));
        if let Some(able) = able.filter(|able| *able > self.context as u64) {
            notes.push(format!(
                "it could read {able} tokens and is given {}; more memory_bytes may make it more",
                self.context
            ));
        }
        if Template::is_chatml(gguf) {
            notes.push("the file has no chat template; ChatML is used".to_owned());
        }
        notes
    }
}

impl Engine {
    /// What it takes besides the file's weights and its cache.
    fn besides_bytes(&self) -> u64 {
        match self {
            Engine::Lean(_) => 0,
            #[cfg(feature = "candle")]
            Engine::Candle(device) => card::besides_bytes(*device),
        }
    }

    /// On a CPU our own comes first: it is faster, and cannot poison the process.
    fn of(
        gguf: &Gguf,
        #[cfg_attr(not(feature = "candle"), expect(unused))] spec: &ModelSpec,
    ) -> Result<Self, LoadError> {
        #[cfg(feature = "candle")]
        if candle::FAMILIES.contains(&architecture(gguf)?) {
            let device = card::device(spec)?;
            if device != Device::Cpu {
                return Ok(Engine::Candle(device));
            }
        }
        if let Some(dimensions) = Dimensions::of(gguf)? {
            return Ok(Engine::Lean(dimensions));
        }
        let name = architecture(gguf)?;
        #[cfg(feature = "candle")]
        if candle::FAMILIES.contains(&name) {
            return Ok(Engine::Candle(Device::Cpu));
        }
        Err(LoadError::Unsupported {
            path: gguf.path.clone(),
            what: format!("a model of the {name} kind"),
            hint: match cfg!(feature = "candle") {
                true => "; this build runs llama, qwen2, qwen3, phi3 and gemma".to_owned(),
                false => "; this build runs llama, qwen2 and qwen3 without experts, and one with the feature candle runs more".to_owned(),
            },
        })
    }
}
