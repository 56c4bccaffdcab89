//! The tables of what is rented: a machine, and the two brakes that hold decisions about machines back.

use super::{Done, cross};
use crate::brake::{CreationBrake, MassLoss};
use crate::fleet::FleetSettings;
use crate::id::WorkerId;
use crate::provider::{Pod, PodStatus};
use crate::rental::{Rental, RentalEvent, ReturnCause};
use crate::settings::Settings;
use crate::time::Timestamp;

fn at(seconds: u64) -> Timestamp {
    Timestamp::from_millis(seconds * 1000)
}

fn pod() -> Pod {
    Pod {
        id: "p1".parse().unwrap(),
        tag: "remuda-x-gpus-1".to_owned(),
        status: PodStatus::Running,
        kind: String::new(),
        place: String::new(),
        host: None,
        price: None,
        ssh: None,
        started: String::new(),
    }
}

fn rental(events: &[RentalEvent<'_>]) -> Rental {
    let fleet = FleetSettings::new("gpus".parse().unwrap(), true);
    let (machine, tag) = ("gpus-1".parse().unwrap(), "remuda-x-gpus-1".to_owned());
    let mut rental = Rental::wanted(at(0), machine, tag, "any".to_owned(), &fleet);
    events.iter().for_each(|event| assert!(rental.apply(at(1), *event, String::new())));
    rental
}

fn happens(rental: &mut Rental, event: RentalEvent<'_>) -> Done {
    rental.apply(at(2), event, String::new());
    Ok(())
}

const GIVE_UP: RentalEvent<'static> = RentalEvent::GiveUp(ReturnCause::NotWanted);
const DRAIN: RentalEvent<'static> = RentalEvent::Drain { until: None };

pub(super) fn machine() -> String {
    cross(
        &[
            ("wanted", || rental(&[])),
            ("lost", || rental(&[RentalEvent::ReplyLost { by_restart: false }])),
            ("made", || rental(&[RentalEvent::Seen(&pod())])),
            ("up", || rental(&[RentalEvent::Seen(&pod()), RentalEvent::Ready])),
            ("draining", || rental(&[RentalEvent::Seen(&pod()), RentalEvent::Ready, DRAIN])),
            ("returning", || rental(&[GIVE_UP])),
        ],
        &[
            ("the reply is lost", |it| happens(it, RentalEvent::ReplyLost { by_restart: false })),
            ("its pod is seen", |it| happens(it, RentalEvent::Seen(&pod()))),
            ("its worker is ready", |it| happens(it, RentalEvent::Ready)),
            ("it is drained", |it| happens(it, DRAIN)),
            ("it is given up", |it| happens(it, GIVE_UP)),
        ],
        |rental| rental.phase().as_str().to_owned(),
    )
}

/// A brake, and a clock.
struct Braked<B> {
    brake: B,
    now: u64,
}

impl Braked<CreationBrake> {
    fn after(failures: u32, seconds: u64) -> Self {
        let mut it = Braked { brake: CreationBrake::default(), now: 0 };
        (0..failures).for_each(|_| drop(it.fails()));
        it.now += seconds;
        it
    }

    fn fails(&mut self) -> Done {
        self.brake.failed(at(self.now), "no image");
        Ok(())
    }

    fn shown(&self) -> String {
        let now = at(self.now);
        match (self.brake.wake_at(now), self.brake.creations_max(now, 0)) {
            (Some(until), _) => format!("on for {} s", until.since(now).as_secs()),
            (None, u32::MAX) => "off".to_owned(),
            (None, count) => format!("{count} at a time"),
        }
    }
}

pub(super) fn creation_brake() -> String {
    cross(
        &[
            ("off", || Braked::<CreationBrake>::after(0, 0)),
            ("off, after 2 failures", || Braked::<CreationBrake>::after(2, 0)),
            ("on for 60 s", || Braked::<CreationBrake>::after(3, 0)),
            ("1 at a time", || Braked::<CreationBrake>::after(3, 60)),
        ],
        &[
            ("a creation fails", Braked::<CreationBrake>::fails),
            ("a machine comes up", |it| {
                it.brake.succeeded();
                Ok(())
            }),
            ("60 s pass", |it| {
                it.now += 60;
                Ok(())
            }),
            ("reset by an operator", |it| {
                it.brake.reset();
                Ok(())
            }),
        ],
        Braked::<CreationBrake>::shown,
    )
}

fn worker(n: usize) -> WorkerId {
    format!("gpu-{n}").parse().unwrap()
}

impl Braked<MassLoss> {
    fn after(silent: usize, beats: usize) -> Self {
        let mut it = Braked { brake: MassLoss::default(), now: 0 };
        (0..silent).for_each(|n| drop(it.falls_silent(n)));
        (0..beats).for_each(|n| drop(it.beats(n)));
        it
    }

    /// Four workers in all.
    fn falls_silent(&mut self, n: usize) -> Done {
        self.brake.record_loss(at(self.now), &worker(n), 3_usize.saturating_sub(n), &Settings::default());
        Ok(())
    }

    fn beats(&mut self, n: usize) -> Done {
        self.brake.record_beat(at(self.now), &worker(n), &Settings::default());
        Ok(())
    }

    fn passes(&mut self, seconds: u64) -> Done {
        self.now += seconds;
        self.brake.release(at(self.now));
        Ok(())
    }

    fn shown(&self) -> String {
        match self.brake.wake_at() {
            Some(until) => format!("on for {} s", until.since(at(self.now)).as_secs()),
            None => "off".to_owned(),
        }
    }
}

pub(super) fn mass_loss_brake() -> String {
    cross(
        &[
            ("off", || Braked::<MassLoss>::after(0, 0)),
            ("off, 2 of 4 silent", || Braked::<MassLoss>::after(2, 0)),
            ("on for 900 s", || Braked::<MassLoss>::after(3, 0)),
            ("on for 30 s, one beats again", || Braked::<MassLoss>::after(3, 1)),
        ],
        &[
            ("a third worker falls silent", |it| it.falls_silent(2)),
            ("a worker beats", |it| it.beats(1)),
            ("a lease passes", |it| it.passes(Settings::default().lease.as_secs())),
            ("15 min pass", |it| it.passes(900)),
        ],
        Braked::<MassLoss>::shown,
    )
}
