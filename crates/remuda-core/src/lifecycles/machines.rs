//! The tables of what is rented: a machine, and the two brakes that hold decisions about machines back.

use super::{Done, cross};
use crate::brake::{CreationBrake, Judgement, MassLossBrake, Silence};
use crate::fleet::FleetSettings;
use crate::id::{MachineId, WorkerId};
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

/// A worker that was last heard at second 0; the plane has heard others since then, or has not.
struct Silent {
    brake: MassLossBrake,
    worker: WorkerId,
    machine: MachineId,
    now: u64,
    judged: Option<Judgement>,
}

impl Silent {
    fn after(seconds: u64) -> Silent {
        let brake = MassLossBrake::default();
        let mut it = Silent {
            brake,
            worker: "a".parse().unwrap(),
            machine: "box".parse().unwrap(),
            now: 0,
            judged: None,
        };
        drop(it.passes(seconds));
        it
    }

    fn passes(&mut self, seconds: u64) -> Done {
        for _ in 0..seconds {
            self.now += 1;
            if self.now >= Settings::default().lease.as_secs() && !self.is_judged() {
                self.judge();
            }
        }
        Ok(())
    }

    fn is_judged(&self) -> bool {
        self.judged == Some(Judgement::Dead)
    }

    fn judge(&mut self) {
        let settings = Settings::default();
        let silence = Silence {
            worker: &self.worker,
            machine: &self.machine,
            since: at(0),
            silence_max: settings.suspect_after,
            is_rented: true,
        };
        self.judged = Some(self.brake.judge(at(self.now), &silence, || 4, &settings));
    }

    fn hears(&mut self, name: &str, is_on_time: bool) -> Done {
        let (worker, machine) = (name.parse().unwrap(), name.parse().unwrap());
        self.brake.record_message(at(self.now), &worker, &machine, is_on_time, &Settings::default());
        self.passes(8)
    }

    fn shown(&self) -> String {
        match (self.judged, self.brake.is_on()) {
            (Some(Judgement::Dead), _) => "dead".to_owned(),
            (_, true) => "on".to_owned(),
            (_, false) => "off".to_owned(),
        }
    }
}

pub(super) fn mass_loss_brake() -> String {
    cross(
        &[
            ("off, the lease runs", || Silent::after(20)),
            ("off, the lease ran out", || Silent::after(30)),
            ("on", || Silent::after(60)),
        ],
        &[
            ("a worker beats on time", |it| it.hears("b", true)),
            ("a worker returns from silence", |it| it.hears("b", false)),
            ("a worker returns and beats on for 30 s", |it| {
                it.hears("b", false)?;
                it.passes(30)?;
                it.hears("b", true)
            }),
            ("its connection turns out to be closed", |it| {
                it.brake.record_silence(&it.worker.clone(), true);
                it.passes(1)
            }),
            ("its provider answers a list", |it| {
                it.brake.record_list(at(it.now));
                it.passes(1)
            }),
            ("a lease passes", |it| it.passes(Settings::default().lease.as_secs())),
            ("15 min pass", |it| it.passes(900)),
        ],
        Silent::shown,
    )
}
