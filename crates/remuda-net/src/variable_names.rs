//! Which environment variables a job's process may see, by their names: an allow-list, because a list of secrets is never
//! complete.

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
    "FAKETIME",
];
/// A name with one of these in it is never passed because of its prefix.
const SECRET_PARTS: [&str; 6] = ["TOKEN", "SECRET", "PASSWORD", "PASSWD", "CREDENTIAL", "_KEY"];

/// Whether every job's process gets it.
pub(crate) fn is_passed_by_default(name: &str) -> bool {
    let has_prefix = || PASSED_PREFIXES.iter().any(|prefix| name.starts_with(prefix));
    PASSED.contains(&name) || has_prefix() && !has_secret_name(name)
}

/// Whether the name of a variable suggests a secret.
pub(crate) fn has_secret_name(name: &str) -> bool {
    SECRET_PARTS.iter().any(|part| name.contains(part))
}
