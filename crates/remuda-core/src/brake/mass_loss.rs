//! Whether a silent worker may be judged: the head of `brake` has the reasoning.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::id::{MachineId, WorkerId};
use crate::settings::Settings;
use crate::time::{Timestamp, humanize};

/// Losing one or two machines is normal in any fleet.
const LOST_MIN: usize = 3;
/// A rented machine stops itself after 15 minutes without contact: waiting longer saves nothing, and a fleet that is
/// really gone must be replaced.
const HOLD_MAX: Duration = Duration::from_secs(15 * 60);
/// Machines that may be judged within a second: what an ordinary loss needs, and no flood.
const PACE_MIN: usize = 4;
/// One machine in so many of a large loss is judged each second, so that all of it is within a few seconds.
const PACE_DIVISOR: usize = 4;
const PACE_EVERY: Duration = Duration::from_secs(1);

/// A worker whose lease ran out.
#[derive(Clone, Copy, Debug)]
pub struct Silence<'a> {
    pub worker: &'a WorkerId,
    pub machine: &'a MachineId,
    /// From when its silence counts.
    pub since: Timestamp,
    /// How late a beat of it may be.
    pub silence_max: Duration,
    pub is_rented: bool,
}

/// What may be done about a silent worker now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Judgement {
    Dead,
    /// It is dead, and its turn comes.
    Later,
    /// There is no proof that messages arrive.
    Unproven,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MassLossBrake {
    /// Since when messages of workers arrive without a gap, and the newest.
    hearing_since: Timestamp,
    heard_at: Timestamp,
    /// After we were cut off: nothing before this time is proof, because the other workers may still be reconnecting.
    returning_until: Timestamp,
    /// After a quiet time that may have been normal: no one is judged before this time, and then what was heard is enough.
    settling_until: Timestamp,
    /// The newest complete list of a provider.
    listed_at: Timestamp,
    is_listener_down: bool,
    /// Workers that are silent and not judged yet: whether their own side closed the connection.
    silent: BTreeMap<WorkerId, bool>,
    /// How many of them were.
    closed: usize,
    /// Machines whose lease ran out within the last lease.
    lost: BTreeMap<MachineId, Timestamp>,
    is_mass: bool,
    /// Workers whose verdict waits for a proof.
    held: BTreeMap<WorkerId, Held>,
    /// The machines judged since the given time.
    judged: (Timestamp, BTreeSet<MachineId>),
    declared_at: Option<Timestamp>,
    asked_at: Timestamp,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Held {
    machine: MachineId,
    since: Timestamp,
}

impl MassLossBrake {
    /// The plane starts: it hears from now on.
    pub fn listen_from(&mut self, now: Timestamp) {
        (self.hearing_since, self.heard_at) = (now, now);
    }

    /// The plane was away: that time is no gap, but what it did not hear before and after it is one. If it was cut off
    /// before, workers are on their way back, as after any cut.
    pub fn listen_again(&mut self, now: Timestamp, away: Duration, settings: &Settings) {
        (self.hearing_since, self.heard_at) = (now, self.heard_at.plus(away).min(now));
        if now.since(self.heard_at) >= settings.suspect_after {
            self.returning_until = now.plus(settings.lease);
        }
    }

    /// A beat is late. `is_closed`: the worker's side has closed its connection.
    pub fn record_silence(&mut self, worker: &WorkerId, is_closed: bool) {
        let was_closed = self.silent.insert(worker.clone(), is_closed) == Some(true);
        self.closed = self.closed + usize::from(is_closed) - usize::from(was_closed);
    }

    /// A worker beats or joins. `is_on_time`: it was expected about now. If it is not, and nothing was heard before it
    /// for a while, then we were cut off until now, and the others may be on their way.
    pub fn record_message(
        &mut self,
        now: Timestamp,
        worker: &WorkerId,
        machine: &MachineId,
        is_on_time: bool,
        settings: &Settings,
    ) {
        let is_gap = now.since(self.heard_at) >= settings.suspect_after;
        match (is_gap, is_on_time) {
            (true, false) => (self.hearing_since, self.returning_until) = (now, now.plus(settings.lease)),
            // Idle workers beat no more often than that; but a cut shorter than their interval may have ended just now, and
            // the others return when their requests time out.
            (true, true) => self.settling_until = now.plus(settings.suspect_after),
            (false, _) => {}
        }
        self.heard_at = now;
        self.lost.remove(machine);
        self.forget(worker);
    }

    /// A provider answered with a complete list.
    pub fn record_list(&mut self, now: Timestamp) {
        self.listed_at = now;
    }

    /// Whether our own listener answered us.
    pub fn record_listener(&mut self, is_answering: bool) {
        self.is_listener_down = !is_answering;
    }

    /// Nothing is to be judged about this worker any more.
    pub fn forget(&mut self, worker: &WorkerId) {
        self.closed -= usize::from(self.silent.remove(worker) == Some(true));
        self.held.remove(worker);
        self.undeclare();
    }

    /// Decides about a worker whose lease ran out; asked again every second until it is judged. `present` counts the
    /// machines that are not offline.
    pub fn judge(
        &mut self,
        now: Timestamp,
        silence: &Silence<'_>,
        present: impl FnOnce() -> usize,
        settings: &Settings,
    ) -> Judgement {
        self.note_loss(now, silence.machine, present, settings);
        if !self.has_proof(now, silence) && !self.is_held_too_long(now, silence.worker) {
            let held = Held { machine: silence.machine.clone(), since: now };
            let since = self.held.entry(silence.worker.clone()).or_insert(held).since;
            // The next beat of the others may be the proof; until it is overdue there is nothing to declare.
            if now.since(since) >= settings.suspect_after {
                self.declared_at.get_or_insert(now);
            }
            return Judgement::Unproven;
        }
        if !self.has_turn(now, silence.machine) {
            return Judgement::Later;
        }
        self.forget(silence.worker);
        Judgement::Dead
    }

    /// Whether to ask some workers for a beat now: it would be a proof.
    pub fn should_ask(&mut self, now: Timestamp, settings: &Settings) -> bool {
        let is_due = now.since(self.asked_at) >= settings.beat_busy;
        if is_due {
            self.asked_at = now;
        }
        is_due
    }

    /// Whether this worker's verdict waits for a proof.
    pub fn holds(&self, worker: &WorkerId) -> bool {
        self.held.contains_key(worker)
    }

    /// Whether a large part of the fleet's machines was lost within the last lease.
    pub fn is_mass(&self) -> bool {
        self.is_mass
    }

    fn note_loss(
        &mut self,
        now: Timestamp,
        machine: &MachineId,
        present: impl FnOnce() -> usize,
        settings: &Settings,
    ) {
        if self.lost.get(machine).is_some_and(|at| now.since(*at) < settings.lease) {
            return;
        }
        self.lost.retain(|_, at| now.since(*at) < settings.lease);
        self.lost.insert(machine.clone(), now);
        let (lost, percent) = (self.lost.len(), usize::from(settings.mass_loss_percent));
        self.is_mass = lost >= LOST_MIN && lost * 100 >= present().max(lost) * percent;
    }

    fn has_proof(&self, now: Timestamp, silence: &Silence<'_>) -> bool {
        let from = silence.since.max(self.hearing_since).plus(silence.silence_max).max(self.returning_until);
        let is_heard = self.heard_at >= from && now >= self.settling_until;
        let is_listed = silence.is_rented && self.listed_at >= from;
        is_heard || !self.is_listener_down && (is_listed || self.is_closed(silence.worker))
    }

    fn is_closed(&self, worker: &WorkerId) -> bool {
        self.silent.get(worker) == Some(&true) && self.closed * 2 >= self.silent.len()
    }

    fn is_held_too_long(&self, now: Timestamp, worker: &WorkerId) -> bool {
        self.held.get(worker).is_some_and(|held| now.since(held.since) >= HOLD_MAX)
    }

    fn has_turn(&mut self, now: Timestamp, machine: &MachineId) -> bool {
        if now.since(self.judged.0) >= PACE_EVERY {
            self.judged = (now, BTreeSet::new());
        }
        let pace = PACE_MIN.max(self.lost.len() / PACE_DIVISOR);
        self.judged.1.contains(machine) || self.judged.1.len() < pace && self.judged.1.insert(machine.clone())
    }

    fn undeclare(&mut self) {
        if self.held.is_empty() {
            self.declared_at = None;
        }
    }

    /// Whether verdicts are held back.
    pub fn is_on(&self) -> bool {
        self.declared_at.is_some()
    }

    /// Why verdicts are held back, since when, and when that ends at the latest.
    pub fn reason(&self, now: Timestamp) -> Option<String> {
        let since = self.declared_at?;
        let machines: BTreeSet<_> = self.held.values().map(|held| &held.machine).collect();
        let until = self.ends_at()?;
        Some(format!(
            "mass-loss brake, on for {}: {} silent, and there is no proof that messages arrive (last worker heard {} ago); \
             jobs stay with their workers until others are heard for a while, at the latest until {until}",
            humanize(now.since(since)),
            match machines.len() {
                1 => "1 machine is".to_owned(),
                count => format!("{count} machines are"),
            },
            humanize(now.since(self.heard_at)),
        ))
    }

    /// When the brake ends at the latest.
    pub fn ends_at(&self) -> Option<Timestamp> {
        self.declared_at?;
        self.held.values().map(|held| held.since.plus(HOLD_MAX)).max()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Timestamp {
        Timestamp::from_millis(seconds * 1000)
    }

    fn worker(n: usize) -> WorkerId {
        format!("gpu-{n}").parse().unwrap()
    }

    fn machine(n: usize) -> MachineId {
        format!("box-{n}").parse().unwrap()
    }

    /// A worker that was last heard at `since` is judged at `now`; it is the only one on its machine.
    fn judge(brake: &mut MassLossBrake, now: u64, n: usize, since: u64, is_rented: bool) -> Judgement {
        let (worker, machine) = (worker(n), machine(n));
        let silence = Silence {
            worker: &worker,
            machine: &machine,
            since: at(since),
            silence_max: Duration::from_secs(15),
            is_rented,
        };
        brake.judge(at(now), &silence, || 4, &Settings::default())
    }

    fn hear(brake: &mut MassLossBrake, now: u64, n: usize, is_on_time: bool) {
        brake.record_message(at(now), &worker(n), &machine(n), is_on_time, &Settings::default());
    }

    #[test]
    fn silent_worker_is_dead_if_another_was_heard_since() {
        let mut brake = MassLossBrake::default();
        hear(&mut brake, 14, 2, true);
        assert_eq!(
            judge(&mut brake, 30, 1, 0, false),
            Judgement::Unproven,
            "both may have fallen silent together"
        );
        hear(&mut brake, 28, 2, true);
        assert_eq!(judge(&mut brake, 31, 1, 0, false), Judgement::Dead);
        assert!(!brake.is_on());
    }

    #[test]
    fn first_voice_after_a_cut_judges_no_worker_though_the_plane_was_away_as_well() {
        let settings = Settings::default();
        let mut brake = MassLossBrake::default();
        hear(&mut brake, 10, 1, true);
        assert_eq!(judge(&mut brake, 45, 1, 10, false), Judgement::Unproven);
        // It stands still from 45 to 130 and is heard again at once.
        brake.listen_again(at(130), Duration::from_secs(85), &settings);
        for now in 131..160 {
            hear(&mut brake, now, 2, true);
            assert_eq!(judge(&mut brake, now, 1, 95, false), Judgement::Unproven, "at {now}");
        }
        hear(&mut brake, 160, 2, true);
        assert_eq!(judge(&mut brake, 161, 1, 95, false), Judgement::Dead);
    }

    #[test]
    fn absence_of_the_plane_does_not_divide_a_gap() {
        let mut brake = MassLossBrake::default();
        hear(&mut brake, 10, 1, true);
        // Nothing for 9 s, then it stands still for 6 s, then nothing for 12 s: the others are on their way, too.
        brake.listen_again(at(25), Duration::from_secs(6), &Settings::default());
        hear(&mut brake, 37, 2, false);
        for now in 38..67 {
            hear(&mut brake, now, 2, true);
            assert_eq!(judge(&mut brake, now, 1, 16, false), Judgement::Unproven, "at {now}");
        }
        hear(&mut brake, 67, 2, true);
        assert_eq!(judge(&mut brake, 68, 1, 16, false), Judgement::Dead);
    }

    #[test]
    fn first_voice_after_a_cut_judges_no_worker() {
        let mut brake = MassLossBrake::default();
        hear(&mut brake, 10, 1, true);
        for now in 40..=130 {
            assert_eq!(judge(&mut brake, now, 1, 10, false), Judgement::Unproven);
        }
        assert!(brake.is_on() && brake.reason(at(130)).is_some());
        hear(&mut brake, 131, 2, false);
        assert_eq!(judge(&mut brake, 131, 1, 10, false), Judgement::Unproven, "it is on its way");
        hear(&mut brake, 136, 2, true);
        assert_eq!(judge(&mut brake, 136, 1, 10, false), Judgement::Unproven);
        [146, 156, 160].into_iter().for_each(|now| hear(&mut brake, now, 2, true));
        assert_eq!(judge(&mut brake, 160, 1, 10, false), Judgement::Unproven, "a lease to return in");
        hear(&mut brake, 161, 2, true);
        assert_eq!(judge(&mut brake, 161, 1, 10, false), Judgement::Dead);
        assert!(!brake.is_on());
    }

    #[test]
    fn closed_connections_prove_death_unless_they_are_the_exception() {
        let mut brake = MassLossBrake::default();
        (1..=2).for_each(|n| brake.record_silence(&worker(n), true));
        brake.record_silence(&worker(3), false);
        assert_eq!(judge(&mut brake, 30, 1, 0, false), Judgement::Dead);
        assert_eq!(judge(&mut brake, 30, 3, 0, false), Judgement::Unproven);
        let mut brake = MassLossBrake::default();
        (1..=3).for_each(|n| brake.record_silence(&worker(n), n == 1));
        assert_eq!(judge(&mut brake, 30, 1, 0, false), Judgement::Unproven, "a cut between two beats");
    }

    #[test]
    fn listener_that_does_not_answer_means_that_we_are_deaf() {
        let mut brake = MassLossBrake::default();
        brake.record_silence(&worker(1), true);
        brake.record_list(at(29));
        brake.record_listener(false);
        assert_eq!(judge(&mut brake, 30, 1, 0, true), Judgement::Unproven);
        brake.record_listener(true);
        assert_eq!(judge(&mut brake, 31, 1, 0, true), Judgement::Dead);
    }

    #[test]
    fn list_of_the_provider_is_proof_for_rented_machines_only() {
        let mut brake = MassLossBrake::default();
        brake.record_list(at(10));
        assert_eq!(
            judge(&mut brake, 30, 1, 0, true),
            Judgement::Unproven,
            "it was listed before it was late"
        );
        brake.record_list(at(20));
        assert_eq!(judge(&mut brake, 31, 2, 0, false), Judgement::Unproven);
        assert_eq!(judge(&mut brake, 31, 1, 0, true), Judgement::Dead);
    }

    #[test]
    fn brake_ends_after_fifteen_minutes() {
        let mut brake = MassLossBrake::default();
        assert_eq!(judge(&mut brake, 30, 1, 0, false), Judgement::Unproven);
        assert_eq!(judge(&mut brake, 45, 1, 0, false), Judgement::Unproven);
        assert_eq!(brake.ends_at(), Some(at(930)));
        assert_eq!(judge(&mut brake, 929, 1, 0, false), Judgement::Unproven);
        assert_eq!(judge(&mut brake, 930, 1, 0, false), Judgement::Dead);
        assert_eq!((brake.is_on(), brake.reason(at(930))), (false, None));
    }

    #[test]
    fn verdicts_are_paced_by_machines() {
        let mut brake = MassLossBrake::default();
        [10, 20].into_iter().for_each(|now| hear(&mut brake, now, 99, true));
        let judged = |brake: &mut MassLossBrake, now: u64, among: std::ops::Range<usize>| {
            among.filter(|n| matches!(judge(brake, now, *n, 0, false), Judgement::Dead)).count()
        };
        assert_eq!(judged(&mut brake, 30, 0..16), PACE_MIN);
        assert_eq!(judge(&mut brake, 30, 0, 0, false), Judgement::Dead, "its machine had its turn");
        assert_eq!(judged(&mut brake, 31, 4..16), PACE_MIN);
    }

    #[test]
    fn mass_is_counted_in_machines_within_a_lease() {
        let mut brake = MassLossBrake::default();
        [10, 20].into_iter().for_each(|now| hear(&mut brake, now, 99, true));
        let mut is_mass_after = |now, n| {
            assert_eq!(judge(&mut brake, now, n, 0, false), Judgement::Dead);
            brake.is_mass()
        };
        assert_eq!([1, 1, 1, 2].map(|n| is_mass_after(30, n)), [false; 4]);
        assert!(is_mass_after(30, 3));
        assert!(!is_mass_after(60, 4), "the others are a lease ago");
    }

    #[test]
    fn returned_worker_does_not_count_as_lost() {
        let mut brake = MassLossBrake::default();
        [10, 20].into_iter().for_each(|now| hear(&mut brake, now, 99, true));
        assert_eq!([1, 2].map(|n| judge(&mut brake, 30, n, 0, false)), [Judgement::Dead; 2]);
        hear(&mut brake, 31, 1, false);
        assert_eq!((judge(&mut brake, 31, 3, 0, false), brake.is_mass()), (Judgement::Dead, false));
    }

    #[test]
    fn voice_on_time_after_a_short_cut_gives_the_others_a_moment() {
        let mut brake = MassLossBrake::default();
        hear(&mut brake, 1, 2, true);
        assert_eq!(judge(&mut brake, 30, 1, 0, false), Judgement::Unproven);
        hear(&mut brake, 31, 2, true);
        assert_eq!(
            judge(&mut brake, 31, 1, 0, false),
            Judgement::Unproven,
            "it may have been cut off as well"
        );
        assert_eq!(judge(&mut brake, 45, 1, 0, false), Judgement::Unproven, "its request times out by then");
        assert_eq!(judge(&mut brake, 46, 1, 0, false), Judgement::Dead);
    }
}
