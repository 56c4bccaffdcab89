//! Which reversals of a fleet are the operator's order.

use remuda_core::id::Sequence;
use remuda_core::settings::fleet::FleetSettings;
use serde_json::Value;
use serde_json::json;
use serde_json::value::to_raw_value;

use super::*;
use crate::random::Random;
use crate::settings::WorldSettings;

const SHRANK_AT: u64 = 10_000_000;

/// A fleet that grew long ago and has just shrunk to two machines, with this number ordered long ago.
struct Story {
    scenario: Scenario,
    laws: Laws,
}

impl Story {
    fn new(ordered: Option<u32>) -> Self {
        let settings = WorldSettings { weather: Some(crate::Weather::Fleet), ..WorldSettings::default() };
        let mut scenario = Scenario::draw(&mut Random::new(1), &settings);
        let fleet = &mut scenario.fleets[0].settings;
        fleet.day_max = None;
        (fleet.scaling.machines_min, fleet.scaling.machines_max) = (0, 8);
        fleet.scaling.reversal_cooldown = Duration::from_secs(600);
        let mut laws = Laws::new(&scenario);
        laws.operator_ordered(0, &scenario.fleets[0].settings.id);
        let mut story = Story { scenario, laws };
        let order = story.fleet(ordered);
        story.commit(1000, &[order, story.event(EventKind::ScaleUp)]);
        story.commit(
            SHRANK_AT,
            &[story.machine("m1"), story.machine("m2"), story.event(EventKind::ScaleDown)],
        );
        assert_eq!(story.laws.violations, []);
        story
    }

    fn settings(&self) -> &FleetSettings {
        &self.scenario.fleets[0].settings
    }

    fn fleet(&self, ordered: Option<u32>) -> Record {
        document(Collection::Fleet, self.settings().id.as_str(), &json!({ "machines": ordered }))
    }

    fn machine(&self, name: &str) -> Record {
        let machine: MachineId = name.parse().expect("a valid name");
        let rental =
            Rental::wanted(Timestamp::ZERO, machine, name.to_owned(), "small".to_owned(), self.settings());
        document(Collection::Machine, name, &json!(rental))
    }

    fn event(&self, kind: EventKind) -> Record {
        let mut detail = serde_json::Map::new();
        detail.insert("fleet".to_owned(), json!(self.settings().id.as_str()));
        Record::Event(Arc::new(StoredEvent {
            seq: Sequence(1),
            at: Timestamp::ZERO,
            kind,
            job: None,
            worker: None,
            tenant: None,
            metadata: serde_json::Map::new(),
            detail,
        }))
    }

    fn commit(&mut self, at: u64, records: &[Record]) {
        self.laws.rentals_committed(at, records, &Account::default(), &self.scenario);
    }

    /// The laws that the fleet breaks when it grows 36 s later.
    fn grows(mut self, with: Vec<Record>) -> Vec<Law> {
        let mut records = with;
        records.extend([self.machine("m9"), self.event(EventKind::ScaleUp)]);
        self.commit(SHRANK_AT + 36_000, &records);
        self.laws.violations.iter().map(|violation| violation.law).collect()
    }
}

fn document(collection: Collection, id: &str, body: &Value) -> Record {
    let body = to_raw_value(body).expect("it is JSON");
    Record::Document(Arc::new(Document {
        collection,
        id: id.to_owned(),
        tenant: None,
        index_key: String::new(),
        expires_at: None,
        body: body.into(),
    }))
}

#[test]
fn fleet_grows_back_to_the_number_that_is_ordered_however_long_ago() {
    assert_eq!(Story::new(Some(3)).grows(vec![]), []);
}

#[test]
fn fleet_that_grows_by_load_or_beyond_the_ordered_number_oscillates() {
    assert_eq!(Story::new(None).grows(vec![]), [Law::L5]);
    assert_eq!(Story::new(Some(2)).grows(vec![]), [Law::L5]);
}

#[test]
fn withdrawn_order_excuses_nothing() {
    let story = Story::new(Some(3));
    let withdrawn = story.fleet(None);
    assert_eq!(story.grows(vec![withdrawn]), [Law::L5]);
}
