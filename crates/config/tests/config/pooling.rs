//! Folders that pool, and those that say so in a way that is not supported.

use crate::tree::{GPT2, Tree, run_on, serve, serve_result};
use pinion_config::{Exit, Machine, Pooling, PoolingKind, Shorter, Topology};
use pinion_protocol::{Peer, Role};

fn machine() -> Machine {
    Machine::uniform(4, 1)
}

/// A folder as sentence-transformers saves one, with this pooling and these modules behind it.
fn folder(pooling: &str, more: &str) -> Tree {
    let model = Tree::gpt2();
    let modules = format!(
        r#"[{{"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"}},
            {{"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"}}{more}]"#
    );
    model.file("modules.json", &modules);
    model.file("1_Pooling/config.json", pooling);
    model
}

const LAST: &str =
    r#"{"word_embedding_dimension": 768, "pooling_mode_cls_token": false, "pooling_mode_lasttoken": true}"#;
const NORMALIZE: &str =
    r#", {"idx": 2, "name": "2", "path": "2_Normalize", "type": "sentence_transformers.models.Normalize"}"#;

fn pooled(kind: PoolingKind, normalize: bool) -> Option<Pooling> {
    Some(Pooling { kind, width: 768, normalize, shorter: Shorter::None })
}

#[test]
fn a_folder_or_the_operator_says_that_a_model_pools() {
    let later = r#"{"embedding_dimension": 768, "pooling_mode": "mean", "include_prompt": true}"#;
    for (model, flags, expected) in [
        (Tree::gpt2(), &[][..], None),
        (Tree::gpt2(), &["--pooling", "last"], pooled(PoolingKind::Last, true)),
        (folder(LAST, NORMALIZE), &[], pooled(PoolingKind::Last, true)),
        (folder(LAST, ""), &[], pooled(PoolingKind::Last, false)),
        (folder(later, ""), &[], pooled(PoolingKind::Mean, false)),
        (folder(LAST, ""), &["--pooling", "mean"], pooled(PoolingKind::Mean, false)),
        (
            folder(r#"{"pooling_mode": "cls"}"#, ""),
            &["--pooling", "lasttoken"],
            pooled(PoolingKind::Last, false),
        ),
        (folder("[]", ""), &["--pooling", "none"], None),
    ] {
        assert_eq!(serve(&machine(), &model, flags, &[]).pooling, expected, "{flags:?}");
    }
}

#[test]
fn auto_leaves_the_gpu_to_models_that_generate() {
    let with_gpu = Machine { has_nvidia_gpu: true, ..machine() };
    let model = folder(LAST, "");
    let object = model.file("object.so", "");
    let on = |device, pooling| {
        let flags = ["--device", device, "--cuda-object", &object, "--pooling", pooling];
        serve_result(&with_gpu, &model, &flags, &[])
    };
    assert!(on("auto", "none").unwrap().cuda.is_some());
    let pools = on("auto", "auto").unwrap();
    assert!(pools.cuda.is_none() && pools.pooling.is_some());
    assert_eq!(pools.body_bytes_max, 4 << 20, "many texts, though the context is short");
    assert!(on("cuda", "auto").unwrap_err().to_string().contains("use --device cpu"));
    let drafts = serve_result(&with_gpu, &model, &["--device", "cpu", "--speculative", "ngram"], &[]);
    assert!(drafts.unwrap_err().to_string().contains("--speculative: a model that pools draws no tokens"));
}

#[test]
fn lengths_come_from_the_folder() {
    let model = folder(LAST, "");
    model.file("sentence_bert_config.json", r#"{"max_seq_length": 256, "do_lower_case": false}"#);
    let with = |key: &str| GPT2.replacen('{', &format!("{{{key},"), 1);
    for (key, shorter) in [
        (r#""is_matryoshka": true"#, Shorter::Any),
        (r#""matryoshka_dimensions": [64, 256]"#, Shorter::Of(vec![64, 256])),
        (r#""is_matryoshka": false"#, Shorter::None),
    ] {
        model.file("config.json", &with(key));
        let config = serve(&machine(), &model, &[], &[]);
        assert_eq!((config.max_model_len, config.pooling.unwrap().shorter), (256, shorter), "{key}");
    }
}

#[test]
fn what_is_not_supported_is_refused_by_its_name() {
    let dense =
        r#", {"idx": 2, "name": "2", "path": "2_Dense", "type": "sentence_transformers.models.Dense"}"#;
    let both = r#"{"pooling_mode_mean_tokens": true, "pooling_mode_lasttoken": true}"#;
    let nowhere = folder(LAST, "");
    nowhere.file(
        "modules.json",
        r#"[{"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
            {"idx": 1, "name": "1", "path": "", "type": "sentence_transformers.models.Pooling"}]"#,
    );
    for (model, words) in [
        (folder(r#"{"pooling_mode_cls_token": true}"#, ""), "1_Pooling/config.json: pooling_mode_cls_token"),
        (folder(both, ""), "together are not supported"),
        (folder("{}", ""), "names no pooling_mode"),
        (nowhere, "the path \"\" is no folder beside it"),
        (folder(LAST, dense), "modules.json: the module sentence_transformers.models.Dense at index 2"),
    ] {
        let faults = serve_result(&machine(), &model, &[], &[]).unwrap_err();
        assert_eq!(faults.exit(), Exit::Model, "{faults}");
        assert!(faults.to_string().contains(words), "{faults}");
    }
    let model = folder(LAST, "");
    model.file("config.json", &GPT2.replacen('{', "{\"is_causal\": false,", 1));
    let faults = serve_result(&machine(), &model, &[], &[]).unwrap_err();
    assert!(faults.exit() == Exit::Model && faults.to_string().contains("is_causal is false"), "{faults}");
    model.file("config.json", GPT2);
    model.file("sentence_bert_config.json", r#"{"do_lower_case": true}"#);
    let faults = serve_result(&machine(), &model, &[], &[]).unwrap_err();
    assert!(faults.exit() == Exit::Model && faults.to_string().contains("do_lower_case"), "{faults}");
    let faults =
        run_on(&machine(), &["serve", "--model", &model.text(), "--pooling", "cls"], &[]).unwrap_err();
    assert!(faults.to_string().contains("--pooling"), "{faults}");
}

#[test]
fn the_ring_to_a_frontend_holds_a_vector_of_every_request() {
    let ring = |flags: &[&str]| {
        let flags = [flags, &["--max-num-seqs", "1"]].concat();
        let config = serve(&machine(), &Tree::gpt2(), &flags, &[]);
        let edge = |topology: &Topology| {
            *topology.edge(Peer::new(Role::Engine, 0), Peer::new(Role::Frontend, 0)).unwrap()
        };
        (edge(&Topology::new(&config)), config.max_inflight as usize)
    };
    let (with, slots) = ring(&["--pooling", "last"]);
    let without = ring(&[]).0;
    assert!(with.capacity_bytes >= slots * (8 + 768 * 4), "{with:?} for {slots} requests");
    assert!(without.capacity_bytes < with.capacity_bytes, "{without:?} {with:?}");
    assert!(with.payload_bytes_max() >= 8 + 768 * 4);
}
