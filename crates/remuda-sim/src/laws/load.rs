//! L5: recovery load stays bounded. After healing, no agent calls the plane at more than twice its normal rate: in each
//! minute, by what it had to do in it. Counted from the end of the storm, when everyone is on the way back, to the end of
//! the world.

use std::time::Duration;

use super::Laws;
use crate::host::Host;
use crate::law::Law;

/// Calls are counted over this time.
const WINDOW: u64 = 60_000;
/// What one attempt needs besides regular beats: a beat that confirms it, a report of its end, and a beat that is free for
/// the next one.
const CALLS_PER_RUN: u64 = 3;
/// A process that starts joins, and its first beat follows.
const CALLS_PER_START: u64 = 2;
/// An idle agent keeps a long poll open for this long.
const POLL: Duration = Duration::from_secs(25);
/// Law L5.
const TIMES_NORMAL: u64 = 2;

/// What a host had done when the window began.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Load {
    calls: u64,
    runs: u64,
    prompted: u64,
    process: u32,
    was_busy: bool,
}

impl Laws {
    pub(crate) fn check_load(&mut self, at: u64, hosts: &[Host]) {
        let (since, mut loads) = self.loads.take().unwrap_or((at, Vec::new()));
        loads.resize_with(hosts.len(), Load::default);
        for (load, host) in loads.iter_mut().zip(hosts) {
            load.was_busy |= host.agent.as_ref().is_some_and(|agent| agent.held().next().is_some());
        }
        let passed = at - since;
        if passed > 0 && passed < WINDOW {
            self.loads = Some((since, loads));
            return;
        }
        let mut found = None;
        for (load, host) in loads.iter().zip(hosts).filter(|_| passed > 0) {
            let calls = host.calls - load.calls;
            let interval = if load.was_busy { self.rules.beat_busy } else { POLL };
            // A clock may be 5 % fast.
            let beats = passed * 21 / 20 / interval.as_millis() as u64 + 1;
            let normal = beats
                + CALLS_PER_RUN * (host.runs - load.runs)
                + CALLS_PER_START * u64::from(host.process - load.process);
            // Progress, and that the service still has an attempt in its queue, is reported when it is learned, once a
            // second at the most; and the plane may ask for a beat, every five seconds, to know whether it hears.
            let prompted = host.signals + host.questions - load.prompted;
            if calls > TIMES_NORMAL * normal + prompted {
                found = Some(format!(
                    "{} made {calls} calls in a minute; {normal} are normal, and {prompted} for progress or when asked",
                    host.name()
                ));
            }
        }
        let begin = |host: &Host| Load {
            calls: host.calls,
            runs: host.runs,
            prompted: host.signals + host.questions,
            process: host.process,
            was_busy: host.agent.as_ref().is_some_and(|agent| agent.held().next().is_some()),
        };
        self.loads = Some((at, hosts.iter().map(begin).collect()));
        if let Some(what) = found {
            self.violated_once(Law::L5, at, what);
        }
    }
}
