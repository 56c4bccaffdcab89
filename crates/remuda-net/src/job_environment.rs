//! The environment of processes that run jobs: commands, ComfyUI servers, model copies. Jobs run code that a client chose,
//! so they get what a program needs to run and nothing that opens a door: an allow-list, because a list of secrets is never
//! complete.

use std::ffi::OsString;

use crate::hidden_environment;

/// Variables that every job's process gets.
const PASSED: &[&str] = &[
    "PATH",
    "HOME",
    "USER",
    "LOGNAME",
    "SHELL",
    "TERM",
    "TMPDIR",
    "TZ",
    "LANG",
    "LANGUAGE",
    "LD_LIBRARY_PATH",
    "LD_PRELOAD",
    "VIRTUAL_ENV",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "REQUESTS_CA_BUNDLE",
    "CURL_CA_BUNDLE",
    "NO_COLOR",
    "RUST_LOG",
    "RUST_BACKTRACE",
    "HF_HOME",
    "HUGGINGFACE_HUB_CACHE",
    // Marks the processes of a pod, so that they end with it.
    "REMUDA_POD",
];
/// And those that begin like this: languages, folders, GPUs, numeric libraries, model caches.
const PASSED_PREFIXES: &[&str] = &[
    "LC_",
    "XDG_",
    "PYTHON",
    "CONDA_",
    "CUDA_",
    "NVIDIA_",
    "NCCL_",
    "CUDNN_",
    "CUBLAS_",
    "ROCR_",
    "ROCM_",
    "HIP_",
    "HSA_",
    "MIOPEN_",
    "OMP_",
    "MKL_",
    "OPENBLAS_",
    "KMP_",
    "TORCH_",
    "PYTORCH_",
    "TRITON_",
    "XFORMERS_",
    "HF_HUB_",
    "TRANSFORMERS_",
    "RAYON_",
    "CANDLE_",
    "MIMALLOC_",
    "MALLOC_",
];
/// A name with one of these in it is never passed because of its prefix.
const SECRET_PARTS: [&str; 6] = ["TOKEN", "SECRET", "PASSWORD", "PASSWD", "CREDENTIAL", "_KEY"];

/// What a job's process gets of the environment of its worker.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JobEnvironment {
    /// Names that the operator added; one that ends in `*` is a prefix.
    extra: Vec<String>,
}

impl JobEnvironment {
    pub fn new(extra: &[String]) -> JobEnvironment {
        JobEnvironment { extra: extra.to_vec() }
    }

    /// The variables, for a process whose environment was cleared.
    pub fn variables(&self) -> impl Iterator<Item = (OsString, OsString)> {
        let own = hidden_environment::process_variables();
        own.filter(|(name, _)| name.to_str().is_some_and(|name| self.is_passed(name)))
    }

    fn is_passed(&self, name: &str) -> bool {
        is_passed_by_default(name)
            || self.extra.iter().any(|extra| match extra.strip_suffix('*') {
                Some(prefix) => name.starts_with(prefix),
                None => name == extra,
            })
    }
}

/// Whether every job's process gets it.
pub fn is_passed_by_default(name: &str) -> bool {
    let has_prefix = || PASSED_PREFIXES.iter().any(|prefix| name.starts_with(prefix));
    PASSED.contains(&name) || has_prefix() && !has_secret_name(name)
}

/// Whether the name of a variable suggests a secret.
pub(crate) fn has_secret_name(name: &str) -> bool {
    SECRET_PARTS.iter().any(|part| name.contains(part))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Faults: X11.
    #[test]
    fn only_listed_variables_are_passed() {
        let environment = JobEnvironment::new(&["HF_TOKEN".to_owned(), "MY_APP_*".to_owned()]);
        for name in ["PATH", "LC_ALL", "CUDA_VISIBLE_DEVICES", "HF_HUB_OFFLINE", "HF_TOKEN", "MY_APP_KEY"] {
            assert!(environment.is_passed(name), "{name}");
        }
        for name in [
            "RUNPOD_API_KEY",
            "REMUDA_TOKEN",
            "REMUDA_ADMIN_TOKEN",
            "AWS_SECRET_ACCESS_KEY",
            "CONDA_TOKEN",
            "PYTHON_KEYRING_PASSWORD",
            "HF_TOKEN_OTHER",
            "https_proxy",
            "SSH_AUTH_SOCK",
            "PATH2",
        ] {
            assert!(!environment.is_passed(name), "{name}");
        }
    }
}
