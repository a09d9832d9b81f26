//! The cosines and sines of a step's positions, in fp32.

use pinion_architecture::{Architecture, Frequencies, Position};
use pinion_ops::rows::Rotation;

/// One table for each rotation of the model, reused from step to step.
#[derive(Debug)]
pub(crate) struct Rotations {
    tables: Vec<Table>,
}

#[derive(Debug)]
struct Table {
    frequencies: Frequencies,
    /// `[tokens, 2, dim / 2]`: cosines, then sines.
    values: Vec<f32>,
}

impl Rotations {
    /// For sequences of at most `max_context` tokens.
    pub(crate) fn new(model: &Architecture, max_context: u32) -> Self {
        let rotaries = match &model.position {
            Position::Learned { .. } => &[][..],
            Position::Rotary(rotaries) => rotaries,
        };
        let table = |frequencies| Table { frequencies, values: Vec::new() };
        Self { tables: rotaries.iter().map(|rotary| table(rotary.frequencies(max_context))).collect() }
    }

    /// Computes the tables of these positions. Mirrors `LlamaRotaryEmbedding.forward`: the product in fp32.
    pub(crate) fn fill(&mut self, positions: &[i64]) {
        for Table { frequencies, values } in &mut self.tables {
            let half = frequencies.inverse.len();
            values.resize(positions.len() * 2 * half, 0.0);
            for (&position, row) in positions.iter().zip(values.chunks_exact_mut(2 * half)) {
                let (cosines, sines) = row.split_at_mut(half);
                for ((inverse, cosine), sine) in frequencies.inverse.iter().zip(cosines).zip(sines) {
                    let (sin, cos) = (position as f32 * inverse).sin_cos();
                    *cosine = cos * frequencies.attention_factor;
                    *sine = sin * frequencies.attention_factor;
                }
            }
        }
    }

    /// The table of one rotation, for all positions of the step.
    pub(crate) fn of(&self, rotary: usize) -> Rotation<'_> {
        let table = &self.tables[rotary];
        Rotation { table: &table.values, dim: 2 * table.frequencies.inverse.len() }
    }
}
