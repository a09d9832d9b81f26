//! Sizes of a KV cache whose layers with a window keep only that.

use crate::tree::{Tree, serve, serve_result};
use pinion_config::{Config, Machine, WindowFacts};
use pinion_protocol::WindowKv;

/// A folder of Gemma 3's shape: one layer in six sees everything.
fn gemma3(layers: u32, kv_heads: u32, window: u32) -> Tree {
    let model = Tree::gpt2();
    let config = format!(
        r#"{{"model_type":"gemma3_text","hidden_size":1152,"intermediate_size":6912,"num_hidden_layers":{layers},
        "num_attention_heads":{heads},"num_key_value_heads":{kv_heads},"head_dim":256,"vocab_size":262144,
        "max_position_embeddings":32768,"sliding_window":{window},"sliding_window_pattern":6,"rms_norm_eps":1e-6,
        "query_pre_attn_scalar":256,"rope_theta":1000000.0,"rope_local_base_freq":10000.0,"eos_token_id":1}}"#,
        heads = 4 * kv_heads,
    );
    model.file("config.json", &config);
    model
}

fn machine() -> Machine {
    Machine { memory_bytes: Some(1 << 40), has_bf16: true, prefers_bf16: true, ..Machine::uniform(4, 1) }
}

fn configured(model: &Tree, args: &str) -> Config {
    serve(&machine(), model, &args.split_whitespace().collect::<Vec<_>>(), &[])
}

/// Bytes that a cache for one more sequence of this length takes.
fn sequence_bytes(model: &Tree, tokens: u64, more: &str) -> u64 {
    let bytes = |seqs: u64| {
        let args = format!("--max-num-seqs {seqs} --kv-cache-tokens {} {more}", seqs * tokens);
        configured(model, &args).kv_cache_bytes()
    };
    bytes(9) - bytes(8)
}

/// The figures of docs/design/0020-window-kv.md.
#[test]
fn a_sequence_of_gemma_3_takes_a_fifth_of_the_memory_or_less() {
    // 26 layers of 1 KiB a token in bf16, 22 of them with a window of 34 blocks; 34 layers of 4 KiB, 29 with 66 blocks
    let (small, large) = (gemma3(26, 1, 512), gemma3(34, 4, 1024));
    for (model, tokens, whole, windowed) in [
        (&small, 8192, 26 * 8192, 4 * 8192 + 22 * 544),
        (&small, 32768, 26 * 32768, 4 * 32768 + 22 * 544),
        (&large, 8192, 4 * 34 * 8192, 4 * (5 * 8192 + 29 * 1056)),
        (&large, 32768, 4 * 34 * 32768, 4 * (5 * 32768 + 29 * 1056)),
    ] {
        assert_eq!(sequence_bytes(model, tokens, "--no-window-kv"), whole << 10, "{tokens}");
        assert_eq!(sequence_bytes(model, tokens, ""), windowed << 10, "{tokens}");
    }
}

#[test]
fn window_blocks_come_first_and_the_rest_is_blocks() {
    let model = gemma3(26, 1, 512);
    let facts = configured(&model, "").model;
    assert_eq!(facts.window, Some(WindowFacts { tokens: 512, layers: 22 }));
    // 64 sequences of 34 blocks, and 512 tokens of one step.
    let kept = Some(WindowKv { tokens: 512, blocks: 64 * 34 + 32 });
    // (flags, window blocks, blocks); a block takes 416 KiB, 64 KiB without the layers with a window.
    for (args, window_kv, blocks) in [
        ("", kept, 64 * 64),
        ("--no-window-kv", None, 64 * 64),
        ("--kv-cache-bytes 4GiB", kept, (4 * 1024 * 1024 - 2208 * 352) / 64),
        ("--kv-cache-bytes 4GiB --no-window-kv", None, 4 * 1024 * 1024 / 416),
        ("--kv-cache-tokens 100000", kept, 6250),
        // Fewer blocks than window blocks: nothing is gained.
        ("--kv-cache-tokens 35328", None, 2208),
        ("--kv-cache-tokens 35344", kept, 2209),
        ("--kv-cache-bytes 896MiB", None, 2205),
        // No sequence is longer than the window.
        ("--max-model-len 512", None, 64 * 32),
        ("--backend torch", None, 64 * 64),
        ("--backend fake", None, 64 * 64),
    ] {
        let config = configured(&model, args);
        assert_eq!((config.window_kv, config.kv_blocks), (window_kv, blocks), "{args}");
    }
    let within = configured(&model, "--kv-cache-bytes 4GiB");
    let bytes = within.kv_cache_bytes();
    assert!(bytes <= 4 << 30 && bytes > (4 << 30) - (64 << 10), "{bytes}");
}

#[test]
fn where_every_layer_has_a_window_only_window_blocks_take_memory() {
    let model = Tree::gpt2();
    let mistral = r#"{"model_type":"mistral","hidden_size":64,"intermediate_size":96,"num_hidden_layers":4,
        "num_attention_heads":8,"num_key_value_heads":2,"head_dim":16,"vocab_size":500,"sliding_window":128,
        "max_position_embeddings":4096,"eos_token_id":7}"#;
    model.file("config.json", mistral);
    // 4 layers of 128 bytes a token in bf16: 8 KiB a block.
    let config = configured(&model, "--max-num-seqs 4 --max-num-batched-tokens 64 --kv-cache-tokens 16384");
    let blocks = 4 * 10 + 4;
    assert_eq!(config.window_kv, Some(WindowKv { tokens: 128, blocks }));
    assert_eq!((config.kv_blocks, config.kv_cache_bytes()), (1024, u64::from(blocks) * 8192));
    // Memory that is given goes to window blocks, which keep cached prefixes, too.
    let config = configured(&model, "--max-num-seqs 4 --max-num-batched-tokens 64 --kv-cache-bytes 4MiB");
    assert_eq!(config.window_kv, Some(WindowKv { tokens: 128, blocks: 512 }));
    assert_eq!((config.kv_blocks, config.kv_cache_bytes()), (1024, 4 << 20));
}

#[test]
fn a_cache_that_is_too_small_or_too_large_is_told_with_its_window_blocks() {
    let model = gemma3(26, 1, 512);
    let faults =
        |machine: &Machine, args: &[&str]| serve_result(machine, &model, args, &[]).unwrap_err().to_string();
    assert_eq!(
        faults(&machine(), &["--max-num-seqs", "1", "--kv-cache-bytes", "40MiB"]),
        "--kv-cache-bytes: 4432 tokens of KV cache cannot hold one sequence of 32768 tokens (max-model-len), \
         which takes 150.7 MiB; give a larger cache, or --max-model-len 4432 or less"
    );
    let small = Machine { memory_bytes: Some(2 << 30), ..machine() };
    assert_eq!(
        faults(&small, &["--kv-cache-tokens", "400000"]),
        "--kv-cache-tokens: a KV cache of 2.3 GiB is more than the memory, 2.0 GiB"
    );
}
