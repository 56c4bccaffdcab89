//! Consistency of every index. Called by the simulator after every step, never by the program.

use super::Plane;
use crate::alarm::Alarm;
use crate::job::JobState;
use crate::time::Timestamp;

impl Plane {
    /// Returns the first inconsistency.
    pub fn check_indexes(&self) -> Result<(), String> {
        let now = self.stepped_at;
        if !self.outbox.alarms().is_consistent() {
            return Err("the alarms disagree with themselves".to_owned());
        }
        let (mut ready, mut running) = (0, 0);
        for job in self.jobs() {
            self.check_job(now, job)?;
            ready += usize::from(self.jobs.is_queued(job));
            running += usize::from(matches!(job.state(), JobState::Running { .. }));
        }
        if running != self.job_counts().running {
            return Err(format!("{} jobs are counted as running, {running} run", self.job_counts().running));
        }
        if ready != self.jobs.queue().len() {
            return Err(format!("{} jobs are queued, {ready} of them are known", self.jobs.queue().len()));
        }
        let counted: usize = self.tenant_usages().map(|(_, usage)| usage.open_jobs).sum();
        if counted != self.jobs.len() {
            return Err(format!("{counted} jobs count against quotas, {} are open", self.jobs.len()));
        }
        self.check_workers(now)?;
        self.check_no_idle_worker(now)
    }

    fn check_job(&self, now: Timestamp, job: &crate::job::Job) -> Result<(), String> {
        let is_queued = self.jobs.is_queued(job);
        match job.state() {
            JobState::Waiting { not_before } => {
                if is_queued != (*not_before <= now)
                    && self.outbox.alarms().get(&Alarm::Job(job.id)).is_none()
                {
                    return Err(format!("job {} waits, is not queued and has no alarm", job.id));
                }
            }
            JobState::Running { worker, .. } => {
                let hold = self.workers.get(worker).and_then(|worker| worker.assignments.get(&job.id));
                if hold.map(|hold| hold.attempt) != Some(job.attempt()) {
                    return Err(format!("job {} runs on {worker}, which does not hold it", job.id));
                }
                if is_queued {
                    return Err(format!("job {} runs and is queued", job.id));
                }
            }
            JobState::Ended(_) => return Err(format!("job {} has ended and is still in memory", job.id)),
        }
        match job.deadline {
            Some(deadline)
                if self.outbox.alarms().get(&Alarm::Job(job.id)).is_none_or(|at| at > deadline) =>
            {
                Err(format!("job {} has no alarm for its deadline", job.id))
            }
            Some(_) | None => Ok(()),
        }
    }

    fn check_workers(&self, now: Timestamp) -> Result<(), String> {
        for worker in self.workers.iter() {
            for (job, hold) in &worker.assignments {
                let held_by = self.jobs.running(*job);
                if !held_by.as_ref().is_some_and(|it| it.is_held_by(&worker.id, hold.attempt)) {
                    return Err(format!("worker {} holds job {job}, which is with {held_by:?}", worker.id));
                }
            }
            let is_free = worker.free_slots(now) > 0;
            // Probation ends by time; the alarm that notices may be due at this very moment.
            let may_lag = worker.probation.until().is_some();
            if is_free != self.workers.free().contains(&worker.id) && !may_lag {
                return Err(format!(
                    "worker {} has free slots: {is_free}, and the index disagrees",
                    worker.id
                ));
            }
            if !worker.assignments.is_empty()
                && self.outbox.alarms().get(&Alarm::Worker(worker.id.clone())).is_none()
            {
                return Err(format!("worker {} holds work and has no alarm", worker.id));
            }
        }
        Ok(())
    }

    /// No worker may be idle while a job that it could take is queued.
    fn check_no_idle_worker(&self, now: Timestamp) -> Result<(), String> {
        const LOOKED_AT: usize = 16;
        for job in self.jobs().filter(|job| self.jobs.is_queued(job)).take(LOOKED_AT) {
            let idle = self.workers.free().iter().filter_map(|id| self.workers.get(id));
            let taker = idle.filter(|worker| worker.probation.until().is_none());
            for worker in taker {
                if self.passed_over(now, job, worker).is_none() {
                    return Err(format!("job {} waits although worker {} could take it", job.id, worker.id));
                }
            }
        }
        Ok(())
    }
}
