//! Every breakage is noticed, by a law it breaks, within a few worlds; and without it the same worlds are clean.

use remuda_sim::{LAWS, Law, Sabotage, Trouble, Weather, WorldSettings, run};

/// Worlds a saboteur may get away with.
const SEEDS: u64 = 60;

/// The weather in which each breakage has something to break.
fn weather(sabotage: Sabotage) -> Weather {
    match sabotage {
        Sabotage::OneTenant => Weather::Fair,
        Sabotage::AckBeforeCommit
        | Sabotage::LoseBatch
        | Sabotage::NoTerm
        | Sabotage::NoStartGrace
        | Sabotage::WallClockLeases => Weather::Plane,
        Sabotage::OrdersBeforeCommit | Sabotage::CarryOutUnstored => Weather::Store,
        Sabotage::HistoryOnly
        | Sabotage::HistoryFirst
        | Sabotage::NameAfterwards
        | Sabotage::RequeueOnNoAnswer
        | Sabotage::HandInBlindly
        | Sabotage::OneLook
        | Sabotage::IgnoreNewLife
        | Sabotage::NeverReopen
        | Sabotage::BelieveMessages
        | Sabotage::PretendToTreat
        | Sabotage::NeverAskTheSilent => Weather::Service,
        Sabotage::NoBrake | Sabotage::IgnoreInventory | Sabotage::RequeueOnTimeout | Sabotage::AnyBeat => {
            Weather::Network
        }
        Sabotage::ReuseAttempt => Weather::Wild,
        Sabotage::RentAgain
        | Sabotage::RentBeforeCommit
        | Sabotage::BelieveFailedLists
        | Sabotage::TrustOneList
        | Sabotage::PretendToReturn
        | Sabotage::ReturnStrangers
        | Sabotage::NoMaximum
        | Sabotage::NoHourlyBudget
        | Sabotage::NoDailyBudget
        | Sabotage::NoDamper
        | Sabotage::BusyLists
        | Sabotage::NoSweep
        | Sabotage::EndlessDrains
        | Sabotage::LetInTheLate
        | Sabotage::ForgetMachines
        | Sabotage::WorkBeforeReady
        | Sabotage::DeafToWaits
        | Sabotage::StayAtZero
        | Sabotage::NoCreationBrake
        | Sabotage::TakeAnything
        | Sabotage::FeedTheDrained => Weather::Fleet,
        Sabotage::ChangeOutcome
        | Sabotage::DoubleTerminal
        | Sabotage::DropFence
        | Sabotage::FixedTimeLimit
        | Sabotage::NoAttemptCap
        | Sabotage::PoisonSpreads
        | Sabotage::UnboundedBlocks
        | Sabotage::BlockByHash
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

/// What a provider has to get wrong so that each breakage has something to break.
fn troubles(sabotage: Sabotage) -> Vec<Trouble> {
    match sabotage {
        Sabotage::RentAgain => vec![Trouble::AnswerLost, Trouble::ErrorNotMade],
        Sabotage::BelieveFailedLists => vec![Trouble::ListFails, Trouble::Outage],
        Sabotage::TrustOneList => vec![Trouble::ListOmits],
        Sabotage::ReturnStrangers => vec![Trouble::ForeignPods],
        Sabotage::NoSweep => vec![Trouble::StoreRolledBack],
        Sabotage::EndlessDrains | Sabotage::FeedTheDrained => vec![Trouble::Operators],
        Sabotage::NoCreationBrake => vec![Trouble::NeverRuns, Trouble::NoAgent, Trouble::BadGpu],
        Sabotage::TakeAnything => vec![Trouble::WrongGpu, Trouble::PricierPod],
        Sabotage::LetInTheLate => vec![Trouble::LateAgent, Trouble::ReturnIgnored, Trouble::ReturnFails],
        Sabotage::ForgetMachines => vec![Trouble::PlaneDies],
        Sabotage::WorkBeforeReady => vec![Trouble::SlowModels, Trouble::BadGpu],
        Sabotage::DeafToWaits => vec![Trouble::RateLimit, Trouble::KeyRefused],
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

/// The first seed in which one of `laws` notices; what was noticed instead, if none does.
fn noticed(sabotage: Sabotage, laws: &[Law]) -> Result<u64, String> {
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
    let mut missed = Vec::new();
    for (sabotage, laws) in Sabotage::ALL.into_iter().filter(|(it, _)| is_chosen(weather(*it))) {
        match noticed(sabotage, laws) {
            Ok(seed) => {
                let clean = run(seed, &settings(sabotage));
                assert!(
                    clean.violations.is_empty(),
                    "seed {seed} without {sabotage:?}: {:?}",
                    clean.violations
                );
            }
            Err(other) => missed.push(format!("{sabotage:?} by {laws:?}; instead: {other}")),
        }
    }
    assert!(missed.is_empty(), "nobody noticed\n{}", missed.join("\n"));
}

#[test]
fn every_saboteur_is_caught_by_a_law_it_breaks() {
    check(|weather| weather != Weather::Fleet);
}

#[test]
fn every_saboteur_of_a_fleet_is_caught_by_a_law_it_breaks() {
    check(|weather| weather == Weather::Fleet);
}

#[test]
fn every_law_has_a_saboteur() {
    for law in LAWS {
        assert!(Sabotage::ALL.iter().any(|(_, laws)| laws.contains(&law)), "nobody breaks {law}");
    }
}
