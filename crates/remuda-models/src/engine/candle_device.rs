//! Selects candle's device for a model, reports its memory, and classifies its errors.
//!
//! Known behaviour of candle on a card:
//!
//! - Every thread has its own stream, and the work of two threads is not ordered. A model is therefore loaded, used and
//!   dropped by one thread.
//! - After any error except a lack of memory the process may return garbage for hours. A copy should therefore be a
//!   process.
//! - Kernels are compiled by the driver on first use: seconds on a fast machine, and again in every process that cannot
//!   cache them (`CUDA_CACHE_PATH`, `~/.nv`). Everything is therefore computed once while a model is loaded, which may
//!   take long, and not when the first caller waits.
//! - A context takes 500 MiB of a card. A process that does not compute creates none: it asks the driver for the number
//!   of cards, and NVML for their memory.

use candle_core::{DeviceLocation, Error};

use crate::failure::{InferenceError, LoadError};
use crate::spec::{Device, ModelSpec};

/// Measured card memory of the driver, cuBLAS and the kernels, rounded up.
const CONTEXT_BYTES: u64 = 768 << 20;

/// Device memory of a copy besides its model.
pub(super) fn besides_bytes(device: Device) -> u64 {
    match device {
        Device::Cpu => 0,
        Device::Cuda(_) => CONTEXT_BYTES,
    }
}

/// The configured device, or the first card if there is one.
pub(super) fn device(spec: &ModelSpec) -> Result<Device, LoadError> {
    match spec.device {
        Some(Device::Cpu) => Ok(Device::Cpu),
        None => Ok(if driver::cards().is_ok_and(|cards| cards > 0) { Device::Cuda(0) } else { Device::Cpu }),
        // `ModelInfo` is compared with the spec later, which reports that this build has no cards.
        Some(Device::Cuda(_)) if !cfg!(feature = "cuda") => Ok(Device::Cpu),
        Some(device @ Device::Cuda(card)) => match driver::cards() {
            Ok(cards) if u32::from(card) < cards => Ok(device),
            Ok(cards) => Err(unusable(device, format!("the driver reports {cards} cards; see nvidia-smi"))),
            Err(message) => Err(unusable(device, format!("{message}; check whether nvidia-smi works"))),
        },
    }
}

/// The total memory of a card; `None` for main memory.
pub(super) fn memory_bytes(device: Device) -> Result<Option<u64>, LoadError> {
    match device {
        Device::Cpu => Ok(None),
        Device::Cuda(card) => driver::memory(card)
            .map(|(_, all_bytes)| Some(all_bytes))
            .map_err(|message| unusable(device, message)),
    }
}

/// Opens the device for a model of this size. Other programs' use of a card is not in the pool's budget, so it is
/// checked here.
pub(super) fn open(device: Device, need_bytes: u64) -> Result<candle_core::Device, LoadError> {
    let Device::Cuda(card) = device else { return Ok(candle_core::Device::Cpu) };
    let (free_bytes, _) = driver::memory(card).map_err(|message| unusable(device, message))?;
    if free_bytes < need_bytes {
        return Err(LoadError::Memory { need_bytes, free_bytes, hint: others(device) });
    }
    candle_core::Device::new_cuda(usize::from(card))
        .map_err(|error| classify_load_error(device, need_bytes, &error))
}

fn others(device: Device) -> String {
    format!("other programs hold the rest of {device}, see nvidia-smi; wait for them, or use device=cpu")
}

fn unusable(device: Device, why: String) -> LoadError {
    LoadError::Device { device, why }
}

/// Classifies an error while a model is loaded onto a device, when its files are not at fault.
pub(super) fn load_error(on: &candle_core::Device, need_bytes: u64, error: &Error) -> LoadError {
    let device = match on.location() {
        DeviceLocation::Cuda { gpu_id } => Device::Cuda(u8::try_from(gpu_id).unwrap_or(u8::MAX)),
        DeviceLocation::Cpu | DeviceLocation::Metal { .. } => Device::Cpu,
    };
    classify_load_error(device, need_bytes, error)
}

fn classify_load_error(device: Device, need_bytes: u64, error: &Error) -> LoadError {
    failed(device, need_bytes, failure(error))
}

/// Classifies an error of the first computation after loading.
pub(super) fn failed(device: Device, need_bytes: u64, failure: InferenceError) -> LoadError {
    match failure {
        InferenceError::OutOfMemory(message) if device != Device::Cpu => {
            LoadError::Memory { need_bytes, free_bytes: 0, hint: format!("{message}; {}", others(device)) }
        }
        InferenceError::Poisoned(message) => unusable(device, message),
        InferenceError::Stopped => LoadError::Stopped,
        InferenceError::Input(message)
        | InferenceError::OutOfMemory(message)
        | InferenceError::Engine(message) => LoadError::Engine(message),
    }
}

/// By message text, because candle wraps the driver's errors in strings; only a lack of memory is survivable.
pub(super) fn failure(error: &Error) -> InferenceError {
    // A backtrace may follow the first line.
    let message = error.to_string().lines().next().unwrap_or_default().to_owned();
    let lower = message.to_lowercase();
    let is = |words: &[&str]| words.iter().any(|word| lower.contains(word));
    if is(&["out of memory", "out_of_memory", "cublas_status_alloc_failed"]) {
        InferenceError::OutOfMemory(message)
    } else if is(&["cuda", "cublas", "curand"]) {
        InferenceError::Poisoned(message)
    } else {
        InferenceError::Engine(message)
    }
}

#[cfg(feature = "cuda")]
mod driver {
    use candle_core::cuda_backend::cudarc::driver::{CudaContext, DriverError, result};
    use nvml_wrapper::Nvml;

    pub(super) fn cards() -> Result<u32, String> {
        CudaContext::device_count()
            .map(|cards| u32::try_from(cards).unwrap_or(0))
            .map_err(|error| driver_message(&error))
    }

    /// Free and total memory. Without NVML a context is created to ask.
    pub(super) fn memory(card: u8) -> Result<(u64, u64), String> {
        let uuid = uuid(card).map_err(|error| driver_message(&error))?;
        let managed = Nvml::init().and_then(|nvml| nvml.device_by_uuid(uuid)?.memory_info());
        managed.map(|memory| (memory.free, memory.total)).or_else(|_| in_context(card))
    }

    fn in_context(card: u8) -> Result<(u64, u64), String> {
        let (free, all) = CudaContext::new(usize::from(card))
            .and_then(|context| context.mem_get_info())
            .map_err(|error| driver_message(&error))?;
        Ok((free as u64, all as u64))
    }

    /// NVML's identifier; its card numbers differ and ignore `CUDA_VISIBLE_DEVICES`.
    fn uuid(card: u8) -> Result<String, DriverError> {
        result::init()?;
        let bytes = result::device::get_uuid(result::device::get(i32::from(card))?)?.bytes;
        let digits: String = bytes.iter().map(|byte| format!("{:02x}", byte.to_ne_bytes()[0])).collect();
        let (a, b, c, d, e) = (&digits[..8], &digits[8..12], &digits[12..16], &digits[16..20], &digits[20..]);
        Ok(format!("GPU-{a}-{b}-{c}-{d}-{e}"))
    }

    fn driver_message(error: &DriverError) -> String {
        format!("the driver reports {error}")
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
    fn only_out_of_memory_leaves_a_card_usable() {
        let failure = |message: &str| failure(&Error::Msg(message.to_owned()));
        for message in [
            r#"DriverError(CUDA_ERROR_OUT_OF_MEMORY, "out of memory")"#,
            "CublasError(CUBLAS_STATUS_ALLOC_FAILED)",
        ] {
            assert!(matches!(failure(message), InferenceError::OutOfMemory(_)), "{message}");
            let error =
                classify_load_error(Device::Cuda(0), 7, &Error::Msg(format!("{message}\n  0: somewhere")));
            assert!(matches!(&error, LoadError::Memory { need_bytes: 7, .. }), "{error}");
            assert!(!error.to_string().contains("somewhere"), "{error}");
        }
        for message in [
            r#"DriverError(CUDA_ERROR_ILLEGAL_ADDRESS, "an illegal memory access was encountered")"#,
            "CublasError(CUBLAS_STATUS_EXECUTION_FAILED)",
        ] {
            assert!(matches!(failure(message), InferenceError::Poisoned(_)), "{message}");
        }
        assert!(matches!(failure("shape mismatch in matmul"), InferenceError::Engine(_)));
    }
}
