//! Weights as integers with scales and perhaps zero points: (integer - zero) * scale, each for a group of inputs.

use super::{Fault, Parts, Raw, by_outputs, floats, floats_by_outputs, required, word};
use pinion_architecture::{Packed, Packing};
use pinion_ops::quantized::WeightForm;
use safetensors::Dtype;
use std::ops::Range;

/// Where of the eight outputs of an AWQ word each has its four bits.
const AWQ_PLACES: [usize; 8] = [0, 4, 1, 5, 2, 6, 3, 7];

/// A weight `[outputs, inputs]` of integers.
#[derive(Debug)]
pub(crate) struct Affine<'a> {
    outputs: usize,
    inputs: usize,
    bits: usize,
    integers: Integers<'a>,
    /// Inputs of a group; they follow each other unless `group_of` says otherwise.
    group: usize,
    group_of: Option<Vec<u32>>,
    /// `[outputs, groups]`.
    scales: Vec<f32>,
    /// `[outputs, groups]`; empty where all are `middle`.
    zeros: Vec<i16>,
    /// The integer that stands for zero where nothing else does.
    middle: i16,
}

/// Where the integers stand.
#[derive(Debug, Clone, Copy)]
enum Integers<'a> {
    /// Signed bytes `[outputs, inputs]`.
    Bytes(&'a [u8]),
    /// Words `[outputs, words]`, low bits first.
    ByOutput { data: &'a [u8], words: usize },
    /// Words `[inputs * bits / 32, outputs]`, low bits first.
    ByInput(&'a [u8]),
    /// Words `[inputs, outputs / 8]` in AWQ's order.
    Awq(&'a [u8]),
}

impl<'a> Affine<'a> {
    pub(super) fn find(
        packed: &Packed,
        parts: &impl Parts<'a>,
        outputs: usize,
        inputs: usize,
    ) -> Result<Self, Fault> {
        let empty = Self {
            outputs,
            inputs,
            bits: 8,
            integers: Integers::Bytes(&[]),
            group: inputs,
            group_of: None,
            scales: Vec::new(),
            zeros: Vec::new(),
            middle: 0,
        };
        match packed.packing {
            Packing::Awq => empty.awq(packed, parts),
            Packing::Gptq { bits, zero_offset } => empty.gptq(packed, parts, bits as usize, zero_offset),
            Packing::PackedIntegers { bits, is_symmetric } => {
                empty.packed_integers(packed, parts, bits as usize, is_symmetric)
            }
            Packing::Integers { is_symmetric } => empty.bytes(packed, parts, is_symmetric),
            Packing::Float8 { .. } => Err(Fault { part: "weight", reason: "is not of integers".into() }),
        }
    }

    fn awq(mut self, packed: &Packed, parts: &impl Parts<'a>) -> Result<Self, Fault> {
        let (outputs, inputs) = (self.outputs, self.inputs);
        divides(8, outputs, "qweight", "outputs")?;
        let data = required(parts, "qweight", &[Dtype::I32], &[inputs, outputs / 8])?;
        self.integers = Integers::Awq(data);
        (self.bits, self.middle) = (4, 8);
        let groups = self.scales_by_group(packed, parts)?;
        let zeros = required(parts, "qzeros", &[Dtype::I32], &[groups, outputs / 8])?;
        let zero = |output: usize, group: usize| {
            word(zeros, group * (outputs / 8) + output / 8) >> (4 * AWQ_PLACES[output % 8]) & 15
        };
        self.set_zeros(groups, |output, group| zero(output, group) as i16);
        Ok(self)
    }

    fn gptq(
        mut self,
        packed: &Packed,
        parts: &impl Parts<'a>,
        bits: usize,
        zero_offset: u8,
    ) -> Result<Self, Fault> {
        let (outputs, inputs, per_word) = (self.outputs, self.inputs, 32 / bits);
        divides(per_word, inputs, "qweight", "inputs")?;
        divides(per_word, outputs, "qzeros", "outputs")?;
        let data = required(parts, "qweight", &[Dtype::I32], &[inputs / per_word, outputs])?;
        self.integers = Integers::ByInput(data);
        (self.bits, self.middle) = (bits, 1 << (bits - 1));
        let groups = self.scales_by_group(packed, parts)?;
        let zeros = required(parts, "qzeros", &[Dtype::I32], &[groups, outputs / per_word])?;
        let zero = |output: usize, group: usize| {
            let found = word(zeros, group * (outputs / per_word) + output / per_word);
            (found >> (bits * (output % per_word)) & ((1 << bits) - 1)) as i16
        };
        self.set_zeros(groups, |output, group| zero(output, group) + i16::from(zero_offset));
        self.set_order("g_idx", parts, groups)?;
        Ok(self)
    }

    fn packed_integers(
        mut self,
        packed: &Packed,
        parts: &impl Parts<'a>,
        bits: usize,
        is_symmetric: bool,
    ) -> Result<Self, Fault> {
        let (outputs, per_word) = (self.outputs, 32 / bits);
        let words = self.inputs.div_ceil(per_word);
        let data = required(parts, "weight_packed", &[Dtype::I32], &[outputs, words])?;
        self.integers = Integers::ByOutput { data, words };
        (self.bits, self.middle) = (bits, 1 << (bits - 1));
        let groups = self.scales_by_output(packed, parts)?;
        if !is_symmetric {
            const PART: &str = "weight_zero_point";
            let is_packed = parts.part(PART).is_some_and(|raw| raw.dtype == Dtype::I32);
            if is_packed {
                let shape = [outputs.div_ceil(per_word), groups];
                let zeros = required(parts, PART, &[Dtype::I32], &shape)?;
                let zero = |output: usize, group: usize| {
                    let found = word(zeros, output / per_word * groups + group);
                    (found >> (bits * (output % per_word)) & ((1 << bits) - 1)) as i16
                };
                self.set_zeros(groups, zero);
            } else {
                self.set_byte_zeros(parts, groups)?;
            }
        }
        self.set_order_unless_unset(parts, groups)?;
        Ok(self)
    }

    fn bytes(mut self, packed: &Packed, parts: &impl Parts<'a>, is_symmetric: bool) -> Result<Self, Fault> {
        let data = required(parts, "weight", &[Dtype::I8], &[self.outputs, self.inputs])?;
        self.integers = Integers::Bytes(data);
        let groups = self.scales_by_output(packed, parts)?;
        if !is_symmetric {
            self.set_byte_zeros(parts, groups)?;
        }
        self.set_order_unless_unset(parts, groups)?;
        Ok(self)
    }

    /// `scales` `[groups, outputs]`; gives the number of groups.
    fn scales_by_group(&mut self, packed: &Packed, parts: &impl Parts<'a>) -> Result<usize, Fault> {
        const PART: &str = "scales";
        let Some(raw) = parts.part(PART) else { return Err(Fault { part: PART, reason: "missing".into() }) };
        let groups = match *raw.shape {
            [groups, outputs] if outputs == self.outputs && groups > 0 => groups,
            _ => return Err(self.wrong_scales(PART, raw)),
        };
        self.set_group(PART, packed, groups)?;
        let found = floats(raw, PART)?;
        let outputs = self.outputs;
        self.scales = (0..outputs)
            .flat_map(|output| (0..groups).map(move |group| group * outputs + output))
            .map(|at| found[at])
            .collect();
        Ok(groups)
    }

    /// `weight_scale` `[outputs, groups]`, `[outputs]` or of one number; gives the number of groups.
    fn scales_by_output(&mut self, packed: &Packed, parts: &impl Parts<'a>) -> Result<usize, Fault> {
        const PART: &str = "weight_scale";
        let Some(raw) = parts.part(PART) else { return Err(Fault { part: PART, reason: "missing".into() }) };
        let found = floats(raw, PART)?;
        let groups = match *raw.shape {
            [outputs, groups] if outputs == self.outputs && groups > 0 => groups,
            [outputs] if outputs == self.outputs => 1,
            _ if found.len() == 1 => 1,
            _ => return Err(self.wrong_scales(PART, raw)),
        };
        self.set_group(PART, packed, groups)?;
        self.scales = if found.len() == 1 { vec![found[0]; self.outputs] } else { found };
        Ok(groups)
    }

    fn wrong_scales(&self, part: &'static str, raw: Raw<'_>) -> Fault {
        let reason = format!("has shape {:?}, which does not fit {} outputs", raw.shape, self.outputs);
        Fault { part, reason }
    }

    fn set_group(&mut self, part: &'static str, packed: &Packed, groups: usize) -> Result<(), Fault> {
        let fits = self.inputs.is_multiple_of(groups);
        let said = packed.group.filter(|_| groups > 1).map(|group| group as usize);
        if !fits || said.is_some_and(|group| group != self.inputs / groups) {
            let said = said.map(|group| format!(" and a group_size of {group}")).unwrap_or_default();
            let reason = format!("has {groups} groups, which do not fit {} inputs{said}", self.inputs);
            return Err(Fault { part, reason });
        }
        self.group = self.inputs / groups;
        Ok(())
    }

    fn set_zeros(&mut self, groups: usize, zero: impl Fn(usize, usize) -> i16) {
        let places = (0..self.outputs).flat_map(|output| (0..groups).map(move |group| (output, group)));
        let zeros: Vec<i16> = places.map(|(output, group)| zero(output, group)).collect();
        if zeros.iter().any(|&zero| zero != self.middle) {
            self.zeros = zeros;
        }
    }

    /// `weight_zero_point` of signed bytes, by output.
    fn set_byte_zeros(&mut self, parts: &impl Parts<'a>, groups: usize) -> Result<(), Fault> {
        const PART: &str = "weight_zero_point";
        let raw = parts.part(PART);
        let shape = if raw.is_some_and(|raw| raw.shape.len() == 1) {
            vec![self.outputs]
        } else {
            vec![self.outputs, groups]
        };
        let zeros = required(parts, PART, &[Dtype::I8], &shape)?;
        if zeros.len() != self.outputs * groups {
            return Err(Fault { part: PART, reason: format!("has not {groups} numbers for each output") });
        }
        let middle = self.middle;
        self.set_zeros(groups, |output, group| i16::from(zeros[output * groups + group] as i8) + middle);
        Ok(())
    }

    /// The order of compressed-tensors, which fills a `weight_g_idx` that nothing sets with -1
    /// (quantization/lifecycle/initialize.py).
    fn set_order_unless_unset(&mut self, parts: &impl Parts<'a>, groups: usize) -> Result<(), Fault> {
        const PART: &str = "weight_g_idx";
        const UNSET: u32 = u32::MAX;
        if parts.part(PART).is_some() {
            let data = required(parts, PART, &[Dtype::I32], &[self.inputs])?;
            if (0..self.inputs).any(|input| word(data, input) == UNSET) {
                return Ok(());
            }
        }
        self.set_order(PART, parts, groups)
    }

    /// Which group each input is in, where a tensor says so and it is not their order.
    fn set_order(&mut self, part: &'static str, parts: &impl Parts<'a>, groups: usize) -> Result<(), Fault> {
        if parts.part(part).is_none() {
            return Ok(());
        }
        let data = required(parts, part, &[Dtype::I32], &[self.inputs])?;
        let found: Vec<u32> = (0..self.inputs).map(|input| word(data, input)).collect();
        if let Some(wrong) = found.iter().find(|&&group| group as usize >= groups) {
            return Err(Fault { part, reason: format!("names group {wrong} of {groups}") });
        }
        let is_order = found.iter().enumerate().all(|(input, &group)| input / self.group == group as usize);
        self.group_of = (!is_order).then_some(found);
        Ok(())
    }

    /// The integers of some outputs, as they stand in the file.
    fn fill(&self, outputs: Range<usize>, to: &mut [i16]) {
        let (inputs, bits) = (self.inputs, self.bits);
        let (per_word, mask) = (32 / bits, ((1u64 << bits) - 1) as u32);
        match self.integers {
            Integers::Bytes(data) => {
                let from = &data[outputs.start * inputs..outputs.end * inputs];
                to.iter_mut().zip(from).for_each(|(to, &byte)| *to = i16::from(byte as i8));
            }
            Integers::ByOutput { data, words } => {
                for (output, row) in outputs.zip(to.chunks_exact_mut(inputs)) {
                    for (at, some) in row.chunks_mut(per_word).enumerate() {
                        let found = word(data, output * words + at);
                        some.iter_mut()
                            .enumerate()
                            .for_each(|(i, to)| *to = (found >> (i * bits) & mask) as i16);
                    }
                }
            }
            Integers::ByInput(data) => {
                for at in 0..inputs / per_word {
                    for (row, output) in outputs.clone().enumerate() {
                        let found = word(data, at * self.outputs + output);
                        let some = &mut to[row * inputs + at * per_word..][..per_word];
                        some.iter_mut()
                            .enumerate()
                            .for_each(|(i, to)| *to = (found >> (i * bits) & mask) as i16);
                    }
                }
            }
            Integers::Awq(data) => {
                for input in 0..inputs {
                    for (row, output) in outputs.clone().enumerate() {
                        let found = word(data, input * (self.outputs / 8) + output / 8);
                        to[row * inputs + input] = (found >> (4 * AWQ_PLACES[output % 8]) & 15) as i16;
                    }
                }
            }
        }
    }

    pub(super) fn unpacked(&self, threads: u32) -> Vec<u8> {
        let groups = self.scales.len() / self.outputs;
        floats_by_outputs(self.outputs, self.inputs, threads, |outputs, out| {
            let mut integers = vec![0; out.len()];
            self.fill(outputs.clone(), &mut integers);
            for (row, output) in outputs.enumerate() {
                let scales = &self.scales[output * groups..][..groups];
                let zeros = self.zeros.get(output * groups..).unwrap_or_default();
                for input in 0..self.inputs {
                    let group = match &self.group_of {
                        Some(order) => order[input] as usize,
                        None => input / self.group,
                    };
                    let zero = zeros.get(group).copied().unwrap_or(self.middle);
                    let at = row * self.inputs + input;
                    let value = f32::from(integers[at] - zero) * scales[group];
                    out[at] = value.to_le_bytes();
                }
            }
        })
    }

    /// The form of our products that holds the same numbers, if there is one.
    pub(crate) fn exact_form(&self) -> Option<WeightForm> {
        if !self.zeros.is_empty() || self.group_of.is_some() {
            return None;
        }
        match self.bits {
            4 => {
                let divides = |group: &usize| self.group.is_multiple_of(*group);
                let group = [128, 64, 32].into_iter().find(divides)?;
                Some(WeightForm::Int4 { group: group as u32 })
            }
            _ => (self.group == self.inputs).then_some(WeightForm::Int8),
        }
    }

    /// The integers around zero, and the scales of a form that [`Affine::exact_form`] gives or of smaller groups.
    pub(crate) fn integers(&self, form: WeightForm, threads: u32) -> (Vec<i8>, Vec<f32>) {
        let mut values = vec![0i8; self.outputs * self.inputs];
        by_outputs(&mut values, self.inputs, threads, |outputs, out| {
            let mut integers = vec![0; out.len()];
            self.fill(outputs, &mut integers);
            out.iter_mut().zip(integers).for_each(|(to, from)| *to = (from - self.middle) as i8);
        });
        let group = match form {
            WeightForm::Int8 => self.inputs,
            WeightForm::Int4 { group } => group as usize,
        };
        let scales = self.scales.iter().flat_map(|&scale| std::iter::repeat_n(scale, self.group / group));
        (values, scales.collect())
    }
}

/// A fault where a number of outputs or inputs is not a whole number of words.
fn divides(per_word: usize, count: usize, part: &'static str, what: &str) -> Result<(), Fault> {
    match count.is_multiple_of(per_word) {
        true => Ok(()),
        false => {
            Err(Fault { part, reason: format!("{count} {what} are no whole number of words of {per_word}") })
        }
    }
}
