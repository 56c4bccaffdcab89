//! Reads this machine's NVIDIA GPUs through NVML. A call may hang in a broken driver, so call it from a thread that may
//! block.

use nvml_wrapper::enum_wrappers::device::TemperatureSensor;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::{Device, Nvml};

/// One device; values that could not be read are None.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Gpu {
    pub(crate) name: String,
    pub(crate) driver: String,
    pub(crate) vram_total_bytes: Option<u64>,
    pub(crate) vram_used_bytes: Option<u64>,
    pub(crate) vram_free_bytes: Option<u64>,
    pub(crate) busy_percent: Option<u32>,
    pub(crate) temperature_celsius: Option<u32>,
}

/// All GPUs of this machine; empty if there is none. A GPU that is present and cannot be read is an error.
pub(crate) fn read() -> Result<Vec<Gpu>, String> {
    let nvml = match Nvml::init() {
        Ok(nvml) => nvml,
        Err(error) if is_absence(&error) => return Ok(Vec::new()),
        Err(error) => return Err(format!("the GPU driver cannot be initialised: {error}")),
    };
    let count = nvml.device_count().map_err(|error| format!("the GPU driver does not answer: {error}"))?;
    let driver = nvml.sys_driver_version().unwrap_or_default();
    (0..count)
        .map(|index| {
            let device = nvml
                .device_by_index(index)
                .map_err(|error| format!("GPU {index} cannot be used: {error}"))?;
            read_device(&device, driver.clone())
                .map_err(|error| format!("GPU {index} cannot be read: {error}"))
        })
        .collect()
}

/// No library, no driver or no device: a machine without a GPU.
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

/// A device without a name or memory figures is an error; the other values are optional.
fn read_device(device: &Device<'_>, driver: String) -> Result<Gpu, NvmlError> {
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
    fn missing_driver_means_no_gpu_but_a_lost_gpu_is_an_error() {
        for absence in [NvmlError::LibraryNotFound, NvmlError::DriverNotLoaded, NvmlError::NotFound] {
            assert!(is_absence(&absence), "{absence}");
        }
        for failure in [NvmlError::GpuLost, NvmlError::Unknown, NvmlError::CorruptedInfoROM] {
            assert!(!is_absence(&failure), "{failure}");
        }
    }

    /// Without a GPU the list is empty and nothing is compared.
    #[test]
    fn every_gpu_has_a_name_and_plausible_memory() {
        for gpu in read().unwrap() {
            assert!(!gpu.name.is_empty() && gpu.vram_total_bytes >= gpu.vram_used_bytes, "{gpu:?}");
        }
    }
}
