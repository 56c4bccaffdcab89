//! `remuda jobs --watch`: the list of jobs, kept up to date until Ctrl-C.
//!
//! ```text
//!  events of the plane ──▶ which jobs changed ──▶ read them again ──▶ a terminal: draw the list in place
//!   (resumed after a cut)                                        └──▶ otherwise: a line for each change, or a JSON line
//! ```
//!
//! Events only say what to read, so that a line is always what the plane knows, and a change during a restart of the plane
//! is shown after it.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{IsTerminal as _, Write as _};
use std::process::ExitCode;
use std::time::Duration;

use futures_util::StreamExt as _;
use remuda_net::sse::SseReader;
use remuda_net::terminal::{escape_control, print_line};
use reqwest::Response;
use serde_json::Value;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, timeout_at};

use super::super::super::Client;
use super::super::super::client::{is_not_found, is_retryable};
use super::super::super::start::stop_signals;
use super::super::{events_request, request, rows, terminal_size, with_brake};
use super::{JobsCommand, TITLES, list, now, row};

/// Changes are gathered this long: a busy plane has thousands in a second, and people read slower.
const SHOW_INTERVAL: Duration = Duration::from_millis(250);
/// Ages in the list on a terminal change without an event.
const REDRAW_INTERVAL: Duration = Duration::from_secs(2);
/// A plane that restarts is back within seconds.
const RECONNECT_WAIT: Duration = Duration::from_secs(1);
/// Ten minutes of retries; a plane that is still away needs an operator.
const RECONNECTS_MAX: u32 = 600;
/// Three of the plane's keep-alives: a stream that is silent for longer is dead.
const SILENCE_MAX: Duration = Duration::from_secs(45);
/// Jobs that are read at the same time.
const READS_MAX: usize = 8;
/// Open jobs of which the last line is remembered, so that none is printed twice; beyond it one may be.
const SHOWN_MAX: usize = 10_000;
/// After a cut before the first event, this many pages of new jobs are read.
const MISSED_PAGES_MAX: usize = 10;
const MISSED_PAGE: &str = "1000";
/// Minimum widths of the columns where lines come one by one.
const WIDTHS: [usize; 9] = [36, 9, 8, 4, 5, 24, 12, 8, 0];

/// Watches until a signal.
pub(super) async fn run(command: &JobsCommand, client: &Client) -> anyhow::Result<ExitCode> {
    let mut stops = stop_signals()?;
    let mut watch = JobsWatch {
        command,
        client,
        view: WatchView::choose(command.connection.json),
        last: None,
        newest: String::new(),
        changed: BTreeSet::new(),
        shown: BTreeMap::new(),
    };
    tokio::select! {
        ended = watch.follow() => ended?,
        _ = stops.recv() => {}
    }
    Ok(ExitCode::SUCCESS)
}

struct JobsWatch<'a> {
    command: &'a JobsCommand,
    client: &'a Client,
    view: WatchView,
    /// Number of the last event received.
    last: Option<u64>,
    /// The newest job seen.
    newest: String,
    /// Jobs that changed and were not shown since.
    changed: BTreeSet<String>,
    /// The last line of each open job.
    shown: BTreeMap<String, String>,
}

enum WatchView {
    Screen(Screen),
    Lines,
    Json,
}

impl WatchView {
    fn choose(is_json: bool) -> WatchView {
        match (is_json, std::io::stdout().is_terminal()) {
            (true, _) => WatchView::Json,
            (false, true) => WatchView::Screen(Screen::open()),
            (false, false) => WatchView::Lines,
        }
    }
}

impl JobsWatch<'_> {
    /// Runs until the plane is away for too long.
    async fn follow(&mut self) -> anyhow::Result<()> {
        // Opened before the jobs are read, so that no change falls between the two.
        let mut stream = self.open().await?;
        if let WatchView::Lines = self.view {
            print_line(&line(&TITLES.map(str::to_owned)));
        }
        self.show_list().await?;
        loop {
            match self.listen(stream).await {
                Ok(()) => {}
                Err(error) if is_retryable(&error) => {}
                Err(error) => return Err(error),
            }
            stream = self.open_again().await?;
            if self.last.is_none() {
                self.mark_missed().await?;
            }
        }
    }

    async fn open(&self) -> anyhow::Result<Response> {
        let tenant = self.command.tenant.as_ref().map(ToString::to_string);
        let request = events_request(self.client, self.last).query(&[("name", "job")]);
        self.client.open_events(request.query(&[("tenant", tenant)])).await
    }

    async fn open_again(&self) -> anyhow::Result<Response> {
        eprintln!("remuda: connection to the plane lost; reconnecting");
        let mut failures = 0;
        loop {
            sleep(RECONNECT_WAIT).await;
            match self.open().await {
                Err(error) if is_retryable(&error) && failures < RECONNECTS_MAX => failures += 1,
                opened => return opened,
            }
        }
    }

    /// Before the first event there is no number to resume after: every open job may have changed, and every job that is
    /// newer than the newest one seen is new.
    async fn mark_missed(&mut self) -> anyhow::Result<()> {
        self.changed.extend(self.shown.keys().cloned());
        let mut before = None;
        for _ in 0..MISSED_PAGES_MAX {
            let mut query = vec![("limit", MISSED_PAGE.to_owned())];
            query.extend(before.take().map(|before: String| ("before", before)));
            let page = request(self.client, reqwest::Method::GET, "/remuda/v1/jobs", &query).await?;
            let ids: Vec<&str> = rows(&page, "jobs").iter().filter_map(|job| job["id"].as_str()).collect();
            let new = ids.iter().filter(|id| **id > self.newest.as_str());
            self.changed.extend(new.map(|id| (*id).to_owned()));
            let is_known = ids.last().is_none_or(|oldest| *oldest <= self.newest.as_str());
            match page["next"].as_str() {
                Some(next) if !is_known => before = Some(next.to_owned()),
                _ => break,
            }
        }
        Ok(())
    }

    /// Reads events and shows what changed until the stream is cut.
    async fn listen(&mut self, stream: Response) -> anyhow::Result<()> {
        let (mut stream, mut reader) = (stream.bytes_stream(), SseReader::default());
        let (mut heard_at, mut drawn_at) = (Instant::now(), Instant::now());
        let mut ticks = interval(SHOW_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                bytes = timeout_at(heard_at + SILENCE_MAX, stream.next()) => {
                    let Ok(Some(Ok(bytes))) = bytes else { return Ok(()) };
                    heard_at = Instant::now();
                    for event in reader.feed(&bytes)? {
                        let data: Value = serde_json::from_str(&event.data).unwrap_or_default();
                        self.last = event.id.or(self.last);
                        // Progress has no number: it changes nothing that is listed.
                        let job = data["job"].as_str().filter(|_| event.id.is_some());
                        self.changed.extend(job.map(str::to_owned));
                    }
                }
                _ = ticks.tick() => match self.view {
                    WatchView::Lines | WatchView::Json => self.show_changed().await?,
                    WatchView::Screen(_) if !self.changed.is_empty() || drawn_at.elapsed() > REDRAW_INTERVAL => {
                        self.show_list().await?;
                        drawn_at = Instant::now();
                    }
                    WatchView::Screen(_) => {}
                }
            }
        }
    }

    /// Shows the newest jobs as they are now.
    async fn show_list(&mut self) -> anyhow::Result<()> {
        let mut query = self.command.query(None);
        if let (WatchView::Screen(_), Some((_, height))) = (&self.view, terminal_size()) {
            // Besides the titles, and the cursor's line.
            let limit = height.saturating_sub(2).clamp(1, self.command.limit as usize);
            query.retain(|(name, _)| *name != "limit");
            query.push(("limit", limit.to_string()));
        }
        let answer = request(self.client, reqwest::Method::GET, "/remuda/v1/jobs", &query).await?;
        let jobs = rows(&answer, "jobs");
        if let WatchView::Screen(screen) = &mut self.view {
            self.changed.clear();
            let size = terminal_size();
            let shown = match jobs {
                [] => self.command.empty_message(),
                jobs => list(jobs, now(), size.map(|(width, _)| width)),
            };
            screen.draw(&with_brake(&answer, shown), size);
        } else {
            // The newest comes last, where the next change will be.
            for job in jobs.iter().rev() {
                self.show_job(job.clone());
            }
        }
        Ok(())
    }

    /// Prints every job that changed. A job that cannot be read now stays marked.
    async fn show_changed(&mut self) -> anyhow::Result<()> {
        let client = self.client;
        let read = |id: String| async move { (client.get(&format!("/remuda/v1/jobs/{id}")).await, id) };
        let ids: Vec<String> = self.changed.iter().cloned().collect();
        let mut jobs = futures_util::stream::iter(ids).map(read).buffered(READS_MAX);
        while let Some((job, id)) = jobs.next().await {
            match job {
                Ok(job) => self.show_job(job),
                Err(error) if is_not_found(&error) => {}
                Err(error) => return Err(error),
            }
            self.changed.remove(&id);
        }
        Ok(())
    }

    fn show_job(&mut self, mut job: Value) {
        let state = job["state"].as_str().unwrap_or_default().to_owned();
        // The list has neither; a result may be large.
        if let Some(fields) = job.as_object_mut() {
            fields.remove("result");
            fields.remove("outputs");
        }
        let id = job["id"].as_str().unwrap_or_default().to_owned();
        if id > self.newest {
            self.newest.clone_from(&id);
        }
        let current = format!("{state} {} {}", job["attempt"], job["worker"]);
        let is_shown = self.shown.get(&id) == Some(&current);
        if self.shown.len() >= SHOWN_MAX {
            self.shown.clear();
        }
        match state.as_str() {
            "queued" | "running" => drop(self.shown.insert(id, current)),
            _ => drop(self.shown.remove(&id)),
        }
        if is_shown || self.command.state.as_ref().is_some_and(|wanted| *wanted != state) {
            return;
        }
        match self.view {
            WatchView::Json => print_line(&job.to_string()),
            WatchView::Lines | WatchView::Screen(_) => {
                let mut cells = row(&job, now());
                cells[5] = super::cell(&job["changed_at"]);
                print_line(&line(&cells));
            }
        }
    }
}

fn line(cells: &[String]) -> String {
    let padded = cells.iter().zip(WIDTHS).map(|(cell, width)| format!("{:<width$}", escape_control(cell)));
    padded.collect::<Vec<_>>().join("  ").trim_end().to_owned()
}

/// The terminal's second screen: what stood in the terminal before comes back at the end.
struct Screen {
    drawn: String,
}

impl Screen {
    fn open() -> Screen {
        print("\u{1b}[?1049h\u{1b}[?25l");
        Screen { drawn: String::new() }
    }

    fn draw(&mut self, text: &str, size: Option<(usize, usize)>) {
        print(&frame(text, size));
        text.clone_into(&mut self.drawn);
    }
}

/// Also when an error ends the watch. The last list stays in the terminal.
impl Drop for Screen {
    fn drop(&mut self) {
        print("\u{1b}[?25h\u{1b}[?1049l");
        if !self.drawn.is_empty() {
            print_line(&self.drawn);
        }
    }
}

/// Overwrites the screen line by line; clearing it first would flicker.
fn frame(text: &str, size: Option<(usize, usize)>) -> String {
    let (width, height) = size.unwrap_or((usize::MAX, usize::MAX));
    let mut frame = "\u{1b}[H".to_owned();
    for line in text.lines().take(height.saturating_sub(1)) {
        frame.extend(line.chars().take(width));
        frame.push_str("\u{1b}[K\r\n");
    }
    frame.push_str("\u{1b}[J");
    frame
}

/// A terminal that has gone away ends the watch by a signal.
fn print(text: &str) {
    let mut out = std::io::stdout().lock();
    drop(out.write_all(text.as_bytes()).and_then(|()| out.flush()));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frame_fits_the_terminal() {
        let drawn = frame("ID  STATE\na  queued\nb  running\nc  failed", Some((6, 4)));
        assert_eq!(drawn, "\u{1b}[HID  ST\u{1b}[K\r\na  que\u{1b}[K\r\nb  run\u{1b}[K\r\n\u{1b}[J");
        assert_eq!(frame("no jobs", None), "\u{1b}[Hno jobs\u{1b}[K\r\n\u{1b}[J");
    }

    #[test]
    fn lines_one_by_one_have_columns() {
        let cells = |id: &str, state: &str| {
            line(&[id, state, "anna", "0", "1", "-", "red\u{1b}", "exec", "a reason"].map(str::to_owned))
        };
        let short = cells("a", "queued");
        assert_eq!(short.find("anna"), cells("b", "completed").find("anna"));
        assert!(short.contains("red\\u{1b}") && short.ends_with("a reason"), "{short}");
    }
}
