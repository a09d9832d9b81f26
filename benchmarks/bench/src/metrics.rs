//! What a server says about itself on `/metrics`: read before and after a run, and subtracted.

use crate::ask;
use crate::target::Target;
use std::time::Duration;

/// The counters that matter here, by name, most telling first; a server has one of them or none.
const GENERATED: &[&str] = &[
    "pinion_engine_generated_tokens_total",
    "vllm:generation_tokens_total",
    "llamacpp:tokens_predicted_total",
];
/// Time spent per stage of a request.
const STAGE_SUM: &str = "pinion_stage_seconds_sum";
const STAGE_COUNT: &str = "pinion_stage_seconds_count";

/// Between two looks at a counter that may still move.
const LOOK_INTERVAL: Duration = Duration::from_millis(60);
/// Looks after which a counter is taken as it is: someone else uses the server.
const LOOKS_MAX: usize = 50;

/// One scrape: series as written, with their values, in the page's order.
#[derive(Clone, Debug, Default)]
pub(crate) struct Scrape(Vec<(String, f64)>);

impl Scrape {
    /// Of an idle server: looks until its token counter stands still, because counters may follow the last answer by
    /// a moment. Empty where the server has no such page.
    pub(crate) fn settled(target: &Target) -> Scrape {
        let look = || ask::text(target, "/metrics").map_or_else(Scrape::default, |text| Scrape::parse(&text));
        let mut last = look();
        for _ in 0..LOOKS_MAX {
            std::thread::sleep(LOOK_INTERVAL);
            let next = look();
            if next.generated_since(&last).is_none_or(|tokens| tokens == 0) {
                return next;
            }
            last = next;
        }
        last
    }

    fn parse(text: &str) -> Scrape {
        let samples = text.lines().filter(|line| !line.starts_with('#')).filter_map(|line| {
            let (series, value) = line.trim().rsplit_once(' ')?;
            Some((series.to_owned(), value.parse().ok()?))
        });
        Scrape(samples.collect())
    }

    fn series<'a>(&'a self, name: &'a str) -> impl Iterator<Item = (&'a str, f64)> + 'a {
        self.0.iter().filter_map(move |(series, value)| {
            let labels = series.strip_prefix(name)?;
            (labels.is_empty() || labels.starts_with('{')).then_some((labels, *value))
        })
    }

    fn total(&self, name: &str) -> Option<f64> {
        let mut values = self.series(name).map(|(_, value)| value).peekable();
        values.peek()?;
        Some(values.sum())
    }

    /// Tokens generated between `before` and this one, by the server's own counter.
    pub(crate) fn generated_since(&self, before: &Scrape) -> Option<u64> {
        let difference = |name: &&str| Some(self.total(name)? - before.total(name).unwrap_or(0.0));
        GENERATED.iter().find_map(difference).map(|tokens| tokens.round() as u64)
    }

    /// Mean milliseconds per request in each stage between `before` and this one, in the page's order.
    pub(crate) fn stages_since(&self, before: &Scrape) -> Vec<(String, f64)> {
        let delta = |name: &str, labels: &str| {
            let of = |scrape: &Scrape| {
                let mut found = scrape.series(name).filter(|(own, _)| *own == labels);
                found.next().map(|(_, value)| value)
            };
            Some(of(self)? - of(before).unwrap_or(0.0))
        };
        let mut stages = Vec::new();
        for (labels, _) in self.series(STAGE_SUM) {
            let name = labels.split('"').nth(1).unwrap_or(labels).to_owned();
            if let (Some(sum), Some(count)) = (delta(STAGE_SUM, labels), delta(STAGE_COUNT, labels))
                && count > 0.0
            {
                stages.push((name, sum / count * 1e3));
            }
        }
        stages
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_of_two_scrapes() {
        let page = |tokens: u32, sum: f64, count: u32| {
            Scrape::parse(&format!(
                "# TYPE x counter\npinion_engine_generated_tokens_total {tokens}\nvllm:generation_tokens_total{{m=\"a\"}} 9\n\
                 pinion_stage_seconds_sum{{stage=\"prefill\"}} {sum}\npinion_stage_seconds_count{{stage=\"prefill\"}} {count}\n\
                 pinion_stage_seconds_sum{{stage=\"unused\"}} 0\npinion_stage_seconds_count{{stage=\"unused\"}} 0\n"
            ))
        };
        let (before, after) = (page(100, 1.5, 3), page(164, 1.9, 7));
        assert_eq!(after.generated_since(&before), Some(64));
        let stages = after.stages_since(&before);
        assert_eq!(stages.len(), 1);
        assert!(stages[0].0 == "prefill" && (stages[0].1 - 100.0).abs() < 1e-6, "{stages:?}");
        assert_eq!(Scrape::default().generated_since(&Scrape::default()), None);
    }
}
