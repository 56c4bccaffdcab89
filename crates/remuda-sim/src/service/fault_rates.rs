//! How odd the services of a world are. Everything is in thousandths, and heals with the calm.

use crate::random::Random;
use crate::weather::Weather;

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct FaultRates {
    /// Submissions whose answer is lost, and perhaps the submission with it.
    pub(crate) submit_answers_lost: u64,
    /// Submissions that somebody on the way sends twice.
    pub(crate) submits_copied: u64,
    /// Requests that take their time.
    pub(crate) requests_slow: u64,
    /// Questions that get no answer.
    pub(crate) queries_unanswered: u64,
    /// Answers that come when the next question has been asked.
    pub(crate) late_answers: u64,
    /// Messages that are lost.
    pub(crate) messages_lost: u64,
    /// Messages that come late, twice, or in another order.
    pub(crate) messages_disordered: u64,
    /// Sockets that hear nothing after they were opened again.
    pub(crate) mute_sockets: u64,
    /// Done, and for a moment neither running nor written down.
    pub(crate) gaps: u64,
    /// Runs that end badly, or not at all.
    pub(crate) runs_fail: u64,
    /// Runs that need no time and trace_line nothing.
    pub(crate) runs_cached: u64,
    /// Runs that do not stop when they are told to.
    pub(crate) runs_uninterruptible: u64,
    /// Requests to stop that are lost.
    pub(crate) stops_lost: u64,
    /// Outputs that are not there.
    pub(crate) outputs_lost: u64,
    /// Remedies that fail, or of which nothing is heard.
    pub(crate) remedies_fail: u64,
}

impl FaultRates {
    pub(crate) fn draw(random: &mut Random, weather: Weather) -> FaultRates {
        let much = match weather {
            // Where machines are rented, it is they who are odd.
            Weather::Fair | Weather::Fleet => return FaultRates::default(),
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
