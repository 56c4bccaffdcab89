//! The pinned copy of the RustSec advisory database: which versions of which package have a known flaw.
//!
//! One line for an advisory, fields separated by tabs: id, package, kind, patched versions, unaffected versions (ranges of
//! Cargo, separated by `;`). The copy has every advisory, not only those of today's packages, so that a dependency that is
//! added later is checked too. The first line has the commit and the day of the database (`→` is a tab):
//!
//! ```text
//! # rustsec/advisory-db COMMIT 2026-08-21
//! RUSTSEC-2024-0436→paste→unmaintained→→
//! ```

use semver::{Version, VersionReq};

use super::lock::LockedPackage;

/// A day has so many seconds in the calendar of computers.
const DAY_SECONDS: u64 = 86_400;

#[derive(Clone, Debug)]
pub struct AdvisoryCopy {
    pub commit: String,
    /// `YYYY-MM-DD`, of the newest commit in the copy.
    pub date: String,
    pub advisories: Vec<Advisory>,
}

#[derive(Clone, Debug)]
pub struct Advisory {
    pub id: String,
    pub package: String,
    /// `vulnerability`, or `unsound`, `unmaintained` or `notice`.
    pub kind: String,
    pub patched: Vec<VersionReq>,
    pub unaffected: Vec<VersionReq>,
}

impl Advisory {
    fn concerns(&self, package: &LockedPackage) -> bool {
        // Names on the registry are one whether with `-` or `_`.
        let is_named = self.package.replace('_', "-") == package.name.replace('_', "-");
        // Only packages that are downloaded: a crate of our own may have any name.
        is_named && package.source.is_some() && self.is_affected(&package.version)
    }

    fn is_affected(&self, version: &Version) -> bool {
        !self.patched.iter().chain(&self.unaffected).any(|range| range.matches(version))
    }

    pub fn patched_text(&self) -> String {
        match self.patched.as_slice() {
            [] => "none".to_owned(),
            ranges => ranges.iter().map(VersionReq::to_string).collect::<Vec<_>>().join(" or "),
        }
    }

    fn parse(line: &str) -> Result<Advisory, String> {
        let fields: Vec<&str> = line.split('\t').collect();
        let [id, package, kind, patched, unaffected] = fields[..] else {
            return Err(format!("{} fields instead of 5 in {line:?}", fields.len()));
        };
        Ok(Advisory {
            id: id.to_owned(),
            package: package.to_owned(),
            kind: kind.to_owned(),
            patched: ranges(patched)?,
            unaffected: ranges(unaffected)?,
        })
    }
}

fn ranges(text: &str) -> Result<Vec<VersionReq>, String> {
    let parts = text.split(';').filter(|part| !part.is_empty());
    parts.map(|part| part.parse().map_err(|error| format!("{part:?}: {error}"))).collect()
}

impl AdvisoryCopy {
    pub fn parse(text: &str) -> Result<AdvisoryCopy, String> {
        let mut lines = text.lines();
        let head: Vec<&str> = lines.next().unwrap_or_default().split(' ').collect();
        let ["#", "rustsec/advisory-db", commit, date] = head[..] else {
            return Err("the first line is not `# rustsec/advisory-db COMMIT DATE`".to_owned());
        };
        if days(date).is_none() {
            return Err(format!("{date:?} in the first line is no date"));
        }
        let lines = lines.filter(|line| !line.starts_with('#') && !line.is_empty());
        let advisories = lines.map(Advisory::parse).collect::<Result<_, _>>()?;
        Ok(AdvisoryCopy { commit: commit.to_owned(), date: date.to_owned(), advisories })
    }

    /// Each advisory with the locked package that it concerns.
    pub fn affecting<'a>(&'a self, packages: &'a [LockedPackage]) -> Vec<(&'a Advisory, &'a LockedPackage)> {
        let concerned = |advisory: &'a Advisory| {
            packages.iter().filter(|it| advisory.concerns(it)).map(move |it| (advisory, it))
        };
        self.advisories.iter().flat_map(concerned).collect()
    }

    /// How old the copy is, by a clock that shows so many seconds since 1970.
    pub fn age_days(&self, now_seconds: u64) -> u64 {
        (now_seconds / DAY_SECONDS).saturating_sub(days(&self.date).unwrap_or(0))
    }
}

/// Days from 1970-01-01 to a date (Hinnant's `days_from_civil`).
fn days(date: &str) -> Option<u64> {
    let mut parts = date.split('-').map(str::parse::<u64>);
    let (Some(Ok(year)), Some(Ok(month)), Some(Ok(day)), None) =
        (parts.next(), parts.next(), parts.next(), parts.next())
    else {
        return None;
    };
    if !(1970..=9999).contains(&year) || !(1..=12).contains(&month) || !(1..=31).contains(&day) {
        return None;
    }
    let year = if month <= 2 { year - 1 } else { year };
    let (era, of_era) = (year / 400, year % 400);
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    (era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year).checked_sub(719_468)
}
