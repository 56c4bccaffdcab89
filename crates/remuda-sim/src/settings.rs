//! TODO

use std::time::Duration;

use crate::sabotage::Sabotage;
use crate::trouble::Trouble;
use crate::weather::Weather;

/// What kind of world to draw. The defaults draw everything from the seed.
#[derive(Clone, Debug)]
pub struct WorldSettings {
    /// Submissions; from 30 to 300 unless said.
    pub jobs: Option<usize>,
    /// Workers; from 3 to 8 unless said.
    pub workers: Option<usize>,
    /// Without faults the weather is fair.
    pub faults: bool,
    pub weather: Option<Weather>,
    /// What the provider gets wrong where machines are rented; drawn unless said.
    pub troubles: Option<Vec<Trouble>>,
    /// How long the storm lasts, give or take half of it.
    pub storm: Duration,
    /// A deliberate breakage that the laws must notice.
    pub sabotage: Option<Sabotage>,
}

impl Default for WorldSettings {
    fn default() -> Self {
        WorldSettings {
            jobs: None,
            workers: None,
            faults: true,
            weather: None,
            troubles: None,
            storm: Duration::from_secs(60),
            sabotage: None,
        }
    }
}
