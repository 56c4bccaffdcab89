//! When a plane follows the clock of its machine, and what it says about it.

use super::*;

const HOUR: Duration = Duration::from_secs(3600);
const YEARS: Duration = Duration::from_secs(50 * 365 * 24 * 3600);
const LATEST: Timestamp = Timestamp::from_millis(WRITTEN_AT.as_millis() + 30 * 86_400_000);

fn start(wall: Timestamp) -> ClockStart {
    ClockStart::new(wall, LATEST, false)
}

#[test]
fn plane_that_was_off_follows_the_clock() {
    for wall in [LATEST, LATEST.plus(HOUR), LATEST.plus(AHEAD_MAX)] {
        assert_eq!(start(wall), ClockStart { now: wall, wall, set_back: None });
        assert_eq!(start(wall).problem(), None);
    }
    let first = LATEST.plus(YEARS);
    assert_eq!(
        ClockStart::new(first, Timestamp::ZERO, false).now,
        first,
        "nothing is stored to compare with"
    );
}

#[test]
fn drift_does_not_turn_time_back() {
    let wall = LATEST.minus(JUMP_MIN);
    assert_eq!(start(wall), ClockStart { now: LATEST, wall, set_back: None });
}

/// Faults: K1.
#[test]
fn plane_that_ran_years_ahead_comes_back() {
    let wall = LATEST.minus(HOUR);
    let back = start(wall);
    assert_eq!((back.now, back.set_back), (wall, Some(SetBack { from: LATEST, to: wall })));
    assert!(back.problem().unwrap().contains("set back"), "{back:?}");
    let ahead = ClockStart::new(LATEST, LATEST.plus(YEARS), false);
    assert_eq!(ahead.now, LATEST);
}

/// Faults: K1, C21.
#[test]
fn clock_that_would_expire_everything_is_not_followed_unless_it_is_trusted() {
    let wall = LATEST.plus(YEARS);
    let doubted = start(wall);
    assert_eq!((doubted.now, doubted.set_back), (LATEST, None));
    let problem = doubted.problem().unwrap();
    assert!(problem.contains("18250 days ahead") && problem.contains("trust_clock=true"), "{problem}");
    assert_eq!(ClockStart::new(wall, LATEST, true), ClockStart { now: wall, wall, set_back: None });
}

#[test]
fn clock_older_than_the_program_is_not_followed() {
    let wall = Timestamp::from_millis(86_400_000);
    assert_eq!((start(wall).now, start(wall).set_back), (LATEST, None));
    assert!(start(wall).problem().unwrap().contains("behind the plane's time"));
    assert_eq!(ClockStart::new(wall, Timestamp::ZERO, false).now, WRITTEN_AT);
}

#[test]
fn jump_is_reported_when_it_appears_changes_and_ends() {
    let mut watch = ClockWatch::started(&start(LATEST));
    let mut look = |seconds: u64, ahead: i64| {
        let now = LATEST.plus(Duration::from_secs(seconds));
        match watch.compare(now, Timestamp::from_millis(now.as_millis().saturating_add_signed(ahead * 1000)))
        {
            ClockFinding::Changed(difference) => Some(difference.ahead_millis / 1000),
            ClockFinding::Nothing => None,
            ClockFinding::Restart => panic!("it is not behind"),
        }
    };
    let seen: Vec<_> = [0, 60, 3600, 3630, 3600, 7200, 0, 0]
        .into_iter()
        .enumerate()
        .map(|(at, ahead)| look(at as u64, ahead))
        .collect();
    assert_eq!(seen, [None, None, Some(3600), None, None, Some(7200), Some(0), None]);
}

#[test]
fn difference_of_the_start_is_reported_once() {
    let wall = LATEST.plus(YEARS);
    let mut watch = ClockWatch::started(&start(wall));
    assert_eq!(watch.compare(LATEST.plus(HOUR), wall.plus(HOUR)), ClockFinding::Nothing);
    assert!(watch.difference().problem().is_some());
}

/// Faults: K1.
#[test]
fn plane_starts_again_once_its_clock_stays_behind() {
    let mut watch = ClockWatch::started(&start(LATEST));
    let mut look = |seconds: u64, behind: u64| {
        let now = LATEST.plus(Duration::from_secs(seconds));
        watch.compare(now, now.minus(Duration::from_secs(behind)))
    };
    assert!(matches!(look(1, 3600), ClockFinding::Changed(_)));
    assert_eq!(look(10, 3600), ClockFinding::Nothing);
    assert!(matches!(look(11, 0), ClockFinding::Changed(_)), "it was set right in time");
    assert!(matches!(look(12, 3600), ClockFinding::Changed(_)));
    assert_eq!(
        [look(21, 3600), look(22, 3600), look(23, 3600)],
        [ClockFinding::Nothing, ClockFinding::Restart, ClockFinding::Nothing]
    );
    let long_ago = LATEST.since(Timestamp::ZERO).as_secs();
    assert!(matches!(look(24, long_ago), ClockFinding::Changed(_)));
    assert_eq!(look(60, long_ago), ClockFinding::Nothing, "1970 is not followed");
}

#[test]
fn signature_has_the_time_of_the_machine_unless_that_is_certainly_wrong() {
    let soon = LATEST.plus(HOUR);
    assert_eq!(signing_time(LATEST, soon), soon);
    assert_eq!(signing_time(soon, LATEST), LATEST);
    assert_eq!(signing_time(LATEST, LATEST.plus(YEARS)), LATEST);
    assert_eq!(signing_time(LATEST, Timestamp::ZERO), LATEST);
}
