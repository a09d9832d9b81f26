//! The JSON-lines traces: Mooncake and Qwen-Bailian. They share their names and differ in units.

use super::{Row, Trace};
use serde::Deserialize;

#[derive(Deserialize)]
struct Line {
    timestamp: f64,
    input_length: u32,
    output_length: u32,
    #[serde(default)]
    hash_ids: Vec<u64>,
}

pub(super) fn mooncake(text: &str) -> Result<Trace, String> {
    read(text, 512, 1000.0)
}

pub(super) fn bailian(text: &str) -> Result<Trace, String> {
    read(text, 16, 1.0)
}

fn read(text: &str, block_tokens: u32, units_per_second: f64) -> Result<Trace, String> {
    let mut rows = Vec::new();
    for (index, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let fault = |message: String| format!("line {}: {message}", index + 1);
        let line: Line = serde_json::from_str(line).map_err(|error| fault(error.to_string()))?;
        let needed = line.input_length.div_ceil(block_tokens) as usize;
        if !line.hash_ids.is_empty() && line.hash_ids.len() < needed {
            return Err(fault(format!("{} blocks for {needed}", line.hash_ids.len())));
        }
        rows.push(Row {
            at_s: line.timestamp / units_per_second,
            input_tokens: line.input_length,
            output_tokens: line.output_length,
            blocks: line.hash_ids,
        });
    }
    Ok(Trace { rows, block_tokens })
}
