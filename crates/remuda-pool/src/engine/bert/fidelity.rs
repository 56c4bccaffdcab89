//! int8 that is refused where its answers would differ too much.

use super::config::Config;
use super::net::Net;
use super::weights::Weights;
use crate::beacon::Beacon;
use crate::failure::LoadError;

pub(super) fn load(config: &Config, weights: &mut Weights, _: &Beacon) -> Result<Net, LoadError> {
    Err(LoadError::Unsupported {
        path: weights.path().to_owned(),
        what: format!("{config} in int8"),
        hint: String::new(),
    })
}
