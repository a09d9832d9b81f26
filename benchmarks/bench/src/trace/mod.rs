//! Arrival times, lengths and prefix blocks, from a public trace or made up. No trace has text; [`crate::prompts`]
//! makes it. Each reader is strict about what it needs and takes no notice of other columns.

mod csv_files;
mod json_lines;
mod synthetic;

pub(crate) use synthetic::Synthetic;

use clap::ValueEnum;
use std::path::Path;

/// Most rows read of one file: a week of a large trace.
const ROWS_MAX: usize = 4_000_000;

/// One request of a trace.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Row {
    /// Seconds, from an origin that the trace chooses.
    pub at_s: f64,
    pub input_tokens: u32,
    pub output_tokens: u32,
    /// Ids of the prompt's blocks: equal ids mean equal tokens. Empty where the trace has none.
    pub blocks: Vec<u64>,
}

/// A trace in order of arrival.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Trace {
    pub rows: Vec<Row>,
    /// Tokens in one block; 0 where the trace has none.
    pub block_tokens: u32,
}

/// The schemas that are known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// By what the file's beginning looks like.
    Auto,
    /// Azure LLM inference trace: CSV of TIMESTAMP, ContextTokens, GeneratedTokens.
    Azure,
    /// Mooncake: JSON lines, milliseconds, blocks of 512 tokens.
    Mooncake,
    /// Qwen-Bailian (TraceA and its kin): JSON lines, seconds, blocks of 16 tokens.
    Bailian,
    /// BurstGPT: CSV of Timestamp, Model, Request tokens, Response tokens and others.
    Burstgpt,
}

/// Reads a trace file. The rows come out sorted by time, equal times in the file's order.
pub(crate) fn read(path: &Path, format: Format) -> Result<Trace, String> {
    let fault = |message: String| format!("{}: {message}", path.display());
    let text = std::fs::read_to_string(path).map_err(|error| fault(error.to_string()))?;
    parse(&text, format).map_err(fault)
}

fn parse(text: &str, format: Format) -> Result<Trace, String> {
    let format = if format == Format::Auto { guess(text)? } else { format };
    let mut trace = match format {
        Format::Azure => csv_files::azure(text)?,
        Format::Burstgpt => csv_files::burstgpt(text)?,
        Format::Mooncake => json_lines::mooncake(text)?,
        Format::Bailian => json_lines::bailian(text)?,
        Format::Auto => unreachable!("guessed above"),
    };
    if trace.rows.is_empty() {
        return Err("no rows".to_owned());
    }
    if trace.rows.len() > ROWS_MAX {
        return Err(format!("{} rows; at most {ROWS_MAX}", trace.rows.len()));
    }
    trace.rows.sort_by(|a, b| a.at_s.total_cmp(&b.at_s));
    Ok(trace)
}

fn guess(text: &str) -> Result<Format, String> {
    let line = text.lines().next().unwrap_or_default().trim_start_matches('\u{feff}');
    if line.starts_with('{') {
        return Ok(if line.contains("\"chat_id\"") { Format::Bailian } else { Format::Mooncake });
    }
    let header = line.to_ascii_lowercase();
    if header.contains("contexttokens") {
        Ok(Format::Azure)
    } else if header.contains("request tokens") {
        Ok(Format::Burstgpt)
    } else {
        Err(format!("cannot tell the trace's format from its first line `{line}`; say --trace-format"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(at_s: f64, input_tokens: u32, output_tokens: u32, blocks: &[u64]) -> Row {
        Row { at_s, input_tokens, output_tokens, blocks: blocks.to_vec() }
    }

    // Hand-made rows in each public schema, with the traps that the real files have.
    const AZURE: &str = "TIMESTAMP,ContextTokens,GeneratedTokens\r\n2023-11-16 23:59:59.5000000,37,4\r\n\
                         2023-11-17 00:00:01.2500001,8,1\r\n2023-11-17 00:00:00.0000000,5,2";
    const MOONCAKE: &str = "{\"timestamp\": 0, \"input_length\": 600, \"output_length\": 5, \"hash_ids\": [3, 9]}\n\
                            {\"timestamp\": 1500, \"input_length\": 512, \"output_length\": 2, \"hash_ids\": [3]}\n";
    const BAILIAN: &str = "{\"chat_id\": 1, \"parent_chat_id\": -1, \"timestamp\": 2.5, \"input_length\": 20, \
                           \"output_length\": 7, \"type\": \"text\", \"turn\": 1, \"hash_ids\": [11, 12]}\n\n";
    const BURSTGPT: &str = "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n\
         5,a,1.0,ChatGPT,472,18,490,Conversation log\n45,b,2.0,GPT-4,10,0,10,API log\n";

    #[test]
    fn each_schema_is_recognised_and_read() {
        let day_s = (24 * 3600) as f64;
        let day = csv_files::day_number(2023, 11, 16) as f64 * day_s;
        let cases = [
            (
                AZURE,
                0,
                vec![
                    row(day + day_s - 0.5, 37, 4, &[]),
                    row(day + day_s, 5, 2, &[]),
                    row(day + day_s + 1.250_000_1, 8, 1, &[]),
                ],
            ),
            (MOONCAKE, 512, vec![row(0.0, 600, 5, &[3, 9]), row(1.5, 512, 2, &[3])]),
            (BAILIAN, 16, vec![row(2.5, 20, 7, &[11, 12])]),
            // A failed request has no response; there is nothing to replay.
            (BURSTGPT, 0, vec![row(5.0, 472, 18, &[])]),
        ];
        for (text, block_tokens, rows) in cases {
            let trace = parse(text, Format::Auto).expect(text);
            assert_eq!(trace.block_tokens, block_tokens, "{text}");
            assert_eq!(trace.rows.len(), rows.len(), "{text}");
            for (found, expected) in trace.rows.iter().zip(&rows) {
                assert!((found.at_s - expected.at_s).abs() < 1e-6, "{found:?} {expected:?}");
                assert_eq!(Row { at_s: expected.at_s, ..found.clone() }, *expected);
            }
        }
    }

    #[test]
    fn a_broken_row_is_named() {
        let cases = [
            ("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9,x,3\n", "line 2"),
            ("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-13-16 18:17:03.9,1,3\n", "line 2"),
            ("TIMESTAMP,ContextTokens\n", "GeneratedTokens"),
            ("{\"timestamp\": 0, \"input_length\": 5, \"output_length\": 1}\n{\"timestamp\": 0\n", "line 2"),
            ("{\"timestamp\": 0, \"input_length\": 5}\n", "output_length"),
            // Fewer blocks than the prompt needs.
            (
                "{\"timestamp\": 0, \"input_length\": 600, \"output_length\": 1, \"hash_ids\": [1]}\n",
                "1 blocks",
            ),
            ("hello\n", "format"),
            ("TIMESTAMP,ContextTokens,GeneratedTokens\n", "no rows"),
        ];
        for (text, expected) in cases {
            let fault = parse(text, Format::Auto).expect_err(text);
            assert!(fault.contains(expected), "{text}: {fault}");
        }
    }
}
