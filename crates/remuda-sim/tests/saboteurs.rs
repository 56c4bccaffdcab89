//! Every sabotage is detected by one of its laws within a few worlds, and without it the same worlds are clean.

use remuda_sim::{LAWS, Law, Sabotage, Trouble, Weather, WorldSettings, run};

/// Worlds within which a sabotage must be detected.
const SEEDS: u64 = 100;

/// The weather in which each sabotage has an effect.
#[expect(clippy::too_many_lines, reason = "one arm for each sabotage")]
fn weather(sabotage: Sabotage) -> Weather {
    match sabotage {
        Sabotage::OneTenant => Weather::Fair,
        Sabotage::AckBeforeCommit
        | Sabotage::LoseBatch
        | Sabotage::NoTerm
        | Sabotage::NoStartGrace
        | Sabotage::WallClockLeases
        | Sabotage::KeepWrongTime
        | Sabotage::KeepWrongRecords => Weather::Plane,
        Sabotage::OrdersBeforeCommit | Sabotage::RunUncommittedEffects => Weather::Store,
        Sabotage::HistoryOnly
        | Sabotage::HistoryFirst
        | Sabotage::RecordIdAfterSubmit
        | Sabotage::RequeueOnNoAnswer
        | Sabotage::ResubmitBlindly
        | Sabotage::TrustOneUnknown
        | Sabotage::IgnoreServiceRestart
        | Sabotage::NeverReopen
        | Sabotage::TrustDoneMessages
        | Sabotage::FakeRemedies
        | Sabotage::NeverProbeSilence => Weather::Service,
        Sabotage::NoMassLossBrake
        | Sabotage::HastySuspicion
        | Sabotage::DoubtProof
        | Sabotage::PatientLease
        | Sabotage::SlowRecovery
        | Sabotage::BlameForOwnFreeze => Weather::Losses,
        Sabotage::IgnoreInventory
        | Sabotage::RequeueOnTimeout
        | Sabotage::AcceptStaleBeats
        | Sabotage::TrustRepeatedJoins => Weather::Network,
        Sabotage::ReuseAttempt => Weather::Wild,
        Sabotage::RentAgain
        | Sabotage::RentBeforeCommit
        | Sabotage::TrustFailedLists
        | Sabotage::TrustOneList
        | Sabotage::FakeReturns
        | Sabotage::ClaimForeignPods
        | Sabotage::NoMaximum
        | Sabotage::NoHourlyBudget
        | Sabotage::NoDailyBudget
        | Sabotage::NoReversalCooldown
        | Sabotage::BusyLists
        | Sabotage::NoSweep
        | Sabotage::EndlessDrains
        | Sabotage::AdmitRetiredMachines
        | Sabotage::ForgetMachines
        | Sabotage::WorkBeforeReady
        | Sabotage::IgnoreWaits
        | Sabotage::StayAtZero
        | Sabotage::NoCreationBrake
        | Sabotage::AcceptAnyMachine
        | Sabotage::AssignToDrained
        | Sabotage::StopOnRefusedKey
        | Sabotage::TrustOneRefusal
        | Sabotage::IgnoreLoweredLimits => Weather::Fleet,
        Sabotage::ChangeOutcome
        | Sabotage::DoubleTerminal
        | Sabotage::DropFence
        | Sabotage::FixedTimeLimit
        | Sabotage::NoAttemptCap
        | Sabotage::PoisonSpreads
        | Sabotage::HastyPoison
        | Sabotage::SlowRetries
        | Sabotage::UnboundedBlocks
        | Sabotage::BlockByHash
        | Sabotage::BlockByShape
        | Sabotage::QuarantineAnyFailure
        | Sabotage::FailUntried
        | Sabotage::ForgetErrors
        | Sabotage::NoHalfOpen
        | Sabotage::EndlessBlocks
        | Sabotage::GhostBeats
        | Sabotage::BusyBeats
        | Sabotage::DropEvent
        | Sabotage::SettleAndForget
        | Sabotage::IgnorePins
        | Sabotage::IgnorePreferences
        | Sabotage::ForgetAffinities
        | Sabotage::RestartCancelled => Weather::Agents,
    }
}

/// The provider troubles that each sabotage needs to have an effect.
fn troubles(sabotage: Sabotage) -> Vec<Trouble> {
    match sabotage {
        Sabotage::RentAgain => vec![Trouble::AnswerLost, Trouble::ErrorNotMade],
        Sabotage::TrustFailedLists => vec![Trouble::ListFails, Trouble::Outage],
        Sabotage::TrustOneList => vec![Trouble::ListOmits],
        Sabotage::ClaimForeignPods => vec![Trouble::ForeignPods],
        Sabotage::NoSweep => vec![Trouble::StoreRolledBack],
        Sabotage::EndlessDrains => vec![Trouble::Operators, Trouble::LimitsLowered],
        Sabotage::AssignToDrained => vec![Trouble::Operators],
        Sabotage::NoCreationBrake => vec![Trouble::NeverRuns, Trouble::NoAgent, Trouble::BadGpu],
        Sabotage::AcceptAnyMachine => vec![Trouble::WrongGpu, Trouble::PricierPod],
        Sabotage::AdmitRetiredMachines => {
            vec![Trouble::LateAgent, Trouble::ReturnIgnored, Trouble::ReturnFails]
        }
        Sabotage::ForgetMachines => vec![Trouble::PlaneDies],
        Sabotage::WorkBeforeReady => vec![Trouble::SlowModels, Trouble::BadGpu],
        Sabotage::IgnoreWaits => vec![Trouble::RateLimit],
        Sabotage::StopOnRefusedKey => vec![Trouble::KeyHiccup, Trouble::Operators],
        Sabotage::TrustOneRefusal => vec![Trouble::KeyHiccup],
        Sabotage::IgnoreLoweredLimits => vec![Trouble::LimitsLowered],
        _ => Vec::new(),
    }
}

fn settings(sabotage: Sabotage) -> WorldSettings {
    WorldSettings {
        weather: Some(weather(sabotage)),
        troubles: Some(troubles(sabotage)),
        ..WorldSettings::default()
    }
}

/// The first seed in which one of `laws` detects the sabotage; otherwise the last other violation.
fn detecting_seed(sabotage: Sabotage, laws: &[Law]) -> Result<u64, String> {
    let settings = WorldSettings { sabotage: Some(sabotage), ..settings(sabotage) };
    let mut other = String::new();
    for seed in 0..SEEDS {
        let outcome = run(seed, &settings);
        if outcome.violations.iter().any(|violation| laws.contains(&violation.law)) {
            return Ok(seed);
        }
        other = outcome.violations.first().map_or(other, ToString::to_string);
    }
    Err(other)
}

fn check(is_chosen: impl Fn(Weather) -> bool) {
    let mut undetected = Vec::new();
    for (sabotage, laws) in Sabotage::ALL.into_iter().filter(|(it, _)| is_chosen(weather(*it))) {
        match detecting_seed(sabotage, laws) {
            Ok(seed) => {
                let clean = run(seed, &settings(sabotage));
                assert!(
                    clean.violations.is_empty(),
                    "seed {seed} without {sabotage:?}: {:?}",
                    clean.violations
                );
            }
            Err(other) => undetected.push(format!("{sabotage:?} by {laws:?}; instead: {other}")),
        }
    }
    assert!(undetected.is_empty(), "not detected:\n{}", undetected.join("\n"));
}

#[test]
fn every_saboteur_is_caught() {
    check(|weather| weather != Weather::Fleet);
}

#[test]
fn every_fleet_saboteur_is_caught() {
    check(|weather| weather == Weather::Fleet);
}

#[test]
fn every_law_has_a_saboteur() {
    for law in LAWS {
        assert!(Sabotage::ALL.iter().any(|(_, laws)| laws.contains(&law)), "no saboteur for {law}");
    }
}
