//! What stands below a picture: how to read it, and what there is to see in it, in figures of these results.

use super::data::{Cell, Data, Series};
use super::effects;
use crate::table::number;
use crate::verdict::Verdict;

/// Servers that a caption names.
const NAMED_MAX: usize = 4;
/// A gap this many times the most frequent one is long.
const LONG_GAP: f64 = 4.0;

/// By the name of the picture's file.
pub(super) fn caption(name: &str, data: &Data) -> String {
    match name {
        "latency" => latency(data),
        "throughput" => bars(&data.online),
        "offline" => bars(&data.offline),
        "stages" => stages(data),
        "gaps" => gaps(data),
        _ => effects(name.strip_prefix("ratio-").unwrap_or(name), data),
    }
}

/// The cells of the heaviest scale, which is the smallest.
fn heaviest(series: &[Series]) -> Vec<(&str, &Cell)> {
    let scale = series.iter().flat_map(|series| &series.cells).map(|cell| cell.scale).reduce(f64::min);
    let found = series.iter().filter_map(|series| {
        let cell = series.cells.iter().find(|cell| Some(cell.scale) == scale)?;
        Some((series.label.as_str(), cell))
    });
    found.take(NAMED_MAX).collect()
}

fn latency(data: &Data) -> String {
    let cells = heaviest(&data.online);
    let first = |(label, cell): &(&str, &Cell)| {
        let percentiles = cell.metrics[0]?;
        let p90 = percentiles.p90.map_or(String::new(), |p90| format!(" (p90 {})", number(p90)));
        Some(format!("{} ms{p90} with {label}", number(percentiles.p50)))
    };
    let named: Vec<String> = cells.iter().filter_map(first).collect();
    let scale = cells.first().map_or(0.0, |(_, cell)| cell.scale);
    let several = data.scales().len() > 1;
    let place = if several {
        format!("At the heaviest load, scale {}, the", number(scale))
    } else {
        "The".to_owned()
    };
    let lacks =
        data.online.iter().flat_map(|series| &series.cells).flat_map(|cell| cell.metrics.iter().flatten());
    let lacks = lacks.filter(|percentiles| percentiles.p99.is_none()).count() > 0;
    let lacks = if lacks { " A p99 with fewer than 1000 samples is not drawn." } else { "" };
    format!("Less is better. {place} median first token takes {}.{lacks}", named.join(", "))
}

fn bars(series: &[Series]) -> String {
    let part = |(label, cell): &(&str, &Cell)| {
        let (low, high) = cell.output_range;
        format!("{label} {} ({}–{})", number(cell.output_tokens_per_s), number(low), number(high))
    };
    let parts: Vec<String> = heaviest(series).iter().map(part).collect();
    format!(
        "Longer is better; a whisker is the range over the rounds, and bars within it are equal. Tokens/s at the \
         heaviest load: {}.",
        parts.join(", ")
    )
}

fn stages(data: &Data) -> String {
    let part = |(label, cell): &(&str, &Cell)| {
        let total: f64 = cell.stages_ms.iter().map(|(_, ms)| ms).sum();
        let (name, most) = cell.stages_ms.iter().max_by(|a, b| a.1.total_cmp(&b.1))?;
        (total > 0.0).then(|| format!("{:.0} % of it is {name} with {label}", most / total * 100.0))
    };
    let parts: Vec<String> = heaviest(&data.online).iter().filter_map(part).collect();
    format!("A mean request's time, in the order of its life: {}.", parts.join(", "))
}

fn gaps(data: &Data) -> String {
    let part = |series: &Series| {
        let gaps = &series.cells.iter().find(|cell| !cell.gaps.is_empty())?.gaps;
        let all: u64 = gaps.iter().map(|(_, count)| count).sum();
        let (usual, _) = gaps.iter().max_by_key(|(_, count)| *count)?;
        let long: u64 =
            gaps.iter().filter(|(edge, _)| *edge >= usual * LONG_GAP).map(|(_, count)| count).sum();
        let share = long as f64 / all.max(1) as f64 * 100.0;
        Some(format!(
            "{}: the most frequent is {} ms, {share:.1} % are four times that and more",
            series.label,
            number(*usual)
        ))
    };
    let parts: Vec<String> = data.online.iter().filter_map(part).take(NAMED_MAX).collect();
    format!(
        "Time between a stream's tokens. {}. A second hump is steps that others had to wait for.",
        parts.join("; ")
    )
}

fn effects(metric: &str, data: &Data) -> String {
    let rows = effects::rows(data, metric);
    let judged = rows.iter().filter(|row| row.better.is_some()).count();
    let found = |verdict: Verdict| rows.iter().filter(|row| row.better == Some(verdict)).count();
    let (better, worse) = (found(Verdict::Variant), found(Verdict::Base));
    let noise = effects::band(&rows).filter(|_| judged > 0).map_or(String::new(), |band| {
        format!(
            " The grey strip is the noise, {}. Of {judged} variants {better} are better than the base and {worse} \
             worse: their whole interval lies outside of it. An arrow points to what is off the scale.",
            band.text()
        )
    });
    let reason = rows.iter().find_map(|row| row.reason.as_deref());
    let reason = reason.map_or(String::new(), |reason| match judged {
        0 => format!(" No variant is called better or worse: {reason}."),
        _ => format!(" Some are not judged: {reason}."),
    });
    format!("The strongest effect is first.{noise}{reason}")
}
