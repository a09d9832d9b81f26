//! Values of the metadata, and how they are read from the bytes of a header within limits.

use crate::Error;
use std::io::Read;

/// Largest header in bytes; those of vocabularies of 260 000 tokens have 20 MB.
const HEADER_BYTES_MAX: u64 = 64 << 20;

/// A value of the metadata. Numbers of all widths are one kind.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// A whole number.
    Integer(i128),
    /// A number in floating point.
    Float(f64),
    /// True or false.
    Flag(bool),
    /// A text.
    Text(String),
    /// A list of whole numbers of 32 bits with a sign.
    Integers(Vec<i32>),
    /// A list of numbers in floating point.
    Floats(Vec<f32>),
    /// A list of texts.
    Texts(Texts),
    /// A list of anything else, which nothing here needs.
    Other,
}

/// A list of texts, in less memory than the header takes for it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Texts {
    joined: String,
    /// Where each text ends in `joined`.
    ends: Vec<u32>,
}

impl Texts {
    /// Texts in the list.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// The text at `index`, if there is one.
    pub fn get(&self, index: usize) -> Option<&str> {
        let end = *self.ends.get(index)? as usize;
        let start = index.checked_sub(1).map_or(0, |before| self.ends[before] as usize);
        self.joined.get(start..end)
    }

    /// All texts in their order.
    pub fn iter(&self) -> impl Iterator<Item = &str> {
        (0..self.len()).filter_map(|index| self.get(index))
    }
}

/// The bytes of a header, counted.
pub(crate) struct Source<R> {
    from: std::io::Take<R>,
    taken: u64,
    /// Of the file.
    length: u64,
    scratch: Vec<u8>,
}

impl<R: Read> Source<R> {
    /// Of a file of this length.
    pub(crate) fn new(from: R, length: u64) -> Self {
        Self { from: from.take(HEADER_BYTES_MAX), taken: 0, length, scratch: Vec::new() }
    }

    /// Bytes that were read.
    pub(crate) fn taken(&self) -> u64 {
        self.taken
    }

    fn fill(&mut self, to: &mut [u8]) -> Result<(), Error> {
        self.from.read_exact(to).map_err(|error| match error.kind() {
            std::io::ErrorKind::UnexpectedEof if self.from.limit() == 0 => {
                Error(format!("has a header of more than {HEADER_BYTES_MAX} bytes"))
            }
            std::io::ErrorKind::UnexpectedEof => Error("is truncated: it ends within its header".into()),
            _ => Error(format!("cannot be read: {error}")),
        })?;
        self.taken += to.len() as u64;
        Ok(())
    }

    pub(crate) fn bytes<const N: usize>(&mut self) -> Result<[u8; N], Error> {
        let mut bytes = [0; N];
        self.fill(&mut bytes)?;
        Ok(bytes)
    }

    pub(crate) fn u32(&mut self) -> Result<u32, Error> {
        self.bytes().map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self) -> Result<u64, Error> {
        self.bytes().map(u64::from_le_bytes)
    }

    /// A number of items of at least `width` bytes each, if that much of the file is left: memory for them is taken
    /// before they are read.
    fn count(&mut self, what: &str, width: u64) -> Result<usize, Error> {
        let count = self.u64()?;
        let left = self.length.saturating_sub(self.taken).min(self.from.limit());
        match count.checked_mul(width) {
            Some(bytes) if bytes <= left => Ok(count as usize),
            _ => Err(Error(format!("is truncated: {what} of {count} does not fit the rest of the header"))),
        }
    }

    /// Reads a text into the scratch buffer.
    fn text_bytes(&mut self) -> Result<(), Error> {
        let length = self.count("a text", 1)?;
        let mut scratch = std::mem::take(&mut self.scratch);
        scratch.resize(length, 0);
        let filled = self.fill(&mut scratch);
        self.scratch = scratch;
        filled
    }

    fn scratch_text(&self) -> Result<&str, Error> {
        std::str::from_utf8(&self.scratch).map_err(|_| Error("has a text that is not UTF-8".into()))
    }

    pub(crate) fn text(&mut self) -> Result<String, Error> {
        self.text_bytes()?;
        self.scratch_text().map(str::to_owned)
    }

    pub(crate) fn value(&mut self) -> Result<Value, Error> {
        let kind = self.u32()?;
        Ok(match kind {
            6 => Value::Float(f64::from(f32::from_le_bytes(self.bytes()?))),
            7 => match self.bytes::<1>()? {
                [0] => Value::Flag(false),
                [1] => Value::Flag(true),
                [other] => return Err(Error(format!("has {other} where true or false is expected"))),
            },
            8 => Value::Text(self.text()?),
            9 => self.list()?,
            12 => Value::Float(f64::from_le_bytes(self.bytes()?)),
            _ => Value::Integer(self.integer(kind)?),
        })
    }

    fn integer(&mut self, kind: u32) -> Result<i128, Error> {
        Ok(match kind {
            0 => self.bytes::<1>()?[0].into(),
            1 => i8::from_le_bytes(self.bytes()?).into(),
            2 => u16::from_le_bytes(self.bytes()?).into(),
            3 => i16::from_le_bytes(self.bytes()?).into(),
            4 => self.u32()?.into(),
            5 => i32::from_le_bytes(self.bytes()?).into(),
            10 => self.u64()?.into(),
            11 => i64::from_le_bytes(self.bytes()?).into(),
            other => return Err(Error(format!("has a value of the unknown type {other}"))),
        })
    }

    fn list(&mut self) -> Result<Value, Error> {
        let kind = self.u32()?;
        let width = match kind {
            0 | 1 | 7 => 1,
            2 | 3 => 2,
            4..=6 => 4,
            8 | 10..=12 => 8,
            9 => return Err(Error("has a list of lists, which is not supported".into())),
            other => return Err(Error(format!("has a list of the unknown type {other}"))),
        };
        let count = self.count("a list", width)?;
        Ok(match kind {
            5 => Value::Integers(self.numbers(count, i32::from_le_bytes)?),
            6 => Value::Floats(self.numbers(count, f32::from_le_bytes)?),
            8 => Value::Texts(self.texts(count)?),
            _ => {
                for _ in 0..count as u64 * width {
                    self.bytes::<1>()?;
                }
                Value::Other
            }
        })
    }

    fn numbers<T>(&mut self, count: usize, number: impl Fn([u8; 4]) -> T) -> Result<Vec<T>, Error> {
        let mut numbers = Vec::with_capacity(count);
        for _ in 0..count {
            numbers.push(number(self.bytes()?));
        }
        Ok(numbers)
    }

    fn texts(&mut self, count: usize) -> Result<Texts, Error> {
        let mut texts = Texts { joined: String::new(), ends: Vec::with_capacity(count) };
        for _ in 0..count {
            self.text_bytes()?;
            texts.joined.push_str(self.scratch_text()?);
            // Below the largest header.
            texts.ends.push(texts.joined.len() as u32);
        }
        Ok(texts)
    }
}
