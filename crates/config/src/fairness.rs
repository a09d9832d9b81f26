//! Whose requests share the engine: the tenants of fair shares and their weights.

use crate::fault::Collector;
use crate::secret::ApiKeys;
use crate::sources::Settings;
use pinion_protocol::limits::TENANT_WEIGHT_MAX;
use serde::{Deserialize, Serialize};

/// What a tenant is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum FairShare {
    /// Off: all requests share one queue.
    #[default]
    Off,
    /// Each API key.
    Key,
    /// Each `user` of each API key.
    User,
}

/// How tenants share.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fairness {
    /// What a tenant is.
    pub by: FairShare,
    /// Weight of each API key, in their order; empty where all are alike.
    pub key_weights: Vec<u32>,
}

impl Fairness {
    pub(crate) fn new(settings: &Settings, keys: &ApiKeys, faults: &mut Collector) -> Fairness {
        let by = match settings.text("fair-share") {
            Some("key") => FairShare::Key,
            Some("user") => FairShare::User,
            _ => FairShare::Off,
        };
        let key_weights = match settings.text("api-key-weights").map(weights) {
            None => Vec::new(),
            Some(Ok(weights)) if weights.len() == keys.count() => weights,
            Some(Ok(weights)) => {
                let reason =
                    format!("has {} weights, and there are {} API keys", weights.len(), keys.count());
                faults.add(&settings.origin("api-key-weights"), &reason);
                Vec::new()
            }
            Some(Err(reason)) => {
                faults.add(&settings.origin("api-key-weights"), &reason);
                Vec::new()
            }
        };
        Fairness { by, key_weights }
    }

    /// The weight of an API key's tenants.
    pub fn weight(&self, key: Option<usize>) -> u32 {
        key.and_then(|index| self.key_weights.get(index).copied()).unwrap_or(1)
    }
}

fn weights(list: &str) -> Result<Vec<u32>, String> {
    let weight =
        |text: &str| text.trim().parse().ok().filter(|weight| (1..=TENANT_WEIGHT_MAX).contains(weight));
    list.split(',')
        .map(|text| {
            weight(text).ok_or_else(|| format!("`{text}` is no whole number from 1 to {TENANT_WEIGHT_MAX}"))
        })
        .collect()
}
