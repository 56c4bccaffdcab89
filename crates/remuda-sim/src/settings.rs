//! What kind of world to draw.

use std::time::Duration;

use crate::focus::FaultFocus;
use crate::sabotage::Sabotage;
use crate::trouble::Trouble;
use crate::weather::Weather;

/// What kind of world to draw. By default everything comes from the seed.
#[derive(Clone, Debug)]
pub struct WorldSettings {
    /// Number of jobs; 30 to 300 by default.
    pub jobs: Option<usize>,
    /// Number of workers; by default mostly 2 to 8, in some worlds up to 200.
    pub workers: Option<usize>,
    /// Without faults the weather is fair.
    pub faults: bool,
    pub weather: Option<Weather>,
    /// The only fault; it also decides the weather.
    pub focus: Option<FaultFocus>,
    /// What goes wrong at the provider where machines are rented; drawn by default.
    pub troubles: Option<Vec<Trouble>>,
    /// Length of the storm; the drawn length varies by half of it.
    pub storm: Duration,
    /// A deliberate defect that the laws must detect.
    pub sabotage: Option<Sabotage>,
}

impl Default for WorldSettings {
    fn default() -> Self {
        WorldSettings {
            jobs: None,
            workers: None,
            faults: true,
            weather: None,
            focus: None,
            troubles: None,
            storm: Duration::from_secs(60),
            sabotage: None,
        }
    }
}
