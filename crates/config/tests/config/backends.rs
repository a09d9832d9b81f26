//! Which backend computes a model, where.

use crate::tree::{Tree, serve, serve_result};
use pinion_config::{Backend, Machine, PrefillAttention};

/// A folder whose heads are no multiple of 16 bytes in half precision, and are in fp32.
fn odd_heads() -> Tree {
    let model = Tree::gpt2();
    let config = r#"{"model_type": "llama", "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 12, "vocab_size": 300,
        "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "eos_token_id": 7}"#;
    model.file("config.json", config);
    model
}

#[test]
fn auto_is_native_and_torch_for_what_the_cuda_object_does_not_take() {
    let machine = Machine::uniform(4, 1);
    let (gpt2, odd) = (Tree::gpt2(), odd_heads());
    let says = "head_dim 12 is not supported by the CUDA object (a multiple of 8 up to 256)";
    for (model, args, backend, reason) in [
        (&gpt2, &[][..], Backend::Native, None),
        (&gpt2, &["--device", "cuda"], Backend::Native, None),
        (&gpt2, &["--device", "cuda", "--backend", "torch"], Backend::Operators, None),
        (&gpt2, &["--backend", "torch"], Backend::Operators, None),
        (&gpt2, &["--backend", "fake"], Backend::Fake, None),
        (&odd, &[], Backend::Native, None),
        (&odd, &["--device", "cuda"], Backend::Operators, Some(says)),
        (&odd, &["--device", "cuda", "--dtype", "fp32"], Backend::Native, None),
        (&odd, &["--device", "cuda", "--backend", "native"], Backend::Native, None),
        (&odd, &["--device", "cuda", "--backend", "torch"], Backend::Operators, None),
    ] {
        let config = serve(&machine, model, args, &[]);
        assert_eq!(config.backend, backend, "{args:?}");
        assert_eq!(config.cuda.is_some(), args.contains(&"cuda"), "{args:?}");
        let found = config.cuda.as_ref().and_then(|cuda| cuda.beyond_object.as_deref());
        assert_eq!(found, reason, "{args:?}");
        // Steps are queued ahead on the object alone, unless it is asked for.
        let on_object = config.cuda.is_some() && backend == Backend::Native;
        assert_eq!(config.scheduling.overlap, on_object, "{args:?}");
    }
    // A GPU that is there is enough for libtorch's operators: the engine tells whether libtorch has CUDA.
    let with_gpu = Machine { has_nvidia_gpu: true, ..machine };
    let args = ["--device", "auto", "--cuda-object", "/no/such/object"];
    let config = serve(&with_gpu, &odd, &args, &[]);
    assert!(config.backend == Backend::Operators && config.cuda.is_some_and(|cuda| cuda.may_fall_back));
    let config = serve(&with_gpu, &gpt2, &args, &[]);
    assert!(config.backend == Backend::Native && config.cuda.is_none());
}

#[test]
fn what_a_backend_does_not_have_is_refused() {
    let (machine, model) = (Machine::uniform(4, 1), Tree::gpt2());
    for (args, says) in [
        (
            &["--prefill-attention", "sdpa"][..],
            "--prefill-attention: sdpa is libtorch's: it goes with --backend torch",
        ),
        (
            &["--backend", "torch", "--quantization", "int8"],
            "--quantization: --backend torch computes with unquantised weights only; leave one of the two out",
        ),
    ] {
        assert_eq!(serve_result(&machine, &model, args, &[]).unwrap_err().to_string(), says);
    }
    let config = serve(&machine, &model, &["--backend", "torch", "--prefill-attention", "sdpa"], &[]);
    assert_eq!(config.prefill_attention, PrefillAttention::Sdpa);
}

#[test]
fn older_recordings_call_the_native_backend_torch() {
    let found: Backend = serde_json::from_str("\"Torch\"").unwrap();
    assert_eq!(found, Backend::Native);
}
