//! The tensors of a Hugging Face folder (`model.safetensors`, or the files that `model.safetensors.index.json` names)
//! or of a GGUF file. No file is trusted: each fault names the file, the tensor and the reason.

use crate::gguf::GgufTensor;
use crate::load::{LoadError, LoadEvent};
use crate::prequantized::{self, Affine, PARTS, Parts, Raw, Weight};
use crate::weigh::StoredWeights;
use pinion_architecture::{Architecture, Packed};
use pinion_ops::MappedFile;
use pinion_ops::quantized::WeightForm;
use safetensors::{Dtype, SafeTensors};
use serde_json::Value;
use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::path::{Path, PathBuf};

/// The file that holds the weights, if it is one.
const WEIGHT_FILE: &str = "model.safetensors";
/// The file that says which of several holds which tensor.
const INDEX_FILE: &str = "model.safetensors.index.json";
/// Largest index, in bytes.
const INDEX_BYTES_MAX: u64 = 64 << 20;

/// Ends of names of tensors that are no weights.
const IGNORED_ENDS: [&str; 3] = [".rotary_emb.inv_freq", ".attn.bias", ".attn.masked_bias"];
/// Beginnings of names of the parts of a multimodal model that serve no text.
const IGNORED_BEGINNINGS: [&str; 4] =
    ["vision_tower.", "multi_modal_projector.", "model.vision_tower.", "model.multi_modal_projector."];

/// Ends of names of tensors of a quantised checkpoint that say how activations and the KV cache could be rounded.
const IGNORED_ENDS_OF_PACKED: [&str; 3] = [".k_scale", ".v_scale", ".q_scale"];

/// The tensors of a folder, mapped.
#[derive(Debug)]
pub(crate) struct Checkpoint {
    /// What errors about no file in particular name.
    path: PathBuf,
    pub(crate) files: Vec<File>,
    pub(crate) tensors: HashMap<String, Entry>,
    bytes_taken: u64,
    packed: Option<Packed>,
    /// That unpack weights.
    threads: u32,
}

#[derive(Debug)]
pub(crate) struct File {
    pub(crate) path: PathBuf,
    pub(crate) map: MappedFile,
}

#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) file: usize,
    pub(crate) dtype: Dtype,
    pub(crate) shape: Vec<usize>,
    pub(crate) range: Range<usize>,
    pub(crate) is_used: bool,
    /// How a tensor of a GGUF file stands there; `dtype` is that of its unpacked numbers.
    pub(crate) gguf: Option<GgufTensor>,
}

/// One tensor: as it stands in its file, or unpacked.
#[derive(Debug)]
pub(crate) struct Stored<'a> {
    pub(crate) dtype: Dtype,
    pub(crate) data: Cow<'a, [u8]>,
}

/// The tensors of one product of a checkpoint.
struct Product<'a, 'n> {
    checkpoint: &'a Checkpoint,
    /// With the dot at its end.
    name: &'n str,
}

impl<'a> Parts<'a> for Product<'a, '_> {
    fn part(&self, name: &str) -> Option<Raw<'a>> {
        let entry = self.checkpoint.tensors.get(&format!("{}{name}", self.name))?;
        let data = &self.checkpoint.files[entry.file].map.bytes()[entry.range.clone()];
        Some(Raw { dtype: entry.dtype, shape: &entry.shape, data })
    }
}

impl Checkpoint {
    /// The tensors of a folder; `packed` says how those of a quantised checkpoint stand in it.
    pub(crate) fn open(folder: &Path, packed: Option<Packed>, threads: u32) -> Result<Self, LoadError> {
        let path = folder.join(WEIGHT_FILE);
        let index = folder.join(INDEX_FILE);
        let (files, tensors) = (Vec::new(), HashMap::new());
        let mut found = Self { path, files, tensors, bytes_taken: 0, packed, threads };
        if pinion_gguf::is_gguf(folder) {
            found.path = folder.to_owned();
            found.add_gguf(folder)?;
            return Ok(found);
        }
        if found.path.exists() || !index.exists() {
            let path = found.path.clone();
            found.add(path, None)?;
            return Ok(found);
        }
        let by_file = read_index(&index)?;
        found.path = index;
        for (name, tensors) in by_file {
            found.add(folder.join(name), Some(&tensors))?;
        }
        Ok(found)
    }

    /// Maps a file and notes its tensors: those that are wanted of it, each of which it must have, or all.
    fn add(&mut self, path: PathBuf, wanted: Option<&[String]>) -> Result<(), LoadError> {
        let fault = |reason: String| LoadError::Weights { path: path.clone(), reason };
        let map = MappedFile::open(&path).map_err(|error| fault(error.to_string()))?;
        // The crate checks the header's length, JSON, offsets and sizes against the file: no tensor overlaps another.
        let (header_bytes, header) = SafeTensors::read_metadata(map.bytes())
            .map_err(|error| fault(format!("not a whole safetensors file: {error}")))?;
        let (file, data_start) = (self.files.len(), header_bytes + 8);
        let tensors = header.tensors();
        if let Some(missing) = wanted.into_iter().flatten().find(|name| !tensors.contains_key(name.as_str()))
        {
            return Err(fault(format!("has no tensor {missing}, which {INDEX_FILE} says is in it")));
        }
        for (name, info) in tensors {
            if wanted.is_some_and(|wanted| wanted.binary_search(&name).is_err()) {
                continue;
            }
            let range = data_start + info.data_offsets.0..data_start + info.data_offsets.1;
            if range.end > map.bytes().len() {
                return Err(fault(format!("ends before tensor {name} does")));
            }
            let (dtype, shape) = (info.dtype, info.shape.clone());
            self.tensors.insert(name, Entry { file, dtype, shape, range, is_used: false, gguf: None });
        }
        self.files.push(File { path, map });
        Ok(())
    }

    pub(crate) fn fault(&self, tensor: &str, reason: String) -> LoadError {
        let path = self.tensors.get(tensor).map_or(&self.path, |entry| &self.files[entry.file].path);
        LoadError::Tensor { path: path.clone(), tensor: tensor.to_owned(), reason }
    }

    /// The first of the prefixes with which there is a tensor of this name.
    pub(crate) fn full_name(&self, prefixes: &[&str], name: &str) -> Result<String, LoadError> {
        let mut names = prefixes.iter().map(|prefix| format!("{prefix}{name}"));
        match names.find(|full| self.tensors.contains_key(full) || self.product(full).is_some()) {
            Some(full) => Ok(full),
            None => Err(self.fault(name, "missing".into())),
        }
    }

    /// Full names of the tensors of the embeddings and of the head. They are one where the head is tied, whichever of
    /// the two the files have; if they have both, with different numbers, the head is its own, as in transformers.
    pub(crate) fn embedding_and_head(&self, model: &Architecture) -> Result<[String; 2], LoadError> {
        let names = &model.names;
        let embedding = self.full_name(names.prefixes, &format!("{}.weight", names.token_embedding));
        let head = self.full_name(names.head_prefixes, &format!("{}.weight", names.head));
        if !model.head.tied {
            return Ok([embedding?, head?]);
        }
        let shape = [model.vocab as usize, model.hidden as usize];
        let has_shape = |name: &String| self.tensors.get(name).is_some_and(|entry| entry.shape == shape);
        match (embedding, head.ok().filter(has_shape)) {
            (Ok(embedding), Some(head)) if !self.are_equal(&embedding, &head) => Ok([embedding, head]),
            (Ok(one), _) | (Err(_), Some(one)) => Ok([one.clone(), one]),
            (Err(error), None) => Err(error),
        }
    }

    /// Whether two tensors have the same numbers in the same type.
    fn are_equal(&self, one: &str, other: &str) -> bool {
        let stored = |name: &str| {
            let entry = self.tensors.get(name)?;
            Some((entry.dtype, &self.files[entry.file].map.bytes()[entry.range.clone()]))
        };
        let are_equal = stored(one) == stored(other);
        self.release(one);
        self.release(other);
        are_equal
    }

    /// The tensor of this full name, checked to have this shape and a floating-point dtype. One that is packed is
    /// unpacked.
    pub(crate) fn tensor(&mut self, name: &str, shape: &[u32]) -> Result<Stored<'_>, LoadError> {
        if let &[outputs, inputs] = shape
            && let Some(weight) = self.packed_weight(name, outputs, inputs)?
        {
            let data = Cow::Owned(weight.unpacked(self.threads));
            self.take_parts(name);
            return Ok(Stored { dtype: Dtype::F32, data });
        }
        let Some(entry) = self.tensors.get(name) else {
            return Err(self.fault(name, "missing".into()));
        };
        if !entry.shape.iter().copied().eq(shape.iter().map(|&axis| axis as usize)) {
            return Err(self.fault(name, format!("has shape {:?}, expected {shape:?}", entry.shape)));
        }
        if !matches!(entry.dtype, Dtype::F32 | Dtype::F16 | Dtype::BF16) {
            return Err(self.fault(name, format!("has dtype {:?}, expected F32, F16 or BF16", entry.dtype)));
        }
        let (file, dtype, range, gguf) = (entry.file, entry.dtype, entry.range.clone(), entry.gguf);
        self.take(name);
        let data = &self.files[file].map.bytes()[range];
        let data = match gguf {
            Some(tensor) => tensor.unpacked(data, shape, self.threads),
            None => Cow::Borrowed(data),
        };
        Ok(Stored { dtype, data })
    }

    /// Notes that a tensor is used.
    fn take(&mut self, name: &str) {
        // A tied head takes the embeddings again.
        if let Some(entry) = self.tensors.get_mut(name)
            && !std::mem::replace(&mut entry.is_used, true)
        {
            self.bytes_taken += entry.range.len() as u64;
        }
    }

    /// The product of a packed weight of this name.
    fn product<'a, 'n>(&'a self, weight: &'n str) -> Option<(Packed, Product<'a, 'n>)> {
        let packed = self.packed?;
        let name = weight.strip_suffix("weight").filter(|name| name.ends_with('.'))?;
        let product = Product { checkpoint: self, name };
        prequantized::is_packed(packed.packing, &product).then_some((packed, product))
    }

    /// The packed weight of this name, if it is one.
    fn packed_weight(&self, name: &str, outputs: u32, inputs: u32) -> Result<Option<Weight<'_>>, LoadError> {
        let Some(packed) = self.packed else { return Ok(None) };
        let Some(base) = name.strip_suffix("weight") else { return Ok(None) };
        let parts = |part: &str| Product { checkpoint: self, name: base }.part(part);
        if self.product(name).is_none() {
            return Ok(None);
        }
        let weight = prequantized::find(&packed, &parts, outputs as usize, inputs as usize);
        weight.map(Some).map_err(|fault| self.fault(&format!("{base}{}", fault.part), fault.reason))
    }

    /// The form of our products that holds the numbers of this weight exactly, if it is packed and there is one.
    pub(crate) fn exact_form(
        &self,
        name: &str,
        outputs: u32,
        inputs: u32,
    ) -> Result<Option<WeightForm>, LoadError> {
        if let Some(form) = self.tensors.get(name).and_then(|entry| entry.gguf.as_ref()?.exact_form()) {
            return Ok(Some(form));
        }
        Ok(match self.packed_weight(name, outputs, inputs)? {
            Some(Weight::Affine(weight)) => Affine::exact_form(&weight),
            Some(Weight::Float8(_)) | None => None,
        })
    }

    /// The integers and scales of a weight whose form was found by [`Checkpoint::exact_form`], for that or for smaller
    /// groups.
    pub(crate) fn integers(
        &mut self,
        name: &str,
        outputs: u32,
        inputs: u32,
        form: WeightForm,
    ) -> Result<(Vec<i8>, Vec<f32>), LoadError> {
        if let Some(found) = self.gguf_integers(name, outputs, inputs)? {
            self.take(name);
            return Ok(found);
        }
        let found = match self.packed_weight(name, outputs, inputs)? {
            Some(Weight::Affine(weight)) => weight.integers(form, self.threads),
            Some(Weight::Float8(_)) | None => return Err(self.fault(name, "has no integers".into())),
        };
        self.take_parts(name);
        Ok(found)
    }

    fn take_parts(&mut self, weight: &str) {
        if let Some(base) = weight.strip_suffix("weight") {
            PARTS.iter().for_each(|part| self.take(&format!("{base}{part}")));
        }
    }

    /// Type of the numbers of a tensor, if there is one of this full name.
    pub(crate) fn dtype(&self, name: &str) -> Option<Dtype> {
        self.tensors.get(name).map(|entry| entry.dtype)
    }

    /// Whether every weight of a product has 16 bits: tensors of two axes are those, embeddings and little else.
    pub(crate) fn is_of_16_bits(&self) -> bool {
        let mut matrices = self.tensors.values().filter(|entry| entry.shape.len() == 2);
        matrices.all(|entry| matches!(entry.dtype, Dtype::F16 | Dtype::BF16))
    }

    /// Gives back the memory of a tensor that was copied, so that no more of the files than one tensor is in memory.
    pub(crate) fn release(&self, name: &str) {
        let give_back = |name: &str| {
            if let Some(entry) = self.tensors.get(name) {
                self.files[entry.file].map.release(entry.range.clone());
            }
        };
        give_back(name);
        if let Some((_, product)) = self.product(name) {
            PARTS.iter().for_each(|part| give_back(&format!("{}{part}", product.name)));
        }
    }

    /// A bias of a quantised checkpoint or a GGUF file that the model does not take, and that is not zero. Tools write
    /// zeros for products that have none.
    fn lost_bias(&self, unused: &[String]) -> Option<LoadError> {
        let is_converted = self.packed.is_some() || self.tensors.values().any(|entry| entry.gguf.is_some());
        if !is_converted {
            return None;
        }
        let is_lost = |name: &&String| {
            let entry = &self.tensors[*name];
            let bytes = &self.files[entry.file].map.bytes()[entry.range.clone()];
            name.ends_with(".bias") && bytes.iter().any(|&byte| byte != 0)
        };
        let name = unused.iter().find(is_lost)?;
        Some(self.fault(name, "is a bias of a product that has none in this model_type".into()))
    }

    /// Bytes of all tensors, and of those that were taken so far.
    pub(crate) fn progress(&self) -> (u64, u64) {
        let total = self.tensors.values().map(|entry| entry.range.len() as u64).sum();
        (self.bytes_taken, total)
    }

    /// What the files hold, by their headers.
    pub(crate) fn stored(&self) -> StoredWeights {
        let numbers = |entry: &Entry| entry.shape.iter().map(|&axis| axis as u64).product::<u64>();
        StoredWeights {
            files: self.files.len(),
            tensors: self.tensors.len(),
            numbers: self.tensors.values().map(numbers).sum(),
            bytes: self.progress().1,
            has_head: self.tensors.keys().any(|name| name.ends_with("lm_head.weight")),
        }
    }

    /// Tells of tensors that were never taken, once everything that the model uses was.
    ///
    /// # Errors
    /// One of them is a bias that changes what the model computes.
    pub(crate) fn tell_unused(
        &self,
        is_superfluous: impl Fn(&str) -> bool,
        watch: &mut dyn FnMut(LoadEvent<'_>),
    ) -> Result<(), LoadError> {
        let unused = self.unused(is_superfluous);
        if let Some(error) = self.lost_bias(&unused) {
            return Err(error);
        }
        if !unused.is_empty() {
            watch(LoadEvent::Unused(&unused));
        }
        Ok(())
    }

    /// Names of tensors that were never taken and that are not known to be superfluous, in order.
    fn unused(&self, is_superfluous: impl Fn(&str) -> bool) -> Vec<String> {
        let is_ignored = |name: &str| {
            let of_packed = self.packed.is_some().then_some(IGNORED_ENDS_OF_PACKED);
            IGNORED_ENDS.iter().chain(of_packed.iter().flatten()).any(|end| name.ends_with(end))
                || IGNORED_BEGINNINGS.iter().any(|beginning| name.starts_with(beginning))
                || is_superfluous(name)
        };
        let unused = self.tensors.iter().filter(|(name, entry)| !entry.is_used && !is_ignored(name));
        let mut names: Vec<String> = unused.map(|(name, _)| name.clone()).collect();
        names.sort();
        names
    }
}

/// The tensors of each file, sorted.
fn read_index(path: &Path) -> Result<BTreeMap<String, Vec<String>>, LoadError> {
    let fault = |reason: String| LoadError::Weights { path: path.to_owned(), reason };
    let length = std::fs::metadata(path).map_err(|error| fault(error.to_string()))?.len();
    if length > INDEX_BYTES_MAX {
        return Err(fault(format!("has {length} bytes, more than {INDEX_BYTES_MAX}")));
    }
    let text = std::fs::read(path).map_err(|error| fault(error.to_string()))?;
    let index: Value =
        serde_json::from_slice(&text).map_err(|error| fault(format!("is not valid JSON: {error}")))?;
    let Some(map) = index.get("weight_map").and_then(Value::as_object).filter(|map| !map.is_empty()) else {
        return Err(fault("has no weight_map".into()));
    };
    let mut by_file: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (tensor, file) in map {
        // A name in the folder and nowhere else.
        let name = file.as_str().filter(|name| {
            let plain = !name.contains(['/', '\\', '\0']) && !name.starts_with('.');
            plain && name.ends_with(".safetensors")
        });
        let Some(name) = name else {
            return Err(fault(format!(
                "maps {tensor} to {file}, which is not a safetensors file of this folder"
            )));
        };
        by_file.entry(name.to_owned()).or_default().push(tensor.clone());
    }
    by_file.values_mut().for_each(|tensors| tensors.sort());
    Ok(by_file)
}
