//! The pause observer: turns of a role's loop that took long, and what the kernel did to the role meanwhile.
//!
//! A turn's time counts from its start to the next sleep or turn, less what was excused (the engine's wait for its
//! model). So a role that only slept did not pause. The kernel's counts are read once a second and at a pause that is
//! told of, never per turn. Each pause is a span of the trace, too, and a mark for
//! NVIDIA's tools.

use crate::recorder::Recorder;
use nix::sys::resource::{UsageWho, getrusage};
use pinion_protocol::Peer;
use pinion_protocol::spans::SpanName;
use pinion_protocol::status::Gauge;
use pinion_shm::page::Page;

/// How often the kernel's counts are read, in ns.
const LOOK_INTERVAL_NS: u64 = 1_000_000_000;
/// One warning of a role in this time, in ns; it says how many pauses came without one.
const WARNING_INTERVAL_NS: u64 = 10_000_000_000;

/// What the kernel counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counts {
    minor_faults: u64,
    major_faults: u64,
    voluntary_switches: u64,
    involuntary_switches: u64,
}

impl Counts {
    fn read(who: UsageWho) -> Option<Counts> {
        let usage = getrusage(who).ok()?;
        let count = |value: i64| u64::try_from(value).unwrap_or(0);
        Some(Counts {
            minor_faults: count(usage.minor_page_faults()),
            major_faults: count(usage.major_page_faults()),
            voluntary_switches: count(usage.voluntary_context_switches()),
            involuntary_switches: count(usage.involuntary_context_switches()),
        })
    }

    fn since(self, before: Counts) -> Counts {
        Counts {
            minor_faults: self.minor_faults.saturating_sub(before.minor_faults),
            major_faults: self.major_faults.saturating_sub(before.major_faults),
            voluntary_switches: self.voluntary_switches.saturating_sub(before.voluntary_switches),
            involuntary_switches: self.involuntary_switches.saturating_sub(before.involuntary_switches),
        }
    }
}

/// Measures turns. Knows no clock.
#[derive(Debug)]
struct Turns {
    /// A turn of at least this is a pause; `None` with the observer off.
    warn_ns: Option<u64>,
    /// 0 before the first turn.
    began_ns: u64,
    excused_ns: u64,
}

impl Turns {
    /// A turn ends and another begins. Gives the begin and the length of one that was a pause.
    fn turn(&mut self, now_ns: u64) -> Option<(u64, u64)> {
        let began_ns = std::mem::replace(&mut self.began_ns, now_ns);
        let excused_ns = std::mem::take(&mut self.excused_ns);
        let took_ns = now_ns.saturating_sub(began_ns).saturating_sub(excused_ns);
        self.warn_ns.filter(|&warn_ns| began_ns > 0 && took_ns >= warn_ns).map(|_| (began_ns, took_ns))
    }

    /// What lies between the last turn and now was sleep.
    fn slept(&mut self, now_ns: u64) {
        (self.began_ns, self.excused_ns) = (now_ns, 0);
    }
}

/// See the module's head.
#[derive(Debug)]
pub(crate) struct Pauses {
    me: Peer,
    who: UsageWho,
    turns: Turns,
    looked: Counts,
    next_look_ns: u64,
    next_warning_ns: u64,
    untold: u64,
    longest_ns: u64,
}

impl Pauses {
    /// `warn_ms` 0 is off. A role that is a thread among others' looks at that thread only.
    pub(crate) fn new(me: Peer, warn_ms: u64, is_thread: bool) -> Pauses {
        let warn_ns = (warn_ms > 0).then(|| warn_ms.saturating_mul(1_000_000));
        Pauses {
            me,
            who: if is_thread { UsageWho::RUSAGE_THREAD } else { UsageWho::RUSAGE_SELF },
            turns: Turns { warn_ns, began_ns: 0, excused_ns: 0 },
            looked: Counts::default(),
            next_look_ns: 0,
            next_warning_ns: 0,
            untold: 0,
            longest_ns: 0,
        }
    }

    /// A turn of the loop ends here, and another begins.
    pub(crate) fn turn(&mut self, now_ns: u64, status: &Page, recorder: &Recorder) {
        if self.turns.warn_ns.is_none() {
            return;
        }
        if let Some((began_ns, took_ns)) = self.turns.turn(now_ns) {
            recorder.record_late(SpanName::Pause, began_ns, now_ns, [took_ns / 1_000, 0]);
            self.paused(took_ns, now_ns, status);
        }
        if now_ns >= self.next_look_ns {
            self.look(now_ns, status);
        }
    }

    /// What lies between the last turn and now was sleep.
    pub(crate) fn slept(&mut self, now_ns: u64) {
        self.turns.slept(now_ns);
    }

    /// So much of the turn under way passed in something that is watched elsewhere.
    pub(crate) fn excuse(&mut self, ns: u64) {
        self.turns.excused_ns = self.turns.excused_ns.saturating_add(ns);
    }

    /// Reads the kernel's counts and writes them to the status page. Gives what came since the last look.
    fn look(&mut self, now_ns: u64, status: &Page) -> Counts {
        self.next_look_ns = now_ns + LOOK_INTERVAL_NS;
        let Some(counts) = Counts::read(self.who) else { return Counts::default() };
        status.set(Gauge::MinorFaults as usize, counts.minor_faults);
        status.set(Gauge::MajorFaults as usize, counts.major_faults);
        status.set(Gauge::VoluntarySwitches as usize, counts.voluntary_switches);
        status.set(Gauge::InvoluntarySwitches as usize, counts.involuntary_switches);
        counts.since(std::mem::replace(&mut self.looked, counts))
    }

    fn paused(&mut self, took_ns: u64, now_ns: u64, status: &Page) {
        status.add(Gauge::Pauses as usize, 1);
        status.add(Gauge::PauseNs as usize, took_ns);
        self.longest_ns = self.longest_ns.max(took_ns);
        if now_ns < self.next_warning_ns {
            self.untold += 1;
            return;
        }
        self.next_warning_ns = now_ns + WARNING_INTERVAL_NS;
        let since = self.look(now_ns, status);
        tracing::warn!(
            role = %self.me,
            paused_ms = took_ns / 1_000_000,
            minor_faults = since.minor_faults,
            major_faults = since.major_faults,
            voluntary_switches = since.voluntary_switches,
            involuntary_switches = since.involuntary_switches,
            untold = std::mem::take(&mut self.untold),
            longest_ms = std::mem::take(&mut self.longest_ns) / 1_000_000,
            "paused: a turn of the loop took long; the counts are since the last look"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pinion_protocol::Role;
    use pinion_protocol::limits::GAUGE_COUNT;

    const MS: u64 = 1_000_000;

    enum Step {
        Turn(u64),
        Slept(u64),
        Excuse(u64),
    }
    use Step::*;

    /// (what happens, at which ms; how many pauses of how many ms in all)
    #[test]
    fn only_a_turn_that_works_long_is_a_pause() {
        let cases: [(&[Step], u64, u64); 7] = [
            (&[Turn(500)], 0, 0),
            (&[Turn(1), Turn(20), Turn(39)], 0, 0),
            (&[Turn(1), Turn(21)], 1, 20),
            (&[Turn(1), Turn(51), Turn(52), Turn(82)], 2, 80),
            (&[Turn(1), Turn(2), Slept(900), Turn(901)], 0, 0),
            (&[Turn(1), Slept(900), Turn(950)], 1, 50),
            (&[Turn(1), Excuse(400), Excuse(85), Turn(500), Turn(530)], 1, 30),
        ];
        for (index, (steps, pauses, paused_ms)) in cases.into_iter().enumerate() {
            for (warn_ms, on) in [(20, true), (0, false)] {
                let page = Page::create(1, 1, GAUGE_COUNT).expect("memory for a page");
                let mut observer = Pauses::new(Peer::new(Role::Engine, 0), warn_ms, true);
                for step in steps {
                    match *step {
                        Turn(ms) => observer.turn(ms * MS, &page, &Recorder::default()),
                        Slept(ms) => observer.slept(ms * MS),
                        Excuse(ms) => observer.excuse(ms * MS),
                    }
                }
                let seen = [Gauge::Pauses, Gauge::PauseNs].map(|gauge| page.get(gauge as usize));
                let expected = if on { [pauses, paused_ms * MS] } else { [0, 0] };
                assert_eq!(seen, expected, "case {index}, observer {on}");
                assert!(on || page.get(Gauge::MinorFaults as usize) == 0, "off looks at nothing");
            }
        }
    }

    #[test]
    fn the_kernels_counts_are_read_once_a_second() {
        let page = Page::create(1, 1, GAUGE_COUNT).expect("memory for a page");
        let mut observer = Pauses::new(Peer::new(Role::Engine, 0), 1_000_000, true);
        observer.turn(1, &page, &Recorder::default());
        let faults = || page.get(Gauge::MinorFaults as usize);
        let before = faults();
        let touched = vec![1u8; 8 << 20];
        observer.turn(LOOK_INTERVAL_NS, &page, &Recorder::default());
        assert_eq!(faults(), before, "not a second yet");
        observer.turn(LOOK_INTERVAL_NS + 1, &page, &Recorder::default());
        assert!(faults() > before, "{} bytes were touched for the first time", touched.len());
    }
}
