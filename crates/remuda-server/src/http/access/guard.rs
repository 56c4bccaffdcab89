//! Rate limits: requests a second, open streams, wrong tokens before a lockout. The counters are bounded too: a flood from
//! many addresses must not fill the memory.

use std::collections::HashMap;
use std::hash::Hash as Key;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::http::StatusCode;
use remuda_core::id::Hash;
use remuda_core::time::Timestamp;

use super::super::ApiError;

/// Default limits for other machines; requests from this machine are not limited by default.
const REQUESTS_PER_SECOND: usize = 200;
const STREAMS: usize = 64;
/// A burst may use the requests of this many seconds.
const BURST_SECONDS: f64 = 5.0;
/// This many different wrong tokens from one address within `WRONG_WITHIN` are an attack.
const WRONGS_MAX: usize = 20;
const WRONG_WITHIN: Duration = Duration::from_secs(60);
const LOCKED_FOR: Duration = Duration::from_secs(60);
/// Counted addresses and tokens.
const COUNTED_MAX: usize = 10_000;

/// What is counted: a token, or an address where there is none.
#[derive(Clone, Debug, PartialEq, Eq, Key)]
pub(super) enum Counted {
    Token(Arc<str>),
    Address(IpAddr),
}

#[derive(Debug)]
pub(super) struct Guard {
    /// As configured; `None` means the default.
    pub(super) requests_per_second: usize,
    pub(super) streams_max: usize,
    buckets: Mutex<HashMap<Counted, Bucket>>,
    wrongs: Mutex<HashMap<IpAddr, Wrongs>>,
    streams: Arc<Mutex<HashMap<Counted, usize>>>,
}

/// A token bucket.
#[derive(Debug)]
struct Bucket {
    left: f64,
    at: Timestamp,
}

/// Different wrong tokens of one address: a worker that repeats one outdated token is no attacker.
#[derive(Debug, Default)]
struct Wrongs {
    seen: Vec<Hash>,
    since: Timestamp,
    locked_at: Option<Timestamp>,
}

/// An open stream; dropping it returns its permit.
#[derive(Debug)]
pub(super) struct Stream {
    streams: Arc<Mutex<HashMap<Counted, usize>>>,
    whose: Counted,
}

impl Guard {
    pub(super) fn new(requests_per_second: usize, streams_max: usize) -> Guard {
        let (buckets, wrongs, streams) = Default::default();
        Guard { requests_per_second, streams_max, buckets, wrongs, streams }
    }

    /// Counts a request, or returns when to retry.
    pub(super) fn request(&self, whose: Counted, from: IpAddr, now: Timestamp) -> Result<(), ApiError> {
        let Some(rate) = usual(self.requests_per_second, REQUESTS_PER_SECOND, from) else { return Ok(()) };
        let (rate, mut buckets) = (rate as f64, locked(&self.buckets));
        let burst = (rate * BURST_SECONDS).max(1.0);
        if buckets.len() >= COUNTED_MAX && !buckets.contains_key(&whose) {
            // A caller that was idle for so long has a full bucket anyway.
            buckets.retain(|_, bucket| now.since(bucket.at).as_secs_f64() < BURST_SECONDS);
        }
        if buckets.len() >= COUNTED_MAX && !buckets.contains_key(&whose) {
            return Err(busy("too many callers at once", 1));
        }
        let bucket = buckets.entry(whose).or_insert(Bucket { left: burst, at: now });
        bucket.left = (bucket.left + now.since(bucket.at).as_secs_f64() * rate).min(burst);
        bucket.at = now;
        if bucket.left < 1.0 {
            let wait = ((1.0 - bucket.left) / rate).ceil().max(1.0);
            return Err(busy(
                &format!("more than {rate} requests a second (limits.requests_per_second)"),
                wait as u64,
            ));
        }
        bucket.left -= 1.0;
        Ok(())
    }

    /// Since when the address is locked out, and for how long still.
    pub(super) fn locked_since(&self, from: IpAddr, now: Timestamp) -> Option<(Timestamp, Duration)> {
        let wrongs = locked(&self.wrongs);
        let locked_at = wrongs.get(&network(from))?.locked_at?;
        let left = LOCKED_FOR.checked_sub(now.since(locked_at))?;
        (!left.is_zero()).then_some((locked_at, left))
    }

    /// Counts a wrong token; returns whether it starts a lockout.
    pub(super) fn wrong(&self, from: IpAddr, token: Hash, now: Timestamp) -> bool {
        let mut wrongs = locked(&self.wrongs);
        if wrongs.len() >= COUNTED_MAX {
            wrongs.retain(|_, wrong| now.since(wrong.since) < WRONG_WITHIN.max(LOCKED_FOR));
        }
        if wrongs.len() >= COUNTED_MAX {
            return false;
        }
        let wrong = wrongs.entry(network(from)).or_default();
        if now.since(wrong.since) >= WRONG_WITHIN {
            *wrong = Wrongs { since: now, ..Wrongs::default() };
        }
        if wrong.locked_at.is_none() && !wrong.seen.contains(&token) {
            wrong.seen.push(token);
            if wrong.seen.len() >= WRONGS_MAX {
                (wrong.locked_at, wrong.since) = (Some(now), now);
                return true;
            }
        }
        false
    }

    /// A permit for a stream, if one is left.
    pub(super) fn stream(&self, whose: Counted, from: IpAddr) -> Result<Stream, ApiError> {
        let most = usual(self.streams_max, STREAMS, from).unwrap_or(usize::MAX);
        let mut streams = locked(&self.streams);
        let open = streams.entry(whose.clone()).or_default();
        if *open >= most {
            let message = format!("{open} streams are open already (limits.streams_per_token_max)");
            return Err(
                ApiError::new(StatusCode::TOO_MANY_REQUESTS, "too_many_streams", message).with_retry_after(5)
            );
        }
        *open += 1;
        drop(streams);
        Ok(Stream { streams: self.streams.clone(), whose })
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let mut streams = locked(&self.streams);
        if let Some(open) = streams.get_mut(&self.whose) {
            *open -= 1;
            if *open == 0 {
                streams.remove(&self.whose);
            }
        }
    }
}

/// The configured limit, else the default, which is none for this machine.
pub(in crate::http) fn usual(set: usize, usual: usize, from: IpAddr) -> Option<usize> {
    match set {
        0 => (!from.to_canonical().is_loopback()).then_some(usual),
        set => Some(set),
    }
}

/// The address that is counted: an IPv6 client has a network of 2⁶⁴ addresses.
pub(in crate::http) fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V4(address) => IpAddr::V4(address),
        IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() & !(u128::MAX >> 64))),
    }
}

fn busy(why: &str, seconds: u64) -> ApiError {
    let message = format!("{why}: come back in {seconds} s");
    ApiError::new(StatusCode::TOO_MANY_REQUESTS, "too_many_requests", message).with_retry_after(seconds)
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);
    const THERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 7));

    fn at(seconds: u64) -> Timestamp {
        Timestamp::from_millis(1_000_000 + seconds * 1000)
    }

    /// How many of a thousand simultaneous requests are admitted.
    fn let_through(guard: &Guard, whose: &Counted, from: IpAddr, now: Timestamp) -> usize {
        (0..1000).filter(|_| guard.request(whose.clone(), from, now).is_ok()).count()
    }

    /// Faults: B10.
    #[test]
    fn burst_is_admitted_and_then_a_steady_rate() {
        let guard = Guard::new(10, 0);
        let (anna, ben) = (Counted::Token("anna".into()), Counted::Token("ben".into()));
        assert_eq!(let_through(&guard, &anna, HERE, at(0)), 50);
        assert_eq!(let_through(&guard, &ben, HERE, at(0)), 50, "another's flood is not held against one");
        assert_eq!(let_through(&guard, &anna, HERE, at(1)), 10);
        assert_eq!(let_through(&guard, &anna, HERE, at(100)), 50);
        let refused = guard.request(anna, HERE, at(100)).unwrap_err();
        assert_eq!((refused.status.as_u16(), refused.retry_after), (429, Some(1)));
    }

    #[test]
    fn without_a_setting_only_other_machines_are_limited() {
        let guard = Guard::new(0, 0);
        assert_eq!(let_through(&guard, &Counted::Address(HERE), HERE, at(0)), 1000);
        assert_eq!(let_through(&guard, &Counted::Address(THERE), THERE, at(0)), 1000);
        assert_eq!(let_through(&guard, &Counted::Address(THERE), THERE, at(0)), 0);
    }

    /// Faults: X9.
    #[test]
    fn many_different_wrong_tokens_lock_an_address_out_for_a_while() {
        let guard = Guard::new(0, 0);
        let guess = |number: usize| Hash::digest(&number.to_le_bytes());
        assert!((0..1000).all(|_| !guard.wrong(THERE, guess(0), at(0))), "one that is repeated is a mistake");
        assert!((1..WRONGS_MAX - 1).all(|number| !guard.wrong(THERE, guess(number), at(1))));
        assert!(guard.locked_since(THERE, at(1)).is_none());
        assert!(guard.wrong(THERE, guess(WRONGS_MAX), at(2)));
        assert_eq!(guard.locked_since(THERE, at(12)), Some((at(2), LOCKED_FOR - Duration::from_secs(10))));
        assert_eq!(guard.locked_since(HERE, at(12)), None);
        assert_eq!(guard.locked_since(THERE, at(62)), None);
        assert!((0..WRONGS_MAX - 1).all(|number| !guard.wrong(THERE, guess(number), at(63))));
        assert!(guard.locked_since(THERE, at(63)).is_none(), "the count starts again");
    }

    /// Faults: X9.
    #[test]
    fn slow_guesses_cause_no_lockout() {
        let guard = Guard::new(0, 0);
        for number in 0..10 * WRONGS_MAX {
            let now = at(number as u64 * 4);
            assert!(!guard.wrong(THERE, Hash::digest(&number.to_le_bytes()), now));
        }
    }

    /// Faults: X13.
    #[test]
    fn streams_are_limited_and_returned() {
        let guard = Guard::new(0, 2);
        let (anna, ben) = (Counted::Token("anna".into()), Counted::Token("ben".into()));
        let first = guard.stream(anna.clone(), HERE).unwrap();
        let _second = guard.stream(anna.clone(), HERE).unwrap();
        assert_eq!(guard.stream(anna.clone(), HERE).unwrap_err().code, "too_many_streams");
        let _other = guard.stream(ben, HERE).unwrap();
        drop(first);
        assert!(guard.stream(anna, HERE).is_ok());
    }

    /// Faults: X9, X13.
    #[test]
    fn counters_stay_bounded() {
        let guard = Guard::new(1, 0);
        for number in 0..3 * COUNTED_MAX {
            let from = IpAddr::V4(std::net::Ipv4Addr::from_bits(number as u32));
            drop(guard.request(Counted::Address(from), from, at(0)));
            guard.wrong(from, Hash::digest(b"x"), at(0));
        }
        assert_eq!(locked(&guard.buckets).len(), COUNTED_MAX);
        assert_eq!(locked(&guard.wrongs).len(), COUNTED_MAX);
        assert!(guard.request(Counted::Address(THERE), THERE, at(10)).is_ok(), "there is room again");
    }

    #[test]
    fn ipv6_network_counts_as_one_address() {
        let [a, b, c]: [IpAddr; 3] =
            ["2001:db8::1", "2001:db8::2:1", "2001:db8:0:1::1"].map(|it| it.parse().unwrap());
        assert!(network(a) == network(b) && network(a) != network(c));
        assert_eq!(network("::ffff:10.0.0.7".parse().unwrap()), THERE);
    }
}
