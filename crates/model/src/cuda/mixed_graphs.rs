//! Captured layers of steps that are not all decode: prompt chunks, with decode rows or without.
//!
//! Such a step has four sizes: tokens, rows of logits, and what attention has of the tokens, single queries and tiles.
//! A graph is of a padded number of tokens and one of single queries, with as many tiles as that many tokens can have;
//! what a step has less is padding that does nothing. Embeddings and layers are in it, the head and the sampler are
//! four launches behind it.

use super::forward::{Forward, Kind};
use super::inputs::{Filled, Layout};
use pinion_cuda::{CudaError, Graph, Stream};

/// Larger steps take the device longer than the host takes to launch their kernels.
const TOKENS_MAX: u32 = 1024;
/// The smallest number of single queries that they are padded to, and the factor to the next.
const SINGLES_MIN: u32 = 8;
const SINGLES_STEP: u32 = 4;

/// Numbers of single queries that graphs are captured for, of a device with this number of lanes.
fn singles_buckets(lanes: u32) -> impl Iterator<Item = u32> {
    let powers = std::iter::successors(Some(SINGLES_MIN), |&singles| singles.checked_mul(SINGLES_STEP));
    let below = powers.take_while(move |&singles| singles < lanes);
    std::iter::once(0).chain(below).chain(std::iter::once(lanes))
}

/// The graphs, ascending by tokens, then by single queries.
#[derive(Debug, Default)]
pub(super) struct MixedGraphs(Vec<(usize, Filled, Graph)>);

impl MixedGraphs {
    /// Captures and replays one for each of `token_buckets` and number of single queries. `pad` fills the input memory
    /// with padding of the sizes that it is given.
    pub(super) fn capture(
        stream: &Stream,
        forward: &Forward,
        token_buckets: &[u32],
        mut pad: impl FnMut(Layout, Filled) -> Result<(), CudaError>,
    ) -> Result<MixedGraphs, CudaError> {
        let mut graphs = Vec::new();
        for &tokens in token_buckets.iter().take_while(|&&tokens| tokens <= TOKENS_MAX) {
            let layout = Layout { tokens: tokens as usize, rows: 0 };
            for singles in singles_buckets(forward.lanes) {
                let padded = Filled { updates: 0, singles, tiles: layout.tiles_max() as u32 };
                pad(layout, padded)?;
                let graph = stream.capture(|| forward.layers(stream, layout, Kind::Mixed(padded)))?;
                stream.replay(&graph)?;
                graphs.push((layout.tokens, padded, graph));
            }
        }
        Ok(MixedGraphs(graphs))
    }

    /// The graph for a step of these sizes, and the lengths that its lists are padded to.
    pub(super) fn of(&self, layout: Layout, filled: Filled) -> Option<(Filled, &Graph)> {
        let first = self.0.partition_point(|(tokens, padded, _)| {
            (*tokens, padded.singles) < (layout.tokens, filled.singles)
        });
        let (tokens, padded, graph) = self.0.get(first)?;
        (*tokens == layout.tokens).then_some((*padded, graph))
    }

    pub(super) fn count(&self) -> usize {
        self.0.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_of_single_queries_reach_every_lane() {
        let buckets = |lanes| singles_buckets(lanes).collect::<Vec<_>>();
        assert_eq!(buckets(1), [0, 1]);
        assert_eq!(buckets(8), [0, 8]);
        assert_eq!(buckets(100), [0, 8, 32, 100]);
        assert_eq!(buckets(128), [0, 8, 32, 128]);
    }
}
