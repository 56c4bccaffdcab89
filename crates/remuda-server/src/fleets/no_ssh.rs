//! Replaces `ssh` in a build without SSH: a fleet that needs it is refused at the start.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::path::Path;

use remuda_core::provider::{BootstrapError, Pod};

use remuda_config::MachineSource;

#[derive(Clone, Debug)]
pub(super) struct SshIdentity(Infallible);

impl SshIdentity {
    pub(super) fn open(_data: &Path) -> anyhow::Result<SshIdentity> {
        anyhow::bail!(
            "this build has no SSH bootstrap: build with `--features ssh`, or use an image that starts `remuda worker`"
        )
    }
}

#[derive(Debug)]
pub(super) struct SshBootstrap(Infallible);

impl SshBootstrap {
    #[expect(clippy::needless_pass_by_value, reason = "the signature of `ssh`")]
    pub(super) fn new(_source: &MachineSource, ssh_identity: SshIdentity) -> anyhow::Result<SshBootstrap> {
        match ssh_identity.0 {}
    }

    pub(super) fn public_key(&self) -> &str {
        match self.0 {}
    }

    pub(super) async fn run(
        &self,
        _pod: &Pod,
        _environment: &BTreeMap<String, String>,
    ) -> Result<(), BootstrapError> {
        match self.0 {}
    }
}
