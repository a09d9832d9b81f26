//! The ways of launching a step's kernels, beside kernel by kernel: the same tokens, the same logits. On a real device
//! each way is repeated: kernels that begin before the ones ahead of them have ended may be right by luck.

use crate::agree::{generate, prompts_of};
use crate::steps::Steady;
use crate::{Outcome, options, ready};
use pinion_cuda::Device;
use pinion_model::Model;
use pinion_model::cuda::{CudaDecoder, CudaDtype, CudaOptions};
use serde_json::json;
use std::error::Error;
use std::path::Path;

struct Way {
    name: &'static str,
    graphs: bool,
    mixed_graphs: bool,
    dependent_launch: bool,
    /// Largest error of a logit by the largest logit. Graphs of steps with prompt chunks may split contexts otherwise.
    tolerance: f32,
}

const PLAIN: Way =
    Way { name: "plain", graphs: false, mixed_graphs: false, dependent_launch: false, tolerance: 0.0 };
const WAYS: [Way; 5] = [
    PLAIN,
    Way { name: "graphs", graphs: true, ..PLAIN },
    Way { name: "dependent", dependent_launch: true, ..PLAIN },
    Way { name: "graphs, dependent", graphs: true, dependent_launch: true, ..PLAIN },
    Way {
        name: "all graphs, dependent",
        graphs: true,
        mixed_graphs: true,
        dependent_launch: true,
        tolerance: 0.01,
    },
];

/// What the ways are told apart by.
struct Seen {
    ids: Vec<Vec<u32>>,
    logits: Vec<f32>,
}

/// Decode steps and prompt chunks of several sizes, in fp16.
pub(crate) fn launches(object: &str, folder: &str) -> Outcome {
    let is_emulated = Device::open(Path::new(object), 0)?.facts().emulated;
    let repeats = if is_emulated { 1 } else { 20 };
    let mut want: Option<Seen> = None;
    for way in WAYS {
        let max_tokens = if is_emulated { 32 } else { 512 };
        let options = CudaOptions {
            graphs: way.graphs,
            mixed_graphs: way.mixed_graphs,
            dependent_launch: way.dependent_launch,
            measured_products: !is_emulated,
            ..options(object, CudaDtype::F16, 4, max_tokens)
        };
        let mut model = ready(folder, &options)?;
        let (mut differing, mut error) = (0, 0f32);
        for _ in 0..repeats {
            let have = see(&mut model, is_emulated)?;
            let Some(want) = &want else {
                want = Some(have);
                continue;
            };
            if have.ids != want.ids {
                return Err(format!("{}: other tokens than kernel by kernel", way.name).into());
            }
            let largest = want.logits.iter().fold(0f32, |most, logit| most.max(logit.abs()));
            let pairs = || have.logits.iter().zip(&want.logits);
            differing += pairs().filter(|(a, b)| a.to_bits() != b.to_bits()).count();
            error = pairs().fold(error, |most, (a, b)| most.max((a - b).abs() / largest));
        }
        println!(
            "{}",
            json!({"launches": way.name, "repeats": repeats, "differing_logits": differing, "relative_error": error,
                "tolerance": way.tolerance})
        );
        if error > way.tolerance {
            return Err(format!("{}: logits differ by {error:e}", way.name).into());
        }
    }
    Ok(())
}

fn see(model: &mut CudaDecoder, is_emulated: bool) -> Result<Seen, Box<dyn Error>> {
    let vocab = Model::info(model).vocab_size;
    let (prompts, count) = prompts_of(vocab, is_emulated);
    let ids = generate(model, &prompts, count)?;
    let shapes: &[_] = match is_emulated {
        true => &[(1, 20, 20), (2, 1, 10)],
        false => &[(1, 1, 41), (2, 1, 71), (4, 1, 300), (1, 40, 40), (2, 70, 140), (4, 17, 300)],
    };
    let (mut logits, mut step) = (Vec::new(), Vec::new());
    for &(rows, query, context) in shapes {
        model.logits(&Steady::new(rows, query, context, vocab, query).batch(), &mut step)?;
        logits.extend_from_slice(&step);
    }
    Ok(Seen { ids, logits })
}
