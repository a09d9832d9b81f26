//! Which backend computes a model, where.

use crate::tree::{Tree, serve, serve_result};
use pinion_config::{Backend, Machine, PrefillAttention, TorchKernels};

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
        (
            &["--backend", "torch", "--kv-dtype", "int8"],
            "--kv-dtype: --backend torch keeps K and V in the type of the activations; leave one of the two out",
        ),
        (
            &["--device", "cuda", "--kv-dtype", "int8"],
            "--kv-dtype: --device cuda keeps K and V in the type of the activations; leave one of the two out",
        ),
        (&["--backend", "fake", "--kv-dtype", "int8"], "--kv-dtype: the fake backend keeps no K and V"),
        (
            &["--backend", "torch", "--speculative", "ngram"],
            "--speculative: libtorch's operators do not verify drafts; use --backend native, or --speculative off",
        ),
        (
            &["--device", "cuda", "--speculative", "ngram"],
            "--speculative: the GPU does not verify drafts; use --device cpu, or --speculative off",
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

#[test]
fn the_objects_kernels_go_between_libtorchs_operators_on_a_gpu() {
    let (machine, gpt2, odd) = (Machine::uniform(4, 1), Tree::gpt2(), odd_heads());
    gpt2.file("object.so", "");
    let object = gpt2.path().join("object.so");
    let there = ["--cuda-object", object.to_str().unwrap()];
    let on = |may_do_without| TorchKernels::On { object: object.clone(), may_do_without };
    let left_out = |reason: &str| TorchKernels::LeftOut(reason.to_owned());
    let torch = ["--backend", "torch"];
    for (model, args, expected) in [
        (&gpt2, &["--device", "cuda"][..], on(true)),
        (&gpt2, &["--device", "cuda", "--torch-kernels", "on"], on(false)),
        (&gpt2, &["--device", "cuda", "--torch-kernels", "off"], TorchKernels::Off),
        (&gpt2, &["--device", "cpu"], TorchKernels::Off),
        (&gpt2, &["--device", "cpu", "--torch-kernels", "on"], on(false)),
        (
            &gpt2,
            &["--device", "cuda", "--prefill-attention", "sdpa"],
            left_out("--prefill-attention sdpa is libtorch's own attention"),
        ),
        (
            &odd,
            &["--device", "cuda"],
            left_out("head_dim 12 is not supported by the CUDA object (a multiple of 8 up to 256)"),
        ),
        (&odd, &["--device", "cuda", "--dtype", "fp32"], on(true)),
    ] {
        let args = [&torch[..], &there, args].concat();
        assert_eq!(serve(&machine, model, &args, &[]).torch_kernels, expected, "{args:?}");
    }
    let nowhere = ["--backend", "torch", "--device", "cuda", "--cuda-object", "/no/such/object"];
    let config = serve(&machine, &gpt2, &nowhere, &[]);
    assert_eq!(config.torch_kernels, left_out("there is no /no/such/object"));
    let config = serve(&machine, &gpt2, &["--device", "cuda"], &[]);
    assert_eq!((config.backend, config.torch_kernels), (Backend::Native, TorchKernels::Off));
    for (args, says) in [
        (
            &["--torch-kernels", "on", "--device", "cuda"][..],
            "--torch-kernels: these are kernels between libtorch's operators: they go with --backend torch",
        ),
        (
            &["--torch-kernels", "on", "--backend", "torch", "--prefill-attention", "sdpa"],
            "--torch-kernels: --prefill-attention sdpa is libtorch's own attention; leave it out",
        ),
    ] {
        assert_eq!(serve_result(&machine, &gpt2, args, &[]).unwrap_err().to_string(), says);
    }
}
