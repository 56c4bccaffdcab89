//! The control cycle in the core alone, over workers that are all busy and a long queue: once with workers that joined by
//! hand, once with as many rented machines.

use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context as _, bail};
use remuda_core::fleet::FleetSettings;
use remuda_core::id::{Hash, JobId, MachineId, Term};
use remuda_core::plane::{JobSubmission, JoinProof, Plane, PlaneAnswer, PlaneEvent};
use remuda_core::record::AcceptedJob;
use remuda_core::record::StoredState;
use remuda_core::rental::{Rental, RentalEvent};
use remuda_core::settings::Settings;
use remuda_core::settings::quota::TenantQuota;
use remuda_core::time::Timestamp;
use remuda_core::wire::JoinRequest;
use serde_json::json;
use serde_json::value::RawValue;

use crate::figures::Figures;
use crate::load::percentile;

const CYCLES: usize = 20;
/// All at one moment, so that no worker goes silent while this is measured.
const NOW: Timestamp = Timestamp::from_millis(1_000_000);

pub(crate) fn measure(table: &mut Figures, workers: usize, waiting: u64) -> anyhow::Result<()> {
    for (kind, is_rented) in [("workers", false), ("rented machines", true)] {
        let mut plane = if is_rented {
            rented(workers)?
        } else {
            Plane::restore(settings(), Term(1), NOW, StoredState::default())
        };
        for n in 0..waiting + workers as u64 {
            submit(&mut plane, n)?;
        }
        for n in 0..workers {
            join(&mut plane, n, is_rented)?;
        }
        let left = plane.ready_jobs();
        let name = format!("core: cycle, {workers} {kind}, {left} waiting");
        let mut times = Vec::with_capacity(CYCLES);
        for _ in 0..CYCLES {
            let began = Instant::now();
            let step = plane.step(NOW, PlaneEvent::RunCycle);
            times.push(began.elapsed());
            let Ok(PlaneAnswer::Cycled(report)) = step.answer else { bail!("no cycle ran") };
            let active = report.status.active_workers as usize;
            anyhow::ensure!(active == workers, "{active} of {workers} workers are active");
        }
        times.sort_unstable();
        table.add(&format!("{name}, p50"), percentile(&times, 50).as_secs_f64() * 1e3, "ms", String::new());
        let most = times.last().copied().unwrap_or_default();
        table.add(&format!("{name}, most"), most.as_secs_f64() * 1e3, "ms", format!("of {CYCLES}"));
    }
    Ok(())
}

/// No time passes here, so that every rate would be exceeded.
fn settings() -> Settings {
    Settings { quota: TenantQuota::unlimited(), ..Settings::default() }
}

/// A plane with as many rented machines, all of them up.
fn rented(machines: usize) -> anyhow::Result<Plane> {
    let mut fleet = FleetSettings::new("bench".parse()?, true);
    fleet.scaling.machines_max = u32::try_from(machines)?;
    let mut documents = Vec::with_capacity(machines);
    for n in 0..machines {
        let (machine, tag) = (machine(n)?, format!("remuda-00000000-bench-{n:06}"));
        let mut rental = Rental::wanted(NOW, machine, tag, "any".to_owned(), &fleet);
        rental.apply(NOW, RentalEvent::Ready, "up".to_owned());
        documents.push(rental.document().context("a rental can be stored")?);
    }
    let settings = Settings { fleets: vec![fleet], ..settings() };
    Ok(Plane::restore(settings, Term(1), NOW, StoredState { documents, ..StoredState::default() }))
}

fn machine(n: usize) -> anyhow::Result<MachineId> {
    Ok(format!("bench-{n:06}").parse()?)
}

fn join(plane: &mut Plane, n: usize, is_rented: bool) -> anyhow::Result<()> {
    let machine = machine(n)?;
    let join: JoinRequest = serde_json::from_value(
        json!({ "worker": machine, "machine": machine, "services": ["exec"], "slots": 1 }),
    )?;
    let proof = if is_rented { JoinProof::MachineToken(machine) } else { JoinProof::JoinToken };
    let event = PlaneEvent::Join { join: Box::new(join), token_hash: Hash::digest(&n.to_le_bytes()), proof };
    match plane.step(NOW, event).answer {
        Ok(PlaneAnswer::Joined(_)) => Ok(()),
        other => bail!("a worker was not let in: {other:?}"),
    }
}

fn submit(plane: &mut Plane, n: u64) -> anyhow::Result<()> {
    let job = AcceptedJob {
        accepted_at: NOW,
        id: JobId::from_u128(u128::from(n) + 1),
        tenant: if n.is_multiple_of(2) { "a" } else { "b" }.parse()?,
        token: None,
        priority: 0,
        service: "exec".parse()?,
        // Eight kinds of work, as a fleet would have.
        shape: Hash::digest(&(n % 8).to_le_bytes()),
        workflow_hash: Hash::digest(&[1]),
        needs: remuda_core::need::Requirements::default(),
        deadline: None,
        attempts_max: None,
        options: remuda_core::options::JobOptions::default(),
        key: None,
        labels: std::collections::BTreeMap::new(),
        metadata: serde_json::Map::new(),
    };
    let workflow = Arc::from(RawValue::from_string("{}".to_owned())?);
    let submission = JobSubmission { job, deadline: None, known: None, workflow, stored_bytes: 0 };
    let step = plane.step(NOW, PlaneEvent::Submit(Box::new(submission)));
    step.answer.map(drop).map_err(|refusal| anyhow::anyhow!("{refusal}"))
}
