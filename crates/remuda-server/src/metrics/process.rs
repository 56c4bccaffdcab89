//! This process, as Linux reports it in `/proc`. On other systems only the build is known.

use std::fs;

use super::page::Page;
use super::table;

/// Ticks of `/proc/self/stat` in a second: 100 on every Linux platform (`USER_HZ`).
const TICKS_PER_SECOND: f64 = 100.0;

pub(crate) fn write_process(page: &mut Page) {
    page.family(&table::BUILD_INFO).sample([env!("CARGO_PKG_VERSION")], 1);
    if let Some(bytes) = resident_bytes() {
        page.single(&table::MEMORY, bytes);
    }
    if let Ok(files) = fs::read_dir("/proc/self/fd") {
        page.single(&table::OPEN_FILES, files.count());
    }
    if let Some(max) = rustix::process::getrlimit(rustix::process::Resource::Nofile).current {
        page.single(&table::OPEN_FILES_MAX, max);
    }
    if let Some((cpu_seconds, started_seconds)) = times() {
        page.single(&table::CPU_SECONDS, cpu_seconds);
        page.single(&table::START_TIME, started_seconds);
    }
}

fn resident_bytes() -> Option<u64> {
    let text = fs::read_to_string("/proc/self/status").ok()?;
    let size = text.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: u64 = size.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}

/// CPU seconds so far, and the start in seconds since 1970.
fn times() -> Option<(f64, f64)> {
    let stat = fs::read_to_string("/proc/self/stat").ok()?;
    // The second field is the program's name, which may contain spaces.
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let ticks = |index: usize| fields.get(index)?.parse::<f64>().ok();
    let boot = fs::read_to_string("/proc/stat").ok()?;
    let booted: f64 = boot.lines().find_map(|line| line.strip_prefix("btime "))?.trim().parse().ok()?;
    // Fields 14, 15 and 22 of the manual page, which counts from 1 and includes the two before.
    Some(((ticks(11)? + ticks(12)?) / TICKS_PER_SECOND, booted + ticks(19)? / TICKS_PER_SECOND))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_has_memory_files_and_a_past() {
        let mut page = Page::default();
        write_process(&mut page);
        let text = page.into_text();
        let value = |name: &str| {
            let line =
                text.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("no {name}"));
            line.rsplit(' ').next().unwrap().parse::<f64>().unwrap()
        };
        assert!(value("process_resident_memory_bytes") > 1e6);
        assert!(value("process_open_fds") >= 3.0);
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs_f64();
        let age = now - value("process_start_time_seconds");
        assert!((-2.0..86_400.0).contains(&age), "started {age} s ago");
    }
}
