//! What is recorded comes out again: the same batches and tokens, with cancels, stops and mixed sampling; and with a
//! switch changed the report says what differs.

use crate::rig;
use crate::rig::hashed::{HASHED_VOCABULARY, Hashed, config};
use crate::rig::{Random, Rig};
use pinion_engine::tape::{Recording, Report, Tape, read, replay};
use pinion_engine::{Engine, Turn, taped_turn};
use pinion_protocol::status::Gauge;
use pinion_protocol::{RequestId, Sampling, StopIds};
use std::path::{Path, PathBuf};

fn turn(engine: &mut Engine, rig: &mut Rig, tape: &mut Tape) -> Turn {
    let turn = taped_turn(rig, engine, tape).expect("the model works");
    rig.read();
    turn
}

/// Requests that come little by little, greedy and seeded, some of which are cancelled or stopped at any moment.
fn record(file: &Path, seed: u64, mut engine: Engine) {
    let (mut rig, mut random) = (Rig::new(), Random::new(seed));
    let mut tape = Tape::create(file, &config(), 2).expect("a file of our own");
    let mut ids: Vec<RequestId> = Vec::new();
    for n in 0..40_u32 {
        let id = rig.open((n % 2) as u16, (n / 2) as u16);
        let prompt: Vec<u32> = (0..1 + random.below(40)).map(|_| random.below(HASHED_VOCABULARY)).collect();
        let sampling = Sampling {
            temperature: if n % 2 == 0 { 0.0 } else { 0.8 },
            seed: u64::from(n),
            max_tokens: Some(1 + random.below(20)),
            ..Sampling::default()
        };
        rig.admit(id, &prompt, prompt.len(), sampling);
        ids.push(id);
        for _ in 0..random.below(4) {
            turn(&mut engine, &mut rig, &mut tape);
        }
        let one = ids[random.below(ids.len() as u32) as usize];
        match random.below(5) {
            0 => _ = rig.cancel(one),
            1 => _ = rig.stop(one),
            _ => {}
        }
    }
    for _ in 0..100_000 {
        if turn(&mut engine, &mut rig, &mut tape) == Turn::Idle && engine.is_empty() {
            break;
        }
    }
    assert!(engine.is_empty() && rig.gauge(Gauge::KvBlocksUsed) == 0);
    tape.finish();
}

struct File(PathBuf);

impl File {
    fn new(name: &str) -> File {
        File(std::env::temp_dir().join(format!("pinion-{}-{name}", std::process::id())))
    }

    fn read(&self) -> Recording {
        read(&self.0).expect("a recording")
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn check(report: &Report) {
    assert!(report.identical && report.complete && report.first_difference.is_none(), "{report:?}");
    assert_eq!(
        (report.steps[0], report.rows[0], report.tokens[0]),
        (report.steps[1], report.rows[1], report.tokens[1])
    );
    assert!(report.tokens[0] > 100 && report.requests > 20, "too little to show anything: {report:?}");
}

#[test]
fn a_recorded_run_replays_to_identical_batches_and_tokens() {
    for overlap in [false, true] {
        for seed in 0..8 {
            println!("seed {seed}, overlap {overlap}");
            let file = File::new(&format!("exact-{overlap}-{seed}"));
            record(&file.0, seed, Hashed::engine(overlap));
            let recording = file.read();
            check(&replay(&recording, Hashed::engine(overlap)).expect("the model works"));
        }
    }
}

/// With drafts a batch holds more than one row of a request, and a step gives more than one of its tokens.
#[test]
fn a_recorded_run_with_drafts_replays_to_identical_batches_and_tokens() {
    let engine = |speculation| {
        let mut sizes = rig::small();
        sizes.policy.speculation = speculation;
        sizes.limits.max_num_seqs = 2; // few rows, so that there are drafts beside them
        Engine::new(rig::pipeline(Hashed::with_period(&sizes, 1), false), sizes)
    };
    let (mut differing, mut steps) = (0, [0, 0]);
    for seed in 0..8 {
        println!("seed {seed}");
        let file = File::new(&format!("drafts-{seed}"));
        record(&file.0, seed, engine(true));
        let recording = file.read();
        check(&replay(&recording, engine(true)).expect("the model works"));
        let without = replay(&recording, engine(false)).expect("the model works");
        differing += u32::from(!without.identical && without.first_difference.is_some());
        steps = [steps[0] + without.steps[0], steps[1] + without.steps[1]];
    }
    assert!(differing >= 6 && steps[1] > steps[0], "{differing} of 8 seeds have drafts, steps {steps:?}");
}

#[test]
fn with_a_switch_changed_the_report_says_what_differs() {
    let file = File::new("changed");
    record(&file.0, 3, Hashed::engine(true));
    let report = replay(&file.read(), Hashed::engine(false)).expect("the model works");
    assert!(!report.identical && report.first_difference.is_some(), "{report:?}");
    assert!(report.requests_that_differ < report.requests / 2, "{report:?}");
}

#[test]
fn a_file_that_is_cut_or_none_is_an_error_or_says_that_it_is_not_whole() {
    let file = File::new("cut");
    record(&file.0, 5, Hashed::engine(false));
    let bytes = std::fs::read(&file.0).expect("the file");
    std::fs::write(&file.0, &bytes[..bytes.len() / 2]).expect("the file");
    let cut = file.read();
    assert!(!cut.complete && !cut.groups.is_empty());
    replay(&cut, Hashed::engine(false)).expect("what is there can be replayed");
    for wrong in [&b""[..], b"PINIONRC", b"something else", b"PINIONRC\x02\0\0\0"] {
        std::fs::write(&file.0, wrong).expect("the file");
        assert!(read(&file.0).is_err(), "{wrong:?}");
    }
}

/// The same file as an earlier build wrote it: one end-of-sequence id, nothing of the model folder's defaults.
#[test]
fn a_recording_of_version_1_is_read_and_means_the_same() {
    let file = File::new("version-1.pinionrc");
    record(&file.0, 5, Hashed::engine(true));
    let whole = file.read();
    let mut bytes = std::fs::read(&file.0).expect("the file was written");
    let length = u32::from_le_bytes(bytes[13..17].try_into().expect("four bytes")) as usize;
    let mut header: serde_json::Value =
        serde_json::from_slice(&bytes[17..17 + length]).expect("the header is JSON");
    let config = header["config"].as_object_mut().expect("a config");
    assert!(config.remove("sampling_defaults").is_some() && config.remove("reasoning_parser").is_some());
    let model = config["model"].as_object_mut().expect("facts");
    assert!(model.remove("stop_ids").is_some());
    model.insert("eos".to_owned(), 7.into());
    let header = header.to_string().into_bytes();
    bytes.splice(13..17 + length, [&(header.len() as u32).to_le_bytes()[..], &header].concat());
    bytes[8..12].copy_from_slice(&1_u32.to_le_bytes());
    std::fs::write(&file.0, &bytes).expect("a file of our own");
    let old = file.read();
    assert_eq!(old.config.model.stop_ids, StopIds::one(7));
    assert_eq!((old.groups.len(), old.complete), (whole.groups.len(), whole.complete));
    bytes[8] = 3;
    std::fs::write(&file.0, &bytes).expect("a file of our own");
    assert!(read(&file.0).is_err_and(|reason| reason.contains("this build reads 1 and 2")));
}
