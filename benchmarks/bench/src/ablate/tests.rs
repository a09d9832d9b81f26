//! Comparisons of made-up rounds.

use super::*;

fn run(label: &str, round: u32, tokens_per_s: f64, p99: f64) -> RunRecord {
    let mut record = RunRecord { label: label.to_owned(), round, ..RunRecord::default() };
    record.figures.output_tokens_per_s = tokens_per_s;
    let e2e = &mut record.figures.e2e_ms;
    (e2e.count, e2e.p50, e2e.p90, e2e.p99) = (1000, p99 / 2.0, p99 * 0.9, p99);
    record
}

/// Three of them, with hardly any effect.
const INERT: [(&str, f64); 3] = [("+n1", 1.0), ("+n2", 1.004), ("+n3", 0.999)];

fn compared(runs: &[RunRecord], inert: &[&str], metrics: &[&str]) -> Vec<Compared> {
    let inert: Vec<String> = inert.iter().map(|label| (*label).to_owned()).collect();
    let metrics: Vec<String> = metrics.iter().map(|name| (*name).to_owned()).collect();
    compare(&Comparison { runs, base: "base", inert: &inert, seed: 1 }, &metrics)
}

/// Rounds of a machine that slows down; all variants slow down alike. +y is a third slower at 1000 requests.
fn rounds(count: u32) -> Vec<RunRecord> {
    let mut runs = Vec::new();
    for round in 0..count {
        let pace = 1.0 - 0.1 * f64::from(round);
        for (label, factor) in [("base", 1.0), ("+y", 1.5)].into_iter().chain(INERT) {
            runs.push(run(label, round, 100.0 * pace / factor, 50.0 * factor / pace));
        }
        runs.push(run("-x", round, (90.0 + f64::from(round % 2)) * pace, 50.0 / pace));
    }
    runs
}

/// The last cell of each label's row in the table of this title.
fn cell(text: &str, title: &str, label: &str) -> String {
    let lines = text.lines().skip_while(|line| !line.starts_with(&format!("| {title} ")));
    let row = lines.skip(2).find(|line| line.starts_with(&format!("| {label} "))).expect("a row");
    row.trim_matches(['|', ' ']).rsplit('|').next().expect("a cell").trim().to_owned()
}

#[test]
fn ratios_are_paired_by_round_and_judged_by_direction() {
    let runs = rounds(6);
    let compared = compared(&runs, &INERT.map(|(label, _)| label), &["output_tok_s", "e2e_p99_ms"]);
    let of = |label: &str, metric: &str| {
        let found = compared.iter().find(|row| row.label == label && row.metric == metric);
        let row = found.expect("compared");
        ((row.ratio * 1000.0).round() / 1000.0, row.pairs, row.better)
    };
    assert_eq!(of("-x", "output_tok_s"), (0.905, 6, Some(Verdict::Base)));
    assert_eq!(of("-x", "e2e_p99_ms"), (1.0, 6, Some(Verdict::Same)));
    assert_eq!(of("+y", "e2e_p99_ms"), (1.5, 6, Some(Verdict::Base)));
    assert_eq!(of("+n2", "e2e_p99_ms").2, None, "what cannot act is not judged");
    let text = tables(&compared, "base");
    for (title, label, expected) in [
        ("output tok/s", "-x", "base"),
        ("E2E p99", "-x", "same"),
        ("E2E p99", "+n3", "inert"),
        ("E2E p99", "base", "–"),
    ] {
        assert_eq!(cell(&text, title, label), expected, "{text}");
    }
    assert!(text.contains("noise: ×0.996–1.004, from 3 variants that cannot act"), "{text}");
}

#[test]
fn three_rounds_give_a_ratio_and_no_verdict() {
    let labels = INERT.map(|(label, _)| label);
    let text = tables(&compared(&rounds(3), &labels, &["output_tok_s"]), "base");
    assert!(text.contains("×0.667 (0.667–0.667)"), "{text}");
    assert_eq!(cell(&text, "output tok/s", "+y"), "- (1)", "{text}");
    assert!(text.contains("\n(1) no verdict: 3 of the 5 paired rounds that it takes\n"), "{text}");
    assert!(!text.contains("base |\n") && !text.contains("VARIANT"), "{text}");
}

/// `change` is done to the rounds: then nothing is said of the label, for this reason.
fn check_refusal(change: impl FnOnce(&mut Vec<RunRecord>), label: &str, reason: &str) {
    let labels = INERT.map(|(label, _)| label);
    let mut runs = rounds(6);
    change(&mut runs);
    let found = compared(&runs, &labels, &["output_tok_s"]);
    let row = found.iter().find(|row| row.label == label).expect("compared");
    assert_eq!((row.better, row.reason.as_deref()), (None, Some(reason)));
}

#[test]
fn failed_requests_and_missing_runs_give_no_verdict() {
    let at = |runs: &[RunRecord], label: &str, round: u32| {
        runs.iter().position(|run| run.label == label && run.round == round).expect("a run")
    };
    let fails = |label: &'static str| {
        move |runs: &mut Vec<RunRecord>| {
            let index = at(runs, label, 2);
            let figures = &mut runs[index].figures;
            (figures.requests, figures.completed, figures.left) = (100, 90, 7);
        }
    };
    check_refusal(fails("+y"), "+y", "no verdict: 3 of 100 requests of +y failed in round 2");
    check_refusal(fails("base"), "-x", "no verdict: 3 of 100 requests of base failed in round 2");
    let shortens = |exact_lengths: bool| {
        move |runs: &mut Vec<RunRecord>| {
            let index = at(runs, "+y", 3);
            let RunRecord { exact_lengths: exact, figures, .. } = &mut runs[index];
            *exact = exact_lengths;
            (figures.requests, figures.completed, figures.shorter_than_asked) = (100, 100, 2);
        }
    };
    let reason = "no verdict: 2 of 100 answers of +y are shorter than asked in round 3";
    check_refusal(shortens(true), "+y", reason);
    let mut runs = rounds(6);
    shortens(false)(&mut runs);
    let found = compared(&runs, &INERT.map(|(label, _)| label), &["output_tok_s"]);
    assert!(found.iter().any(|row| row.label == "+y" && row.better == Some(Verdict::Base)), "{found:?}");
    let lacks = |label: &'static str| {
        move |runs: &mut Vec<RunRecord>| {
            let index = at(runs, label, 4);
            runs.remove(index);
        }
    };
    check_refusal(lacks("+y"), "+y", "no verdict: +y has no run of round 4");
    check_refusal(lacks("base"), "-x", "no verdict: base has no run of round 4");
    check_refusal(|runs| runs.push(run("+y", 9, 1.0, 1.0)), "+y", "no verdict: base has no run of round 9");
    let measures = |value: f64| {
        move |runs: &mut Vec<RunRecord>| {
            let index = at(runs, "base", 1);
            runs[index].figures.output_tokens_per_s = value;
        }
    };
    check_refusal(measures(f64::NAN), "+y", "no verdict: base has no output tok/s in round 1");
    let zero = "no verdict: the base's output tok/s is 0 in round 1, so there is no ratio";
    check_refusal(measures(0.0), "+y", zero);
    // The others have all that they need, and are judged.
    let mut runs = rounds(6);
    fails("+y")(&mut runs);
    let found = compared(&runs, &INERT.map(|(label, _)| label), &["output_tok_s"]);
    assert!(found.iter().any(|row| row.label == "-x" && row.better == Some(Verdict::Base)), "{found:?}");
}

#[test]
fn what_cannot_act_gives_no_noise_without_whole_runs_and_samples() {
    let reason = "no verdict: fewer than 3 variants that cannot act have 5 whole rounds and the samples";
    let index = |runs: &[RunRecord]| runs.iter().position(|run| run.label == "+n2").expect("a run");
    let fails = |runs: &mut Vec<RunRecord>| {
        let at = index(runs);
        (runs[at].figures.requests, runs[at].figures.completed) = (10, 9);
    };
    check_refusal(fails, "+y", reason);
    let mut runs = rounds(6);
    let at = index(&runs);
    runs[at].figures.e2e_ms.count = 999;
    let found = compared(&runs, &INERT.map(|(label, _)| label), &["e2e_p90_ms", "e2e_p99_ms"]);
    for (metric, band) in [("e2e_p90_ms", true), ("e2e_p99_ms", false)] {
        let row = found.iter().find(|row| row.label == "+y" && row.metric == metric).expect("compared");
        assert_eq!((row.band.is_some(), row.better.is_some()), (band, band), "{row:?}");
        assert!(band || row.reason.as_deref() == Some(reason), "{row:?}");
    }
}

#[test]
fn rounds_without_switches_that_cannot_act_give_no_verdict() {
    for (inert, reason) in [
        (&[][..], "(1) no verdict: the scenario has no variant that cannot act on this workload"),
        (&["+n1", "+n2"], "(1) no verdict: 2 of the 3 variants that cannot act"),
    ] {
        let found = compared(&rounds(9), inert, &["output_tok_s"]);
        let text = tables(&found, "base");
        assert!(found.iter().all(|row| row.better.is_none()) && text.contains(reason), "{text}");
        assert!(text.contains("×0.667") && !text.contains("noise:"), "{text}");
    }
}

#[test]
fn a_p99_of_too_few_requests_is_a_dash_with_its_reason() {
    let mut runs = rounds(6);
    runs[1].figures.e2e_ms.count = 999;
    let metrics = ["e2e_p50_ms", "e2e_p99_ms"];
    let found = compared(&runs, &INERT.map(|(label, _)| label), &metrics);
    let text = tables(&found, "base");
    assert_eq!(cell(&text, "E2E p99", "+y"), "- (1)", "{text}");
    assert!(text.contains("(1) a p99 takes 1000 requests in each run; the smallest run has 999"), "{text}");
    let row = text.lines().filter(|line| line.starts_with("| +y ")).nth(1).expect("a row");
    assert!(!row.contains('×'), "no figure of it is shown: {row}");
    assert_eq!(cell(&text, "E2E p50", "+y"), "base", "{text}");
    // The others have all that they need, and are judged.
    assert_eq!(cell(&text, "E2E p99", "-x"), "same", "{text}");
}

#[test]
fn the_longest_gap_is_judged_by_its_spread_alone() {
    let mut runs = rounds(6);
    for run in &mut runs {
        let gaps = &mut run.figures.itl_ms;
        (gaps.count, gaps.max) = (10, if run.label == "+y" { 30.0 } else { 10.0 });
    }
    let labels = INERT.map(|(label, _)| label);
    let text = tables(&compared(&runs, &labels, &["itl_max_ms"]), "base");
    assert_eq!(cell(&text, "ITL max", "+y"), "base", "{text}");
    // A batch has no gaps.
    runs.iter_mut().filter(|run| run.label == "+y").for_each(|run| run.figures.itl_ms = Spread::default());
    let found = compared(&runs, &labels, &["itl_max_ms"]);
    assert!(found.iter().all(|row| row.label != "+y" || row.better.is_none()), "{found:?}");
}

#[test]
fn tables_are_narrow_and_have_the_strongest_effect_first() {
    let mut runs = Vec::new();
    for round in 0..3 {
        for (label, factor) in
            [("+a", 1.1), ("+max-num-batched-tokens 8192", 0.5), ("base", 1.0), ("+c", 1.6), ("+d", 1.0)]
        {
            runs.push(run(label, round, 123_456.0 * factor, 1234.5 * factor));
        }
    }
    let text = tables(&compared(&runs, &["+d"], &[]), "base");
    assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
    let first: Vec<&str> = text.lines().filter_map(|line| line.split(" | ").next()).take(7).collect();
    let names: Vec<&str> = first[2..].iter().map(|cell| cell.trim_matches(['|', ' '])).collect();
    assert_eq!(names, ["base", "+max-num-batched-tokens 8192", "+c", "+a", "+d"], "{text}");
}

#[test]
fn switches_are_named_as_the_seed_names_them() {
    let cases = [
        ("--no-prefix-cache", "-prefix-cache"),
        ("--linear plain", "+linear plain"),
        ("--admission=pack --no-pin", "+admission pack -pin"),
    ];
    for (flags, label) in cases {
        assert_eq!(label_of(flags), label);
    }
}
