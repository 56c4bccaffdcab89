//! How odd the services of a world are. Everything is in thousandths, and heals with the calm.

use crate::Weather;
use crate::random::Random;

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Oddities {
    /// Submissions whose answer is lost, and perhaps the submission with it.
    pub(crate) answers_lost: u64,
    /// Submissions that somebody on the way sends twice.
    pub(crate) copies: u64,
    /// Requests that take their time.
    pub(crate) slow: u64,
    /// Questions that get no answer.
    pub(crate) unanswered: u64,
    /// Answers that come when the next question has been asked.
    pub(crate) late_answers: u64,
    /// Messages that are lost.
    pub(crate) messages_lost: u64,
    /// Messages that come late, twice, or in another order.
    pub(crate) messages_odd: u64,
    /// Sockets that hear nothing after they were opened again.
    pub(crate) deaf: u64,
    /// Done, and for a moment neither running nor written down.
    pub(crate) gaps: u64,
    /// Runs that end badly, or not at all.
    pub(crate) fails: u64,
    /// Runs that need no time and say nothing.
    pub(crate) cached: u64,
    /// Runs that do not stop when they are told to.
    pub(crate) stubborn: u64,
    /// Requests to stop that are lost.
    pub(crate) stops_lost: u64,
    /// Outputs that are not there.
    pub(crate) outputs_gone: u64,
    /// Remedies that fail, or of which nothing is heard.
    pub(crate) remedies_fail: u64,
}

impl Oddities {
    pub(crate) fn draw(random: &mut Random, weather: Weather) -> Oddities {
        let much = match weather {
            // Where machines are rented, it is they who are odd.
            Weather::Fair | Weather::Fleet => return Oddities::default(),
            Weather::Network | Weather::Plane | Weather::Store => 1,
            Weather::Agents => 2,
            Weather::Service | Weather::Wild => random.between(1, 6),
        };
        let mut up_to = |permille: u64| random.between(0, permille * much);
        Oddities {
            answers_lost: up_to(15),
            copies: up_to(2),
            slow: up_to(10),
            unanswered: up_to(20),
            late_answers: up_to(2),
            messages_lost: up_to(30),
            messages_odd: up_to(20),
            deaf: up_to(100),
            gaps: up_to(50),
            fails: up_to(12),
            cached: up_to(60),
            stubborn: up_to(20),
            stops_lost: up_to(20),
            outputs_gone: up_to(5),
            remedies_fail: up_to(30),
        }
    }
}
