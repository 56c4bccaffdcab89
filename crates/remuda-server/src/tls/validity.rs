//! Until when a certificate is valid. One that has ended is refused, because every client would refuse it; one that ends
//! soon is announced in time.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, bail};
use remuda_core::time::{Timestamp, humanize};
use rustls::pki_types::CertificateDer;
use tracing::{error, warn};

/// Two weeks: an authority may need a few working days.
const WARN_BEFORE: Duration = Duration::from_secs(14 * 24 * 60 * 60);
const WARN_EVERY: Duration = Duration::from_secs(24 * 60 * 60);

/// The end of the plane's own certificate; those of its authorities end later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CertificateEnd(pub(super) Timestamp);

impl CertificateEnd {
    pub(super) fn read(certificate: &CertificateDer<'_>, file: &Path) -> anyhow::Result<CertificateEnd> {
        let unreadable = || format!("cannot read the certificate in {} (tls.cert)", file.display());
        not_after(certificate).map(CertificateEnd).with_context(unreadable)
    }

    pub(super) fn refuse_if_over(self, file: &Path, now: Timestamp) -> anyhow::Result<()> {
        if self.0 > now {
            return Ok(());
        }
        bail!(
            "the certificate in {} ended on {} (this machine's clock says {now}): renew it, every client would refuse it \
             (tls.cert)",
            file.display(),
            self.0
        )
    }
}

/// The tags of DER on the way to the dates (RFC 5280).
const SEQUENCE: u8 = 0x30;
const VERSION: u8 = 0xa0;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;

/// The end of a certificate's validity: the second date of the fifth field. rustls checks everything else; a whole X.509
/// parser for one date was rejected.
fn not_after(certificate: &[u8]) -> Option<Timestamp> {
    let (outer, _) = element(certificate, SEQUENCE)?;
    let (mut fields, _) = element(outer, SEQUENCE)?;
    if let Some((_, rest)) = element(fields, VERSION) {
        fields = rest;
    }
    // Serial number, signature algorithm, issuer.
    for _ in 0..3 {
        (_, fields) = element(fields, *fields.first()?)?;
    }
    let (validity, _) = element(fields, SEQUENCE)?;
    let (_, rest) = element(validity, *validity.first()?)?;
    let (text, _) = element(rest, *rest.first()?)?;
    let text = std::str::from_utf8(text).ok()?;
    match *rest.first()? {
        // Two digits: until 2049.
        UTC_TIME => {
            let year: u64 = text.get(..2)?.parse().ok()?;
            date(if year < 50 { 2000 + year } else { 1900 + year }, text.get(2..)?)
        }
        GENERALIZED_TIME => date(text.get(..4)?.parse().ok()?, text.get(4..)?),
        _ => None,
    }
}

/// The content of the first element, if it has this tag, and what follows it.
fn element(bytes: &[u8], tag: u8) -> Option<(&[u8], &[u8])> {
    let (&[own, first], rest) = bytes.split_first_chunk::<2>()?;
    if own != tag {
        return None;
    }
    let (length, rest) = match first {
        0..=0x7f => (usize::from(first), rest),
        // A certificate has less than 2^24 bytes.
        0x81..=0x83 => {
            let (digits, rest) = rest.split_at_checked(usize::from(first & 0x7f))?;
            (digits.iter().fold(0, |length, digit| length << 8 | usize::from(*digit)), rest)
        }
        _ => return None,
    };
    rest.split_at_checked(length)
}

/// `MMDDHHMMSSZ` of a year.
fn date(year: u64, rest: &str) -> Option<Timestamp> {
    let rest = rest.strip_suffix('Z').filter(|rest| rest.len() == 10)?;
    let part = |at: usize| rest.get(at..at + 2)?.parse::<u64>().ok();
    let (month, day) = (part(0)?, part(2)?);
    if !(1..=12).contains(&month) || !(1..=31).contains(&day) || year < 1970 {
        return None;
    }
    // Hinnant's `days_from_civil`.
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let (era, of_era) = (year / 400, year % 400);
    let of_year = (153 * month + 2) / 5 + day - 1;
    let days = era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year;
    let days = days.checked_sub(719_468)?;
    let seconds = ((days * 24 + part(4)?) * 60 + part(6)?) * 60 + part(8)?;
    Some(Timestamp::from_millis(seconds * 1000))
}

/// Announces the end of a certificate, once a day.
#[derive(Debug, Default)]
pub(super) struct EndWarning {
    warned_at: Option<Timestamp>,
}

impl EndWarning {
    /// Whether a warning is due; it counts as given.
    fn is_due(&mut self, end: CertificateEnd, now: Timestamp) -> bool {
        let is_due = end.0 <= now.plus(WARN_BEFORE)
            && self.warned_at.is_none_or(|at| now.since(at) >= WARN_EVERY || now < at);
        if is_due {
            self.warned_at = Some(now);
        }
        is_due
    }

    pub(super) fn check(&mut self, end: CertificateEnd, file: &Path, now: Timestamp) {
        if !self.is_due(end, now) {
            return;
        }
        let (file, ends_at) = (file.display(), end.0);
        if ends_at > now {
            let left = humanize(ends_at.since(now));
            warn!(cert = %file, %ends_at, "certificate ends in {left}; replace the files, they are read again");
        } else {
            error!(cert = %file, %ends_at, "certificate has ended; clients refuse it until the files are replaced");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: Duration = Duration::from_secs(24 * 60 * 60);

    /// The beginning of a certificate, as far as its dates.
    fn certificate(date: &[u8]) -> Vec<u8> {
        let wrap = |tag: u8, content: &[u8]| [&[tag, u8::try_from(content.len()).unwrap()], content].concat();
        let dates = wrap(SEQUENCE, &[&wrap(UTC_TIME, b"200101000000Z"), date].concat());
        let fields = [
            wrap(VERSION, &[2, 1, 2]),
            wrap(2, &[7]),
            wrap(SEQUENCE, &[5, 0]),
            wrap(SEQUENCE, b"issuer"),
            dates,
        ];
        wrap(SEQUENCE, &wrap(SEQUENCE, &fields.concat()))
    }

    /// Faults: N9.
    #[test]
    fn end_is_read_in_both_notations() {
        for (date, expected) in [
            (&b"\x17\x0d270102030405Z"[..], "2027-01-02T03:04:05"),
            (&b"\x17\x0d491231235959Z"[..], "2049-12-31T23:59:59"),
            (&b"\x17\x0d990228000000Z"[..], "1999-02-28T00:00:00"),
            (&b"\x18\x0f20500301120000Z"[..], "2050-03-01T12:00:00"),
            (&b"\x18\x0f99991231235959Z"[..], "9999-12-31T23:59:59"),
        ] {
            let read = not_after(&certificate(date)).unwrap().to_string();
            assert!(read.starts_with(expected), "{read} is not {expected}");
        }
    }

    /// Faults: N9.
    #[test]
    fn damaged_certificate_has_no_end_and_causes_no_panic() {
        let whole = certificate(b"\x17\x0d270102030405Z");
        for cut in 0..whole.len() {
            assert_eq!(not_after(&whole[..cut]), None, "{cut}");
        }
        for at in 0..whole.len() {
            for value in [0, 0x30, 0x7f, 0x80, 0x83, 0xff] {
                let mut bytes = whole.clone();
                bytes[at] = value;
                not_after(&bytes);
            }
        }
    }

    /// Faults: N9.
    #[test]
    fn end_is_announced_two_weeks_before_and_then_daily() {
        let end = CertificateEnd(Timestamp::from_millis(1_800_000_000_000));
        let before = |days: u32| end.0.minus(DAY * days);
        let mut warning = EndWarning::default();
        for (now, expected) in [
            (before(15), false),
            (before(14), true),
            (before(14).plus(DAY / 2), false),
            (before(13), true),
            (before(1), true),
            (end.0, true),
            (end.0.plus(DAY / 2), false),
            (end.0.plus(DAY), true),
            // The clock was set back.
            (before(2), true),
        ] {
            assert_eq!(warning.is_due(end, now), expected, "{now}");
        }
        assert!(end.refuse_if_over(Path::new("plane.pem"), before(1)).is_ok());
        let refused = end.refuse_if_over(Path::new("plane.pem"), end.0).unwrap_err().to_string();
        assert!(refused.contains("plane.pem ended on"), "{refused}");
    }
}
