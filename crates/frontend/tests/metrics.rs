//! `/metrics`, read as strictly as Prometheus reads it, and what its numbers mean.

#![allow(clippy::unwrap_used, reason = "helpers of tests stand outside the test functions")]

use crate::harness;
use crate::harness::deaths::{DETOKENIZER, die, return_to_life};
use crate::harness::{Harness, Options, run};
use pinion_config::{Pooling, PoolingKind, Shorter};
use pinion_protocol::FaultCode;
use pinion_protocol::frontend_inbox::{DELTA_LAST, Decoded, FinishReason, encode_pooled, kind};
use pinion_protocol::names::{Counter, Stage};
use pinion_protocol::status::Gauge;
use pinion_protocol::tokenizer_inbox::TokenizerRecord;
use std::collections::{BTreeMap, BTreeSet};

/// A page that holds what the text format and promtool ask for.
#[derive(Debug, Default)]
struct Page {
    /// Family name to its type.
    kinds: BTreeMap<String, String>,
    /// Series, labels included, to its value.
    series: BTreeMap<String, f64>,
}

impl Page {
    /// Panics at the first thing that is wrong.
    fn read(text: &str) -> Page {
        assert!(text.ends_with('\n'), "the last line has no end");
        let mut page = Page::default();
        let (mut helps, mut family) = (BTreeSet::new(), String::new());
        for line in text.lines() {
            if let Some(rest) = line.strip_prefix("# HELP ") {
                let (name, help) = rest.split_once(' ').unwrap();
                assert!(helps.insert(name.to_owned()) && !help.is_empty(), "HELP twice or empty: {line}");
                family = name.to_owned();
            } else if let Some(rest) = line.strip_prefix("# TYPE ") {
                let (name, kind) = rest.split_once(' ').unwrap();
                assert_eq!(name, family, "TYPE does not follow its HELP: {line}");
                assert!(["counter", "gauge", "histogram"].contains(&kind), "{line}");
                assert!(page.kinds.insert(name.to_owned(), kind.to_owned()).is_none(), "TYPE twice: {line}");
            } else {
                page.sample(line, &family);
            }
        }
        assert_eq!(helps.len(), page.kinds.len(), "a HELP without TYPE");
        page.check_histograms();
        page
    }

    fn sample(&mut self, line: &str, family: &str) {
        let (series, value) = line.rsplit_once(' ').unwrap();
        let value: f64 = value.parse().unwrap_or_else(|_| panic!("no number in {line}"));
        let name = series.split('{').next().unwrap();
        let legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | ':');
        assert!(name.chars().all(legal), "{line}");
        let kind = self.kinds.get(family).unwrap_or_else(|| panic!("no TYPE before {line}"));
        let suffix = name.strip_prefix(family).unwrap_or_else(|| panic!("{line} stands under {family}"));
        let expected: &[&str] = if kind == "histogram" { &["_bucket", "_sum", "_count"] } else { &[""] };
        assert!(expected.contains(&suffix), "{line} is no part of a {kind}");
        assert!(kind == "gauge" || value >= 0.0, "{line}");
        if let Some(labels) = series.strip_prefix(name).filter(|labels| !labels.is_empty()) {
            let inner = labels.strip_prefix('{').and_then(|l| l.strip_suffix('}')).unwrap();
            let names: Vec<&str> = inner.split("\",").map(|pair| pair.split_once("=\"").unwrap().0).collect();
            assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), names.len(), "a label twice: {line}");
        }
        assert!(self.series.insert(series.to_owned(), value).is_none(), "series twice: {line}");
    }

    /// Buckets rise with their bound, and the last is the count.
    fn check_histograms(&self) {
        let histograms = self.kinds.iter().filter(|(_, kind)| *kind == "histogram");
        for (name, _) in histograms {
            let prefix = format!("{name}_count");
            for (series, count) in self.series.iter().filter(|(series, _)| series.starts_with(&prefix)) {
                let labels = series.strip_prefix(&prefix).unwrap();
                let open = labels.strip_suffix('}').map_or("{".to_owned(), |l| format!("{l},"));
                let start = format!("{name}_bucket{open}le=\"");
                let mut buckets: Vec<(f64, f64)> = (self.series.iter())
                    .filter_map(|(series, n)| Some((series.strip_prefix(&start)?, *n)))
                    .map(|(bound, n)| (bound.strip_suffix("\"}").unwrap().parse().unwrap(), n))
                    .collect();
                buckets.sort_by(|a, b| a.0.total_cmp(&b.0));
                assert!(buckets.windows(2).all(|two| two[0].1 <= two[1].1), "{name}: {buckets:?}");
                assert_eq!(buckets.last(), Some(&(f64::INFINITY, *count)), "{name}{labels}");
                assert!(self.series.contains_key(&format!("{name}_sum{labels}")), "{name}{labels}");
            }
        }
    }

    fn value(&self, series: &str) -> f64 {
        *self.series.get(series).unwrap_or_else(|| panic!("{series} is missing from {:#?}", self.series))
    }
}

async fn scrape(h: &Harness) -> Page {
    Page::read(&h.get("/metrics").await.body)
}

#[test]
fn the_page_is_well_formed_and_does_not_grow_with_hostile_paths() {
    run(Options::default(), |h| async move {
        let before = scrape(&h).await;
        for i in 0..100 {
            let method = ["GET", "BREW", "PUT"][i % 3];
            h.request(&format!("{method} /p{i} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")).await;
        }
        let after = scrape(&h).await;
        assert!(before.series.keys().eq(after.series.keys()));
        for (series, value) in [
            ("pinion_http_responses_total{route=\"unknown\",class=\"4xx\"}", 100.0),
            ("pinion_kv_blocks_used", 0.0),
            ("pinion_request_slots_used", 0.0),
            ("pinion_request_slots_limit", 8.0),
            ("pinion_ring_used_bytes{edge=\"frontend-0->tokenizer-0\"}", 96.0),
            ("pinion_ring_capacity_bytes{edge=\"frontend-0->tokenizer-0\"}", 4096.0),
        ] {
            assert_eq!(after.value(series), value, "{series}");
        }
    });
}

#[test]
fn without_compatibility_there_are_only_our_own_names() {
    let mut options = Options::default();
    options.settings.vllm_metrics = false;
    run(options, |h| async move {
        let page = scrape(&h).await;
        assert!(page.kinds.len() > 20 && page.kinds.keys().all(|name| name.starts_with("pinion_")));
    });
}

#[test]
fn the_names_that_the_inference_gateway_reads_have_their_meaning() {
    run(Options::default(), |h| async move {
        let of_engine = "{model_name=\"tiny\",engine=\"0\"}";
        for (gauge, value) in [
            (Gauge::RequestsRunning, 3),
            (Gauge::RequestsWaiting, 5),
            (Gauge::KvBlocksUsed, 16),
            (Gauge::KvBlocksTotal, 64),
            (Gauge::Preemptions, 2),
            (Gauge::PrefixQueryTokens, 100),
            (Gauge::PrefixHitTokens, 48),
            (Gauge::RequestsDeferred, 7),
            (Gauge::StepsTo1, 1),
            (Gauge::StepsTo64, 2),
            (Gauge::StepsAbove, 1),
            (Gauge::StepTokens, 20_500),
            (Gauge::Drafts, 30),
            (Gauge::AcceptedDrafts, 21),
        ] {
            h.engine_page.set(gauge as usize, value);
        }
        let page = scrape(&h).await;
        for (name, value) in [
            ("num_requests_running", 3.0),
            ("num_requests_waiting", 5.0),
            ("kv_cache_usage_perc", 0.25),
            ("num_preemptions_total", 2.0),
            ("prefix_cache_queries_total", 100.0),
            ("prefix_cache_hits_total", 48.0),
            ("gpu_cache_usage_perc", 0.25),
            ("gpu_prefix_cache_queries_total", 100.0),
            ("gpu_prefix_cache_hits_total", 48.0),
            ("spec_decode_num_draft_tokens_total", 30.0),
            ("spec_decode_num_accepted_tokens_total", 21.0),
            ("iteration_tokens_total_count", 4.0),
            ("iteration_tokens_total_sum", 20_500.0),
        ] {
            assert_eq!(page.value(&format!("vllm:{name}{of_engine}")), value, "{name}");
        }
        for (bound, steps) in [("1.0", 1.0), ("32.0", 1.0), ("64.0", 3.0), ("16384.0", 3.0), ("+Inf", 4.0)] {
            let labels = format!("{{model_name=\"tiny\",engine=\"0\",le=\"{bound}\"}}");
            assert_eq!(page.value(&format!("vllm:iteration_tokens_total_bucket{labels}")), steps, "{bound}");
        }
        for (reason, value) in [("capacity", 5.0), ("deferred", 7.0)] {
            let labels = format!("{{model_name=\"tiny\",engine=\"0\",reason=\"{reason}\"}}");
            assert_eq!(page.value(&format!("vllm:num_requests_waiting_by_reason{labels}")), value);
        }
        let awake = "vllm:engine_sleep_state{model_name=\"tiny\",engine=\"0\",sleep_state=\"awake\"}";
        assert_eq!(page.value(awake), 1.0);
        let info = "vllm:cache_config_info{block_size=\"16\",num_gpu_blocks=\"64\",engine=\"0\"}";
        assert_eq!(page.value(info), 1.0);
    });
}

#[test]
fn tokens_and_times_are_counted_as_they_come_and_requests_when_they_end() {
    run(Options::default(), |h| async move {
        let body = r#"{"prompt":"hi","stream":true,"max_tokens":9}"#;
        let client = h.post_raw("/v1/completions", body).await;
        let id = h.submit().await.id;
        let slot = h.table.slot(usize::from(id.slot)).unwrap();
        slot.set_counter(id.generation, Counter::PromptTokens as usize, 3);
        h.delta(id, 0, &[1], "a", 0);
        h.delta(id, 1, &[2, 3], "b", 0);
        let labels = "{model_name=\"tiny\",engine=\"0\"}";
        let value = |page: &Page, name: &str| page.value(&format!("vllm:{name}{labels}"));
        let page = scrape(&h).await;
        let counts = [
            "prompt_tokens_total",
            "generation_tokens_total",
            "time_to_first_token_seconds_count",
            "inter_token_latency_seconds_count",
            "e2e_request_latency_seconds_count",
        ];
        assert_eq!(counts.map(|name| value(&page, name)), [3.0, 3.0, 1.0, 2.0, 0.0]);

        let ns = pinion_os::clock::now_ns();
        for (stage, at_ms) in [
            (Stage::EngineReceived, 0),
            (Stage::FirstScheduled, 100),
            (Stage::FirstToken, 300),
            (Stage::LastToken, 900),
        ] {
            slot.stamp(id.generation, stage as usize, ns + at_ms * 1_000_000);
        }
        h.delta(id, 3, &[4], "c", DELTA_LAST);
        h.finish(id, FinishReason::Length, 4);
        assert!(harness::Reply::read(client).await.complete);
        let page = scrape(&h).await;
        for (name, expected) in [
            ("e2e_request_latency_seconds_count", 1.0),
            ("prompt_tokens_cached_total", 1.0),
            ("request_params_n_sum", 1.0),
            ("request_max_num_generation_tokens_sum", 4.0),
            ("request_max_num_generation_tokens_count", 1.0),
            ("request_params_max_tokens_sum", 9.0),
            ("request_queue_time_seconds_sum", 0.1),
            ("request_prefill_time_seconds_sum", 0.2),
            ("request_decode_time_seconds_sum", 0.6),
            ("request_inference_time_seconds_sum", 0.8),
            ("request_time_per_output_token_seconds_sum", 0.2),
            ("request_prompt_tokens_sum", 3.0),
            ("request_generation_tokens_sum", 4.0),
            ("generation_tokens_total", 4.0),
        ] {
            assert!((value(&page, name) - expected).abs() < 1e-9, "{name}: {}", value(&page, name));
        }
        for (reason, count) in [("stop", 0.0), ("length", 1.0), ("abort", 0.0), ("error", 0.0)] {
            let labels = format!("{{model_name=\"tiny\",engine=\"0\",finished_reason=\"{reason}\"}}");
            assert_eq!(page.value(&format!("vllm:request_success_total{labels}")), count, "{reason}");
        }
    });
}

#[test]
fn the_longest_choice_of_a_prompt_counts_once() {
    run(Options::default(), |h| async move {
        let body = r#"{"prompt":["hi","ho"],"n":2,"max_tokens":9}"#;
        let client = h.post_raw("/v1/completions", body).await;
        for tokens in [1, 3, 2, 2] {
            let id = h.submit().await.id;
            let ids: Vec<u32> = (0..tokens).collect();
            h.delta(id, 0, &ids, "a", DELTA_LAST);
            h.finish(id, FinishReason::Stop, tokens);
        }
        assert!(harness::Reply::read(client).await.complete);
        let page = scrape(&h).await;
        let of = |part: &str| {
            page.value(&format!(
                "vllm:request_max_num_generation_tokens_{part}{{model_name=\"tiny\",engine=\"0\"}}"
            ))
        };
        assert_eq!((of("count"), of("sum")), (2.0, 5.0));
    });
}

/// Prompt tokens, and what ended by `stop` and by `length`, as vLLM names them.
async fn counted(h: &Harness) -> (f64, f64, f64) {
    let page = scrape(h).await;
    let ended = |reason: &str| {
        let labels = format!("{{model_name=\"tiny\",engine=\"0\",finished_reason=\"{reason}\"}}");
        page.value(&format!("vllm:request_success_total{labels}"))
    };
    let prompts = page.value("vllm:prompt_tokens_total{model_name=\"tiny\",engine=\"0\"}");
    (prompts, ended("stop"), ended("length"))
}

/// They were counted with a first token only, which some requests never get.
#[test]
fn a_prompt_is_counted_once_whether_a_token_comes_or_not() {
    run(Options::default(), |h| async move {
        let body = r#"{"prompt":"hi","echo":true,"max_tokens":0}"#;
        let client = h.post_raw("/v1/completions", body).await;
        let id = h.submit().await.id;
        h.delta(id, 0, &[], "", DELTA_LAST);
        h.finish(id, FinishReason::Length, 0);
        assert!(harness::Reply::read(client).await.complete);
        assert_eq!(counted(&h).await, (3.0, 0.0, 1.0));

        // The engine's account overtakes the token.
        let client = h.post_raw("/v1/completions", r#"{"prompt":"hi","max_tokens":1}"#).await;
        let id = h.submit().await.id;
        let slot = h.table.slot(usize::from(id.slot)).unwrap();
        slot.set_counter(id.generation, Counter::PromptTokens as usize, 3);
        h.finish(id, FinishReason::Length, 1);
        h.delta(id, 0, &[1], "a", DELTA_LAST);
        assert!(harness::Reply::read(client).await.complete);
        assert_eq!(counted(&h).await, (6.0, 0.0, 2.0));

        // What the engine gave up was not computed.
        let client = h.post_raw("/v1/completions", r#"{"prompt":"hi","max_tokens":1}"#).await;
        let id = h.submit().await.id;
        h.finish(id, FinishReason::Failed(FaultCode::NonFinite), 0);
        h.delta(id, 0, &[], "", DELTA_LAST);
        assert_eq!(harness::Reply::read(client).await.status, 500);
        assert_eq!(counted(&h).await, (6.0, 0.0, 2.0));

        // Ids to text is work for the tokenizer, whatever route asks for it.
        let client = h.post_raw("/detokenize", r#"{"tokens":[1]}"#).await;
        let TokenizerRecord::Decode(job) = h.job().await else { panic!("not a decode") };
        let mut record = Vec::new();
        Decoded { id: job.id, text: "a".into() }.encode(&mut record);
        h.take(kind::DECODED, &record);
        assert_eq!(harness::Reply::read(client).await.status, 200);
        assert_eq!(counted(&h).await, (6.0, 0.0, 2.0));
    });
}

#[test]
fn texts_that_become_vectors_count_as_in_vllm_and_once_over_a_death() {
    let pooling = Pooling { kind: PoolingKind::Last, width: 2, normalize: true, shorter: Shorter::None };
    run(Options { pooling: Some(pooling), ..Options::default() }, |h| async move {
        let client = h.post_raw("/v1/embeddings", r#"{"input":["a","b"]}"#).await;
        let give = |id| {
            let mut record = Vec::new();
            encode_pooled(&mut record, id, &[3.0, 4.0]);
            h.take(kind::POOLED, &record);
            h.finish(id, FinishReason::Length, 0);
        };
        let (first, second) = (h.submit().await.id, h.submit().await.id);
        give(first);
        h.delta(first, 0, &[], "", DELTA_LAST);
        // The end of the second one's text is lost, and its vector is made again.
        give(second);
        die(&h, DETOKENIZER);
        return_to_life(&h, DETOKENIZER);
        let again = h.submit().await.id;
        give(again);
        h.delta(again, 0, &[], "", DELTA_LAST);
        assert_eq!(harness::Reply::read(client).await.status, 200);
        assert_eq!(counted(&h).await, (6.0, 2.0, 0.0));
    });
}
