//! One request's timeline, read out of its slot: where its time went, and what shared its steps.
//!
//! Pure but for `Timeline::of_slot` and `Stamps::of_slot`. The parts of [`Part`] follow one another without a gap:
//! a boundary that is missing or lies before the one before it gives its part no time, and none lies past the end, so
//! that the parts always add up to the whole. Shown as `timings` ([`Timings`]), as a `Server-Timing` field, in the
//! histograms of `/metrics` and on `/debug/slow` (`slow`).

use pinion_protocol::RequestId;
use pinion_protocol::names::{Counter, Part, Stage};
use pinion_protocol::spans::{SpanName, request_word};
use pinion_shm::slots::Slot;
use pinion_worker::Recorder;
use serde::Serialize;
use std::fmt::Write;

/// When a request reached its stages; 0 is not reached. What it did before a role died counts: only its end is its last
/// life's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Stamps([u64; Stage::ALL.len()]);

impl Stamps {
    /// Those of the request of `generation`, after those of its `earlier` lives.
    pub(crate) fn of_slot(slot: Option<Slot<'_>>, generation: u32, earlier: Option<&Stamps>) -> Stamps {
        Stamps(Stage::ALL.map(|stage| {
            let before = match stage {
                Stage::LastToken | Stage::LastText | Stage::LastWrite => 0,
                _ => earlier.map_or(0, |stamps| stamps.of(stage)),
            };
            let now = || slot.map_or(0, |slot| slot.stamped(generation, stage as usize));
            if before > 0 { before } else { now() }
        }))
    }

    /// Of a request that reached nothing.
    #[cfg(test)]
    pub(crate) const NONE: Stamps = Stamps([0; Stage::ALL.len()]);

    /// These, in the order of the stages.
    #[cfg(test)]
    pub(crate) fn of_list(stamps: [u64; Stage::ALL.len()]) -> Stamps {
        Stamps(stamps)
    }

    /// CLOCK_MONOTONIC ns of `stage`.
    pub(crate) fn of(&self, stage: Stage) -> u64 {
        self.0[stage as usize]
    }
}

/// Where a request's time went.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timeline {
    /// CLOCK_MONOTONIC ns at which its head was parsed.
    pub received_ns: u64,
    /// Time of each part.
    pub parts_ns: [u64; Part::ALL.len()],
    /// To the first bytes handed to the socket; to the first text, or the first token, where the answer leaves whole.
    pub first_ns: Option<u64>,
    /// The whole: the sum of the parts.
    pub total_ns: u64,
    /// The slot's counters.
    pub counters: [u64; Counter::ALL.len()],
}

impl Timeline {
    /// Reads the counters of a request's slot, which has come to `until_ns` with these stamps. Without a slot nothing
    /// is known but the whole.
    pub(crate) fn of_slot(
        slot: Option<Slot<'_>>,
        generation: u32,
        stamps: &Stamps,
        received_ns: u64,
        until_ns: u64,
    ) -> Timeline {
        let mut timeline = Timeline::of_stamps(|stage| stamps.of(stage), received_ns, until_ns);
        for (value, counter) in timeline.counters.iter_mut().zip(Counter::ALL) {
            *value = slot.map_or(0, |slot| slot.counter(generation, counter as usize));
        }
        timeline
    }

    fn of_stamps(stamped: impl Fn(Stage) -> u64, received_ns: u64, until_ns: u64) -> Timeline {
        let until_ns = until_ns.max(received_ns);
        let mut parts_ns = [0; Part::ALL.len()];
        let mut begin_ns = received_ns;
        for part in Part::ALL {
            let end_ns = match part {
                Part::Write => until_ns,
                _ => stamped(part.ends_at()).clamp(begin_ns, until_ns),
            };
            parts_ns[part as usize] = end_ns - begin_ns;
            begin_ns = end_ns;
        }
        let first_ns = [Stage::FirstWrite, Stage::FirstText, Stage::FirstToken]
            .into_iter()
            .map(&stamped)
            .find(|ns| *ns >= received_ns)
            .map(|ns| ns - received_ns);
        let total_ns = until_ns - received_ns;
        Timeline { received_ns, parts_ns, first_ns, total_ns, counters: [0; Counter::ALL.len()] }
    }

    /// Time of one part.
    pub fn part_ns(&self, part: Part) -> u64 {
        self.parts_ns[part as usize]
    }

    /// Time up to the last token: tells which of several choices ended last.
    pub fn decode_ends_ns(&self) -> u64 {
        self.parts_ns[..=Part::Decode as usize].iter().sum()
    }

    /// One counter.
    pub fn counter(&self, counter: Counter) -> u64 {
        self.counters[counter as usize]
    }

    /// Keeps the parts as spans. The detail says which `tokenizer` and `detokenizer` had the request, so that a trace
    /// can join its parts to what those did.
    pub(crate) fn record(&self, recorder: &Recorder, id: RequestId, tokenizer: u16, detokenizer: u16) {
        if !recorder.records() {
            return;
        }
        let mut begin_ns = self.received_ns;
        for part in Part::ALL {
            let end_ns = begin_ns + self.part_ns(part);
            let detail = match part {
                Part::Tokenize => u64::from(tokenizer),
                Part::Detokenize => u64::from(detokenizer),
                Part::Write => self.total_ns,
                Part::Admission
                | Part::TokenizerQueue
                | Part::EngineInbox
                | Part::Queue
                | Part::Prefill
                | Part::Decode => 0,
            };
            let arguments = [request_word(id), detail];
            recorder.record(SpanName::Request(part), begin_ns, end_ns, arguments);
            begin_ns = end_ns;
        }
    }

    /// The value of a `Server-Timing` field: the parts and the whole, in milliseconds.
    pub fn server_timing(&self) -> String {
        let mut out = String::with_capacity(256);
        for part in Part::ALL {
            let _ = write!(out, "{};dur={:.3}, ", part.name(), ms(self.part_ns(part)));
        }
        let _ = write!(out, "total;dur={:.3}", ms(self.total_ns));
        out
    }
}

fn ms(ns: u64) -> f64 {
    ns as f64 / 1e6
}

/// Milliseconds of each part, under the part's name.
#[derive(Debug, Serialize)]
struct Stages {
    admission: f64,
    tokenizer_queue: f64,
    tokenize: f64,
    engine_inbox: f64,
    queue: f64,
    prefill: f64,
    decode: f64,
    detokenize: f64,
    write: f64,
}

/// What shared the steps that a request took part in, itself included.
#[derive(Debug, Serialize)]
struct Batch {
    steps: u64,
    rows_mean: f64,
    rows_max: u64,
    prefill_tokens_mean: f64,
    prefill_tokens_max: u64,
}

/// [`Timeline`] as it is serialised. The first eleven members are llama-server's.
#[derive(Debug, Serialize)]
pub struct Timings {
    cache_n: u64,
    prompt_n: u64,
    prompt_ms: f64,
    prompt_per_token_ms: f64,
    prompt_per_second: f64,
    predicted_n: u64,
    predicted_ms: f64,
    predicted_per_token_ms: f64,
    predicted_per_second: f64,
    draft_n: u64,
    draft_n_accepted: u64,
    ttft_ms: Option<f64>,
    e2e_ms: f64,
    preemptions: u64,
    resumptions: u64,
    stages_ms: Stages,
    batch: Batch,
}

impl From<&Timeline> for Timings {
    fn from(timeline: &Timeline) -> Timings {
        let part = |part: Part| ms(timeline.part_ns(part));
        let ratio = |value: f64, by: f64| if by > 0.0 { value / by } else { 0.0 };
        let cache_n = timeline.counter(Counter::CachedTokens);
        let prompt_n = timeline.counter(Counter::PromptTokens).saturating_sub(cache_n);
        let predicted_n = timeline.counter(Counter::GeneratedTokens);
        let (prompt_ms, predicted_ms) = (part(Part::Prefill), part(Part::Decode));
        let steps = timeline.counter(Counter::Steps);
        let mean = |sum: Counter| ratio(timeline.counter(sum) as f64, steps as f64);
        Timings {
            cache_n,
            prompt_n,
            prompt_ms,
            prompt_per_token_ms: ratio(prompt_ms, prompt_n as f64),
            prompt_per_second: ratio(prompt_n as f64 * 1e3, prompt_ms),
            predicted_n,
            predicted_ms,
            predicted_per_token_ms: ratio(predicted_ms, predicted_n.saturating_sub(1) as f64),
            predicted_per_second: ratio(predicted_n.saturating_sub(1) as f64 * 1e3, predicted_ms),
            draft_n: timeline.counter(Counter::Drafts),
            draft_n_accepted: timeline.counter(Counter::AcceptedDrafts),
            ttft_ms: timeline.first_ns.map(ms),
            e2e_ms: ms(timeline.total_ns),
            preemptions: timeline.counter(Counter::Preemptions),
            resumptions: timeline.counter(Counter::Resumptions),
            stages_ms: Stages {
                admission: part(Part::Admission),
                tokenizer_queue: part(Part::TokenizerQueue),
                tokenize: part(Part::Tokenize),
                engine_inbox: part(Part::EngineInbox),
                queue: part(Part::Queue),
                prefill: part(Part::Prefill),
                decode: part(Part::Decode),
                detokenize: part(Part::Detokenize),
                write: part(Part::Write),
            },
            batch: Batch {
                steps,
                rows_mean: mean(Counter::BatchRowsSum),
                rows_max: timeline.counter(Counter::BatchRowsMax),
                prefill_tokens_mean: mean(Counter::BatchPrefillSum),
                prefill_tokens_max: timeline.counter(Counter::BatchPrefillMax),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pinion_random::nth;

    /// Whatever the stamps say, late, early or not at all, the parts add up to the whole.
    #[test]
    fn the_parts_add_up_whatever_the_stamps_say() {
        let seed = 20_261_120;
        println!("seed {seed}");
        for round in 0..2000 {
            let random = |place: u64, below: u64| nth(seed + round, place) % below;
            let (received_ns, until_ns) = (1_000_000, 1_000_000 + random(0, 5_000));
            let stamps: Vec<u64> = (1..=12_u64)
                .map(|place| match random(place, 4) {
                    0 => 0,
                    _ => 998_000 + random(place + 20, 9_000),
                })
                .collect();
            let timeline = Timeline::of_stamps(|stage| stamps[stage as usize], received_ns, until_ns);
            assert_eq!(timeline.parts_ns.iter().sum::<u64>(), timeline.total_ns, "round {round}: {stamps:?}");
            assert_eq!(timeline.total_ns, until_ns - received_ns);
        }
    }

    #[test]
    fn a_life_in_order_gives_each_part_its_time() {
        let stamped = |stage: Stage| match stage {
            Stage::FirstText | Stage::FirstWrite => 0,
            other => 1_000 + 10 * Stage::ALL.iter().position(|s| *s == other).unwrap() as u64,
        };
        let timeline = Timeline::of_stamps(stamped, 1_000, 1_110);
        // From the last token (70) to the last text (90) there are two stages that do not count here.
        assert_eq!(timeline.parts_ns, [10, 10, 10, 10, 10, 10, 10, 20, 20]);
        assert_eq!(timeline.first_ns, Some(60), "no text and no write was stamped");
    }

    #[test]
    fn names_are_the_vocabulary_s() {
        let timings = serde_json::to_value(Timings::from(&Timeline::default())).unwrap();
        let mut stages: Vec<&String> = timings["stages_ms"].as_object().unwrap().keys().collect();
        stages.sort_unstable();
        let mut names: Vec<&str> = Part::ALL.iter().map(|part| part.name()).collect();
        names.sort_unstable();
        assert_eq!(stages, names);
        for (index, part) in Part::ALL.iter().enumerate() {
            assert_eq!(*part as usize, index);
        }
    }
}
