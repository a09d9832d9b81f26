//! What may stand under `inert` in a scenario: flags of `pinion serve` that cannot act on what is measured, each with
//! the reason, and with what would make it act all the same. That is looked at in what is in effect: the server's whole
//! command, the environment that it inherits, and the workload with everything that follows `--`.

use pinion_config::HubModel;
use std::path::Path;

/// What is in effect for one variant.
pub(crate) struct Effect<'a> {
    /// The words of the server's command.
    pub command: &'a [String],
    /// The words of the workload.
    pub workload: &'a [String],
}

/// A group of flags that cannot act for one reason.
struct Control {
    flags: &'static [&'static str],
    /// Why not.
    why: &'static str,
    /// What makes them act.
    acts: fn(&Effect) -> Option<String>,
}

const CONTROLS: &[Control] = &[
    Control { flags: &["no-ui"], why: "the client asks for no page", acts: |_| None },
    Control {
        flags: &["drain-timeout"],
        why: "a server is told to end after its run, when no request is open",
        acts: |_| None,
    },
    Control {
        flags: &["metrics-compat"],
        why: "/metrics is read before a run and after it, and what it shows is computed then",
        acts: |_| None,
    },
    Control {
        flags: &["hub-offline", "hub-cache", "hub-endpoint"],
        why: "a model in a folder is looked for at no hub",
        acts: |effect| {
            let model = effect.value("model").or_else(|| effect.operand())?;
            let of_hub = HubModel::parse(&model).is_some() && !Path::new(&model).exists();
            of_hub.then(|| format!("the model {model} is one of the hub"))
        },
    },
    Control {
        flags: &["strict-fields"],
        why: "no request has a field that is unknown",
        acts: |effect| {
            let named = |word: &&String| word.split('=').next() == Some("--extra-fields");
            effect
                .workload
                .iter()
                .find(named)
                .map(|_| "--extra-fields adds fields to each request".to_owned())
        },
    },
    Control {
        flags: &["ttft-target"],
        why: "--admission deadline alone looks at it",
        acts: |effect| effect.is_not("admission", "fifo", &["fifo", "pack", "shortest"]),
    },
    Control {
        flags: &["linear", "attention"],
        why: "the fake backend has no products and no attention",
        acts: |effect| effect.is_not("backend", "auto", &["fake"]),
    },
    Control {
        flags: &["fake-step-us", "fake-prefill-us-per-token", "fake-fatal-token"],
        why: "the fake backend alone looks at it",
        acts: |effect| effect.is_not("backend", "auto", &["auto", "native", "torch"]),
    },
    Control {
        flags: &[
            "no-cuda-graphs",
            "cuda-mixed-graphs",
            "cuda-dependent-launch",
            "no-cuda-fused-norms",
            "no-cuda-fused-products",
            "no-cuda-shaping",
            "no-cuda-logprobs",
            "no-cuda-masks",
            "cuda-gemm",
            "decode",
        ],
        why: "nothing of CUDA runs with --device cpu",
        acts: |effect| effect.is_not("device", "auto", &["cpu"]),
    },
    Control {
        flags: &["torch-kernels"],
        why: "without --backend torch no operator of libtorch runs",
        acts: |effect| {
            // `auto` is the native backend on the CPU alone.
            let backend = effect.is_not("backend", "auto", &["auto", "native", "fake"]);
            backend.or_else(|| effect.is_not("device", "auto", &["cpu"]))
        },
    },
];

impl Effect<'_> {
    /// The last value of an option in the command, else in the environment.
    fn value(&self, name: &str) -> Option<String> {
        let flag = format!("--{name}");
        let mut found = None;
        let mut words = self.command.iter();
        while let Some(word) = words.next() {
            match word.split_once('=') {
                Some((own, value)) if own == flag => found = Some(value.to_owned()),
                _ if *word == flag => found = words.next().cloned(),
                _ => {}
            }
        }
        found.or_else(|| std::env::var(format!("PINION_{}", name.to_uppercase().replace('-', "_"))).ok())
    }

    /// What follows `serve`, if it is no flag.
    fn operand(&self) -> Option<String> {
        let mut words = self.command.iter().skip_while(|word| *word != "serve");
        words.nth(1).filter(|word| !word.starts_with('-')).cloned()
    }

    /// Why the option is none of `harmless`, if it is not.
    fn is_not(&self, name: &str, default: &str, harmless: &[&str]) -> Option<String> {
        if let Some(file) = self.value("config") {
            return Some(format!("--config {file} may set --{name}"));
        }
        let value = self.value(name).unwrap_or_else(|| default.to_owned());
        (!harmless.contains(&value.as_str())).then(|| format!("--{name} is {value}"))
    }
}

fn control_of(name: &str) -> Option<&'static Control> {
    CONTROLS.iter().find(|control| control.flags.contains(&name))
}

/// Why `flags` act on what is in effect, if they do. Errors: one of them is not known to be without effect anywhere.
pub(crate) fn acts(flags: &str, effect: &Effect) -> Result<Option<String>, String> {
    let names = flags.split_whitespace().filter_map(|word| word.strip_prefix("--"));
    for name in names.map(|name| name.split_once('=').map_or(name, |(name, _)| name)) {
        let Some(control) = control_of(name) else {
            let known: Vec<String> =
                CONTROLS.iter().flat_map(|control| control.flags).map(|flag| format!("--{flag}")).collect();
            return Err(format!(
                "inert: --{name} may act; flags that are known not to are {}, and the base again",
                known.join(", ")
            ));
        };
        if let Some(reason) = (control.acts)(effect) {
            return Ok(Some(reason));
        }
    }
    Ok(None)
}

/// Why the flags of a control cannot act, for people.
pub(crate) fn why(flags: &str) -> Vec<&'static str> {
    let names = flags.split_whitespace().filter_map(|word| word.strip_prefix("--"));
    let found = names.filter_map(|name| control_of(name.split('=').next()?));
    found.map(|control| control.why).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<String> {
        line.split_whitespace().map(str::to_owned).collect()
    }

    fn acting(flags: &str, command: &str, workload: &str) -> Option<String> {
        let (command, workload) = (words(command), words(workload));
        acts(flags, &Effect { command: &command, workload: &workload }).expect(flags)
    }

    #[test]
    fn what_is_in_effect_makes_a_control_act() {
        const CPU: &str = "pinion serve --model . --device cpu --port 1";
        const WORK: &str = "online --poisson 4 --requests 5";
        for (flags, command, workload, reason) in [
            ("--no-ui", CPU, WORK, None),
            ("--drain-timeout 31s", CPU, WORK, None),
            ("--strict-fields", CPU, WORK, None),
            ("--strict-fields", CPU, "offline --extra-fields {}", Some("--extra-fields adds fields")),
            ("--strict-fields", CPU, "offline --extra-fields={}", Some("--extra-fields adds fields")),
            ("--hub-offline", CPU, WORK, None),
            (
                "--hub-offline",
                "pinion serve some/model",
                WORK,
                Some("the model some/model is one of the hub"),
            ),
            ("--hub-offline", "pinion serve ./some/model", WORK, None),
            ("--ttft-target 300ms", CPU, WORK, None),
            (
                "--ttft-target=300ms",
                "pinion serve . --admission deadline",
                WORK,
                Some("--admission is deadline"),
            ),
            ("--ttft-target 300ms", "pinion serve . --admission=deadline --admission pack", WORK, None),
            (
                "--ttft-target 300ms",
                "pinion serve . --config f",
                WORK,
                Some("--config f may set --admission"),
            ),
            ("--no-cuda-graphs", CPU, WORK, None),
            ("--no-cuda-graphs", "pinion serve . --device cpu --device cuda", WORK, Some("--device is cuda")),
            ("--no-cuda-graphs", "pinion serve .", WORK, Some("--device is auto")),
            (
                "--torch-kernels off",
                "pinion serve . --device cpu --backend torch",
                WORK,
                Some("--backend is torch"),
            ),
            ("--linear plain", "pinion serve . --backend fake", WORK, None),
            ("--linear plain", CPU, WORK, Some("--backend is auto")),
            ("--fake-step-us 9", CPU, WORK, None),
            ("--no-ui --fake-step-us 9", "pinion serve . --backend fake", WORK, Some("--backend is fake")),
        ] {
            let found = acting(flags, command, workload);
            match (reason, &found) {
                (None, None) => {}
                (Some(reason), Some(found)) => assert!(found.starts_with(reason), "{flags}: {found}"),
                (reason, found) => panic!("{flags} with {command}, {workload}: {found:?}, not {reason:?}"),
            }
        }
    }

    /// They change what a step computes, or what is kept for each request.
    #[test]
    fn flags_that_may_act_are_no_controls() {
        let effect = Effect { command: &[], workload: &[] };
        for flags in [
            "--no-resume",
            "--no-prefix-cache",
            "--no-prefix-partial",
            "--no-prefix-wait",
            "--fair-share key",
        ] {
            let fault = acts(flags, &effect).expect_err(flags);
            assert!(fault.contains("may act; flags that are known not to are --no-ui"), "{fault}");
        }
        assert_eq!(why("--no-ui --drain-timeout=31s").len(), 2);
    }

    #[test]
    fn every_control_is_an_option_with_a_reason() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let page = std::fs::read_to_string(root.join("docs/CONFIGURATION.md")).expect("the options");
        for control in CONTROLS {
            assert!(control.why.len() > 10, "{:?}", control.flags);
            for flag in control.flags {
                let name = flag.strip_prefix("no-").unwrap_or(flag);
                let is_there =
                    page.contains(&format!("| `--{name} ")) || page.contains(&format!("| `--[no-]{name}`"));
                assert!(is_there, "--{flag} is no option");
            }
        }
    }
}
