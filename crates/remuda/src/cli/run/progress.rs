//! Shows the progress of jobs: a bar per job on a terminal, otherwise a line per change. It goes to standard error;
//! standard output is for results.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};

use remuda_net::terminal::escape_control;

/// With more jobs, only running ones get a bar: more would not fit on a screen.
const BARS_MAX: usize = 16;
/// Without a terminal: minimum interval between two lines about progress or about waiting.
const LINE_INTERVAL: Duration = Duration::from_secs(5);
const SPINNER_INTERVAL: Duration = Duration::from_millis(120);

/// A change of one job.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum JobUpdate<'a> {
    Submitted,
    Waiting { reason: &'a str },
    Running { worker: &'a str },
    Progress { fraction: f64, phase: &'a str },
    Retrying { reason: &'a str },
    Ended { is_completed: bool, reason: &'a str },
}

pub(super) enum ProgressView {
    Bars(Box<Bars>),
    Lines(Lines),
    Silent,
}

impl ProgressView {
    /// `is_json`: the output is read by a script, so nothing is shown without a terminal.
    pub(super) fn new(jobs: &[String], is_json: bool) -> ProgressView {
        if std::io::stderr().is_terminal() {
            ProgressView::Bars(Box::new(Bars::new(jobs)))
        } else if is_json {
            ProgressView::Silent
        } else {
            ProgressView::Lines(Lines { jobs: jobs.to_vec(), last: vec![LastLine::default(); jobs.len()] })
        }
    }

    pub(super) fn show(&mut self, job: usize, sight: &JobUpdate<'_>) {
        match self {
            ProgressView::Bars(bars) => bars.show(job, sight),
            ProgressView::Lines(lines) => {
                if let Some(line) = lines.line(job, sight, Instant::now()) {
                    eprintln!("{line}");
                }
            }
            ProgressView::Silent => {}
        }
    }

    /// Prints a message that is not about a single job.
    pub(super) fn print_message(&self, text: &str) {
        match self {
            ProgressView::Bars(bars) => bars.all.suspend(|| eprintln!("remuda: {text}")),
            ProgressView::Lines(_) | ProgressView::Silent => eprintln!("remuda: {text}"),
        }
    }

    pub(super) fn show_counts(&self, waiting: usize, running: usize, ended: usize) {
        if let ProgressView::Bars(bars) = self
            && let Some(tally) = &bars.tally
        {
            tally.set_message(format!("{waiting} waiting, {running} running, {ended} ended"));
        }
    }

    /// Leaves the bars of ended jobs on the screen and removes the others.
    pub(super) fn close(self) {
        if let ProgressView::Bars(bars) = self {
            bars.tally.iter().for_each(ProgressBar::finish_and_clear);
            bars.bars
                .iter()
                .flatten()
                .filter(|bar| !bar.is_finished())
                .for_each(ProgressBar::finish_and_clear);
        }
    }
}

pub(super) struct Bars {
    all: MultiProgress,
    bars: Vec<Option<ProgressBar>>,
    tally: Option<ProgressBar>,
    waiting: ProgressStyle,
    running: ProgressStyle,
    ended: ProgressStyle,
}

impl Bars {
    fn new(jobs: &[String]) -> Bars {
        let all = MultiProgress::new();
        let style = |template: &str| ProgressStyle::with_template(template).expect("it is a template");
        let tally = (jobs.len() > 1).then(|| {
            let tally = all.add(ProgressBar::new_spinner().with_style(style("{wide_msg}")));
            tally.set_message(format!("{} waiting", jobs.len()));
            tally
        });
        Bars {
            all,
            bars: vec![None; jobs.len()],
            tally,
            waiting: style("{prefix}{spinner} {wide_msg}"),
            running: style("{prefix}{bar:24} {percent:>3} % {wide_msg}").progress_chars("━╸─"),
            ended: style("{prefix}{wide_msg}"),
        }
    }

    fn show(&mut self, job: usize, sight: &JobUpdate<'_>) {
        if let JobUpdate::Retrying { reason } = sight {
            // Printed above the bars, because the bar will show the next attempt.
            let line = format!("{}retrying: {}", self.prefix(job), escape_control(reason));
            self.all.suspend(|| eprintln!("{line}"));
        }
        let are_few = self.bars.len() <= BARS_MAX;
        let is_running = matches!(sight, JobUpdate::Running { .. } | JobUpdate::Progress { .. });
        let has_bar = are_few || is_running && self.bars.iter().flatten().count() < BARS_MAX;
        if self.bars[job].is_none() && !has_bar {
            return;
        }
        let bar = self.bar(job);
        match sight {
            JobUpdate::Submitted => {
                bar.set_style(self.waiting.clone());
                bar.set_message("submitted");
            }
            JobUpdate::Waiting { reason } | JobUpdate::Retrying { reason } => {
                bar.set_style(self.waiting.clone());
                let what = if matches!(sight, JobUpdate::Retrying { .. }) { "retrying" } else { "waiting" };
                bar.set_message(format!("{what}: {}", escape_control(reason)));
            }
            JobUpdate::Running { worker } => {
                bar.set_style(self.running.clone());
                bar.set_position(0);
                bar.set_message(format!("running on {}", escape_control(worker)));
            }
            JobUpdate::Progress { fraction, phase } => {
                bar.set_style(self.running.clone());
                bar.set_position(percent(*fraction));
                bar.set_message(escape_control(phase));
            }
            JobUpdate::Ended { .. } if !are_few => {
                bar.finish_and_clear();
                self.all.remove(&bar);
                self.bars[job] = None;
            }
            JobUpdate::Ended { is_completed, reason } => {
                bar.set_style(self.ended.clone());
                let mark = if *is_completed { "✓" } else { "✗" };
                bar.finish_with_message(format!("{mark} {}", escape_control(reason)));
            }
        }
    }

    /// `[2/4] ` if there are several jobs.
    fn prefix(&self, job: usize) -> String {
        let jobs = self.bars.len();
        if jobs > 1 { format!("[{}/{jobs}] ", job + 1) } else { String::new() }
    }

    fn bar(&mut self, job: usize) -> ProgressBar {
        if let Some(bar) = &self.bars[job] {
            return bar.clone();
        }
        let bar = ProgressBar::new(100).with_style(self.waiting.clone());
        let bar = match &self.tally {
            Some(tally) => self.all.insert_before(tally, bar),
            None => self.all.add(bar),
        };
        bar.set_prefix(self.prefix(job));
        bar.enable_steady_tick(SPINNER_INTERVAL);
        self.bars[job] = Some(bar.clone());
        bar
    }
}

#[derive(Debug)]
pub(super) struct Lines {
    jobs: Vec<String>,
    last: Vec<LastLine>,
}

/// The last line about a job.
#[derive(Clone, Debug, Default)]
struct LastLine {
    text: String,
    at: Option<Instant>,
}

impl Lines {
    /// A line for every change; progress and reasons for waiting only once per interval.
    fn line(&mut self, job: usize, sight: &JobUpdate<'_>, now: Instant) -> Option<String> {
        let (text, is_urgent) = match sight {
            JobUpdate::Submitted => ("submitted".to_owned(), true),
            JobUpdate::Waiting { reason } => (format!("waiting: {reason}"), false),
            JobUpdate::Running { worker } => (format!("running on {worker}"), true),
            JobUpdate::Progress { fraction, phase } => (format!("{} % {phase}", percent(*fraction)), false),
            JobUpdate::Retrying { reason } => (format!("retrying: {reason}"), true),
            JobUpdate::Ended { reason, .. } => ((*reason).to_owned(), true),
        };
        let last = &mut self.last[job];
        let is_due = last.at.is_none_or(|at| now.duration_since(at) >= LINE_INTERVAL);
        if last.text == text || !(is_urgent || is_due) {
            return None;
        }
        // After an urgent line the next line about progress is due at once.
        *last = LastLine { at: (!is_urgent).then_some(now), text };
        Some(format!("job {}: {}", self.jobs[job], escape_control(last.text.trim_end())))
    }
}

fn percent(fraction: f64) -> u64 {
    (fraction.clamp(0.0, 1.0) * 100.0) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_change_is_a_line_and_progress_is_rate_limited() {
        let mut lines = Lines { jobs: vec!["j1".to_owned()], last: vec![LastLine::default()] };
        let start = Instant::now();
        let progress = |fraction, phase| JobUpdate::Progress { fraction, phase };
        let story = [
            (0, JobUpdate::Submitted, Some("job j1: submitted")),
            (0, JobUpdate::Waiting { reason: "all are busy" }, Some("job j1: waiting: all are busy")),
            (1, JobUpdate::Waiting { reason: "all are still busy" }, None),
            (
                6,
                JobUpdate::Waiting { reason: "all are still busy" },
                Some("job j1: waiting: all are still busy"),
            ),
            (7, JobUpdate::Running { worker: "red\u{1b}[2J" }, Some("job j1: running on red\\u{1b}[2J")),
            (7, progress(0.25, "KSampler 1/4"), Some("job j1: 25 % KSampler 1/4")),
            (8, progress(0.5, "KSampler 2/4"), None),
            (13, progress(0.75, "KSampler 3/4"), Some("job j1: 75 % KSampler 3/4")),
            (14, JobUpdate::Retrying { reason: "it fell silent" }, Some("job j1: retrying: it fell silent")),
            (14, JobUpdate::Running { worker: "blue" }, Some("job j1: running on blue")),
            (14, progress(1.0, ""), Some("job j1: 100 %")),
            (
                15,
                JobUpdate::Ended { is_completed: true, reason: "completed by blue" },
                Some("job j1: completed by blue"),
            ),
        ];
        for (second, sight, expected) in story {
            let line = lines.line(0, &sight, start + Duration::from_secs(second));
            assert_eq!(line.as_deref(), expected, "{second} {sight:?}");
        }
    }
}
