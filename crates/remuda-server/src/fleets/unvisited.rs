//! In place of `visit`, in a build without SSH: a fleet whose machines want to be visited is refused at the start.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::path::Path;

use remuda_core::provider::{BootstrapError, Pod};

use remuda_config::Source;

#[derive(Clone, Debug)]
pub(super) struct Calling(Infallible);

impl Calling {
    pub(super) fn open(_data: &Path) -> anyhow::Result<Calling> {
        anyhow::bail!(
            "this build has no SSH: use an image that starts `remuda worker`, or build with `--features ssh`"
        )
    }
}

#[derive(Debug)]
pub(super) struct Visit(Infallible);

impl Visit {
    #[expect(clippy::needless_pass_by_value, reason = "as `visit` has it")]
    pub(super) fn new(_source: &Source, calling: Calling) -> anyhow::Result<Visit> {
        match calling.0 {}
    }

    pub(super) fn public_key(&self) -> &str {
        match self.0 {}
    }

    pub(super) async fn pay(
        &self,
        _pod: &Pod,
        _environment: &BTreeMap<String, String>,
    ) -> Result<(), BootstrapError> {
        match self.0 {}
    }
}
