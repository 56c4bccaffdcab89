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
        let (_, parsed) = x509_parser::parse_x509_certificate(certificate).with_context(unreadable)?;
        let seconds = u64::try_from(parsed.validity().not_after.timestamp()).unwrap_or(0);
        Ok(CertificateEnd(Timestamp::from_millis(seconds.saturating_mul(1000))))
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
