//! The figures as lines for a terminal, and as `key=value` elsewhere. Pure.

use crate::figures::{Figures, Percentiles};

const GREEN: &str = "\x1b[32m";
const RED: &str = "\x1b[1;31m";
const DIM: &str = "\x1b[2m";
const PLAIN: &str = "\x1b[0m";
/// Columns of the bar of the KV cache.
const BAR: usize = 30;

/// For people, under 100 columns.
pub(crate) fn lines(figures: &Figures, coloured: bool) -> Vec<String> {
    let tint = |colour: &str, text: &str| {
        if coloured { format!("{colour}{text}{PLAIN}") } else { text.to_owned() }
    };
    let state = tint(if figures.is_fine { GREEN } else { RED }, &figures.state);
    let role = |(name, phase): &(String, String)| {
        let is_ready = phase == "ready";
        if is_ready { name.clone() } else { tint(RED, &format!("{name} {phase}")) }
    };
    let roles: Vec<String> = figures.roles.iter().map(role).collect();
    let (used, cached, total) = figures.kv;
    let mut lines = vec![
        format!("{}  {state}  {}", figures.model, tint(DIM, &format!("Pinion {}; q ends", figures.version))),
        String::new(),
        format!("roles        {}", roles.join("  ")),
        format!(
            "requests     {} running, {} waiting, {} finished; slots {} of {}; restarts {}",
            figures.running,
            figures.waiting,
            figures.finished,
            figures.slots.0,
            figures.slots.1,
            figures.restarts
        ),
        format!("tokens       {} generated, {} of prompts", per_s(figures.generated), per_s(figures.prompt)),
        format!(
            "KV cache     {}  {} used, {} kept for reuse, of {total} blocks",
            bar(used, cached, total),
            share(used, total),
            share(cached, total)
        ),
        format!("first token  {}", times(figures.first_token)),
        format!("gap          {}", times(figures.gap)),
    ];
    if !figures.slow.is_empty() {
        lines.extend([String::new(), tint(DIM, "slowest requests of the last hour")]);
        for slow in &figures.slow {
            let head = format!(
                "{:>9}  {:<22}{:>6} tokens  {:<10}",
                ms(slow.e2e_ms),
                slow.route,
                slow.tokens,
                slow.reason
            );
            lines.push(format!("{head}{}", tint(DIM, &slow.id)));
        }
    }
    lines
}

/// For scripts and logs.
pub(crate) fn pairs(figures: &Figures) -> String {
    let mut pairs = vec![
        format!("model={:?}", figures.model),
        format!("state={:?}", figures.state),
        format!("running={}", figures.running),
        format!("waiting={}", figures.waiting),
        format!("finished={}", figures.finished),
        format!("slots_used={}", figures.slots.0),
        format!("slots={}", figures.slots.1),
        format!("restarts={}", figures.restarts),
        format!("kv_blocks_used={}", figures.kv.0),
        format!("kv_blocks_cached={}", figures.kv.1),
        format!("kv_blocks={}", figures.kv.2),
    ];
    for (name, rate) in
        [("generated_tokens_per_s", figures.generated), ("prompt_tokens_per_s", figures.prompt)]
    {
        pairs.extend(rate.map(|rate| format!("{name}={rate:.1}")));
    }
    for (name, times) in [("ttft", figures.first_token), ("itl", figures.gap)] {
        let Some(times) = times else { continue };
        for (percentile, value) in [("p50", times.p50), ("p90", times.p90), ("p99", times.p99)] {
            pairs.push(format!("{name}_{percentile}_ms={value:.1}"));
        }
    }
    let mut text = pairs.join(" ");
    for (name, phase) in &figures.roles {
        text += &format!("\nrole={name} phase={phase}");
    }
    for slow in &figures.slow {
        text += &format!(
            "\nslow={} e2e_ms={:.1} route={} tokens={} reason={}",
            slow.id, slow.e2e_ms, slow.route, slow.tokens, slow.reason
        );
    }
    text
}

fn per_s(rate: Option<f64>) -> String {
    rate.map_or("-".to_owned(), |rate| format!("{rate:.1}/s"))
}

fn share(part: u64, whole: u64) -> String {
    if whole == 0 { "-".to_owned() } else { format!("{:.0} %", 100.0 * part as f64 / whole as f64) }
}

fn bar(used: u64, cached: u64, total: u64) -> String {
    let columns = |count: u64| (count as f64 / total.max(1) as f64 * BAR as f64).round() as usize;
    let full = columns(used).min(BAR);
    let kept = columns(cached).min(BAR - full);
    format!("[{}{}{}]", "#".repeat(full), "=".repeat(kept), " ".repeat(BAR - full - kept))
}

fn times(times: Option<Percentiles>) -> String {
    let Some(Percentiles { p50, p90, p99 }) = times else { return "-".to_owned() };
    format!("p50 {}, p90 {}, p99 {} (of the last minute, if there were any)", ms(p50), ms(p90), ms(p99))
}

/// `8.2 ms`, `1.23 s`.
fn ms(time: f64) -> String {
    match time {
        time if time >= 1000.0 => format!("{:.2} s", time / 1e3),
        time if time >= 100.0 => format!("{time:.0} ms"),
        time => format!("{time:.1} ms"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figures::Slow;

    fn figures() -> Figures {
        Figures {
            model: "m".into(),
            version: "1".into(),
            state: "serving".into(),
            is_fine: true,
            roles: vec![("engine-0".into(), "ready".into()), ("tokenizer-0".into(), "restarting".into())],
            running: 3,
            kv: (15, 5, 30),
            slots: (3, 8),
            generated: Some(12.34),
            gap: Some(Percentiles { p50: 8.25, p90: 123.4, p99: 2345.0 }),
            slow: vec![Slow {
                e2e_ms: 1500.0,
                route: "/v1/completions".into(),
                tokens: 4,
                reason: "stop".into(),
                id: "r".into(),
            }],
            ..Figures::default()
        }
    }

    #[test]
    fn people_get_lines_that_fit() {
        let lines = lines(&figures(), false);
        let text = lines.join("\n");
        for says in [
            "m  serving  Pinion 1",
            "engine-0  tokenizer-0 restarting",
            "3 running",
            "12.3/s generated, - of prompts",
            "[###############=====          ]  50 % used, 17 % kept",
            "gap          p50 8.2 ms, p90 123 ms, p99 2.35 s",
            "first token  -",
            "1.50 s  /v1/completions",
        ] {
            assert!(text.contains(says), "{says}:\n{text}");
        }
        assert!(lines.iter().all(|line| line.chars().count() <= 100), "{text}");
        assert!(super::lines(&figures(), true).join("").contains("\x1b[1;31mtokenizer-0 restarting\x1b[0m"));
        assert_eq!(bar(30, 30, 30), format!("[{}]", "#".repeat(30)));
        assert_eq!(bar(0, 0, 0), format!("[{}]", " ".repeat(30)));
    }

    #[test]
    fn scripts_get_pairs() {
        let text = pairs(&figures());
        let first = text.lines().next().unwrap();
        for pair in
            ["model=\"m\"", "running=3", "generated_tokens_per_s=12.3", "itl_p99_ms=2345.0", "kv_blocks=30"]
        {
            assert!(first.split(' ').any(|word| word == pair), "{pair} in {first}");
        }
        assert!(!first.contains("ttft") && !first.contains("prompt_tokens"));
        assert!(text.contains("\nrole=tokenizer-0 phase=restarting\nslow=r e2e_ms=1500.0 "), "{text}");
    }
}
