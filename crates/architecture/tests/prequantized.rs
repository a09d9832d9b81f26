//! `quantization_config`: what is read, and what is refused by its key.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise, in its helpers too")]

use pinion_architecture::{Packed, Packing, complete, read};
use serde_json::{Map, Value, json};

fn keys(model_type: &str, quantization: Value) -> Value {
    json!({"model_type": model_type, "hidden_size": 64, "intermediate_size": 96, "vocab_size": 50,
        "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 64,
        "n_positions": 64, "n_embd": 64, "n_head": 2, "n_layer": 1, "quantization_config": quantization})
}

fn packed(quantization: Value) -> Result<Option<Packed>, Vec<String>> {
    read(keys("llama", quantization).as_object().unwrap()).map(|model| model.packed)
}

fn compressed(format: &str, weights: Value) -> Value {
    json!({"quant_method": "compressed-tensors", "format": format,
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}}})
}

#[test]
fn the_forms_that_are_read() {
    let int4 =
        json!({"num_bits": 4, "type": "int", "symmetric": false, "strategy": "group", "group_size": 128});
    let int8 = json!({"num_bits": 8, "type": "int", "symmetric": true, "strategy": "channel"});
    let block = json!({"num_bits": 8, "type": "float", "strategy": "block", "block_structure": [128, 128]});
    let old_block = json!({"num_bits": 8, "type": "float", "strategy": "block", "block_structure": "128x64"});
    let integers = Packing::PackedIntegers { bits: 4, is_symmetric: false };
    for (quantization, method, packing, group) in [
        (
            json!({"quant_method": "awq", "bits": 4, "group_size": 128, "version": "GEMM"}),
            "awq",
            Packing::Awq,
            Some(128),
        ),
        (
            json!({"quant_method": "gptq", "bits": 8, "group_size": -1, "desc_act": true}),
            "gptq",
            Packing::Gptq { bits: 8, zero_offset: 1 },
            None,
        ),
        (
            json!({"quant_method": "gptq", "bits": 4, "group_size": 32, "checkpoint_format": "gptq_v2"}),
            "gptq",
            Packing::Gptq { bits: 4, zero_offset: 0 },
            Some(32),
        ),
        (
            json!({"quant_method": "gptq", "bits": 4, "group_size": 32, "dynamic": {"-:.*attn.*": {}, "-:lm_head": {}}}),
            "gptq",
            Packing::Gptq { bits: 4, zero_offset: 1 },
            Some(32),
        ),
        (
            json!({"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]}),
            "fp8",
            Packing::Float8 { block: Some([128, 128]) },
            None,
        ),
        (
            json!({"quant_method": "fp8", "activation_scheme": "static"}),
            "fp8",
            Packing::Float8 { block: None },
            None,
        ),
        (compressed("pack-quantized", int4), "compressed-tensors", integers, Some(128)),
        (
            compressed("int-quantized", int8),
            "compressed-tensors",
            Packing::Integers { is_symmetric: true },
            None,
        ),
        (
            compressed("float-quantized", block),
            "compressed-tensors",
            Packing::Float8 { block: Some([128, 128]) },
            None,
        ),
        (
            compressed("float-quantized", old_block),
            "compressed-tensors",
            Packing::Float8 { block: Some([128, 64]) },
            None,
        ),
    ] {
        assert_eq!(packed(quantization), Ok(Some(Packed { method, packing, group })));
    }
    for nothing in [json!(null), json!({})] {
        assert_eq!(packed(nothing), Ok(None));
    }
}

#[test]
fn a_multimodal_model_says_it_in_either_object() {
    let quantization = json!({"quant_method": "awq", "bits": 4, "group_size": 64});
    let mut text = keys("gemma3_text", json!(null));
    for at_top in [false, true] {
        text["quantization_config"] = if at_top { json!(null) } else { quantization.clone() };
        let mut whole = json!({"model_type": "gemma3", "text_config": text});
        if at_top {
            whole["quantization_config"] = quantization.clone();
        }
        let model = read(whole.as_object().unwrap()).unwrap();
        assert_eq!(model.packed.map(|packed| packed.group), Some(Some(64)), "at the top: {at_top}");
    }
}

#[test]
fn what_is_not_read_is_refused_by_its_key() {
    let int = |bits: u32| json!({"num_bits": bits, "type": "int"});
    let two = json!({"quant_method": "compressed-tensors", "format": "pack-quantized",
        "config_groups": {"a": {"weights": int(4)}, "b": {"weights": int(8)}}});
    let mut sparse = compressed("pack-quantized", int(4));
    sparse["sparsity_config"] = json!({"format": "sparse-24-bitmask"});
    let mut rotated = compressed("pack-quantized", int(4));
    rotated["transform_config"] = json!({"config_groups": {"u": {}}});
    for (quantization, part) in [
        (json!("awq"), "quantization_config is \"awq\""),
        (
            json!({"quant_method": "bitsandbytes", "load_in_4bit": true}),
            "quant_method bitsandbytes is not supported",
        ),
        (json!({"bits": 4}), "quant_method (absent) is not supported"),
        (json!({"quant_method": "awq", "bits": 3}), "bits 3 is not supported; supported: 4"),
        (json!({"quant_method": "awq", "bits": 4, "version": "gemv"}), "version gemv"),
        (json!({"quant_method": "awq", "bits": 4, "zero_point": false}), "zero_point false"),
        (json!({"quant_method": "awq", "bits": 4, "group_size": 0}), "group_size is 0"),
        (json!({"quant_method": "gptq", "bits": 3}), "bits 3"),
        (json!({"quant_method": "gptq", "group_size": 128}), "bits is absent"),
        (
            json!({"quant_method": "gptq", "bits": 4, "checkpoint_format": "marlin"}),
            "checkpoint_format \"marlin\"",
        ),
        (json!({"quant_method": "gptq", "bits": 4, "dynamic": {"lm_head": {}}}), "dynamic is not supported"),
        (
            json!({"quant_method": "gptq", "bits": 4, "dynamic": {"-:lm_head": {}, "+:up": {"bits": 8}}}),
            "dynamic is not supported",
        ),
        (json!({"quant_method": "gptq", "bits": 4, "dynamic": "-:x"}), "dynamic is not supported"),
        (json!({"quant_method": "fp8", "fmt": "e5m2"}), "fmt \"e5m2\""),
        (json!({"quant_method": "fp8", "weight_block_size": [128]}), "weight_block_size is [128]"),
        (json!({"quant_method": "fp8", "weight_block_size": "128"}), "weight_block_size is \"128\""),
        (json!({"quant_method": "fp8", "weight_block_size": [0, 128]}), "weight_block_size is [0,128]"),
        (json!({"quant_method": "compressed-tensors"}), "config_groups is absent"),
        (compressed("pack-quantized", json!(null)), "config_groups quantise no weights"),
        (compressed("pack-quantized", int(2)), "config_groups.group_0.weights.num_bits 2"),
        (compressed("int-quantized", int(4)), "num_bits 4"),
        (compressed("nvfp4-pack-quantized", json!({"num_bits": 4, "type": "float"})), "nvfp4-pack-quantized"),
        (compressed("marlin-24", int(4)), "marlin-24"),
        (
            compressed("int-quantized", json!({"num_bits": 8, "type": "int", "strategy": "attn_head"})),
            "strategy \"attn_head\"",
        ),
        (two, "config_groups have different weights"),
        (sparse, "sparsity_config.format \"sparse-24-bitmask\""),
        (rotated, "transform_config is not supported"),
    ] {
        let faults = packed(quantization.clone()).expect_err(part);
        assert!(faults.iter().any(|fault| fault.contains(part)), "{quantization}: {faults:?} lacks {part:?}");
        assert!(faults.iter().all(|fault| fault.starts_with("quantization_config")), "{faults:?}");
    }
    let faults =
        read(keys("gpt2", json!({"quant_method": "gptq", "bits": 4})).as_object().unwrap()).unwrap_err();
    assert_eq!(faults, ["has quantization_config, which is not supported for this model_type"]);
}

#[test]
fn a_file_beside_config_json_says_how_weights_are_packed() {
    let gptq = json!({"bits": 4, "group_size": 128, "desc_act": false, "sym": true, "damp_percent": 0.1});
    let awq = json!({"zero_point": true, "q_group_size": 64, "w_bit": 4, "version": "GEMM"});
    let eight = json!({"quant_method": "gptq", "bits": 8, "group_size": 32});
    // Of transformers.js, beside ONNX files.
    let onnx = json!({"modes": ["q8"], "per_channel": false, "block_size": null});
    let [of_gptq, of_eight] = [(4, 128), (8, 32)].map(|(bits, group)| Packed {
        method: "gptq",
        packing: Packing::Gptq { bits, zero_offset: 1 },
        group: Some(group),
    });
    let of_awq = Packed { method: "awq", packing: Packing::Awq, group: Some(64) };
    for (said, files, expected) in [
        (Value::Null, vec![("quantize_config.json", &gptq)], Some(of_gptq)),
        (Value::Null, vec![("quant_config.json", &awq)], Some(of_awq)),
        (Value::Null, vec![("quantize_config.json", &awq)], Some(of_awq)),
        (Value::Null, vec![("quant_config.json", &awq), ("quantize_config.json", &gptq)], Some(of_gptq)),
        (Value::Null, vec![("other.json", &gptq)], None),
        (Value::Null, vec![("quantize_config.json", &onnx)], None),
        (Value::Null, vec![("quantize_config.json", &onnx), ("quant_config.json", &awq)], Some(of_awq)),
        (eight.clone(), vec![("quantize_config.json", &gptq)], Some(of_eight)),
    ] {
        let mut config = keys("llama", said).as_object().unwrap().clone();
        let file = |name: &str| -> Result<Option<Map<String, Value>>, ()> {
            let found = files.iter().find(|(file, _)| *file == name);
            Ok(found.and_then(|(_, keys)| keys.as_object().cloned()))
        };
        complete(&mut config, file).unwrap();
        assert_eq!(read(&config).unwrap().packed, expected, "{files:?}");
    }
    let mut wrapper = json!({"text_config": {"quantization_config": eight}}).as_object().unwrap().clone();
    let before = wrapper.clone();
    complete(&mut wrapper, |_| Ok::<_, ()>(gptq.as_object().cloned())).unwrap();
    assert_eq!(wrapper, before);
    assert_eq!(
        complete(&mut keys("llama", Value::Null).as_object().unwrap().clone(), |_| Err("bad")),
        Err("bad")
    );
}
