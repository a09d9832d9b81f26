//! The text page of `/metrics`: this frontend's own counts, and what the other processes' status pages and the
//! launcher's ring depths say at this moment.
//!
//! A family of series is one line of a table: name, kind, help and label names stand there and nowhere else, so that
//! HELP and TYPE cannot be missing or doubled, and label values come from closed sets: no client can make a series.
//! Start at [`own::FAMILIES`]; [`vllm::FAMILIES`] are the same facts under the names that dashboards, autoscalers and
//! the Kubernetes inference gateway know.

mod own;
mod vllm;

use crate::observe::metrics::Histogram;
use crate::observe::view::View;
use std::fmt::{Display, Write};

/// Content type of the page.
pub(crate) const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Prometheus's word for what a family holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Counter,
    Gauge,
    Histogram,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram => "histogram",
        }
    }
}

/// All series of one name.
struct Family {
    name: &'static str,
    kind: Kind,
    help: &'static str,
    labels: &'static [&'static str],
    write: fn(&View<'_>, &mut Series<'_>),
}

/// Writes the series of one family.
struct Series<'a> {
    out: &'a mut String,
    family: &'a Family,
}

impl Series<'_> {
    /// One series; `labels` are the values of the family's label names, in order.
    fn put(&mut self, labels: &[&dyn Display], value: impl Display) {
        self.sample("", labels, None, &value);
    }

    fn histogram(&mut self, labels: &[&dyn Display], histogram: &Histogram) {
        self.buckets(labels, histogram.cumulative(), histogram.sum_and_count());
    }

    /// A histogram of these bounds, each with the number of observations at or below it; and their sum and number.
    fn buckets(
        &mut self,
        labels: &[&dyn Display],
        cumulative: impl Iterator<Item = (f64, u64)>,
        (sum, count): (f64, u64),
    ) {
        for (bound, count) in cumulative {
            self.sample("_bucket", labels, Some(&format!("{bound:?}")), &count);
        }
        self.sample("_bucket", labels, Some("+Inf"), &count);
        self.sample("_sum", labels, None, &sum);
        self.sample("_count", labels, None, &count);
    }

    fn sample(&mut self, suffix: &str, labels: &[&dyn Display], bound: Option<&str>, value: &dyn Display) {
        debug_assert_eq!(labels.len(), self.family.labels.len(), "{}", self.family.name);
        let _ = write!(self.out, "{}{suffix}", self.family.name);
        let mut separator = '{';
        for (name, label) in self.family.labels.iter().zip(labels) {
            let _ = write!(self.out, "{separator}{name}=\"");
            escape(&label.to_string(), self.out);
            self.out.push('"');
            separator = ',';
        }
        if let Some(bound) = bound {
            let _ = write!(self.out, "{separator}le=\"{bound}\"");
            separator = ',';
        }
        let end = if separator == ',' { "}" } else { "" };
        let _ = writeln!(self.out, "{end} {value}");
    }
}

/// Appends a label value as the text format wants it.
fn escape(text: &str, out: &mut String) {
    for character in text.chars() {
        match character {
            '\\' => out.push_str("\\\\"),
            '"' => out.push_str("\\\""),
            '\n' => out.push_str("\\n"),
            other => out.push(other),
        }
    }
}

/// How much the page has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Extent {
    /// Every family.
    Whole,
    /// [`LOAD`] only: for what scrapes many times a second.
    Load,
}

impl Extent {
    fn has(self, name: &str) -> bool {
        self == Extent::Whole || LOAD.contains(&name)
    }
}

/// What an endpoint picker chooses among replicas by.
const LOAD: &[&str] = &[
    "pinion_requests_running",
    "pinion_requests_waiting",
    "pinion_kv_blocks_used",
    "pinion_kv_blocks_total",
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
    "vllm:kv_cache_usage_perc",
    "vllm:cache_config_info",
];

/// Renders the page.
pub(crate) fn render(view: &View<'_>, extent: Extent) -> String {
    let mut out = String::with_capacity(if extent == Extent::Whole { 32 << 10 } else { 2 << 10 });
    let compatible: &[Family] = if view.constants.vllm_metrics { vllm::FAMILIES } else { &[] };
    for family in own::FAMILIES.iter().chain(compatible).filter(|family| extent.has(family.name)) {
        let Family { name, kind, help, .. } = family;
        let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} {}", kind.name());
        (family.write)(view, &mut Series { out: &mut out, family });
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn names_are_unique_and_follow_the_conventions_that_promtool_checks() {
        let mut seen = BTreeSet::new();
        for family in own::FAMILIES.iter().chain(vllm::FAMILIES) {
            let name = family.name;
            assert!(seen.insert(name), "{name} stands twice");
            // The size of a pool beside what is used of it, and vLLM's name of a histogram.
            let others = ["pinion_kv_blocks_total", "vllm:iteration_tokens_total"];
            let counts = name.ends_with("_total") && !others.contains(&name);
            assert_eq!(counts, family.kind == Kind::Counter, "{name}");
            assert!(family.help.ends_with('.') && !family.help.contains(['\n', '\\']), "{name}");
            assert!(!family.labels.contains(&"le"), "{name}");
            for suffix in ["_bucket", "_sum", "_count"] {
                assert!(!name.ends_with(suffix), "{name} looks like a part of a histogram");
            }
        }
    }

    #[test]
    fn every_family_of_the_small_page_exists() {
        let names: BTreeSet<&str> =
            own::FAMILIES.iter().chain(vllm::FAMILIES).map(|family| family.name).collect();
        for name in LOAD {
            assert!(names.contains(name), "{name}");
        }
    }

    #[test]
    fn a_label_value_is_escaped() {
        let mut out = String::new();
        escape("a\"b\\c\nd", &mut out);
        assert_eq!(out, "a\\\"b\\\\c\\nd");
    }
}
