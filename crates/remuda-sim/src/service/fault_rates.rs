//! How often the services of a world misbehave, in permille. All rates are zero after the storm.

use crate::random::Random;
use crate::weather::Weather;

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct FaultRates {
    /// Submissions whose answer is lost; half of these submissions never arrive.
    pub(crate) submit_answers_lost: u64,
    /// Submissions that arrive twice.
    pub(crate) submits_copied: u64,
    /// Slow requests.
    pub(crate) requests_slow: u64,
    /// Queries without an answer.
    pub(crate) queries_unanswered: u64,
    /// Answers that arrive after the next query was sent.
    pub(crate) late_answers: u64,
    /// Lost messages.
    pub(crate) messages_lost: u64,
    /// Messages that come late, twice or out of order.
    pub(crate) messages_disordered: u64,
    /// Sockets that deliver nothing after they are reopened.
    pub(crate) mute_sockets: u64,
    /// Prompts that for a moment are neither running nor in the history.
    pub(crate) gaps: u64,
    /// Runs that fail or hang.
    pub(crate) runs_fail: u64,
    /// Runs that need no time and send no message.
    pub(crate) runs_cached: u64,
    /// Runs that ignore a stop request.
    pub(crate) runs_uninterruptible: u64,
    /// Lost stop requests.
    pub(crate) stops_lost: u64,
    /// Missing outputs.
    pub(crate) outputs_lost: u64,
    /// Remedies that fail or never report back.
    pub(crate) remedies_fail: u64,
}

impl FaultRates {
    pub(crate) fn draw(random: &mut Random, weather: Weather) -> FaultRates {
        let much = match weather {
            // With rented machines, the provider has the faults.
            Weather::Fair | Weather::Fleet | Weather::Losses => return FaultRates::default(),
            Weather::Network | Weather::Plane | Weather::Store => 1,
            Weather::Agents => 2,
            Weather::Service | Weather::Wild => random.between(1, 6),
        };
        let mut up_to = |permille: u64| random.between(0, permille * much);
        FaultRates {
            submit_answers_lost: up_to(15),
            submits_copied: up_to(2),
            requests_slow: up_to(10),
            queries_unanswered: up_to(20),
            late_answers: up_to(2),
            messages_lost: up_to(30),
            messages_disordered: up_to(20),
            mute_sockets: up_to(100),
            gaps: up_to(50),
            runs_fail: up_to(12),
            runs_cached: up_to(60),
            runs_uninterruptible: up_to(20),
            stops_lost: up_to(20),
            outputs_lost: up_to(5),
            remedies_fail: up_to(30),
        }
    }
}
