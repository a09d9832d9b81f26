//! docs/CONFIGURATION.md, from the option table.

use crate::exit::Exit;
use crate::options::OPTIONS;
use crate::table::{Group, Kind, Opt, Preset};
use std::fmt::Write;

const HEAD: &str = "\
<!-- Generated from the option table in crates/config by `cargo xtask docs`. Do not edit. -->
# Configuration

`pinion serve DIR [flags]` serves one model. Every option can be given in four places; a later one wins:

1. the default below,
2. a TOML file named by `--config FILE`: top-level keys, named like the flags without the dashes in front,
3. an environment variable `PINION_<FLAG>`: `--max-num-seqs` is `PINION_MAX_NUM_SEQS`,
4. the flag, as `--flag VALUE` or `--flag=VALUE`; given twice, the last one counts.

All faults of all places are reported together, each with the place and the reason, also for values that a later
place replaces. Unknown flags, keys and `PINION_*` variables are faults; variables that Kubernetes makes for a service
called `pinion` are passed over. `pinion config show [flags]` prints every value and where it comes from;
`pinion --help=<group>`, `--help=<flag>`, `--help=<word>` and `--help=all` print this page's text.

**Values.** Numbers may end in `k`, `m`, `g` (thousands) or `K`, `M`, `G` (1024): `2k` is 2000, `2K` is 2048. Bytes take
`KiB`, `MiB`, `GiB` too. Times need a unit: `ms`, `s`, `m`, `h`. Switches are `--pin` / `--no-pin`, `PINION_PIN=1` / `0`,
`pin = true` / `false`. CPU sets are lists of numbers and ranges: `2-3,8`. Underscores in a flag or key count as dashes.
";

const HUB: &str = "
## Models of the hub

`pinion pull ORG/NAME[@REV] [flags]` downloads a model of the Hugging Face hub into the cache and prints its folder;
`pinion serve ORG/NAME[@REV]` does the same before anything else starts. REV is a branch, a tag or a commit; `main` unless
it is named. A flag `--hub-*`, its variable or its key goes before the variables that other programs read as well:

| variable | meaning |
|---|---|
| `HF_HOME` | folder of the cache (`hub`) and of the token (`token`); `~/.cache/huggingface`, or below `XDG_CACHE_HOME` |
| `HF_HUB_CACHE` | the cache itself; `--hub-cache` |
| `HF_ENDPOINT` | the hub or a mirror; `--hub-endpoint` |
| `HF_HUB_OFFLINE` | `1`: nothing is downloaded; `--hub-offline` |
| `HF_TOKEN`, `HF_TOKEN_PATH` | the access token, or a file with it; no flag, because every user of the machine can see flags |
| `HTTPS_PROXY`, `HTTP_PROXY`, `ALL_PROXY`, `NO_PROXY` | a proxy on the way |

What is pulled, what can go wrong and what is kept: docs/OPERATIONS.md.
";

const OTLP: &str = "
## OpenTelemetry's variables

`--otlp-traces-endpoint`, its variable or its key goes before them; docs/OPERATIONS.md says what is sent.

| variable | meaning |
|---|---|
| `OTEL_EXPORTER_OTLP_TRACES_ENDPOINT` | where traces are posted to, as it stands |
| `OTEL_EXPORTER_OTLP_ENDPOINT` | the same with `/v1/traces` added |
| `OTEL_EXPORTER_OTLP_TRACES_PROTOCOL`, `OTEL_EXPORTER_OTLP_PROTOCOL` | `grpc` is a fault where an endpoint is taken from a variable; JSON over HTTP is sent whatever they say |
| `OTEL_SERVICE_NAME` | `service.name` of the resource; `pinion` |
| `OTEL_RESOURCE_ATTRIBUTES` | more of its attributes: `KEY=VALUE,KEY=VALUE`, percent-encoded |
| `OTEL_SDK_DISABLED=true`, `OTEL_TRACES_EXPORTER` without `otlp` | the endpoints of the variables do not count |
";

const PLAN: &str = "
## The CPU plan

Printed at start, and part of `pinion config show`. Its unit is a whole physical core: SMT siblings never serve two
roles, and CPUs outside the allowed set (affinity, cpuset) are never used.

1. A `--cpus-<role>` set is taken as it stands; several processes of the role split it. A CPU outside the allowed set, in
   two sets, or without its SMT sibling is a fault.
2. With one core left, all remaining roles share it. With none left, they share the lowest-numbered core with its user.
3. The engine gets the fastest cores, highest-numbered first, of one NUMA node. Cores below four fifths of the fastest
   speed are kept from it, unless the fast ones are under a third of the node: kernels split their work evenly and
   wait for the slowest thread.
4. Frontend, detokenizer and tokenizer get one core each of what the engine does not want; if that is too little, out of
   its share, as long as it keeps at least half of all cores. Otherwise they share a quarter of the cores, and at
   least one. With up to three cores the engine gets all of them, and the light roles share the lowest-numbered one.
   `pinion-events` (`--kv-events`) shares the cores of the first tokenizer.
5. A process that owns its cores may spin for `--spin-us` before it sleeps; one that shares a core sleeps at once. Within a
   step the engine's threads spin for each other on shared cores too (`--step-spin`), unless a cgroup quota counts that
   time. A thread that another program keeps off its core stops spinning for a second. Where the engine owns as many
   cores as it has threads, each of its helpers stays on one. With `--no-thread-team`, and with oneDNN's products, the
   threads are libgomp's, and a `GOMP_SPINCOUNT` of the launcher's environment says how often they spin.
6. A cgroup quota (`docker --cpus`, a Kubernetes limit) below the allowed set means that others run on the same cores:
   threads are counted by the quota, and nothing is pinned unless `--pin` or a `--cpus-<role>` set asks for it.

| physical cores | engine | frontend, tokenizer, detokenizer |
|---|---|---|
| 1 | shares it | share it |
| 2 and 3 | all | share the lowest-numbered one with it |
| 4 and 5 | all but one | share one |
| 6 and more | all but three | one each |
";

/// The whole page.
pub fn markdown() -> String {
    let mut page = HEAD.to_owned();
    for group in Group::ALL {
        let _ = write!(page, "\n## {}\n\n| flag | default | meaning |\n|---|---|---|\n", group.title());
        for option in OPTIONS.iter().filter(|option| option.group == group) {
            let _ = writeln!(page, "{}", row(option));
        }
    }
    page.push_str(HUB);
    page.push_str(OTLP);
    page.push_str(PLAN);
    page.push_str("\n## Exit codes\n\n| code | meaning |\n|---|---|\n");
    for exit in Exit::ALL {
        let _ = writeln!(page, "| {} | {} |", exit.code(), exit.meaning());
    }
    page
}

fn row(option: &Opt) -> String {
    let default = match option.preset {
        Preset::Is(text) if !matches!(option.kind, Kind::Switch) => format!("`{text}`"),
        _ => option.preset_text().to_owned(),
    };
    let usage = option.usage().replace('|', "\\|");
    format!("| `{usage}` | {default} | {}{} |", option.help, limits(&option.kind))
}

/// The range, where the type alone does not tell it.
fn limits(kind: &Kind) -> String {
    match kind {
        Kind::Number { min: 0, max: u64::MAX } => String::new(),
        Kind::Number { min, max } => format!(" From {min} to {max}."),
        Kind::Bytes { min, max } | Kind::Duration { min_ms: min, max_ms: max } => {
            let show = |n: &u64| crate::value::Value::Number(*n).show(kind);
            format!(" From {} to {}.", show(min), show(max))
        }
        Kind::StepTime { min_us, max_us } => {
            let show = |us: &u64| crate::value::Value::Number(*us).show(kind);
            format!(" N is from {} to {}.", show(min_us), show(max_us))
        }
        Kind::Share => " Above 0, at most 1.".to_owned(),
        Kind::Text
        | Kind::Folder
        | Kind::File
        | Kind::Address
        | Kind::Switch
        | Kind::Cpus
        | Kind::Secrets
        | Kind::Origins
        | Kind::Hosts
        | Kind::Choice { .. } => String::new(),
    }
}
