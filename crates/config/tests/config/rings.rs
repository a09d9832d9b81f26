//! Processes, rings and their capacities.

use crate::tree::{Tree, serve};
use pinion_config::{Config, Edge, Machine, Topology};
use pinion_protocol::detokenizer_inbox::{Open, TextForm, TokenEvent, encode_step};
use pinion_protocol::engine_inbox::Admit;
use pinion_protocol::limits::{
    LOGIT_BIAS_ENTRIES_MAX, STOP_STRING_BYTES_MAX, STOP_STRINGS_MAX, STOP_TOKEN_IDS_MAX,
};
use pinion_protocol::scores::{ENTRIES_MAX, LogprobEntry};
use pinion_protocol::tokenizer_inbox::{Prompt, Submit, Truncation};
use pinion_protocol::{Claim, Peer, RequestId, Role, Sampling};
use proptest::prelude::*;

const ID: RequestId = RequestId { frontend: 0, slot: 1, generation: 2 };

fn config(args: &[&str]) -> Config {
    serve(&Machine::uniform(8, 1), &Tree::gpt2(), args, &[])
}

fn edge(topology: &Topology, from: Role, to: Role) -> Edge {
    *topology.edge(Peer::new(from, 0), Peer::new(to, 0)).expect("the edge exists")
}

/// A scrape meets one of them: the launcher says so before it starts.
#[test]
fn several_frontends_are_a_warning() {
    assert_eq!(config(&[]).warnings, [""; 0]);
    let warnings = config(&["--frontends", "3"]).warnings;
    assert!(warnings.len() == 1 && warnings[0].starts_with("--frontends 3: "), "{warnings:?}");
}

#[test]
fn processes_in_start_order_and_an_edge_for_every_pair() {
    let config = config(&["--frontends", "2", "--tokenizers", "3", "--detokenizers", "2"]);
    let topology = Topology::new(&config);
    let names: Vec<String> = topology.processes.iter().map(|p| p.peer.to_string()).collect();
    let expected = [
        "engine-0",
        "detokenizer-0",
        "detokenizer-1",
        "tokenizer-0",
        "tokenizer-1",
        "tokenizer-2",
        "frontend-0",
        "frontend-1",
    ];
    assert_eq!(names, expected);
    assert!(topology.processes.iter().all(|p| !p.cpus.is_empty() && p.threads >= 1));
    assert_eq!(topology.edges.len(), 2 * 3 + 2 * 2 + 3 + 3 * 2 + 2 + 2 + 2 * 2);
    let mut pairs: Vec<(Peer, Peer)> = topology.edges.iter().map(|e| (e.from, e.to)).collect();
    pairs.sort();
    pairs.dedup();
    assert_eq!(pairs.len(), topology.edges.len());
    assert!(topology.process(Peer::new(Role::Frontend, 2)).is_none());
}

#[test]
fn the_default_service_takes_little_shared_memory() {
    let shared = Topology::new(&config(&[])).shared_bytes();
    assert!((4 << 20..16 << 20).contains(&shared), "{shared}");
}

/// Encodes the largest record of each kind that a limit allows and holds it against its ring.
fn check_largest(config: &Config) -> Result<(), String> {
    let topology = Topology::new(config);
    let mut bytes = Vec::new();
    let fits = |bytes: &[u8], from, to| {
        let room = edge(&topology, from, to).payload_bytes_max();
        if bytes.len() <= room {
            Ok(())
        } else {
            Err(format!("{} > {room} from {from:?} to {to:?}", bytes.len()))
        }
    };
    let sampling = Sampling {
        logit_bias: vec![(1, 1.0); LOGIT_BIAS_ENTRIES_MAX],
        stop_token_ids: vec![1; STOP_TOKEN_IDS_MAX],
        ..Sampling::default()
    };
    let resume = vec![7; config.max_model_len as usize];
    let text = Prompt::Text("x".repeat(config.body_bytes_max));
    let ids = Prompt::Ids(vec![1; config.body_bytes_max / 2]);
    for prompt in [text, ids] {
        Submit {
            id: ID,
            claim: Claim::default(),
            sampling: sampling.clone(),
            prompt,
            truncation: Truncation::Never,
            asked_unix_s: 0,
            resume: resume.clone(),
        }
        .encode(&mut bytes);
        fits(&bytes, Role::Frontend, Role::Tokenizer)?;
    }
    let stop = vec!["s".repeat(STOP_STRING_BYTES_MAX); STOP_STRINGS_MAX];
    Open { id: ID, stop, form: TextForm::default(), resume: resume.clone() }.encode(&mut bytes);
    fits(&bytes, Role::Frontend, Role::Detokenizer)?;
    Admit { id: ID, claim: Claim::default(), sampling, ids: resume, prompt_tokens: 1 }.encode(&mut bytes);
    fits(&bytes, Role::Tokenizer, Role::Engine)?;
    let event = TokenEvent {
        id: ID,
        token: 0,
        sequence: 0,
        flags: 0,
        logprob_index: 0,
        logprob_count: ENTRIES_MAX as u16,
    };
    let logprobs = vec![LogprobEntry { token: 0, logprob: 0.0 }; config.max_num_seqs as usize * ENTRIES_MAX];
    encode_step(&mut bytes, 0, 0, &vec![event; config.max_num_seqs as usize], &logprobs);
    fits(&bytes, Role::Engine, Role::Detokenizer)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]
    #[test]
    fn every_ring_takes_its_largest_record(
        context in 1_u32..200_000, body in 4096_usize..(1 << 20), seqs in 1_u32..=1024, inflight in 1_u32..5000,
    ) {
        let base = config(&[]);
        let config =
            Config { max_model_len: context, body_bytes_max: body, max_num_seqs: seqs, max_inflight: inflight, ..base };
        prop_assert!(Topology::new(&config).edges.iter().all(|e| e.capacity_bytes.is_power_of_two()));
        let checked = check_largest(&config);
        prop_assert!(checked.is_ok(), "{:?}", checked);
    }
}
