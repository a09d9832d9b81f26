//! CPU sets in the kernel's list form: `0-3,8`.

use std::collections::BTreeSet;

/// Highest CPU number accepted; beyond what Linux supports on any machine.
const CPU_MAX: usize = 8191;

/// Reads `2-3,8`. An empty text is an empty set (the kernel writes it so).
pub(crate) fn parse_cpu_set(text: &str) -> Result<BTreeSet<usize>, String> {
    let mut set = BTreeSet::new();
    let text = text.trim();
    if text.is_empty() {
        return Ok(set);
    }
    for part in text.split(',') {
        let number = |t: &str| match t.trim().parse::<usize>() {
            Ok(cpu) if cpu <= CPU_MAX => Ok(cpu),
            Ok(cpu) => Err(format!("CPU {cpu} is above {CPU_MAX}")),
            Err(_) => Err(format!("`{part}` is not a CPU or a range like 2-3")),
        };
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (number(first)?, number(last)?);
        if last < first {
            return Err(format!("the range {part} runs backwards"));
        }
        set.extend(first..=last);
    }
    Ok(set)
}

/// Writes the same form, shortest.
pub(crate) fn show_cpu_set(cpus: impl IntoIterator<Item = usize>) -> String {
    let sorted: BTreeSet<usize> = cpus.into_iter().collect();
    let mut ranges: Vec<(usize, usize)> = Vec::new();
    for cpu in sorted {
        match ranges.last_mut() {
            Some((_, last)) if *last + 1 == cpu => *last = cpu,
            _ => ranges.push((cpu, cpu)),
        }
    }
    let parts = ranges.iter().map(|(a, b)| if a == b { a.to_string() } else { format!("{a}-{b}") });
    parts.collect::<Vec<_>>().join(",")
}
