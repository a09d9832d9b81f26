//! From a trace to requests that are ready to send: which rows, what lengths, when, and the bytes of each body. All of
//! it happens before the clock starts.

use crate::prompts::Prompts;
use crate::random::Random;
use crate::trace::{Row, Trace};
use bytes::Bytes;
use clap::ValueEnum;
use pinion_config::{AlonePhase, AloneRequest};
use serde_json::{Map, Value};

/// Seed of the cancellations; prompts have the ones near it.
const LEAVE_STREAM: u64 = 1 << 43;

/// What happens to a request that is longer than the context, after `--max-input` and `--max-output` have cut it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Fit {
    /// Output first, then input, are cut to fit.
    Clamp,
    /// It is left out, so that prompts keep their own lengths.
    Drop,
}

/// Most tokens of a request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    pub context: u32,
    pub input_max: u32,
    pub output_max: u32,
    pub fit: Fit,
}

/// The lengths of one request after clamping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lengths {
    pub input: u32,
    pub output: u32,
}

impl Bounds {
    /// `None`: the request is left out.
    pub(crate) fn lengths(&self, row: &Row) -> Option<Lengths> {
        let (input, output) = (row.input_tokens.max(1), row.output_tokens.max(1));
        let (input, output) = (input.min(self.input_max).max(1), output.min(self.output_max).max(1));
        let fitting_output = output.min(self.context.saturating_sub(1)).max(1);
        let fitting_input = input.min(self.context.saturating_sub(fitting_output)).max(1);
        let kept = Lengths { input: fitting_input, output: fitting_output };
        let whole = kept == Lengths { input, output };
        (self.fit == Fit::Clamp || whole).then_some(kept)
    }
}

/// One request, ready to send.
#[derive(Clone, Debug)]
pub(crate) struct Job {
    /// Scheduled time, from the start of the run.
    pub at_ns: u64,
    pub lengths: Lengths,
    pub body: Bytes,
    /// The client disconnects after this number of pieces of the answer.
    pub frames_max: Option<usize>,
}

/// The rows that are replayed, with their lengths.
pub(crate) struct Selection {
    pub rows: Vec<(Row, Lengths)>,
    pub block_tokens: u32,
    /// Rows looked at that did not fit.
    pub dropped: usize,
    /// Rows whose lengths were cut.
    pub clamped: usize,
}

/// Takes the first `count` rows after `skip` that fit.
pub(crate) fn select(trace: &Trace, skip: usize, count: usize, bounds: &Bounds) -> Result<Selection, String> {
    let block_tokens = trace.block_tokens;
    let mut selection = Selection { rows: Vec::new(), block_tokens, dropped: 0, clamped: 0 };
    for row in trace.rows.iter().skip(skip) {
        if selection.rows.len() == count {
            break;
        }
        match bounds.lengths(row) {
            Some(lengths) => {
                let same = (lengths.input, lengths.output) == (row.input_tokens, row.output_tokens);
                selection.clamped += usize::from(!same);
                selection.rows.push((row.clone(), lengths));
            }
            None => selection.dropped += 1,
        }
    }
    if selection.rows.is_empty() {
        return Err("no request of the trace fits".to_owned());
    }
    Ok(selection)
}

impl Selection {
    /// Arrivals per second as the trace has them.
    pub(crate) fn natural_rate(&self) -> f64 {
        let span = self.rows[self.rows.len() - 1].0.at_s - self.rows[0].0.at_s;
        if span > 0.0 { (self.rows.len() - 1) as f64 / span } else { f64::INFINITY }
    }

    /// Scheduled time of each request: (t − t0) × scale.
    pub(crate) fn arrivals_ns(&self, scale: f64) -> Vec<u64> {
        let begin = self.rows[0].0.at_s;
        self.rows.iter().map(|(row, _)| ((row.at_s - begin) * scale * 1e9).round() as u64).collect()
    }
}

/// The fields of a request that are the same for all.
#[derive(Clone, Debug)]
pub(crate) struct Fields {
    pub model: String,
    pub stream: bool,
    pub ignore_eos: bool,
    pub temperature: f64,
    pub top_p: Option<f64>,
    pub top_k: Option<u32>,
    /// Sent as they stand, over everything else.
    pub extra: Map<String, Value>,
}

impl Fields {
    pub(crate) fn body(&self, prompt: Value, max_tokens: u32) -> Bytes {
        let mut body = Map::new();
        body.insert("model".to_owned(), Value::from(self.model.as_str()));
        body.insert("prompt".to_owned(), prompt);
        body.insert("max_tokens".to_owned(), Value::from(max_tokens));
        body.insert("temperature".to_owned(), Value::from(self.temperature));
        if let Some(top_p) = self.top_p {
            body.insert("top_p".to_owned(), Value::from(top_p));
        }
        if let Some(top_k) = self.top_k {
            body.insert("top_k".to_owned(), Value::from(top_k));
        }
        if self.ignore_eos {
            body.insert("ignore_eos".to_owned(), Value::from(true));
        }
        if self.stream {
            body.insert("stream".to_owned(), Value::from(true));
            body.insert("stream_options".to_owned(), serde_json::json!({"include_usage": true}));
        }
        body.extend(self.extra.clone());
        Bytes::from(Value::Object(body).to_string())
    }
}

/// Builds every request of one run.
pub(crate) fn jobs(
    selection: &Selection,
    scale: f64,
    prompts: &Prompts,
    fields: &Fields,
) -> Result<Vec<Job>, String> {
    let arrivals = selection.arrivals_ns(scale);
    let mut jobs = Vec::with_capacity(arrivals.len());
    for (index, ((row, lengths), at_ns)) in selection.rows.iter().zip(arrivals).enumerate() {
        let ids = prompts.ids(index, row, selection.block_tokens, lengths.input);
        let body = fields.body(prompts.render(&ids)?, lengths.output);
        jobs.push(Job { at_ns, lengths: *lengths, body, frames_max: None });
    }
    Ok(jobs)
}

/// The same requests for an engine alone. With `streams` they come in a closed loop.
pub(crate) fn phase(
    selection: &Selection,
    scale: f64,
    prompts: &Prompts,
    streams: Option<u32>,
) -> AlonePhase {
    let arrivals = selection.arrivals_ns(scale);
    let request = |(index, ((row, lengths), at_ns)): (usize, (&(Row, Lengths), u64))| AloneRequest {
        at_ns,
        ids: prompts.ids(index, row, selection.block_tokens, lengths.input),
        output_tokens: lengths.output,
    };
    AlonePhase { streams, requests: selection.rows.iter().zip(arrivals).enumerate().map(request).collect() }
}

/// So large a share of `jobs`, drawn by `seed`, is left by its client somewhere before the last token.
pub(crate) fn leave(jobs: &mut [Job], share: f64, seed: u64) {
    for (index, job) in jobs.iter_mut().enumerate() {
        let mut random = Random::stream(seed, LEAVE_STREAM ^ index as u64);
        if random.unit() < share {
            job.frames_max = Some(1 + random.below(job.lengths.output.max(2) as usize - 1));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(at_s: f64, input_tokens: u32, output_tokens: u32) -> Row {
        Row { at_s, input_tokens, output_tokens, blocks: Vec::new() }
    }

    #[test]
    fn lengths_are_clamped_to_the_context_output_first() {
        let bounds = |fit| Bounds { context: 100, input_max: 80, output_max: 64, fit };
        // (input, output) of the row → of the request
        let cases = [
            ((30, 20), Some((30, 20))),
            ((30, 90), Some((30, 64))),
            ((90, 10), Some((80, 10))),
            ((500, 500), Some((36, 64))),
            ((0, 0), Some((1, 1))),
        ];
        for ((input, output), expected) in cases {
            let found = bounds(Fit::Clamp).lengths(&row(0.0, input, output));
            assert_eq!(found.map(|l| (l.input, l.output)), expected, "{input} {output}");
        }
        assert!(bounds(Fit::Drop).lengths(&row(0.0, 30, 20)).is_some());
        // The bounds cut; only what is too long for the context even then is left out.
        let cut = bounds(Fit::Drop).lengths(&row(0.0, 90, 10)).map(|l| (l.input, l.output));
        assert_eq!(cut, Some((80, 10)));
        assert!(bounds(Fit::Drop).lengths(&row(0.0, 500, 500)).is_none());
    }

    #[test]
    fn arrivals_scale_from_the_first_that_is_kept() {
        let rows =
            vec![row(100.0, 999, 1), row(101.0, 5, 1), row(101.5, 5, 1), row(104.0, 5, 1), row(105.0, 5, 1)];
        let trace = Trace { rows, block_tokens: 0 };
        let bounds = Bounds { context: 50, input_max: 50, output_max: 50, fit: Fit::Drop };
        let selection = select(&trace, 0, 3, &bounds).expect("three fit");
        assert_eq!((selection.rows.len(), selection.dropped), (3, 1));
        assert_eq!(selection.arrivals_ns(0.4), [0, 200_000_000, 1_200_000_000]);
        assert_eq!(selection.arrivals_ns(2.0), [0, 1_000_000_000, 6_000_000_000]);
        assert!((selection.natural_rate() - 2.0 / 3.0).abs() < 1e-12);
        assert_eq!(select(&trace, 4, 3, &bounds).expect("one fits").rows.len(), 1);
        assert!(select(&trace, 5, 3, &bounds).is_err());
    }

    #[test]
    fn a_share_of_clients_leaves_before_the_end() {
        let job =
            Job { at_ns: 0, lengths: Lengths { input: 1, output: 9 }, body: Bytes::new(), frames_max: None };
        let left = |share: f64, seed: u64| {
            let mut jobs = vec![job.clone(); 4000];
            leave(&mut jobs, share, seed);
            jobs.into_iter().map(|job| job.frames_max).collect::<Vec<_>>()
        };
        let found = left(0.2, 7);
        assert_eq!(found, left(0.2, 7));
        assert_ne!(found, left(0.2, 8));
        let frames: Vec<usize> = found.into_iter().flatten().collect();
        assert!((700..900).contains(&frames.len()), "{} of 4000", frames.len());
        assert_eq!((frames.iter().min(), frames.iter().max()), (Some(&1), Some(&8)));
        assert_eq!(left(0.0, 7).iter().flatten().count(), 0);
    }

    #[test]
    fn extra_fields_win() {
        let extra = serde_json::json!({"temperature": 2, "cache_prompt": false});
        let fields = Fields {
            model: "m".to_owned(),
            stream: true,
            ignore_eos: true,
            temperature: 0.0,
            top_p: None,
            top_k: Some(5),
            extra: extra.as_object().expect("an object").clone(),
        };
        let body: Value = serde_json::from_slice(&fields.body(Value::from(vec![1, 2]), 7)).expect("JSON");
        let expected = serde_json::json!({"model": "m", "prompt": [1, 2], "max_tokens": 7, "temperature": 2,
            "top_k": 5, "ignore_eos": true, "stream": true, "stream_options": {"include_usage": true},
            "cache_prompt": false});
        assert_eq!(body, expected);
    }
}
