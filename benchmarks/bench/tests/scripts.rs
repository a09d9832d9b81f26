//! The scripts around the tool, without a GPU, a peer or a network: what they decide from what they find.

use pinion_testkit::Folder;
use serde_json::json;
use std::path::{Path, PathBuf};
use std::process::Command;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// What a program of the repository's root prints.
fn printed(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).current_dir(root()).args(arguments).output();
    let output = output.unwrap_or_else(|error| panic!("{program}: {error}"));
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{}{}", text(&output.stdout), text(&output.stderr));
    text(&output.stdout)
}

/// What gpu.sh leaves of its part `ablations`: steps of one row with the default, with the default again `controls`
/// times, and with two switches, of which one is a third slower and one a third faster.
fn ablated(rounds: u32, controls: u32) -> Folder {
    let folder = Folder::new();
    folder.write("stages.txt", "");
    let write = |switch: &str, round: u32, ms: f64| {
        let line = json!({"rows": 1, "query": 1, "context": 320, "step_ms": ms, "least_bytes": 1});
        folder.write(&format!("ablate_steps_{switch}_{round}.jsonl"), format!("{line}\n"));
    };
    for round in 1..=rounds {
        // A card that becomes slower, for all alike.
        let pace = 1.0 + 0.1 * f64::from(round);
        write("base", round, pace);
        (1..=controls).for_each(|n| write(&format!("again{n}"), round, pace * (1.0 + 0.02 * f64::from(n))));
        write("slow", round, pace * 1.5);
        write("quick", round, pace / 1.5);
        write("near", round, pace * 1.05);
    }
    folder
}

/// The last cell of each row of the table, by its switch.
fn verdicts(folder: &Folder) -> (String, Vec<String>) {
    let table = printed("python3", &["benchmarks/gpu_table.py", folder.text(), "ablations"]);
    let rows = ["slow", "quick", "near", "again2"].map(|switch| {
        let row = table.lines().find(|line| line.contains(&format!(" {switch} "))).expect(switch);
        row.rsplit("  ").next().expect("a cell").trim().to_owned()
    });
    (table.clone(), rows.to_vec())
}

#[test]
fn a_table_of_a_gpu_names_a_winner_only_beyond_the_noise_of_the_default_itself() {
    let (table, found) = verdicts(&ablated(5, 3));
    // The default again was up to 6 % off, so 5 % are nothing.
    assert_eq!(found, ["default wins", "default loses", "same", "control"], "{table}");
    assert!(table.contains("0.943 to 1.060"), "{table}");
    for (rounds, controls) in [(4, 3), (5, 2)] {
        let folder = ablated(rounds, controls);
        let (table, found) = verdicts(&folder);
        assert_eq!(found, ["-", "-", "-", "control"], "{rounds} rounds, {controls} controls: {table}");
        assert!(table.contains("a verdict takes 5 rounds, and the default again 3 times"), "{table}");
        let next = printed("python3", &["benchmarks/gpu_table.py", folder.text(), "next"]);
        assert!(next.contains("3. which default loses: none"), "{next}");
    }
    let next = printed("python3", &["benchmarks/gpu_table.py", ablated(5, 3).text(), "next"]);
    assert!(next.contains("quick: step 1 x 1 takes 0.667"), "{next}");
}

#[test]
fn the_table_of_a_gpu_has_every_replay_of_the_trace() {
    let parts = std::fs::read_to_string(root().join("benchmarks/gpu_parts.sh")).expect("the parts");
    let scales: Vec<&str> = parts.lines().filter_map(|line| line.trim().strip_prefix("replay ")).collect();
    assert_eq!(scales.len(), 3, "{scales:?}");
    let program = "import sys; sys.path.insert(0, 'benchmarks'); import gpu_table; print(*gpu_table.ONLINE)";
    let shown = printed("python3", &["-B", "-c", program]);
    for scale in scales {
        assert!(shown.contains(&format!("online_trace_{scale}")), "{scale}: {shown}");
    }
}

/// `taken`: whether the native backend takes the families.
fn equality(taken: bool) -> String {
    let script = format!(
        "source benchmarks/gpu_parts.sh
        kernels() {{ :; }}; gpt2() {{ :; }}; check() {{ :; }}; family() {{ :; }}
        greedy() {{ echo \"greedy $1\"; }}; with_torch() {{ echo \"ran $1\"; }}; note() {{ echo \"note $1 $2\"; }}
        is_taken() {{ {taken}; }}
        part_equality"
    );
    printed("bash", &["-c", &script])
}

#[test]
fn operators_are_compared_only_with_a_native_backend_that_takes_the_model() {
    let taken = equality(true);
    assert!(taken.contains("greedy llama\nran operators_llama") && !taken.contains("note"), "{taken}");
    let refused = equality(false);
    assert!(refused.contains("ran operators_gpt2"), "{refused}");
    for name in ["qwen3", "llama"] {
        assert!(!refused.contains(&format!("ran operators_{name}")), "{refused}");
        assert!(refused.contains(&format!("note operators_{name} skipped")), "{refused}");
    }
}

#[test]
fn a_capacity_is_a_median_and_not_the_best_of_several_draws() {
    let run = |label: &str, rate: f64| json!({"label": label, "figures": {"requests_per_s": rate}});
    let runs = vec![
        run("pinion", 4.0),
        run("pinion", 5.0),
        run("-ui", 9.0),
        run("-ui", 9.0),
        run("+strict-fields", 3.0),
        run("peer", 4.5),
        run("peer", 4.7),
    ];
    let file = |runs: &[serde_json::Value]| {
        let folder = Folder::new();
        let result = json!({"base": "pinion", "inert": ["-ui", "+strict-fields"], "runs": runs});
        folder.write("compare.json", result.to_string());
        folder
    };
    let capacity = |runs: &[serde_json::Value]| {
        let folder = file(runs);
        printed("python3", &["benchmarks/peers/capacity.py", &format!("{}/compare.json", folder.text())])
    };
    // Of 3, 4, 5, 9 and 9.
    assert_eq!(capacity(&runs).trim(), "5.0");
    // The peer's own is above that of Pinion without its draws.
    assert_eq!(capacity(&[run("pinion", 4.0), run("-ui", 4.2), run("peer", 4.5)]).trim(), "4.5");
}

/// A client of the recipes for routers goes on after whatever happens, and each failure is counted.
#[test]
fn an_error_that_no_client_foresees_is_a_failure() {
    let program = "
import sys, time
sys.path.insert(0, 'deploy/distributed')
import replicas
calls = []
def ask(port, prompt, tokens, note=''):
    calls.append(prompt)
    raise AttributeError('no group')
replicas.ask = ask
load = replicas.Load(1, clients=2, tokens=3)
end = time.monotonic() + 30
while len(calls) < 6 and time.monotonic() < end:
    time.sleep(0.01)
answers = load.end()
print(len(answers) == len(calls) >= 6, len(load.wrong()) == len(answers), load.wrong()[0], answers[0].ended >= answers[0].begun)
";
    assert_eq!(
        printed("python3", &["-B", "-c", program]).trim(),
        "True True AttributeError('no group') True"
    );
}
