//! What makes the first layer's input of token ids and positions.

use super::{Reader, backend};
use crate::load::LoadError;
use half::bf16;
use pinion_architecture::Position;
use pinion_ops::Matrix;
use pinion_ops::matrix::Table;
use pinion_ops::tensor::{TensorError, copy_to_f32};
use tch::Kind;

/// The tables of a model.
#[derive(Debug)]
pub(crate) struct Embeddings {
    /// \[vocab, hidden\], in the file's type where that holds the compute dtype's values in fewer bytes.
    pub(super) tokens: Table,
    /// \[positions, hidden\] in the compute dtype, where positions are learned.
    positions: Option<Matrix>,
}

impl Embeddings {
    /// Reads the tensor `tokens` of the checkpoint, and the model's table of positions if it has one.
    pub(super) fn read(reader: &mut Reader<'_>, tokens: &str) -> Result<Self, LoadError> {
        let (model, kind) = (reader.model, reader.kind);
        let narrow = |stored: Kind| if kind == Kind::Float { stored } else { kind };
        let tokens = reader.whole_as(tokens, &[model.vocab, model.hidden], narrow)?;
        let tokens = Table::new(tokens).map_err(backend)?;
        let Position::Learned { count } = model.position else { return Ok(Self { tokens, positions: None }) };
        let name = format!("{}.weight", model.names.position_embedding);
        let table = reader.tensor(&name, &[count, model.hidden])?;
        let (mut values, columns) = (Vec::new(), model.hidden as usize);
        copy_to_f32(&table, &mut values).map_err(backend)?;
        let positions = if kind == Kind::Float {
            Matrix::of(&values, columns)
        } else {
            Matrix::of(&values.into_iter().map(bf16::from_f32).collect::<Vec<_>>(), columns)
        };
        Ok(Self { tokens, positions: Some(positions) })
    }

    /// Makes `out` \[tokens, hidden\] of \[tokens\] and their positions.
    pub(crate) fn embed(
        &self,
        tokens: &[i64],
        positions: &[i64],
        out: &mut Matrix,
    ) -> Result<(), TensorError> {
        out.look_up(&self.tokens, tokens)?;
        if let Some(table) = &self.positions {
            out.add_rows(table, positions)?;
        }
        Ok(())
    }
}
