//! The tensors of a checkpoint while its weights are made: found by name, used once, their memory given back, and the
//! progress told.

use crate::checkpoint::{Checkpoint, Stored};
use crate::load::{LoadError, LoadEvent};
use pinion_architecture::Architecture;
use pinion_ops::quantized::WeightForm;
use safetensors::Dtype;

pub(super) struct Tensors<'a> {
    checkpoint: Checkpoint,
    /// Of the family: one of them stands before a tensor's name.
    prefixes: &'a [&'a str],
    watch: &'a mut dyn FnMut(LoadEvent<'_>),
}

impl<'a> Tensors<'a> {
    pub(super) fn new(
        checkpoint: Checkpoint,
        prefixes: &'a [&'a str],
        watch: &'a mut dyn FnMut(LoadEvent<'_>),
    ) -> Tensors<'a> {
        Tensors { checkpoint, prefixes, watch }
    }

    pub(super) fn full_name(&self, name: &str) -> Result<String, LoadError> {
        self.checkpoint.full_name(self.prefixes, name)
    }

    /// The full name of the weight of a product, a norm or an embedding.
    pub(super) fn weight(&self, part: &str) -> Result<String, LoadError> {
        self.full_name(&format!("{part}.weight"))
    }

    /// See [`Checkpoint::embedding_and_head`].
    pub(super) fn embedding_and_head(&self, model: &Architecture) -> Result<[String; 2], LoadError> {
        self.checkpoint.embedding_and_head(model)
    }

    pub(super) fn dtype(&self, full: &str) -> Option<Dtype> {
        self.checkpoint.dtype(full)
    }

    /// See [`Checkpoint::exact_form`].
    pub(super) fn exact_form(
        &self,
        full: &str,
        outputs: u32,
        inputs: u32,
    ) -> Result<Option<WeightForm>, LoadError> {
        self.checkpoint.exact_form(full, outputs, inputs)
    }

    /// What `make` makes of the tensor of this full name and shape.
    pub(super) fn take<T>(
        &mut self,
        full: &str,
        shape: &[u32],
        make: impl FnOnce(Stored<'_>) -> Result<T, LoadError>,
    ) -> Result<T, LoadError> {
        let made = make(self.checkpoint.tensor(full, shape)?)?;
        self.done(full);
        Ok(made)
    }

    /// What `make` makes of the integers and scales of a weight: [`Checkpoint::integers`].
    pub(super) fn take_integers<T>(
        &mut self,
        full: &str,
        (outputs, inputs): (u32, u32),
        form: WeightForm,
        make: impl FnOnce(&[i8], &[f32]) -> Result<T, LoadError>,
    ) -> Result<T, LoadError> {
        let (values, scales) = self.checkpoint.integers(full, outputs, inputs, form)?;
        let made = make(&values, &scales)?;
        self.done(full);
        Ok(made)
    }

    fn done(&mut self, full: &str) {
        self.checkpoint.release(full);
        let (done, total) = self.checkpoint.progress();
        (self.watch)(LoadEvent::Bytes { done, total });
    }

    /// Tells of what the model's configuration says and its weights contradict.
    pub(super) fn tell_ignored(&mut self, reasons: &[String]) {
        (self.watch)(LoadEvent::Ignored(reasons));
    }

    /// See [`Checkpoint::tell_unused`].
    pub(super) fn end(&mut self, is_superfluous: impl Fn(&str) -> bool) -> Result<(), LoadError> {
        self.checkpoint.tell_unused(is_superfluous, &mut *self.watch)
    }
}
