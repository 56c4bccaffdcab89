//! What the GPU of this machine says of itself, through NVIDIA's own library where there is one. Calls may hang in a
//! sick driver: whoever asks has a thread to spare.

use nvml_wrapper::enum_wrappers::device::TemperatureSensor;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::{Device, Nvml};

/// One device, as far as it could be read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Gpu {
    pub(super) name: String,
    pub(super) driver: String,
    pub(super) vram_total_bytes: Option<u64>,
    pub(super) vram_used_bytes: Option<u64>,
    pub(super) vram_free_bytes: Option<u64>,
    pub(super) busy_percent: Option<u32>,
    pub(super) temperature_celsius: Option<u32>,
}

/// Everything that can be read of this machine's GPUs; nothing where there is none. A GPU that is there and cannot be
/// read is a problem.
pub(super) fn read() -> Result<Vec<Gpu>, String> {
    let nvml = match Nvml::init() {
        Ok(nvml) => nvml,
        Err(error) if is_absence(&error) => return Ok(Vec::new()),
        Err(error) => return Err(format!("the GPU driver does not start: {error}")),
    };
    let count = nvml.device_count().map_err(|error| format!("the GPU driver does not answer: {error}"))?;
    let driver = nvml.sys_driver_version().unwrap_or_default();
    (0..count)
        .map(|index| {
            let device = nvml
                .device_by_index(index)
                .map_err(|error| format!("GPU {index} cannot be used: {error}"))?;
            described(&device, driver.clone()).map_err(|error| format!("GPU {index} is sick: {error}"))
        })
        .collect()
}

/// No library, no driver, nothing to see: a machine without a GPU.
fn is_absence(error: &NvmlError) -> bool {
    matches!(
        error,
        NvmlError::LibraryNotFound
            | NvmlError::LibloadingError(_)
            | NvmlError::DriverNotLoaded
            | NvmlError::NotFound
            | NvmlError::NoPermission
    )
}

/// A device whose memory cannot be read is of no use; whatever else it does not know is left out.
fn described(device: &Device<'_>, driver: String) -> Result<Gpu, NvmlError> {
    let memory = device.memory_info()?;
    Ok(Gpu {
        name: device.name()?,
        driver,
        vram_total_bytes: Some(memory.total),
        vram_used_bytes: Some(memory.used),
        vram_free_bytes: Some(memory.free),
        busy_percent: device.utilization_rates().ok().map(|rates| rates.gpu),
        temperature_celsius: device.temperature(TemperatureSensor::Gpu).ok(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_without_a_driver_has_no_gpu_and_no_problem() {
        for absence in [NvmlError::LibraryNotFound, NvmlError::DriverNotLoaded, NvmlError::NotFound] {
            assert!(is_absence(&absence), "{absence}");
        }
        for sickness in [NvmlError::GpuLost, NvmlError::Unknown, NvmlError::CorruptedInfoROM] {
            assert!(!is_absence(&sickness), "{sickness}");
        }
    }

    /// On a machine with a GPU this reads it, on any other it finds none.
    #[test]
    fn what_is_there_is_read() {
        for gpu in read().unwrap() {
            assert!(!gpu.name.is_empty() && gpu.vram_total_bytes >= gpu.vram_used_bytes, "{gpu:?}");
        }
    }
}
