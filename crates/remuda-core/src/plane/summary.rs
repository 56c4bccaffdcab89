//! The plane in one sentence, for people: the dashboard, `remuda status` and alerts show the same one. It says whether a
//! person is needed, and names what is wrong in the order of how much it matters. Read-only.
//!
//! ```text
//!  All well: 42 jobs running on 12 workers, the oldest wait is 4 s.
//!  Attention: 3 of 12 workers are silent (gpu-1, gpu-4, gpu-7), the longest for 40 s; 5 jobs wait for another try.
//! ```

use std::time::Duration;

use serde::Serialize;

use super::Plane;
use crate::fleet::FleetSettings;
use crate::job::{Job, JobState};
use crate::time::{Timestamp, humanize};
use crate::worker::{Availability, Worker};

/// How much something concerns a person, from least to most. A page has one colour for each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Concern {
    /// It is as it should be, and idle.
    Well,
    /// It is as it should be, and busy.
    Working,
    /// Something is wrong, and the plane deals with it.
    Handled,
    /// Something is wrong that only a person can change.
    Person,
}

/// The plane in one sentence.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PlaneSummary {
    pub concern: Concern,
    pub text: String,
}

/// What only the shell around the plane knows.
#[derive(Clone, Debug, Default)]
pub struct ShellHealth {
    pub is_disk_full: bool,
    /// Background tasks that were given up.
    pub tasks_down: Vec<&'static str>,
}

/// Problems named in the sentence; the rest is counted. More would not be read.
const PROBLEMS_MAX: usize = 3;
/// Workers named in one problem.
const NAMES_MAX: usize = 3;
/// Open jobs looked at, the oldest first: a longer queue would make every look at the plane slow.
const JOBS_MAX: usize = 10_000;
/// Two rounds of priority ageing (5 min each): a job that still waits then needs an explanation.
const LONG_WAIT: Duration = Duration::from_secs(10 * 60);

/// A problem, and how much it concerns a person.
struct Problem {
    concern: Concern,
    text: String,
}

impl Plane {
    pub fn summary(&self, now: Timestamp, shell: &ShellHealth) -> PlaneSummary {
        let load = Load::measure(self, now);
        let mut problems = shell_problems(shell);
        problems.extend(self.worker_problems(now, &load));
        problems.extend(self.fleet_problems(now, &load));
        problems.extend(self.queue_problems(now, &load));
        let Some(concern) = problems.iter().map(|problem| problem.concern).max() else {
            let concern = if load.running > 0 { Concern::Working } else { Concern::Well };
            return PlaneSummary { concern, text: load.all_well(now) };
        };
        // The sort is stable: problems of one weight stay in the order above.
        problems.sort_by_key(|problem| std::cmp::Reverse(problem.concern));
        let more = problems.len().saturating_sub(PROBLEMS_MAX);
        let mut texts: Vec<_> = problems.into_iter().take(PROBLEMS_MAX).map(|problem| problem.text).collect();
        if more > 0 {
            texts.push(format!("{more} more"));
        }
        PlaneSummary { concern, text: format!("Attention: {}.", texts.join(". ")) }
    }

    /// How much this worker concerns a person.
    pub fn worker_concern(&self, now: Timestamp, worker: &Worker) -> Concern {
        // The control cycle replaces a rented machine; another one has to be started by a person.
        let if_lost = if self.rental(&worker.machine).is_some() { Concern::Handled } else { Concern::Person };
        match worker.availability(now) {
            Availability::Offline | Availability::Failed => if_lost,
            Availability::Suspect
            | Availability::Unheard
            | Availability::Disconnected
            | Availability::Probation { .. }
            | Availability::Sick { .. } => Concern::Handled,
            Availability::Ready
            | Availability::Starting
            | Availability::Draining
            | Availability::Terminated => match worker.assignments.is_empty() {
                true => Concern::Well,
                false => Concern::Working,
            },
        }
    }

    fn worker_problems(&self, now: Timestamp, load: &Load<'_>) -> Vec<Problem> {
        let mut problems = Vec::new();
        let is_silent = |worker: &&Worker| {
            matches!(worker.availability(now), Availability::Suspect | Availability::Offline)
        };
        let silent: Vec<_> = self.workers.iter().filter(is_silent).collect();
        if let Some(longest) = silent.iter().map(|worker| now.since(worker.watch.seen_at())).max() {
            let of = format!("{} of {}", silent.len(), counted(load.workers, "worker"));
            let are = if silent.len() == 1 { "is" } else { "are" };
            let mut text =
                format!("{of} {are} silent ({}), the longest for {}", names(&silent), humanize(longest));
            if load.retrying > 0 {
                text += &format!("; {} for another try", wait(load.retrying));
            }
            problems.push(Problem { concern: self.worst(now, &silent), text });
        }
        let failed: Vec<_> =
            self.workers.iter().filter(|worker| worker.availability(now) == Availability::Failed).collect();
        if let Some(first) = failed.first() {
            let text = format!("{} given up ({}): {}", were(failed.len()), names(&failed), first.reason);
            problems.push(Problem { concern: self.worst(now, &failed), text });
        }
        let mut sick = self.workers.iter().filter_map(|worker| match worker.availability(now) {
            Availability::Sick { reason } => Some(format!("{} takes no work: {reason}", worker.id)),
            _ => None,
        });
        if let Some(first) = sick.next() {
            let others = match sick.count() {
                0 => String::new(),
                others => format!(" (and {} like it)", counted(others, "worker")),
            };
            problems.push(Problem { concern: Concern::Handled, text: first + &others });
        }
        problems
    }

    fn worst(&self, now: Timestamp, workers: &[&Worker]) -> Concern {
        workers.iter().map(|worker| self.worker_concern(now, worker)).max().unwrap_or(Concern::Well)
    }

    fn fleet_problems(&self, now: Timestamp, load: &Load<'_>) -> Vec<Problem> {
        let brake = self.mass_loss().reason(now);
        let brake = brake.map(|text| Problem { concern: Concern::Handled, text });
        let problem = |settings: &FleetSettings| {
            let is_key_refused = self.fleet(&settings.id).key_problem().is_some();
            // A fleet that is paused or spent while nothing waits is no problem.
            let text =
                self.fleet_problem(now, &settings.id).filter(|_| is_key_refused || load.waiting > 0)?;
            let concern = if is_key_refused { Concern::Person } else { Concern::Handled };
            Some(Problem { concern, text: format!("Fleet {} rents nothing: {text}", settings.id) })
        };
        brake.into_iter().chain(self.settings.fleets.iter().filter_map(problem)).collect()
    }

    fn queue_problems(&self, now: Timestamp, load: &Load<'_>) -> Vec<Problem> {
        let mut problems = Vec::new();
        let quarantined = self.quarantine().iter().filter(|(_, entry)| entry.is_quarantined()).count();
        if quarantined > 0 {
            let text = format!(
                "{} failed on several workers and run one job at a time",
                counted(quarantined, "workflow")
            );
            problems.push(Problem { concern: Concern::Handled, text });
        }
        let Some(oldest) = load.oldest else { return problems };
        let waits = oldest.age(now);
        if load.workers == 0 {
            let text = format!("{}, and no worker has joined", wait(load.waiting));
            problems.push(Problem { concern: Concern::Person, text });
        } else if load.can_work == 0 && self.pending_machines(now, oldest).is_none() {
            let text = format!("{}, and no worker can take one", wait(load.waiting));
            problems.push(Problem { concern: Concern::Person, text });
        } else if waits >= LONG_WAIT {
            let text = format!("The oldest job waits for {}: {}", humanize(waits), self.reason(now, oldest));
            problems.push(Problem { concern: Concern::Handled, text });
        }
        problems
    }
}

fn shell_problems(shell: &ShellHealth) -> Vec<Problem> {
    let person = |text: String| Problem { concern: Concern::Person, text };
    let disk = shell
        .is_disk_full
        .then(|| person("The disk is full, and submissions are refused until there is space".to_owned()));
    let tasks = (!shell.tasks_down.is_empty()).then(|| {
        let tasks = shell.tasks_down.join(", ");
        person(format!("A background task is down ({tasks}): restart the plane, its log says why"))
    });
    disk.into_iter().chain(tasks).collect()
}

/// What there is to do, and who does it.
struct Load<'a> {
    running: usize,
    waiting: usize,
    /// Waiting jobs that had an attempt already.
    retrying: usize,
    oldest: Option<&'a Job>,
    /// Workers that have not left.
    workers: usize,
    busy: usize,
    /// Workers that take work now or are at work.
    can_work: usize,
}

impl<'a> Load<'a> {
    fn measure(plane: &'a Plane, now: Timestamp) -> Load<'a> {
        let mut load =
            Load { running: 0, waiting: 0, retrying: 0, oldest: None, workers: 0, busy: 0, can_work: 0 };
        for worker in plane.workers() {
            let availability = worker.availability(now);
            let (is_busy, is_ready) = (!worker.assignments.is_empty(), availability.is_ready());
            load.running += worker.assignments.len();
            load.workers += usize::from(availability != Availability::Terminated);
            load.busy += usize::from(is_busy);
            load.can_work += usize::from(is_busy || is_ready);
        }
        load.waiting = plane.open_jobs().saturating_sub(load.running);
        let is_waiting = |job: &&Job| matches!(job.state(), JobState::Waiting { .. });
        let mut waiting = plane.jobs().take(JOBS_MAX).filter(is_waiting).peekable();
        load.oldest = waiting.peek().copied();
        load.retrying = waiting.filter(|job| job.attempt().0 > 0).count();
        load
    }

    fn all_well(&self, now: Timestamp) -> String {
        let waits = self.oldest.map(|job| humanize(job.age(now)));
        let ready = || match self.workers {
            0 => "no worker has joined yet".to_owned(),
            1 => "1 worker is there".to_owned(),
            workers => format!("{workers} workers are there"),
        };
        match (self.running, waits) {
            (0, None) => format!("All well: nothing to do, {}.", ready()),
            (0, Some(waits)) => format!("All well: {}, the oldest for {waits}.", wait(self.waiting)),
            (running, waits) => {
                let waits =
                    waits.map_or("none waits".to_owned(), |waits| format!("the oldest wait is {waits}"));
                let (jobs, busy) = (counted(running, "job"), counted(self.busy, "worker"));
                format!("All well: {jobs} running on {busy}, {waits}.")
            }
        }
    }
}

fn counted(count: usize, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

fn wait(jobs: usize) -> String {
    format!("{} wait{}", counted(jobs, "job"), if jobs == 1 { "s" } else { "" })
}

fn were(workers: usize) -> String {
    format!("{} {}", counted(workers, "worker"), if workers == 1 { "was" } else { "were" })
}

/// The first names, and that there are more.
fn names(workers: &[&Worker]) -> String {
    let shown: Vec<_> = workers.iter().take(NAMES_MAX).map(|worker| worker.id.as_str()).collect();
    let more = if workers.len() > NAMES_MAX { ", …" } else { "" };
    format!("{}{more}", shown.join(", "))
}
