//! Reads from an out-of-memory error how much was asked for and how much the device has. PyTorch's allocators say both, each
//! in its own words:
//!
//! ```text
//!  Requested : 300.00 GiB   Device limit : 139.80 GiB                         cudaMallocAsync, which ComfyUI uses
//!  Tried to allocate 300.00 GiB. GPU 0 has a total capacity of 139.80 GiB     native
//!  Tried to allocate 300.00 GiB (GPU 0; 139.80 GiB total capacity; …)         native, before PyTorch 2.1
//!  (MPS allocated: 1.00 GB, …, max allowed: 18.13 GB). Tried to allocate …    Apple
//! ```

use remuda_core::service::memory::MemoryShortage;

/// The numbers come first; what follows is advice.
const HEAD_CHARS_MAX: usize = 2000;

const REQUESTED: &[&str] = &["requested", "tried to allocate"];
const LIMIT: &[&str] = &["device limit", "total capacity of", "max allowed"];
const LIMIT_BEFORE: &str = "total capacity";

/// `None` if the error does not say what was asked for.
pub(super) fn shortage(message: &str) -> Option<MemoryShortage> {
    let text: String = message.chars().take(HEAD_CHARS_MAX).collect::<String>().to_lowercase();
    let after = |signs: &[&str]| signs.iter().find_map(|sign| size(text.split_once(sign)?.1));
    Some(MemoryShortage {
        requested_bytes: after(REQUESTED)?,
        limit_bytes: after(LIMIT).or_else(|| size_before(text.split_once(LIMIT_BEFORE)?.0)),
    })
}

/// A size at the start of the text, after a colon and spaces.
fn size(text: &str) -> Option<u64> {
    let mut words =
        text.trim_start_matches([' ', ':', '\t', '\n']).split([' ', '.', ',', ';', ')', '(', '\n']);
    let whole = words.next()?;
    let (fraction, unit) = match words.next()? {
        unit if unit_bytes(unit).is_some() => ("0", unit),
        fraction => (fraction, words.next()?),
    };
    let number: f64 = format!("{whole}.{fraction}").parse().ok()?;
    let bytes = number * unit_bytes(unit)?;
    (bytes.is_finite() && bytes >= 0.0).then_some(bytes as u64)
}

/// A size at the end of the text: the last two words.
fn size_before(text: &str) -> Option<u64> {
    let mut words = text.trim_end().rsplitn(3, [' ', '(', ';']);
    let (unit, number) = (words.next()?, words.next()?);
    size(&format!("{number} {unit}"))
}

fn unit_bytes(unit: &str) -> Option<f64> {
    let power = match unit {
        "bytes" | "b" => 0,
        "kib" | "kb" => 1,
        "mib" | "mb" => 2,
        "gib" | "gb" => 3,
        "tib" | "tb" => 4,
        _ => return None,
    };
    Some(1024_f64.powi(power))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn every_allocator_is_understood() {
        for (message, requested, limit) in [
            (
                "Allocation on device 0 would exceed allowed memory. (out of memory)\nCurrently allocated     : 33.00 MiB\n\
                 Requested               : 300.00 GiB\nDevice limit            : 139.80 GiB\nFree (according to CUDA): 138.18 GiB\n\
                 PyTorch limit (set by user-supplied memory fraction)\n                        : 17179869184.00 GiB",
                300 * 1024,
                Some(143_155),
            ),
            (
                "CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 23.50 GiB of which 3.00 MiB is free.",
                20,
                Some(24_064),
            ),
            (
                "CUDA out of memory. Tried to allocate 2.50 GiB (GPU 0; 8.00 GiB total capacity; 6.00 GiB already allocated)",
                2560,
                Some(8192),
            ),
            (
                "MPS backend out of memory (MPS allocated: 1.00 GB, other allocations: 3 MB, max allowed: 18.00 GB). Tried to \
                 allocate 300.00 GB on private pool.",
                300 * 1024,
                Some(18 * 1024),
            ),
            (
                "DefaultCPUAllocator: can't allocate memory: you tried to allocate 1073741824 bytes.",
                1024,
                None,
            ),
        ] {
            let found = shortage(message).unwrap();
            assert_eq!(found.requested_bytes / MIB, requested, "{message}");
            assert_eq!(found.limit_bytes.map(|bytes| bytes / MIB), limit, "{message}");
        }
    }

    #[test]
    fn text_without_numbers_says_nothing() {
        for message in [
            "",
            "Allocation on device\nThis error means you ran out of memory on your GPU.",
            "Tried to allocate",
            "Tried to allocate lots of memory",
            "Requested : -1.00 GiB",
            "Requested : 1.00 parsec",
        ] {
            assert_eq!(shortage(message), None, "{message}");
        }
    }
}
