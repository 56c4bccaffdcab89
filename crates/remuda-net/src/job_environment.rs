//! The environment of processes that run jobs: commands, ComfyUI servers, model copies. Jobs run code that a client chose,
//! so they get what a program needs to run and nothing that opens a door (`variable_names`), and what an operator adds.

use std::ffi::OsString;

use crate::hidden_environment;
use crate::variable_names::is_passed_by_default;

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
