//! What stands before the tensors: metadata and the tensors' names, types and places.

use crate::value::{Source, Value};
use crate::{BlockType, Error};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufReader, Read};
use std::path::Path;

/// The first bytes of a file.
pub(crate) const MAGIC: [u8; 4] = *b"GGUF";
/// Most keys and most tensors.
const COUNT_MAX: u64 = 1 << 16;
/// Longest name of a key or tensor in bytes.
const NAME_BYTES_MAX: usize = 1 << 10;
/// Alignment of tensors where the file says nothing.
const ALIGNMENT: u64 = 32;
/// Largest alignment.
const ALIGNMENT_MAX: u32 = 1 << 16;

/// A tensor as the header lists it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tensor {
    /// Its name.
    pub name: String,
    /// Its axes, the outermost first.
    pub shape: Vec<usize>,
    /// How its numbers stand.
    pub kind: BlockType,
    /// Where in the file it begins and ends.
    pub range: std::ops::Range<usize>,
}

/// A checked header.
#[derive(Debug, Clone, PartialEq)]
pub struct Header {
    values: BTreeMap<String, Value>,
    /// All tensors, in the order of the file.
    pub tensors: Vec<Tensor>,
    /// Length of the header in bytes.
    pub bytes: u64,
}

impl Header {
    /// Reads the header of the file at `path`.
    ///
    /// # Errors
    /// The file cannot be read, or is not a whole GGUF file.
    pub fn open(path: &Path) -> Result<Header, Error> {
        let unreadable = |error: std::io::Error| Error(format!("cannot be read: {error}"));
        let file = File::open(path).map_err(unreadable)?;
        let length = file.metadata().map_err(unreadable)?.len();
        Header::read(BufReader::new(file), length)
    }

    /// Reads the header of a file of this length.
    ///
    /// # Errors
    /// As [`Header::open`].
    pub fn read(from: impl Read, length: u64) -> Result<Header, Error> {
        let mut source = Source::new(from, length);
        if source.bytes::<4>()? != MAGIC {
            return Err(Error("is not a GGUF file".into()));
        }
        let version = source.u32()?;
        if !matches!(version, 2 | 3) {
            return Err(Error(format!("has version {version} of GGUF; 2 and 3, little-endian, are read")));
        }
        let tensor_count = source.listed("tensors")?;
        let value_count = source.listed("metadata keys")?;
        let mut values = BTreeMap::new();
        for _ in 0..value_count {
            let (key, value) = source.pair()?;
            let shown = key.escape_debug().to_string();
            if values.insert(key, value).is_some() {
                return Err(Error(format!("has the key {shown} twice")));
            }
        }
        let listed: Vec<Listed> = (0..tensor_count).map(|_| source.tensor()).collect::<Result<_, _>>()?;
        let mut header = Header { values, tensors: Vec::with_capacity(listed.len()), bytes: source.taken() };
        header.check_whole()?;
        let alignment = header.alignment()?;
        let data_start = header.bytes.next_multiple_of(alignment);
        for listed in listed {
            header.tensors.push(listed.placed(data_start, alignment, length)?);
        }
        let mut names: Vec<&str> = header.tensors.iter().map(|tensor| tensor.name.as_str()).collect();
        names.sort_unstable();
        if let Some(twice) = names.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(Error(format!("has the tensor {} twice", twice[0].escape_debug())));
        }
        check_apart(&header.tensors)?;
        Ok(header)
    }

    /// Refuses a file that is one part of a split model.
    fn check_whole(&self) -> Result<(), Error> {
        const KEY: &str = "split.count";
        match self.number(KEY)?.unwrap_or(0) {
            0 | 1 => Ok(()),
            count => Err(Error(format!(
                "has {KEY} {count}: a model in several files is not supported; make one of them with \
                 llama-gguf-split --merge"
            ))),
        }
    }

    fn alignment(&self) -> Result<u64, Error> {
        const KEY: &str = "general.alignment";
        match self.number(KEY)? {
            None => Ok(ALIGNMENT),
            Some(number) if number.is_power_of_two() && number <= ALIGNMENT_MAX => Ok(number.into()),
            Some(other) => {
                Err(Error(format!("has {KEY} {other}; expected a power of two up to {ALIGNMENT_MAX}")))
            }
        }
    }

    /// All keys.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.values.keys().map(String::as_str)
    }

    /// The value of a key.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.values.get(key)
    }

    /// The tensor of this name.
    pub fn tensor(&self, name: &str) -> Option<&Tensor> {
        self.tensors.iter().find(|tensor| tensor.name == name)
    }

    /// A whole number from 0 to 2^32 - 1.
    ///
    /// # Errors
    /// The value is another.
    pub fn number(&self, key: &str) -> Result<Option<u32>, Error> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Integer(number)) if u32::try_from(*number).is_ok() => Ok(Some(*number as u32)),
            Some(_) => Err(Error(format!("{key} is not a whole number from 0 to 4294967295"))),
        }
    }

    /// A finite number.
    ///
    /// # Errors
    /// The value is another.
    pub fn float(&self, key: &str) -> Result<Option<f64>, Error> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Float(number)) if number.is_finite() => Ok(Some(*number)),
            Some(Value::Integer(number)) => Ok(Some(*number as f64)),
            Some(_) => Err(Error(format!("{key} is not a number"))),
        }
    }

    /// A text.
    ///
    /// # Errors
    /// The value is another.
    pub fn text(&self, key: &str) -> Result<Option<&str>, Error> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Text(text)) => Ok(Some(text)),
            Some(_) => Err(Error(format!("{key} is not a text"))),
        }
    }

    /// True or false.
    ///
    /// # Errors
    /// The value is another.
    pub fn flag(&self, key: &str) -> Result<Option<bool>, Error> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Flag(flag)) => Ok(Some(*flag)),
            Some(_) => Err(Error(format!("{key} is neither true nor false"))),
        }
    }
}

/// A tensor whose place is not checked.
struct Listed {
    name: String,
    shape: Vec<usize>,
    kind: BlockType,
    offset: u64,
}

impl Listed {
    fn placed(self, data_start: u64, alignment: u64, length: u64) -> Result<Tensor, Error> {
        let name = self.name.escape_debug().to_string();
        let fault = |reason: String| Error(format!("tensor {name} {reason}"));
        let elements = self.shape.iter().try_fold(1usize, |all, &axis| all.checked_mul(axis));
        let row = self.shape.last().copied().unwrap_or(1);
        if elements.is_none_or(|elements| elements == 0) {
            return Err(fault(format!("has the shape {:?}", self.shape)));
        }
        if !row.is_multiple_of(self.kind.numbers()) {
            let numbers = self.kind.numbers();
            return Err(fault(format!("has rows of {row}, no whole number of blocks of {numbers}")));
        }
        let bytes =
            elements.and_then(|elements| (elements / self.kind.numbers()).checked_mul(self.kind.bytes()));
        if !self.offset.is_multiple_of(alignment) {
            return Err(fault(format!("begins at {}, no multiple of {alignment}", self.offset)));
        }
        let start = data_start.checked_add(self.offset);
        let end = start.zip(bytes).and_then(|(start, bytes)| start.checked_add(bytes as u64));
        match (start, end) {
            (Some(start), Some(end)) if end <= length => {
                let range = start as usize..end as usize;
                Ok(Tensor { name: self.name, shape: self.shape, kind: self.kind, range })
            }
            _ => Err(fault(format!("ends behind the end of the file, which has {length} bytes"))),
        }
    }
}

impl<R: Read> Source<R> {
    /// How many of something the header lists.
    fn listed(&mut self, what: &str) -> Result<u64, Error> {
        match self.u64()? {
            count if count <= COUNT_MAX => Ok(count),
            count => Err(Error(format!("has {count} {what}, more than {COUNT_MAX}"))),
        }
    }

    fn name(&mut self) -> Result<String, Error> {
        let text = self.text()?;
        match text.len() <= NAME_BYTES_MAX {
            true => Ok(text),
            false => Err(Error(format!("has a name of more than {NAME_BYTES_MAX} bytes"))),
        }
    }

    /// A key and its value; faults of the value name the key.
    fn pair(&mut self) -> Result<(String, Value), Error> {
        let key = self.name()?;
        match self.value() {
            Ok(value) => Ok((key, value)),
            Err(Error(reason)) => Err(Error(format!("{reason} (key {})", key.escape_debug()))),
        }
    }

    fn tensor(&mut self) -> Result<Listed, Error> {
        let name = self.name()?;
        let shown = name.escape_debug().to_string();
        let axes = self.u32()?;
        if !(1..=4).contains(&axes) {
            return Err(Error(format!("tensor {shown} has {axes} axes")));
        }
        let mut shape = Vec::with_capacity(axes as usize);
        for _ in 0..axes {
            let axis = self.u64()?;
            let wide = |_| Error(format!("tensor {shown} has an axis of {axis}"));
            shape.push(usize::try_from(axis).map_err(wide)?);
        }
        // The file has the innermost first.
        shape.reverse();
        let kind = self.u32()?;
        let kind = BlockType::of(kind).ok_or_else(|| {
            Error(format!("tensor {shown} has the type {}, which is not supported", BlockType::shown(kind)))
        })?;
        Ok(Listed { name, shape, kind, offset: self.u64()? })
    }
}

/// That no two tensors share bytes of the file.
fn check_apart(tensors: &[Tensor]) -> Result<(), Error> {
    let mut by_place: Vec<&Tensor> = tensors.iter().collect();
    by_place.sort_by_key(|tensor| tensor.range.start);
    match by_place.windows(2).find(|pair| pair[1].range.start < pair[0].range.end) {
        None => Ok(()),
        Some(pair) => {
            let [one, other] = [pair[0], pair[1]].map(|tensor| tensor.name.escape_debug().to_string());
            Err(Error(format!("has the tensors {one} and {other} in the same place")))
        }
    }
}
