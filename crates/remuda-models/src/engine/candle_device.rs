//! Which device a model of candle's computes on, what memory that has, and what goes wrong there.
//!
//! What has to be known about candle on a card, and is seen to by who computes there:
//!
//! - Every thread has a stream of work of its own, and nothing orders the work of two threads. So a model is loaded,
//!   asked and dropped by one thread.
//! - After any error but a lack of memory the process may answer garbage for hours. So a copy had better be a process.
//! - Kernels are compiled by the driver when they are first used: seconds on a quick machine, and again in every process
//!   that cannot keep them (`CUDA_CACHE_PATH`, `~/.nv`). So everything is computed once while a model is loaded, which
//!   may take long, and not when the first caller waits.
//! - A context takes 500 MiB of a card. So a process that does not compute makes none: it asks the driver how many cards
//!   there are, and the driver's manager for their memory.

use candle_core::{DeviceLocation, Error};

use crate::failure::{InferenceError, LoadError};
use crate::spec::{Device, ModelSpec};

/// What the driver, the library of products and the kernels were seen to take of a card, rounded up.
const CONTEXT_BYTES: u64 = 768 << 20;

/// What a copy takes of its device besides its model.
pub(super) fn besides_bytes(device: Device) -> u64 {
    match device {
        Device::Cpu => 0,
        Device::Cuda(_) => CONTEXT_BYTES,
    }
}

/// Where the model computes: where it is told to, or on the first card where there is one.
pub(super) fn device(spec: &ModelSpec) -> Result<Device, LoadError> {
    match spec.device {
        Some(Device::Cpu) => Ok(Device::Cpu),
        None => Ok(if driver::cards().is_ok_and(|cards| cards > 0) { Device::Cuda(0) } else { Device::Cpu }),
        // That this build has none is told by who compares what is found with what was asked for.
        Some(Device::Cuda(_)) if !cfg!(feature = "cuda") => Ok(Device::Cpu),
        Some(device @ Device::Cuda(card)) => match driver::cards() {
            Ok(cards) if u32::from(card) < cards => Ok(device),
            Ok(cards) => Err(unusable(device, format!("the driver knows of {cards}; see nvidia-smi"))),
            Err(told) => Err(unusable(device, format!("{told}; see whether nvidia-smi works"))),
        },
    }
}

/// All that a card has; nothing where the machine's own memory is used.
pub(super) fn memory_bytes(device: Device) -> Result<Option<u64>, LoadError> {
    match device {
        Device::Cpu => Ok(None),
        Device::Cuda(card) => {
            driver::memory(card).map(|(_, all_bytes)| Some(all_bytes)).map_err(|told| unusable(device, told))
        }
    }
}

/// Begins to use it for a model that takes so much. What other programs hold of a card is in nobody's ledger.
pub(super) fn open(device: Device, need_bytes: u64) -> Result<candle_core::Device, LoadError> {
    let Device::Cuda(card) = device else { return Ok(candle_core::Device::Cpu) };
    let (free_bytes, _) = driver::memory(card).map_err(|told| unusable(device, told))?;
    if free_bytes < need_bytes {
        return Err(LoadError::Memory { need_bytes, free_bytes, hint: others(device) });
    }
    candle_core::Device::new_cuda(usize::from(card)).map_err(|error| told_of(device, need_bytes, &error))
}

fn others(device: Device) -> String {
    format!("other programs hold the rest of {device}, see nvidia-smi; wait for them, or say device=cpu")
}

fn unusable(device: Device, why: String) -> LoadError {
    LoadError::Device { device, why }
}

/// What goes wrong while a model is loaded onto a device, and is not its files' fault.
pub(super) fn load_error(on: &candle_core::Device, need_bytes: u64, error: &Error) -> LoadError {
    let device = match on.location() {
        DeviceLocation::Cuda { gpu_id } => Device::Cuda(u8::try_from(gpu_id).unwrap_or(u8::MAX)),
        DeviceLocation::Cpu | DeviceLocation::Metal { .. } => Device::Cpu,
    };
    told_of(device, need_bytes, error)
}

fn told_of(device: Device, need_bytes: u64, error: &Error) -> LoadError {
    failed(device, need_bytes, failure(error))
}

/// What went wrong when a model that was just loaded computed for the first time.
pub(super) fn failed(device: Device, need_bytes: u64, failure: InferenceError) -> LoadError {
    match failure {
        InferenceError::OutOfMemory(told) if device != Device::Cpu => {
            LoadError::Memory { need_bytes, free_bytes: 0, hint: format!("{told}; {}", others(device)) }
        }
        InferenceError::Poisoned(told) => unusable(device, told),
        InferenceError::Stopped => LoadError::Stopped,
        InferenceError::Input(told) | InferenceError::OutOfMemory(told) | InferenceError::Engine(told) => {
            LoadError::Engine(told)
        }
    }
}

/// By its words: candle wraps what a driver says, and only running out of memory is something to live on with.
pub(super) fn failure(error: &Error) -> InferenceError {
    // Behind its first line there may be a backtrace.
    let told = error.to_string().lines().next().unwrap_or_default().to_owned();
    let lower = told.to_lowercase();
    let is = |words: &[&str]| words.iter().any(|word| lower.contains(word));
    if is(&["out of memory", "out_of_memory", "cublas_status_alloc_failed"]) {
        InferenceError::OutOfMemory(told)
    } else if is(&["cuda", "cublas", "curand"]) {
        InferenceError::Poisoned(told)
    } else {
        InferenceError::Engine(told)
    }
}

#[cfg(feature = "cuda")]
mod driver {
    use candle_core::cuda_backend::cudarc::driver::{CudaContext, DriverError, result};
    use nvml_wrapper::Nvml;

    pub(super) fn cards() -> Result<u32, String> {
        CudaContext::device_count()
            .map(|cards| u32::try_from(cards).unwrap_or(0))
            .map_err(|error| told(&error))
    }

    /// What is free, and all there is. Where the driver's manager is not there to be asked, a context is made for it.
    pub(super) fn memory(card: u8) -> Result<(u64, u64), String> {
        let uuid = uuid(card).map_err(|error| told(&error))?;
        let managed = Nvml::init().and_then(|nvml| nvml.device_by_uuid(uuid)?.memory_info());
        managed.map(|memory| (memory.free, memory.total)).or_else(|_| in_context(card))
    }

    fn in_context(card: u8) -> Result<(u64, u64), String> {
        let (free, all) = CudaContext::new(usize::from(card))
            .and_then(|context| context.mem_get_info())
            .map_err(|error| told(&error))?;
        Ok((free as u64, all as u64))
    }

    /// By which the manager knows it; its numbers are others, and `CUDA_VISIBLE_DEVICES` does not change them.
    fn uuid(card: u8) -> Result<String, DriverError> {
        result::init()?;
        let bytes = result::device::get_uuid(result::device::get(i32::from(card))?)?.bytes;
        let digits: String = bytes.iter().map(|byte| format!("{:02x}", byte.to_ne_bytes()[0])).collect();
        let (a, b, c, d, e) = (&digits[..8], &digits[8..12], &digits[12..16], &digits[16..20], &digits[20..]);
        Ok(format!("GPU-{a}-{b}-{c}-{d}-{e}"))
    }

    fn told(error: &DriverError) -> String {
        format!("the driver says {error}")
    }
}

#[cfg(not(feature = "cuda"))]
mod driver {
    pub(super) fn cards() -> Result<u32, String> {
        Ok(0)
    }

    pub(super) fn memory(_: u8) -> Result<(u64, u64), String> {
        Err("this build computes on CPUs only".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Faults: T8.
    #[test]
    fn only_a_lack_of_memory_leaves_a_card_usable() {
        let failure = |told: &str| failure(&Error::Msg(told.to_owned()));
        for told in [
            r#"DriverError(CUDA_ERROR_OUT_OF_MEMORY, "out of memory")"#,
            "CublasError(CUBLAS_STATUS_ALLOC_FAILED)",
        ] {
            assert!(matches!(failure(told), InferenceError::OutOfMemory(_)), "{told}");
            let error = told_of(Device::Cuda(0), 7, &Error::Msg(format!("{told}\n  0: somewhere")));
            assert!(matches!(&error, LoadError::Memory { need_bytes: 7, .. }), "{error}");
            assert!(!error.to_string().contains("somewhere"), "{error}");
        }
        for told in [
            r#"DriverError(CUDA_ERROR_ILLEGAL_ADDRESS, "an illegal memory access was encountered")"#,
            "CublasError(CUBLAS_STATUS_EXECUTION_FAILED)",
        ] {
            assert!(matches!(failure(told), InferenceError::Poisoned(_)), "{told}");
        }
        assert!(matches!(failure("shape mismatch in matmul"), InferenceError::Engine(_)));
    }
}
