//! The weight files: tensors drawn as Hugging Face initialises a model, several at a time, written where they belong
//! while they are made. Memory stays at a small buffer per thread.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use half::bf16;
use serde_json::{Map, Value, json};

use super::rng::Rng;

/// `initializer_range` of most published configurations.
pub(super) const INITIALIZER_RANGE: f32 = 0.02;

/// Numbers that are made between two writes.
const CHUNK: usize = 1 << 18;
const SINGLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum StoredDtype {
    F32,
    Bf16,
}

impl StoredDtype {
    pub(super) fn config_name(self) -> &'static str {
        match self {
            Self::F32 => "float32",
            Self::Bf16 => "bfloat16",
        }
    }

    fn stored_name(self) -> &'static str {
        match self {
            Self::F32 => "F32",
            Self::Bf16 => "BF16",
        }
    }

    fn byte_count(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::Bf16 => 2,
        }
    }
}

/// How a tensor is filled.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Fill {
    Constant(f32),
    Normal { deviation: f32 },
}

/// Every tensor: its name, its shape and its fill.
pub(super) type Plan = Vec<(String, Vec<usize>, Fill)>;

/// What the files are made of, beside the plan.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Filling {
    pub seed: u64,
    pub dtype: StoredDtype,
    /// Of the linears.
    pub deviation: f32,
    /// Files to write.
    pub shards: usize,
}

/// One tensor and its place in a file.
struct Task<'a> {
    name: &'a str,
    fill: Fill,
    count: usize,
    file: &'a File,
    offset: u64,
}

/// Writes every file into `folder` and removes those of an earlier run.
pub(super) fn write(folder: &Path, plan: &Plan, filling: Filling) -> Result<(), String> {
    let entries = std::fs::read_dir(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    for entry in entries.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if name == INDEX || (name.starts_with("model") && name.ends_with(".safetensors")) {
            std::fs::remove_file(entry.path()).map_err(|error| format!("{name}: {error}"))?;
        }
    }
    let shards = shards(plan, filling);
    let names: Vec<String> = match shards.len() {
        1 => vec![SINGLE.to_owned()],
        count => (1..=count).map(|shard| format!("model-{shard:05}-of-{count:05}.safetensors")).collect(),
    };
    let mut files = Vec::new();
    for (name, tensors) in names.iter().zip(&shards) {
        let path = folder.join(name);
        let made = create(&path, tensors, filling.dtype);
        files.push(made.map_err(|error| format!("cannot write {}: {error}", path.display()))?);
    }
    let mut tasks = Vec::new();
    for ((file, begin), tensors) in files.iter().zip(&shards) {
        let mut offset = *begin;
        for (name, shape, fill) in *tensors {
            let count = shape.iter().product();
            tasks.push(Task { name, fill: *fill, count, file, offset });
            offset += (count * filling.dtype.byte_count()) as u64;
        }
    }
    fill_all(tasks, filling)?;
    if names.len() > 1 {
        write_index(folder, &names, &shards, filling)?;
    }
    Ok(())
}

/// The plan in as many runs as there are files, of about the same number of bytes.
fn shards(plan: &Plan, filling: Filling) -> Vec<&[(String, Vec<usize>, Fill)]> {
    let bytes = |tensors: &[(String, Vec<usize>, Fill)]| -> usize {
        tensors.iter().map(|(_, shape, _)| shape.iter().product::<usize>()).sum()
    };
    let wanted = filling.shards.clamp(1, plan.len().max(1));
    let (mut rest, mut runs) = (&plan[..], Vec::new());
    for left in (1..=wanted).rev() {
        let share = bytes(rest) / left;
        let mut end = 1;
        // Every later file needs a tensor, too.
        while left > 1 && end + left <= rest.len() && bytes(&rest[..end]) < share {
            end += 1;
        }
        let end = if left == 1 { rest.len() } else { end };
        runs.push(&rest[..end]);
        rest = &rest[end..];
    }
    runs
}

/// The file with its header and room for its tensors; where they begin.
fn create(
    path: &Path,
    tensors: &[(String, Vec<usize>, Fill)],
    dtype: StoredDtype,
) -> std::io::Result<(File, u64)> {
    let mut header = Map::new();
    // transformers refuses a file without this entry.
    header.insert("__metadata__".to_owned(), json!({"format": "pt"}));
    let mut end = 0;
    for (name, shape, _) in tensors {
        let begin = end;
        end += shape.iter().product::<usize>() * dtype.byte_count();
        let entry = json!({"dtype": dtype.stored_name(), "shape": shape, "data_offsets": [begin, end]});
        header.insert(name.clone(), entry);
    }
    let mut text = Value::Object(header).to_string();
    text.push_str(&" ".repeat(text.len().next_multiple_of(8) - text.len()));
    let begin = 8 + text.len() as u64;
    let file = File::create(path)?;
    file.set_len(begin + end as u64)?;
    file.write_all_at(&(text.len() as u64).to_le_bytes(), 0)?;
    file.write_all_at(text.as_bytes(), 8)?;
    Ok((file, begin))
}

/// The largest first, so that no thread is left with one at the end.
fn fill_all(mut tasks: Vec<Task<'_>>, filling: Filling) -> Result<(), String> {
    tasks.sort_by_key(|task| task.count);
    let (total, done) = (tasks.len(), AtomicUsize::new(0));
    let (tasks, fault) = (Mutex::new(tasks), Mutex::new(None));
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                let next = || tasks.lock().unwrap_or_else(PoisonError::into_inner).pop();
                while let Some(task) = next() {
                    if let Err(error) = fill(&task, filling) {
                        *fault.lock().unwrap_or_else(PoisonError::into_inner) =
                            Some(format!("{}: {error}", task.name));
                        return;
                    }
                    let count = done.fetch_add(1, Ordering::Relaxed) + 1;
                    if count.is_multiple_of(total.div_ceil(8)) || count == total {
                        println!("weights: {count} of {total} tensors");
                    }
                }
            });
        }
    });
    fault.into_inner().unwrap_or_else(PoisonError::into_inner).map_or(Ok(()), Err)
}

/// A tensor's numbers follow from the seed and its name alone.
fn fill(task: &Task<'_>, filling: Filling) -> std::io::Result<()> {
    let mut rng = Rng::named(filling.seed, task.name);
    let mut bytes = Vec::with_capacity((CHUNK + 2) * filling.dtype.byte_count());
    let (mut offset, mut left) = (task.offset, task.count);
    while left > 0 {
        let count = left.min(CHUNK);
        bytes.clear();
        match task.fill {
            Fill::Constant(value) => (0..count).for_each(|_| put(&mut bytes, filling.dtype, value)),
            Fill::Normal { deviation } => {
                for _ in 0..count.div_ceil(2) {
                    let (first, second) = rng.normal_pair();
                    put(&mut bytes, filling.dtype, first * deviation);
                    put(&mut bytes, filling.dtype, second * deviation);
                }
                bytes.truncate(count * filling.dtype.byte_count());
            }
        }
        task.file.write_all_at(&bytes, offset)?;
        offset += bytes.len() as u64;
        left -= count;
    }
    Ok(())
}

fn put(bytes: &mut Vec<u8>, dtype: StoredDtype, value: f32) {
    match dtype {
        StoredDtype::F32 => bytes.extend_from_slice(&value.to_le_bytes()),
        StoredDtype::Bf16 => bytes.extend_from_slice(&bf16::from_f32(value).to_le_bytes()),
    }
}

fn write_index(
    folder: &Path,
    names: &[String],
    shards: &[&[(String, Vec<usize>, Fill)]],
    filling: Filling,
) -> Result<(), String> {
    let mut map = Map::new();
    let mut total = 0;
    for (file, tensors) in names.iter().zip(shards) {
        for (name, shape, _) in *tensors {
            map.insert(name.clone(), Value::from(file.as_str()));
            total += shape.iter().product::<usize>() * filling.dtype.byte_count();
        }
    }
    let index = json!({"metadata": {"total_size": total}, "weight_map": map});
    std::fs::write(folder.join(INDEX), format!("{index:#}\n")).map_err(|error| format!("{INDEX}: {error}"))
}

#[cfg(test)]
#[path = "weights_tests.rs"]
mod tests;
