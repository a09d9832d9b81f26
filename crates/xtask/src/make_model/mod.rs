//! Makes Hugging Face folders of published shapes without a network: random weights and a real tokenizer.
//! Speed and memory depend on the shape alone, so such a folder stands in for the published one in benchmarks and
//! load tests. Its text is noise: for readable output use deploy/demo-model. `tiny` is a family in a size that an
//! emulated device serves within seconds.

mod decoder;
mod folder;
mod gpt2;
mod rng;
mod tokenizer;
mod vocabulary;
mod weights;

use std::path::{Path, PathBuf};
use std::time::Instant;

use decoder::Family;
use folder::Model;
use weights::{Filling, StoredDtype};

/// Families with their sizes, the one that is made unless another is named first.
const FAMILIES: &[(&str, &[&str])] = &[
    ("gpt2", &["124m", "tiny"]),
    ("llama", &["1b", "tiny"]),
    ("smollm2", &["135m", "tiny"]),
    ("qwen3", &["0.6b", "tiny"]),
    ("gemma3", &["270m", "tiny"]),
];

/// The parsed command line of `make-model`.
#[derive(Debug, PartialEq)]
struct Request {
    family: &'static str,
    size: &'static str,
    out: PathBuf,
    filling: Filling,
}

/// `make-model FAMILY [--size S] [--out DIR] [--seed N] [--dtype f32|bf16] [--deviation X] [--shards N]`
pub(crate) fn run(root: &Path, args: &[&str]) -> Result<(), String> {
    let request = parse(root, args)?;
    let began = Instant::now();
    let model = request.model().ok_or("make-model: the list of sizes names one that no family has")?;
    model.write(&request.out, request.filling)?;
    println!("{} is ready after {:.1} s", request.out.display(), began.elapsed().as_secs_f32());
    Ok(())
}

impl Request {
    fn model(&self) -> Option<Model> {
        let (size, filling) = (self.size, self.filling);
        match self.family {
            "gpt2" => gpt2::model(size, filling),
            "llama" => decoder::model(Family::Llama, size, filling),
            "smollm2" => decoder::model(Family::SmolLm2, size, filling),
            "qwen3" => decoder::model(Family::Qwen3, size, filling),
            "gemma3" => decoder::model(Family::Gemma3, size, filling),
            _ => None,
        }
    }
}

fn parse(root: &Path, args: &[&str]) -> Result<Request, String> {
    let (name, flags) = args.split_first().unwrap_or((&"", &[]));
    let Some((family, sizes)) = FAMILIES.iter().find(|(known, _)| known == name) else {
        let known: Vec<String> =
            FAMILIES.iter().map(|(family, sizes)| format!("{family} ({})", sizes.join(", "))).collect();
        return Err(format!("make-model: the known families and sizes are {}", known.join(", ")));
    };
    let filling =
        Filling { seed: 0, dtype: StoredDtype::F32, deviation: weights::INITIALIZER_RANGE, shards: 1 };
    let mut request = Request { family, size: sizes[0], out: PathBuf::new(), filling };
    for pair in flags.chunks(2) {
        match pair {
            ["--size", size] => {
                let known = sizes.iter().find(|known| known == &size);
                request.size = known.ok_or_else(|| format!("--size: {family} has {}", sizes.join(", ")))?;
            }
            ["--out", dir] => request.out = PathBuf::from(dir),
            ["--seed", seed] => {
                request.filling.seed =
                    seed.parse().map_err(|_| format!("--seed: {seed} is not a whole number"))?;
            }
            ["--dtype", "f32"] => request.filling.dtype = StoredDtype::F32,
            ["--dtype", "bf16"] => request.filling.dtype = StoredDtype::Bf16,
            ["--deviation", text] => {
                let deviation = text.parse().ok().filter(|value: &f32| value.is_finite() && *value >= 0.0);
                request.filling.deviation =
                    deviation.ok_or_else(|| format!("--deviation: {text} is not a number of at least 0"))?;
            }
            ["--shards", count] => {
                let count = count.parse().ok().filter(|count| (1..=99_999).contains(count));
                request.filling.shards = count.ok_or("--shards: a number from 1 to 99999 is expected")?;
            }
            _ => return Err(format!("make-model: cannot read {}", pair.join(" "))),
        }
    }
    if request.out.as_os_str().is_empty() {
        request.out = root.join("target/models").join(format!("{}-{}", request.family, request.size));
    }
    Ok(request)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_lines() {
        let root = Path::new("r");
        let plain = Filling { seed: 0, dtype: StoredDtype::F32, deviation: 0.02, shards: 1 };
        let request =
            |family, size, out: &str, filling| Ok(Request { family, size, out: PathBuf::from(out), filling });
        assert_eq!(parse(root, &["gpt2"]), request("gpt2", "124m", "r/target/models/gpt2-124m", plain));
        let tiny = request("qwen3", "tiny", "r/target/models/qwen3-tiny", plain);
        assert_eq!(parse(root, &["qwen3", "--size", "tiny"]), tiny);
        let all =
            ["llama", "--dtype", "bf16", "--seed", "7", "--out", "x", "--deviation", "0.5", "--shards", "3"];
        let filling = Filling { seed: 7, dtype: StoredDtype::Bf16, deviation: 0.5, shards: 3 };
        assert_eq!(parse(root, &all), request("llama", "1b", "x", filling));
        for wrong in [
            &["abacus"][..],
            &[],
            &["gpt2", "--seed"],
            &["gpt2", "--size", "1b"],
            &["gpt2", "--seed", "-1"],
            &["gpt2", "--dtype", "f16"],
            &["gpt2", "--deviation", "nan"],
            &["gpt2", "--shards", "0"],
        ] {
            assert!(parse(root, wrong).is_err(), "{wrong:?} was taken");
        }
    }

    #[test]
    fn every_listed_size_is_a_model() {
        for (family, sizes) in FAMILIES {
            for size in *sizes {
                let filling = Filling { seed: 0, dtype: StoredDtype::Bf16, deviation: 0.02, shards: 1 };
                let request = Request { family, size, out: PathBuf::new(), filling };
                let model = request.model().unwrap_or_else(|| panic!("{family} {size}"));
                assert!(model.config["model_type"].is_string() && !model.plan.is_empty(), "{family} {size}");
            }
        }
    }
}
