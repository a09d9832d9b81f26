//! Files that are written read back with the right shapes, spreads and places.

use safetensors::SafeTensors;

use super::*;

fn plan() -> Plan {
    let normal = |deviation| Fill::Normal { deviation };
    vec![
        ("wide".to_owned(), vec![1031, 511], normal(0.02)),
        ("linear".to_owned(), vec![64, 192], normal(0.03)),
        ("norm".to_owned(), vec![63], Fill::Constant(1.0)),
        ("bias".to_owned(), vec![64], Fill::Constant(0.0)),
    ]
}

fn filling(seed: u64, dtype: StoredDtype, shards: usize) -> Filling {
    Filling { seed, dtype, deviation: 0.03, shards }
}

/// The files that a run writes, by name.
fn written(filling: Filling) -> Vec<(String, Vec<u8>)> {
    let folder = std::env::temp_dir().join(format!("pinion-xtask-{}-{filling:?}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("model-00001-of-00009.safetensors"), "of an earlier run").unwrap();
    write(&folder, &plan(), filling).unwrap();
    let mut files: Vec<_> = std::fs::read_dir(&folder)
        .unwrap()
        .flatten()
        .map(|entry| (entry.file_name().to_string_lossy().into_owned(), std::fs::read(entry.path()).unwrap()))
        .collect();
    std::fs::remove_dir_all(&folder).unwrap();
    files.sort();
    files
}

fn single(filling: Filling) -> Vec<u8> {
    let mut files = written(filling);
    assert_eq!(files.len(), 1);
    files.remove(0).1
}

fn deviation(values: &[f32]) -> f32 {
    let mean = values.iter().sum::<f32>() / values.len() as f32;
    (values.iter().map(|v| (v - mean).powi(2)).sum::<f32>() / values.len() as f32).sqrt()
}

fn f32s(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
}

#[test]
fn a_file_reads_back_with_the_right_spread() {
    let bytes = single(filling(1, StoredDtype::F32, 1));
    let file = SafeTensors::deserialize(&bytes).unwrap();
    assert_eq!(file.len(), 4);
    let wide = file.tensor("wide").unwrap();
    assert_eq!(wide.shape(), [1031, 511]);
    let values = f32s(wide.data());
    // More than one chunk, and no chunk like another.
    assert!(values.len() > CHUNK && values[..64] != values[CHUNK..CHUNK + 64]);
    let spread = deviation(&values);
    assert!((spread - 0.02).abs() < 0.0002, "{spread}");
    let spread = deviation(&f32s(file.tensor("linear").unwrap().data()));
    assert!((spread - 0.03).abs() < 0.001, "{spread}");
    assert!(f32s(file.tensor("norm").unwrap().data()).iter().all(|&v| v == 1.0));
    assert!(f32s(file.tensor("bias").unwrap().data()).iter().all(|&v| v == 0.0));
}

#[test]
fn the_seed_decides_and_bf16_is_the_rounded_f32() {
    let of = |seed, dtype| single(filling(seed, dtype, 1));
    assert_eq!(of(2, StoredDtype::F32), of(2, StoredDtype::F32));
    assert_ne!(of(2, StoredDtype::F32), of(3, StoredDtype::F32));
    let (wide, narrow) = (of(2, StoredDtype::F32), of(2, StoredDtype::Bf16));
    let (wide, narrow) =
        (SafeTensors::deserialize(&wide).unwrap(), SafeTensors::deserialize(&narrow).unwrap());
    for name in ["wide", "linear"] {
        let exact = f32s(wide.tensor(name).unwrap().data());
        let rounded: Vec<u8> = exact.into_iter().flat_map(|v| bf16::from_f32(v).to_le_bytes()).collect();
        assert_eq!(narrow.tensor(name).unwrap().data(), rounded, "{name}");
    }
}

#[test]
fn shards_hold_the_same_tensors_and_the_index_knows_where() {
    let whole = single(filling(4, StoredDtype::Bf16, 1));
    let whole = SafeTensors::deserialize(&whole).unwrap();
    for shards in [2, 3, 4] {
        let files = written(filling(4, StoredDtype::Bf16, shards));
        assert_eq!(files.len(), shards + 1, "the index, too");
        let index: Value = serde_json::from_slice(&files[shards].1).unwrap();
        assert_eq!(files[shards].0, INDEX);
        let map = index["weight_map"].as_object().unwrap();
        let mut seen = 0;
        for (name, bytes) in &files[..shards] {
            let shard = SafeTensors::deserialize(bytes).unwrap();
            assert!(!shard.is_empty(), "{name}");
            for (tensor, view) in shard.tensors() {
                assert_eq!(map[&tensor].as_str(), Some(name.as_str()));
                assert_eq!(view.data(), whole.tensor(&tensor).unwrap().data(), "{tensor}");
                seen += view.data().len() as u64;
            }
        }
        assert_eq!((map.len(), index["metadata"]["total_size"].as_u64()), (4, Some(seen)));
    }
}
