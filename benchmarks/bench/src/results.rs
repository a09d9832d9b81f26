//! Result files. One measurement is `runs/KEY.json` with its raw rows in `runs/KEY.csv`; a whole result is one JSON
//! file that holds all of them. A measurement that is there already, made from the same settings and the same commit,
//! is not made again, so every command can be stopped and started.

use crate::ablate::{self, Compared, Comparison};
use crate::alone::EngineFacts;
use crate::figures::{self, Figures, Quantile, TOO_FEW_NOTE};
use crate::machine::Origin;
use crate::metrics::Scrape;
use crate::replay::Run;
use crate::server::ServerFacts;
use crate::table;
use serde::{Deserialize, Serialize};
use std::io::Write;
use std::path::{Path, PathBuf};

/// Steps per factor of ten in the histogram of gaps.
const GAP_STEPS_PER_DECADE: u32 = 20;

/// One measurement.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct RunRecord {
    pub key: String,
    /// Of everything that decides what was measured.
    pub fingerprint: String,
    /// Variant or server, as plots name it.
    pub label: String,
    pub round: u32,
    /// Factor on the trace's times; 0 where there is none.
    pub scale: f64,
    /// Streams of a closed loop; 0 in an open one.
    #[serde(default)]
    pub streams: usize,
    /// Mean arrivals per second that were scheduled.
    pub offered_per_s: f64,
    /// In what state the server's caches were: a fresh process, cleared, or as they were.
    pub cache_state: String,
    /// `ids` or `text`; empty in results of older versions, which have it in their notes.
    #[serde(default)]
    pub prompt_form: String,
    /// Each answer was asked for in exactly its length (`ignore_eos`). Results of older versions do not say it.
    #[serde(default)]
    pub exact_lengths: bool,
    pub server: ServerFacts,
    pub figures: Figures,
    /// Lower edge in ms and count of the gaps between token events.
    pub gap_histogram_ms: Vec<(f64, u64)>,
    /// Mean ms per request in each stage, from the server's metrics.
    pub stages_ms: Vec<(String, f64)>,
    /// Output tokens by the scheduler's own counter, warm-up excluded.
    pub server_output_tokens: Option<u64>,
    /// Of an engine alone.
    #[serde(default)]
    pub engine: Option<EngineFacts>,
    /// The raw rows, beside this file.
    pub rows_file: String,
}

/// A whole result.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct ResultFile {
    /// `online`, `offline`, `compare` or `ablate`.
    pub kind: String,
    pub origin: Origin,
    /// The scenario's text, or the arguments that stand for one.
    pub scenario: String,
    pub seed: u64,
    pub notes: Vec<String>,
    pub runs: Vec<RunRecord>,
    /// Label of the variant that the others are compared with.
    #[serde(default)]
    pub base: String,
    /// Labels of the variants that cannot act on the workload.
    #[serde(default)]
    pub inert: Vec<String>,
    #[serde(default)]
    pub compared: Vec<Compared>,
}

impl ResultFile {
    /// Reads a result, of an older version too. What it compares is compared again, so that its verdicts follow the
    /// rules of today.
    pub(crate) fn read(path: &Path) -> Result<ResultFile, String> {
        let fault = |error: String| format!("{}: {error}", path.display());
        let text = std::fs::read_to_string(path).map_err(|error| fault(error.to_string()))?;
        let mut file: ResultFile = serde_json::from_str(&text).map_err(|error| fault(error.to_string()))?;
        let metrics = ablate::distinct(file.compared.iter().map(|row| row.metric.clone()));
        if !metrics.is_empty() {
            file.compare(&metrics);
        }
        Ok(file)
    }

    /// What a reader must know before the figures of two servers are set side by side.
    pub(crate) fn lacks(&self) -> Vec<String> {
        let labels = ablate::distinct(self.runs.iter().map(|run| run.label.as_str()));
        let unknown = labels
            .iter()
            .filter(|label| self.runs.iter().any(|run| run.label == **label && run.server.version.is_none()));
        let mut notes: Vec<String> = unknown
            .map(|label| format!("{label}: its version is not known, so its figures support no comparison"))
            .collect();
        let forms = ablate::distinct(self.runs.iter().map(|run| run.prompt_form.as_str()));
        if forms.contains(&"") {
            notes.push(
                "an older version of the tool measured this: see its notes for the form of the prompts"
                    .to_owned(),
            );
        } else if forms.len() > 1 {
            notes.push(
                "some were sent prompts as ids, others as text: their figures support no comparison"
                    .to_owned(),
            );
        }
        notes
    }

    /// Compares the variants with the base in these figures; all, if none are named.
    pub(crate) fn compare(&mut self, metrics: &[String]) {
        let comparison =
            Comparison { runs: &self.runs, base: &self.base, inert: &self.inert, seed: self.seed };
        self.compared = ablate::compare(&comparison, metrics);
    }
}

/// 64-bit FNV-1a, in hexadecimal.
pub(crate) fn fingerprint(text: &str) -> String {
    let hash = text.bytes().fold(0xcbf2_9ce4_8422_2325u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    format!("{hash:016x}")
}

/// The folder of one result.
pub(crate) struct Folder(PathBuf);

impl Folder {
    pub(crate) fn open(path: &Path) -> Result<Folder, String> {
        let runs = path.join("runs");
        std::fs::create_dir_all(&runs).map_err(|error| format!("{}: {error}", runs.display()))?;
        Ok(Folder(path.to_owned()))
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    fn run_path(&self, key: &str, ending: &str) -> PathBuf {
        self.0.join("runs").join(format!("{key}.{ending}"))
    }

    /// Where the server of a run writes.
    pub(crate) fn log_path(&self, key: &str) -> PathBuf {
        self.run_path(key, "server.log")
    }

    /// A run that was finished before, from the same settings.
    pub(crate) fn finished(&self, key: &str, fingerprint: &str) -> Option<RunRecord> {
        let text = std::fs::read_to_string(self.run_path(key, "json")).ok()?;
        let record: RunRecord = serde_json::from_str(&text).ok()?;
        (record.fingerprint == fingerprint).then_some(record)
    }

    /// Writes the rows, then the record: a record that is there is complete.
    pub(crate) fn keep(&self, record: &RunRecord, run: &Run) -> Result<(), String> {
        write_whole(&self.run_path(&record.key, "csv"), rows_csv(run)?.as_bytes())?;
        write_whole(&self.run_path(&record.key, "json"), pretty(record)?.as_bytes())
    }

    pub(crate) fn write(&self, name: &str, result: &ResultFile) -> Result<PathBuf, String> {
        let path = self.0.join(name);
        write_whole(&path, pretty(result)?.as_bytes())?;
        Ok(path)
    }
}

fn pretty(value: &impl Serialize) -> Result<String, String> {
    serde_json::to_string_pretty(value).map_err(|error| error.to_string())
}

/// Under another name first: no reader sees half a file.
pub(crate) fn write_whole(path: &Path, bytes: &[u8]) -> Result<(), String> {
    let fault = |error: std::io::Error| format!("{}: {error}", path.display());
    let mut part = path.as_os_str().to_owned();
    part.push(".part");
    let mut file = std::fs::File::create(&part).map_err(fault)?;
    file.write_all(bytes).map_err(fault)?;
    std::fs::rename(&part, path).map_err(fault)
}

/// One line per request: times in µs from the run's start, gaps between token events in µs.
fn rows_csv(run: &Run) -> Result<String, String> {
    let mut writer = csv::Writer::from_writer(Vec::new());
    let header = [
        "request",
        "scheduled_us",
        "sent_us",
        "first_us",
        "end_us",
        "input",
        "output_asked",
        "output",
        "prompt_counted",
        "cached",
        "finish",
        "error",
        "gaps_us",
    ];
    let fault = |error: csv::Error| error.to_string();
    writer.write_record(header).map_err(fault)?;
    let us = |ns: u64| (ns / 1000).to_string();
    let optional = |count: Option<u32>| count.map_or(String::new(), |count| count.to_string());
    for (index, request) in run.requests.iter().enumerate() {
        let outcome = &request.outcome;
        let gaps = outcome.event_ns.windows(2).map(|pair| us(pair[1].saturating_sub(pair[0])));
        let record = [
            index.to_string(),
            us(request.scheduled_ns),
            us(request.sent_ns),
            outcome.event_ns.first().map_or(String::new(), |ns| us(*ns)),
            us(outcome.end_ns),
            request.lengths.input.to_string(),
            request.lengths.output.to_string(),
            outcome.output_tokens.to_string(),
            optional(outcome.prompt_tokens),
            optional(outcome.cached_tokens),
            outcome.finish_reason.clone().unwrap_or_default(),
            outcome.error.clone().unwrap_or_else(|| if outcome.left { "left" } else { "" }.to_owned()),
            gaps.collect::<Vec<_>>().join(" "),
        ];
        writer.write_record(record).map_err(fault)?;
    }
    let bytes = writer.into_inner().map_err(|error| error.to_string())?;
    String::from_utf8(bytes).map_err(|error| error.to_string())
}

impl RunRecord {
    /// Fills in what follows from a finished run and from the server's metrics around it.
    pub(crate) fn complete(&mut self, figures: Figures, run: &Run, before: &Scrape, after: &Scrape) {
        self.figures = figures;
        self.gap_histogram_ms = figures::gap_histogram(&run.requests, GAP_STEPS_PER_DECADE);
        self.stages_ms = after.stages_since(before);
        self.server_output_tokens = after.generated_since(before);
        self.rows_file = format!("runs/{}.csv", self.key);
    }
}

/// The tables of an online result, for a terminal of 100 columns and for a page: what was sent and done, then the
/// latencies.
pub(crate) fn narrow(runs: &[RunRecord]) -> String {
    let number = table::number;
    let named = |run: &RunRecord| {
        let load = if run.streams > 0 { format!("{} streams", run.streams) } else { number(run.scale) };
        vec![run.label.clone(), load]
    };
    let sent = runs.iter().map(|run| {
        let figures = &run.figures;
        let mut row = named(run);
        row.extend([
            if run.streams > 0 { "–".to_owned() } else { number(run.offered_per_s) },
            figures.completed.to_string(),
            (figures.requests - figures.completed - figures.left).to_string(),
            number(figures.output_tokens_per_s),
            figures.goodput.map_or("–".to_owned(), |goodput| format!("{:.1} %", goodput.share * 100.0)),
            number(figures.send_lag_ms.max),
            number(figures.client.cpu_share_of_one_core),
        ]);
        row
    });
    let header = ["server", "scale", "req/s", "done", "failed", "tok/s", "goodput", "lag max ms", "client"];
    let sent = table::render(&header, &sent.collect::<Vec<_>>());
    let latencies = runs.iter().flat_map(|run| {
        let figures = &run.figures;
        let spreads = [
            ("TTFT", &figures.ttft_ms),
            ("ITL", &figures.itl_ms),
            ("TPOT", &figures.tpot_ms),
            ("E2E", &figures.e2e_ms),
        ];
        spreads.map(|(name, spread)| {
            let mut row = named(run);
            row.push(name.to_owned());
            row.push(spread.count.to_string());
            row.extend([Quantile::P50, Quantile::P90, Quantile::P99].map(|quantile| quantile.cell(spread)));
            row.push(if spread.count > 0 { number(spread.max) } else { "–".to_owned() });
            row
        })
    });
    let header = ["server", "scale", "ms", "samples", "p50", "p90", "p99", "max"];
    let latencies = table::render(&header, &latencies.collect::<Vec<_>>());
    format!("{sent}\n{}", table::noted(latencies, TOO_FEW_NOTE))
}

/// For file names: what a switch turned on and off is called stays apart.
pub(crate) fn slug(text: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() || "._+".contains(c) { c } else { '-' };
    let text: String = text.chars().map(plain).collect();
    let text = text.trim_matches('-');
    if text.is_empty() { "server".to_owned() } else { text.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_finished_run_is_found_again_only_for_the_same_settings() {
        let scratch = pinion_testkit::Folder::new();
        let folder = Folder::open(scratch.path()).expect("a folder");
        let settings = fingerprint("--rate 4");
        let record =
            RunRecord { key: "a-1".to_owned(), fingerprint: settings.clone(), ..RunRecord::default() };
        let run = Run { requests: Vec::new(), wall_s: 0.0, client: crate::replay::ClientCost::default() };
        assert_eq!(folder.finished("a-1", &settings), None);
        folder.keep(&record, &run).expect("written");
        assert_eq!(folder.finished("a-1", &settings), Some(record));
        assert_eq!(folder.finished("a-1", &fingerprint("--rate 5")), None);
        std::fs::write(scratch.path().join("runs/a-1.json"), "{\"key\":").expect("cut short");
        assert_eq!(folder.finished("a-1", &settings), None, "half a file is no result");
    }

    #[test]
    fn the_tables_of_a_terminal_fit_100_columns() {
        let mut run =
            RunRecord { label: "pinion-release-cpu".to_owned(), scale: 0.4, ..RunRecord::default() };
        run.offered_per_s = 123.4;
        let figures = &mut run.figures;
        (figures.requests, figures.completed) = (123_456, 123_450);
        (figures.output_tokens_per_s, figures.send_lag_ms.p99) = (123_456.0, 1234.5);
        for spread in [&mut figures.ttft_ms, &mut figures.itl_ms, &mut figures.tpot_ms, &mut figures.e2e_ms] {
            (spread.p50, spread.p90, spread.p99, spread.max) = (123_456.0, 123_456.0, 123_456.0, 123_456.0);
        }
        for spread in [&mut figures.ttft_ms, &mut figures.itl_ms, &mut figures.tpot_ms, &mut figures.e2e_ms] {
            spread.count = 12_345_678;
        }
        let tables = narrow(&[run]);
        assert_eq!(tables.lines().filter(|line| line.contains("pinion-release-cpu")).count(), 5);
        assert!(tables.lines().all(|line| line.chars().count() <= 100), "{tables}");
    }

    #[test]
    fn a_p99_of_fewer_than_1000_requests_is_a_dash_with_a_note() {
        let mut run = RunRecord { label: "pinion".to_owned(), ..RunRecord::default() };
        let figures = &mut run.figures;
        for (spread, count) in [(&mut figures.ttft_ms, 999), (&mut figures.itl_ms, 1000)] {
            (spread.count, spread.p50, spread.p90, spread.p99, spread.max) = (count, 11.0, 22.0, 33.0, 44.0);
        }
        let tables = narrow(&[run]);
        let cells = |name: &str| -> Vec<&str> {
            let mut lines = tables.lines().filter(|line| line.contains(&format!("| {name} |")));
            lines.next().expect("a row").split('|').map(str::trim).skip(4).take(5).collect()
        };
        assert_eq!(cells("TTFT"), ["999", "11.0", "22.0", "-", "44.0"], "{tables}");
        assert_eq!(cells(" ITL"), ["1000", "11.0", "22.0", "33.0", "44.0"], "{tables}");
        assert!(tables.ends_with(&format!("\n{TOO_FEW_NOTE}\n")), "{tables}");
    }

    #[test]
    fn what_forbids_a_comparison_is_said() {
        let run = |label: &str, form: &str, version: Option<&str>| {
            let mut run =
                RunRecord { label: label.to_owned(), prompt_form: form.to_owned(), ..RunRecord::default() };
            run.server.version = version.map(serde_json::Value::from);
            run
        };
        let lacks = |runs: &[RunRecord]| {
            ResultFile { runs: runs.to_vec(), ..ResultFile::default() }.lacks().join("\n")
        };
        assert_eq!(lacks(&[run("a", "ids", Some("1")), run("b", "ids", Some("2"))]), "");
        assert!(lacks(&[run("a", "ids", Some("1")), run("b", "ids", None)]).starts_with("b: its version"));
        assert!(
            lacks(&[run("a", "ids", Some("1")), run("b", "text", Some("2"))]).contains("ids, others as text")
        );
        assert!(lacks(&[run("a", "", Some("1"))]).contains("older version"));
    }

    /// What is committed was measured by many versions of the tool. None of it has a band, so none of it has a verdict.
    #[test]
    fn every_committed_result_is_read_and_judged_by_the_rules_of_today() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../results");
        let (mut files, mut compared) = (0, 0);
        let folders = std::fs::read_dir(folder).expect("the results").flatten();
        let parts = folders.flat_map(|folder| std::fs::read_dir(folder.path()).expect("a folder").flatten());
        for part in parts.filter(|part| part.path().is_dir()) {
            for file in std::fs::read_dir(part.path()).expect("a folder").flatten() {
                if file.path().extension().is_none_or(|ending| ending != "json") {
                    continue;
                }
                let result = ResultFile::read(&file.path()).unwrap_or_else(|fault| panic!("{fault}"));
                assert!(!result.runs.is_empty(), "{:?}", file.path());
                files += 1;
                for row in &result.compared {
                    compared += 1;
                    let judged = row.better.is_some();
                    let may = row.pairs >= crate::verdict::ROUNDS_MIN && row.band.is_some();
                    assert!(!judged || may, "{:?}: {row:?}", file.path());
                }
            }
        }
        assert!(files > 5 && compared > 100, "{files} files, {compared} comparisons");
    }

    #[test]
    fn labels_become_file_names() {
        for (label, name) in [
            ("-prefix cache", "prefix-cache"),
            ("+prefix cache", "+prefix-cache"),
            ("llama-server", "llama-server"),
            ("/", "server"),
        ] {
            assert_eq!(slug(label), name);
        }
    }

    #[test]
    fn fingerprints_are_fnv() {
        assert_eq!(fingerprint(""), "cbf29ce484222325");
        assert_eq!(fingerprint("a"), "af63dc4c8601ec8c");
    }
}
