//! Amounts of money in whole millionths of a dollar, so that sums are exact. A price is an amount per hour.

use std::fmt;
use std::iter::Sum;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Money(u64);

const HOUR_MILLIS: u128 = 3_600_000;

impl Money {
    pub const ZERO: Money = Money(0);

    pub const fn from_micros(micros: u64) -> Money {
        Money(micros)
    }

    pub const fn as_micros(self) -> u64 {
        self.0
    }

    /// For display: exact up to nine billion dollars.
    pub fn as_dollars(self) -> f64 {
        self.0 as f64 / 1e6
    }

    #[must_use]
    pub fn plus(self, other: Money) -> Money {
        Money(self.0.saturating_add(other.0))
    }

    #[must_use]
    pub fn minus(self, other: Money) -> Money {
        Money(self.0.saturating_sub(other.0))
    }

    /// One of `parts` equal parts, rounded down, so that the parts never exceed the whole.
    #[must_use]
    pub fn shared(self, parts: u32) -> Money {
        Money(self.0 / u64::from(parts.max(1)))
    }

    /// The cost of `time` at this price, rounded up to the next millionth.
    #[must_use]
    pub fn over(self, time: Duration) -> Money {
        let micros = u128::from(self.0).saturating_mul(time.as_millis()).div_ceil(HOUR_MILLIS);
        Money(u64::try_from(micros).unwrap_or(u64::MAX))
    }
}

impl Sum for Money {
    fn sum<I: Iterator<Item = Money>>(all: I) -> Money {
        all.fold(Money::ZERO, Money::plus)
    }
}

/// As `$0.69`, with more digits only where they matter.
impl fmt::Display for Money {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (dollars, micros) = (self.0 / 1_000_000, self.0 % 1_000_000);
        let mut digits = format!("{micros:06}");
        while digits.len() > 2 && digits.ends_with('0') {
            digits.pop();
        }
        f.pad(&format!("${dollars}.{digits}"))
    }
}

/// From `0.69`, `$0.69` or `12`.
impl FromStr for Money {
    type Err = String;

    fn from_str(text: &str) -> Result<Money, String> {
        let bad = || format!("{text:?} is not an amount of money: write it in dollars, like 0.69");
        let number = text.strip_prefix('$').unwrap_or(text);
        let (dollars, rest) = number.split_once('.').unwrap_or((number, ""));
        let is_digits = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
        if dollars.is_empty() || !is_digits(dollars) || !is_digits(rest) || rest.len() > 6 {
            return Err(bad());
        }
        let dollars: u64 = dollars.parse().map_err(|_| bad())?;
        let micros: u64 = format!("{rest:0<6}").parse().map_err(|_| bad())?;
        dollars.checked_mul(1_000_000).and_then(|it| it.checked_add(micros)).map(Money).ok_or_else(bad)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn money_is_parsed_and_shown_in_dollars() {
        for (text, shown) in
            [("0.69", "$0.69"), ("$12", "$12.00"), ("0.000001", "$0.000001"), ("3.5", "$3.50")]
        {
            assert_eq!(text.parse::<Money>().unwrap().to_string(), shown);
        }
        for bad in ["", "-1", "1e3", "0.1234567", "NaN", "99999999999999999999", "."] {
            assert!(bad.parse::<Money>().is_err(), "{bad}");
        }
    }

    #[test]
    fn price_is_charged_by_the_millisecond() {
        let price: Money = "0.72".parse().unwrap();
        assert_eq!(price.over(Duration::from_secs(1800)), Money::from_micros(360_000));
        assert_eq!(price.over(Duration::from_millis(1)), Money::from_micros(1), "nothing is free");
        assert_eq!(price.over(Duration::ZERO), Money::ZERO);
        assert_eq!(Money(u64::MAX).over(Duration::MAX), Money(u64::MAX));
    }
}
