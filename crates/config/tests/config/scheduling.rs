//! The scheduler's switches, from the command line and the environment to the config.

use crate::tree::{Tree, serve, serve_result};
use pinion_config::{AdmissionKind, Machine, Scheduling, SpeculationKind, StepTimeKind};

const DEFAULT: Scheduling = Scheduling {
    prefix_cache: true,
    prefix_partial: true,
    prefix_wait: true,
    admission: AdmissionKind::Fifo,
    ttft_target_ms: 200,
    prefill_chunk_size: None,
    prefill_max_batch_size: None,
    prefill_priority_threshold: None,
    step_time: StepTimeKind::Off,
    fill_to_target: true,
    overlap: false,
    speculation: SpeculationKind::Off,
};

#[test]
fn each_switch_sets_its_own_field() {
    let (machine, model) = (Machine::uniform(4, 1), Tree::gpt2());
    let admission = |admission| Scheduling { admission, ..DEFAULT };
    for (args, expected) in [
        (&[][..], DEFAULT),
        (&["--no-prefix-cache"], Scheduling { prefix_cache: false, ..DEFAULT }),
        (&["--no-prefix-partial"], Scheduling { prefix_partial: false, ..DEFAULT }),
        (&["--no-prefix-wait"], Scheduling { prefix_wait: false, ..DEFAULT }),
        (&["--no-fill-to-target"], Scheduling { fill_to_target: false, ..DEFAULT }),
        (&["--overlap"], Scheduling { overlap: true, ..DEFAULT }),
        // The device's own choice, which an operator may overrule.
        (&["--device", "cuda"], Scheduling { overlap: true, ..DEFAULT }),
        (&["--device", "cuda", "--no-overlap"], DEFAULT),
        (&["--device", "cpu"], DEFAULT),
        (&["--admission=pack"], admission(AdmissionKind::Pack)),
        (&["--admission", "shortest"], admission(AdmissionKind::Shortest)),
        (
            &["--admission=deadline", "--ttft-target=1.5s"],
            Scheduling { ttft_target_ms: 1500, ..admission(AdmissionKind::Deadline) },
        ),
        (&["--prefill-chunk-size=256"], Scheduling { prefill_chunk_size: Some(256), ..DEFAULT }),
        (&["--prefill-max-batch-size=4"], Scheduling { prefill_max_batch_size: Some(4), ..DEFAULT }),
        (&["--prefill-priority-threshold=8"], Scheduling { prefill_priority_threshold: Some(8), ..DEFAULT }),
        (&["--speculative", "off"], DEFAULT),
        (&["--speculative=ngram"], Scheduling { speculation: SpeculationKind::Ngram, ..DEFAULT }),
        (&["--step-time-ms=off"], DEFAULT),
        (&["--step-time-ms", "auto"], Scheduling { step_time: StepTimeKind::Auto, ..DEFAULT }),
        (&["--step-time-ms=40"], Scheduling { step_time: StepTimeKind::Micros(40_000), ..DEFAULT }),
        (&["--step-time-ms=7.25"], Scheduling { step_time: StepTimeKind::Micros(7250), ..DEFAULT }),
    ] {
        assert_eq!(serve(&machine, &model, args, &[]).scheduling, expected, "{args:?}");
    }
    let from_environment = serve(&machine, &model, &[], &[("PINION_PREFIX_CACHE", "false")]);
    assert!(!from_environment.scheduling.prefix_cache);
    for (flag, reason) in [
        ("--prefill-chunk-size=0", "is below 1"),
        ("--prefill-max-batch-size=0", "is below 1"),
        ("--prefill-priority-threshold=0", "is below 1"),
        ("--ttft-target=0", "is below 1ms"),
        ("--step-time-ms=0", "is below 0.1"),
        ("--step-time-ms=0.00001", "is not a whole number"),
        ("--step-time-ms=60001", "is above 60000"),
        ("--step-time-ms=fast", "is neither off nor auto nor a number of milliseconds"),
        ("--step-time-ms=4s", "`s` is not a unit"),
        ("--admission=lifo", "fifo"),
        ("--speculative=eagle", "no other model drafts tokens here; use ngram"),
        ("--speculative-config={}", "give its method to --speculative: ngram"),
        ("--enable-prefix-caching", "prefix-cache"),
    ] {
        let faults = serve_result(&machine, &model, &[flag], &[]).expect_err(flag).to_string();
        assert!(faults.contains(reason), "{flag}: {faults}");
    }
}
