//! `/metrics` in the Prometheus text format.

use std::collections::BTreeMap;

/// One scrape.
#[derive(Clone, Debug)]
pub struct Metrics {
    /// Name with labels, as written, to value.
    pub samples: BTreeMap<String, f64>,
    /// Metric family to its type.
    pub types: BTreeMap<String, String>,
}

impl Metrics {
    /// Reads a scrape strictly: every line is a comment or a sample, every family has one TYPE before its
    /// samples, no sample comes twice.
    pub fn parse(text: &str) -> Result<Metrics, String> {
        let mut metrics = Metrics { samples: BTreeMap::new(), types: BTreeMap::new() };
        if !text.ends_with('\n') {
            return Err("the last line does not end".to_owned());
        }
        for line in text.lines() {
            if let Some(rest) = line.strip_prefix("# TYPE ") {
                let (name, kind) = rest.split_once(' ').ok_or_else(|| format!("no type: {line}"))?;
                if metrics.types.insert(name.to_owned(), kind.to_owned()).is_some() {
                    return Err(format!("two types: {line}"));
                }
            } else if !line.starts_with('#') && !line.is_empty() {
                metrics.sample(line)?;
            }
        }
        Ok(metrics)
    }

    fn sample(&mut self, line: &str) -> Result<(), String> {
        let (series, value) = line.rsplit_once(' ').ok_or_else(|| format!("no value: {line}"))?;
        let value: f64 = value.parse().map_err(|_| format!("not a number: {line}"))?;
        let name = series.split('{').next().unwrap_or_default();
        let legal = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':';
        if name.is_empty() || !name.chars().all(legal) || series.contains('{') != series.ends_with('}') {
            return Err(format!("not a sample: {line}"));
        }
        let family = ["", "_bucket", "_sum", "_count"].iter().filter_map(|suffix| name.strip_suffix(suffix));
        if !family.into_iter().any(|family| self.types.contains_key(family)) {
            return Err(format!("no TYPE before: {line}"));
        }
        match self.samples.insert(series.to_owned(), value) {
            None => Ok(()),
            Some(_) => Err(format!("twice: {line}")),
        }
    }

    /// Sum over all label sets of one name; `None` if the scrape has no such name.
    pub fn total(&self, name: &str) -> Option<f64> {
        let of_name =
            |series: &str| series == name || series.strip_prefix(name).is_some_and(|r| r.starts_with('{'));
        let mut values =
            self.samples.iter().filter(|(series, _)| of_name(series)).map(|(_, value)| *value).peekable();
        values.peek()?;
        Some(values.sum())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_prometheus_reads_and_refuses_the_rest() {
        let good = "# HELP a An a.\n# TYPE a gauge\na{x=\"1\"} 2\na{x=\"2\"} 3.5\n# TYPE b counter\nb 7\n";
        let metrics = Metrics::parse(good).expect("well-formed");
        assert_eq!(
            (metrics.total("a"), metrics.total("b"), metrics.total("c")),
            (Some(5.5), Some(7.0), None)
        );
        for bad in [
            "a 1\n",
            "# TYPE a gauge\na\n",
            "# TYPE a gauge\na x\n",
            "# TYPE a gauge\na 1\na 1\n",
            "# TYPE a gauge\na 1",
        ] {
            assert!(Metrics::parse(bad).is_err(), "{bad:?}");
        }
    }
}
