//! Several workloads of a comparison in one process of each variant a round.

mod program;

use pinion_testkit::{Folder, fake_model, launcher_binary};
use program::{bench, check_success, text};
use serde_json::Value;
use std::collections::BTreeSet;

/// A scenario of the fake model, whose workload is `{cell}`.
fn scenario(folder: &Folder, model: &Folder) -> String {
    let text = format!(
        "name = \"t\"\nseed = 3\nrounds = 2\nworkload = \"{{cell}} --vocab 257\"\n\
         server = \"'{}' serve --backend fake --model {} --port {{port}}\"\n\
         switches = [\"--no-fast-sse\"]\nmetrics = [\"output_tok_s\"]\n",
        launcher_binary().display(),
        model.text()
    );
    folder.write("s.toml", &text);
    format!("{}/s.toml", folder.text())
}

const BATCH: &str = "batch=offline --num-prompts 4 --input-len 64 --output-len 5";
const STREAMS: &str = "streams=online --streams 2 --requests 4 --context 128 --input-len 64 --output-len 3";

const BLOCK_TOKENS: u64 = 16;

#[test]
fn a_variant_starts_once_a_round_for_all_cells() {
    let (folder, model) = (Folder::new(), fake_model(128));
    let file = scenario(&folder, &model);
    let line = ["compare", &file, "--out", folder.text(), "--cell", BATCH, "--cell", STREAMS];
    let output = bench(&line);
    check_success(&output);
    let runs = |cell: &str| -> Vec<Value> {
        let file = folder.path().join(cell).join("compare.json");
        let result = std::fs::read_to_string(file).expect("a result");
        let result: Value = serde_json::from_str(&result).expect("JSON");
        result["runs"].as_array().expect("runs").clone()
    };
    let started = |cell: &str| -> Vec<String> {
        runs(cell)
            .iter()
            .map(|run| run["server"]["command"].as_str().expect("a command").to_owned())
            .collect()
    };
    // Each command has the port of its process.
    assert_eq!(started("batch"), started("streams"));
    assert_eq!(started("batch").iter().collect::<BTreeSet<_>>().len(), 4, "{:?}", started("batch"));
    for (cell, tokens) in [("batch", 20), ("streams", 12)] {
        for run in runs(cell) {
            let figures = &run["figures"];
            assert_eq!(
                (&figures["output_tokens"], &run["server_output_tokens"]),
                (&tokens.into(), &tokens.into())
            );
            // The cell before has left none of its prompts in the cache. Two random prompts may begin alike.
            let cached = figures["cached_tokens"].as_u64();
            assert!(cached < Some(BLOCK_TOKENS), "{cell}: {run}");
        }
    }
    let shown = text(&output.stdout);
    assert!(shown.contains("cell batch\n") && shown.contains("cell streams\n"), "{shown}");
    let (batch, streams) = (runs("batch"), runs("streams"));
    check_success(&bench(&line));
    assert_eq!((runs("batch"), runs("streams")), (batch, streams), "a second call repeats nothing");
}

#[test]
fn a_cell_that_cannot_be_run_is_refused_by_its_name() {
    let (folder, model) = (Folder::new(), fake_model(128));
    let file = scenario(&folder, &model);
    let refused = |cells: &[&str]| {
        let cells: Vec<&str> = cells.iter().flat_map(|cell| ["--cell", *cell]).collect();
        let output = bench(&[&["compare", &file, "--out", folder.text(), "--dry-run"], &cells[..]].concat());
        assert!(!output.status.success(), "{cells:?}");
        text(&output.stderr)
    };
    for (cells, why) in [
        (&["batch"][..], "--cell batch: NAME=WORKLOAD"),
        (&["../up=offline"], "--cell ../up: it names a folder"),
        (&[BATCH, BATCH], "--cell batch: it is there twice"),
        (&["batch=offline --no-such-flag"], "--cell batch: "),
    ] {
        let fault = refused(cells);
        assert!(fault.contains(why), "{fault}");
    }
    // What cannot act in one cell acts in the other, and is left out there: the cells would share other servers.
    let scenario = std::fs::read_to_string(&file).expect("the scenario");
    folder.write("s.toml", scenario.replace("switches = [", "inert = [\"--strict-fields\"]\nswitches = ["));
    let acting = r#"fields=offline --num-prompts 1 --extra-fields '{"x": 1}'"#;
    let line = [
        "compare",
        &file,
        "--out",
        folder.text(),
        "--dry-run",
        "--only",
        "fast-sse",
        "--cell",
        BATCH,
        "--cell",
        acting,
    ];
    let output = bench(&line);
    let fault = text(&output.stderr);
    assert!(
        !output.status.success() && fault.contains("--cell fields: not the servers of cell batch"),
        "{fault}"
    );
    let plain = scenario.replace("{cell}", "offline");
    folder.write("s.toml", &plain);
    let fault = refused(&[BATCH]);
    assert!(fault.contains("the scenario's workload has no {cell}"), "{fault}");
}
