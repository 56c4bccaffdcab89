//! What is drawn for a pod at its creation: how long things take, and what goes wrong.

use std::collections::BTreeSet;
use std::time::Duration;

use super::clock::Clock;
use super::faults::{Luck, RunpodFault};
use crate::dice::Dice;

/// How long a container takes to start once the image is on the host.
const WARM: Duration = Duration::from_secs(5);
/// At any speed, a container lives a little before it crashes.
const CRASH_MIN: Duration = Duration::from_millis(200);

#[derive(Clone, Copy, Debug)]
pub(super) enum Pull {
    Takes(Duration),
    Fails(Duration),
    Never,
}

/// All times are already divided by the speed.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    /// Hidden from lists and reads for this long.
    pub(super) list_after: Duration,
    pub(super) get_after: Duration,
    /// How long it is PROVISIONING, and then STARTING; otherwise it is RUNNING at once.
    pub(super) provisioning: Option<Duration>,
    pub(super) pull: Pull,
    /// From the second start on.
    pub(super) warm: Duration,
    /// When `ssh.direct` appears after the container, if ever.
    pub(super) ssh_after: Option<Duration>,
    /// How long a wrong port is shown.
    pub(super) stale_for: Duration,
    pub(super) crash_every: Option<Duration>,
    pub(super) exits_after: Option<Duration>,
    pub(super) vanishes_after: Option<Duration>,
    pub(super) is_cost_hidden: bool,
    pub(super) is_cost_kept: bool,
}

impl Plan {
    /// Without faults.
    pub(super) fn plain(clock: &Clock, pull: Duration) -> Plan {
        Plan {
            list_after: Duration::ZERO,
            get_after: Duration::ZERO,
            provisioning: None,
            pull: Pull::Takes(clock.scaled(pull)),
            warm: clock.scaled(WARM),
            ssh_after: Some(Duration::ZERO),
            stale_for: Duration::ZERO,
            crash_every: None,
            exits_after: None,
            vanishes_after: None,
            is_cost_hidden: false,
            is_cost_kept: false,
        }
    }

    /// With the drawn faults.
    pub(super) fn draw(
        clock: &Clock,
        pull: Duration,
        drawn: &BTreeSet<RunpodFault>,
        luck: &mut Luck,
        dice: &mut Dice,
    ) -> Plan {
        let mut plan = Plan::plain(clock, pull);
        let mut time = |from, to| clock.scaled(dice.seconds(from, to));
        if luck.strikes(drawn, RunpodFault::LateList) {
            plan.list_after = time(1, 20);
        }
        if luck.strikes(drawn, RunpodFault::LateGet) {
            plan.get_after = time(1, 20);
        }
        if luck.strikes(drawn, RunpodFault::Stepwise) {
            plan.provisioning = Some(time(3, 10));
        }
        if luck.strikes(drawn, RunpodFault::ColdPull) {
            plan.pull = Pull::Takes(time(120, 780));
        }
        if luck.strikes(drawn, RunpodFault::PullError) {
            plan.pull = Pull::Fails(time(5, 60));
        }
        if luck.strikes(drawn, RunpodFault::NeverReady) {
            plan.pull = Pull::Never;
            plan.provisioning = None;
        }
        if luck.strikes(drawn, RunpodFault::NeverStarts) {
            plan.pull = Pull::Never;
            plan.provisioning = Some(time(3, 10));
        }
        if luck.strikes(drawn, RunpodFault::LateSsh) {
            plan.ssh_after = Some(time(5, 90));
        }
        if luck.strikes(drawn, RunpodFault::StalePort) {
            plan.stale_for = time(5, 90);
        }
        if luck.strikes(drawn, RunpodFault::NoSsh) {
            plan.ssh_after = None;
        }
        if luck.strikes(drawn, RunpodFault::CrashLoop) {
            plan.crash_every = Some(time(5, 20).max(CRASH_MIN));
        }
        if luck.strikes(drawn, RunpodFault::Preempted) {
            plan.exits_after = Some(time(30, 600));
        }
        if luck.strikes(drawn, RunpodFault::Vanish) {
            plan.vanishes_after = Some(time(30, 600));
        }
        plan.is_cost_hidden = luck.strikes(drawn, RunpodFault::CostZero);
        plan.is_cost_kept = luck.strikes(drawn, RunpodFault::CostExited);
        plan
    }
}
