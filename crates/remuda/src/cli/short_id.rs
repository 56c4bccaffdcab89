//! Ids that a person shortened, as with git: the beginning of a job's id, or of the name of a worker or machine. Exactly one
//! may begin like that; otherwise the error lists those that do.
//!
//! Job ids sort by time and the plane lists jobs in their order, so that a beginning is found with one request for one
//! short page, however many jobs there are.

use std::fmt;
use std::str::FromStr;

use remuda_core::id::JobId;
use remuda_net::terminal::escape_control;
use reqwest::Method;
use serde_json::Value;

use super::client::REQUEST_TIMEOUT;
use super::{Client, UsageError};

/// How many candidates an error lists.
const CANDIDATES_MAX: usize = 10;
/// As with git: fewer digits are rather a mistake than a choice.
const DIGITS_MIN: usize = 4;
const DIGITS: usize = 32;

/// A job's id, or the beginning of one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct JobPrefix {
    typed: String,
    /// The lowest and the highest id that begin like this.
    first: u128,
    last: u128,
}

impl FromStr for JobPrefix {
    type Err = String;

    fn from_str(typed: &str) -> Result<JobPrefix, String> {
        let digits: String = typed.chars().filter(|c| *c != '-').collect();
        let count = digits.len();
        let is_hexadecimal = digits.bytes().all(|digit| digit.is_ascii_hexdigit());
        if !is_hexadecimal || count > DIGITS {
            return Err("expected a job id, such as 0193e7a0-5b1c-7d52-9c7e-0a4b6f0e2d11, or its beginning"
                .to_owned());
        }
        if count < DIGITS_MIN {
            return Err(format!("type at least {DIGITS_MIN} digits of the job's id"));
        }
        let number = u128::from_str_radix(&digits, 16).map_err(|error| error.to_string())?;
        let missing = 4 * (DIGITS - count);
        let rest = (1_u128 << missing) - 1;
        let first = number << missing;
        Ok(JobPrefix { typed: typed.to_owned(), first, last: first | rest })
    }
}

impl fmt::Display for JobPrefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.typed)
    }
}

impl JobPrefix {
    /// The job that begins like this. A whole id is returned without asking the plane.
    pub(crate) async fn find(&self, client: &Client) -> anyhow::Result<JobId> {
        if self.first == self.last {
            return Ok(JobId::from_u128(self.first));
        }
        let mut query = vec![("limit", (CANDIDATES_MAX + 1).to_string())];
        query.extend(self.last.checked_add(1).map(|next| ("before", JobId::from_u128(next).to_string())));
        let request = client.request(Method::GET, "/remuda/v1/jobs").query(&query);
        let page = client.send(request.timeout(REQUEST_TIMEOUT)).await?;
        let listed = page["jobs"].as_array().map_or(&[][..], Vec::as_slice);
        let found: Vec<(JobId, &Value)> = listed
            .iter()
            .filter_map(|job| Some((job["id"].as_str()?.parse().ok()?, job)))
            .filter(|(id, _)| *id >= JobId::from_u128(self.first))
            .collect();
        match found.as_slice() {
            [] => anyhow::bail!("no job begins with {self}; `remuda jobs` lists them"),
            [(id, _)] => Ok(*id),
            several => {
                let lines = several.iter().map(|(id, job)| {
                    format!("{id}  {}", escape_control(job["state"].as_str().unwrap_or_default()))
                });
                Err(UsageError(ambiguous("jobs", &self.typed, lines)).into())
            }
        }
    }
}

/// The one of `names` that is `typed` or else begins with it; None if none does.
pub(crate) fn find_name<'a>(
    what: &str,
    names: impl Iterator<Item = &'a str>,
    typed: &str,
) -> Result<Option<&'a str>, UsageError> {
    let mut found: Vec<&str> = names.filter(|name| name.starts_with(typed)).collect();
    found.sort_unstable();
    found.dedup();
    match found.as_slice() {
        [] => Ok(None),
        [name] => Ok(Some(*name)),
        [whole, ..] if *whole == typed => Ok(Some(*whole)),
        several => Err(UsageError(ambiguous(what, typed, several.iter().map(|name| escape_control(name))))),
    }
}

fn ambiguous(what: &str, typed: &str, lines: impl ExactSizeIterator<Item = String>) -> String {
    let more = if lines.len() > CANDIDATES_MAX { "\n  … and more" } else { "" };
    let listed: String = lines.take(CANDIDATES_MAX).map(|line| format!("\n  {line}")).collect();
    format!("several {what} begin with {}: type more of it{listed}{more}", escape_control(typed))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn beginning_of_an_id_covers_the_ids_that_begin_like_it() {
        let whole = "0193e7a0-5b1c-7d52-9c7e-0a4b6f0e2d11";
        let id = u128::from_str_radix(&whole.replace('-', ""), 16).unwrap();
        for length in [4, 8, 9, 13, 20, 35] {
            let prefix: JobPrefix = whole[..length].parse().unwrap();
            assert!(prefix.first <= id && id <= prefix.last, "{prefix}");
            assert!(JobId::from_u128(prefix.first).to_string().starts_with(&whole[..length]), "{prefix}");
            assert!(JobId::from_u128(prefix.last).to_string().starts_with(&whole[..length]), "{prefix}");
        }
        let all: JobPrefix = whole.parse().unwrap();
        assert_eq!((all.first, all.last), (id, id));
        assert_eq!("ffff".parse::<JobPrefix>().unwrap().last, u128::MAX);
        for odd in ["", "-", "019", "0193x", &format!("{whole}1")] {
            assert!(odd.parse::<JobPrefix>().is_err(), "{odd}");
        }
    }

    #[test]
    fn whole_name_wins_over_longer_ones() {
        let names = ["red-1", "red-2", "blue", "blue-2"];
        let find = |typed| find_name("workers", names.into_iter(), typed).map_err(|error| error.to_string());
        assert_eq!(find("red-1"), Ok(Some("red-1")));
        assert_eq!(find("blue"), Ok(Some("blue")));
        assert_eq!(find("blue-"), Ok(Some("blue-2")));
        assert_eq!(find("green"), Ok(None));
        let several = find("red").unwrap_err();
        assert_eq!(several, "several workers begin with red: type more of it\n  red-1\n  red-2");
        let many: Vec<String> = (0..20).map(|n| format!("w{n}")).collect();
        let told = find_name("workers", many.iter().map(String::as_str), "w").unwrap_err().to_string();
        assert_eq!(told.lines().count(), 1 + CANDIDATES_MAX + 1, "{told}");
    }
}
