//! Keys of rotary embeddings, in both dialects: `rope_scaling` beside `rope_theta`, and `rope_parameters`.

use crate::reader::{CONTEXT_MAX, Reader};
use crate::{Context, Rotary, Scaling};
use serde_json::{Map, Value};

/// Positions of the training, for rotations that stretch them.
const TRAINED: &str = "original_max_position_embeddings";

/// What the rules for rotary embeddings start from.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RopeRule {
    pub(crate) head_dim: u32,
    /// The base without `rope_theta`.
    pub(crate) theta: f64,
    /// Whether a part of the head may be rotated only.
    pub(crate) partial: bool,
    /// The names `su` and `yarn` mean `longrope`, and nothing else is known: Phi-3.
    pub(crate) long_only: bool,
    /// `original_max_position_embeddings` where the file has none.
    pub(crate) trained: Option<u32>,
}

impl RopeRule {
    pub(crate) fn common(head_dim: u32) -> Self {
        Self { head_dim, theta: 10_000.0, partial: false, long_only: false, trained: None }
    }
}

impl Reader<'_> {
    /// The one rotation of a model, and the context that follows from it.
    pub(crate) fn rope(&mut self, rule: RopeRule) -> (Rotary, Context) {
        let positions = self.positions_of(&["max_position_embeddings"]);
        let empty = Map::new();
        let is_some = |value: &&Map<String, Value>| !value.is_empty();
        let dict = |key: &str| self.map.get(key).and_then(Value::as_object).filter(is_some);
        // `convert_rope_params_to_dict` takes them in this order.
        let keys = dict("rope_scaling").or_else(|| dict("rope_parameters")).unwrap_or(&empty).clone();
        for key in ["rope_scaling", "rope_parameters"] {
            if self.get(key).is_some_and(|value| !value.is_object()) {
                self.fault(format!("{key} is not an object"));
            }
        }
        for key in ["full_attention", "sliding_attention"] {
            if keys.contains_key(key) {
                self.fault(format!("rope_parameters.{key} is not supported for this model_type"));
            }
        }
        let theta = self.positive("rope_theta");
        let rotary = self.rotary(&keys, theta, rule, positions);
        let context = self.stretched(&rotary, positions);
        (rotary, context)
    }

    /// How long sequences may be. vLLM's rule: linear and dynamic multiply, yarn stretches what was trained, longrope
    /// stays within it unless more is asked for.
    fn stretched(&mut self, rotary: &Rotary, positions: u32) -> Context {
        let times = |length: u32, factor: f32| (f64::from(length) * f64::from(factor)) as u32;
        let whole = |length: u32| Context { default: length.min(CONTEXT_MAX), max: length.min(CONTEXT_MAX) };
        match &rotary.scaling {
            Scaling::Default | Scaling::Llama3 { .. } => whole(positions),
            Scaling::Linear { factor } | Scaling::Dynamic { factor, .. } => whole(times(positions, *factor)),
            Scaling::Yarn { factor, trained, .. } => whole(positions.max(times(*trained, *factor))),
            Scaling::Long { trained, .. } => {
                Context { default: whole(positions).max.min(*trained), ..whole(positions) }
            }
        }
    }

    /// One rotation from its parameters.
    pub(crate) fn rotary(
        &mut self,
        keys: &Map<String, Value>,
        top_theta: Option<f64>,
        rule: RopeRule,
        positions: u32,
    ) -> Rotary {
        let top = self.map;
        let mut inner = Reader::new(keys);
        let theta = inner.positive("rope_theta").or(top_theta).unwrap_or(rule.theta) as f32;
        let part = |reader: &mut Reader<'_>| reader.positive("partial_rotary_factor");
        let factor = part(&mut inner).or_else(|| part(self)).unwrap_or(1.0);
        if factor > 1.0 || (factor != 1.0 && !rule.partial) {
            inner.fault(format!("partial_rotary_factor {factor} is not supported for this model_type"));
        }
        let dim = (f64::from(rule.head_dim) * factor.min(1.0)) as u32;
        if !dim.is_multiple_of(2) || dim == 0 {
            inner.fault(format!("{dim} columns of a head cannot be rotated in pairs"));
        }
        // Beside the dict it counts more than inside.
        let given = [top, keys].into_iter().find_map(|map| map.get(TRAINED).filter(|value| !value.is_null()));
        let trained = given.and_then(|value| {
            let number = value.as_f64().filter(|number| (1.0..=f64::from(CONTEXT_MAX)).contains(number));
            if number.is_none() {
                inner.fault(format!("{TRAINED} is {value}; expected a number from 1 to {CONTEXT_MAX}"));
            }
            number.map(|number| number as u32)
        });
        let trained = trained.or(rule.trained).unwrap_or(positions);
        let scaling = inner.scaling(rule, dim, positions, trained);
        self.faults.append(&mut inner.faults);
        Rotary { dim, theta, scaling }
    }

    fn required(&mut self, key: &str) -> f32 {
        self.positive(key).unwrap_or_else(|| {
            if self.get(key).is_none() {
                self.fault(format!("has no {key} beside rope_type"));
            }
            1.0
        }) as f32
    }

    /// Of the parameters that `self` stands on.
    fn scaling(&mut self, rule: RopeRule, dim: u32, positions: u32, trained: u32) -> Scaling {
        let kind = self.get("rope_type").or_else(|| self.get("type")).cloned();
        let kind = match &kind {
            None => "default",
            Some(Value::String(kind)) => kind.as_str(),
            Some(_) => "",
        };
        let stretch = f64::from(positions) / f64::from(trained);
        match kind {
            "default" => Scaling::Default,
            "su" | "yarn" | "longrope" if rule.long_only => self.long(dim, stretch, trained),
            other if rule.long_only => {
                self.fault(format!("rope_type {other:?} is not supported for this model_type"));
                Scaling::Default
            }
            "linear" => Scaling::Linear { factor: self.required("factor") },
            "dynamic" => Scaling::Dynamic { factor: self.required("factor"), trained: positions },
            "llama3" => Scaling::Llama3 {
                factor: self.required("factor"),
                low: self.required("low_freq_factor"),
                high: self.required("high_freq_factor"),
                trained,
            },
            "yarn" => self.yarn(stretch, trained),
            "longrope" => self.long(dim, stretch, trained),
            other => {
                self.fault(format!(
                    "rope_type {other:?} is not supported; supported: default, linear, dynamic, llama3, yarn, longrope"
                ));
                Scaling::Default
            }
        }
    }

    fn yarn(&mut self, stretch: f64, trained: u32) -> Scaling {
        let factor = self.positive("factor").unwrap_or(stretch);
        let magnitude = |scale: f64| if factor <= 1.0 { 1.0 } else { 0.1 * scale * factor.ln() + 1.0 };
        let given = self.positive("attention_factor");
        let (mscale, all_dim) = (self.float("mscale"), self.float("mscale_all_dim"));
        let attention_factor = given.unwrap_or_else(|| match (mscale, all_dim) {
            (Some(mscale), Some(all_dim)) if mscale != 0.0 && all_dim != 0.0 => {
                magnitude(mscale) / magnitude(all_dim)
            }
            _ => magnitude(1.0),
        });
        Scaling::Yarn {
            factor: factor as f32,
            beta_fast: self.positive("beta_fast").unwrap_or(32.0) as f32,
            beta_slow: self.positive("beta_slow").unwrap_or(1.0) as f32,
            truncate: self.flag("truncate", true),
            trained,
            attention_factor: attention_factor as f32,
        }
    }

    fn long(&mut self, dim: u32, stretch: f64, trained: u32) -> Scaling {
        let mut list = |key: &str| -> Vec<f32> {
            let items = self.get(key).and_then(Value::as_array);
            let number =
                |value: &Value| value.as_f64().filter(|n| n.is_finite() && *n > 0.0).map(|n| n as f32);
            let numbers: Option<Vec<f32>> = items.and_then(|items| items.iter().map(number).collect());
            numbers.filter(|list| list.len() == (dim / 2) as usize).unwrap_or_else(|| {
                self.fault(format!("{key} is not a list of {} numbers above 0", dim / 2));
                Vec::new()
            })
        };
        let (short, long) = (list("short_factor"), list("long_factor"));
        let factor = self.positive("factor").unwrap_or(stretch);
        let by_length = || (1.0 + factor.ln() / f64::from(trained).ln()).sqrt();
        let given = self.positive("attention_factor");
        let attention_factor = given.unwrap_or_else(|| if factor <= 1.0 { 1.0 } else { by_length() }) as f32;
        Scaling::Long { short, long, trained, attention_factor }
    }
}
