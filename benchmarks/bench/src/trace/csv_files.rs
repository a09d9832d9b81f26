//! The CSV traces: Azure 2023 and 2024, and BurstGPT.

use super::{Row, Trace};

/// Values of the named columns of each row, with the row's line number.
fn rows<const N: usize>(text: &str, columns: [&str; N]) -> Result<Vec<(u64, [String; N])>, String> {
    let mut reader = csv::ReaderBuilder::new().trim(csv::Trim::All).from_reader(text.as_bytes());
    let header = reader.headers().map_err(|error| error.to_string())?.clone();
    let mut places = [0; N];
    for (place, column) in places.iter_mut().zip(columns) {
        let found = header.iter().position(|name| name.trim_start_matches('\u{feff}') == column);
        *place = found.ok_or_else(|| format!("no column {column}"))?;
    }
    let mut out = Vec::new();
    for record in reader.records() {
        let record = record.map_err(|error| error.to_string())?;
        let line = record.position().map_or(0, csv::Position::line);
        out.push((line, places.map(|place| record.get(place).unwrap_or_default().to_owned())));
    }
    Ok(out)
}

fn count(line: u64, text: &str) -> Result<u32, String> {
    // Some files write whole numbers as 12.0.
    let number: f64 = text.parse().map_err(|_| format!("line {line}: `{text}` is not a number"))?;
    if !(0.0..=f64::from(u32::MAX)).contains(&number) {
        return Err(format!("line {line}: `{text}` is no token count"));
    }
    Ok(number as u32)
}

pub(super) fn azure(text: &str) -> Result<Trace, String> {
    let mut found = Vec::new();
    for (line, [time, input, output]) in rows(text, ["TIMESTAMP", "ContextTokens", "GeneratedTokens"])? {
        let at_s = seconds(&time).ok_or_else(|| format!("line {line}: `{time}` is not a time"))?;
        let (input_tokens, output_tokens) = (count(line, &input)?, count(line, &output)?);
        found.push(Row { at_s, input_tokens, output_tokens, blocks: Vec::new() });
    }
    Ok(Trace { rows: found, block_tokens: 0 })
}

pub(super) fn burstgpt(text: &str) -> Result<Trace, String> {
    let mut found = Vec::new();
    for (line, [time, input, output]) in rows(text, ["Timestamp", "Request tokens", "Response tokens"])? {
        let at_s: f64 = time.parse().map_err(|_| format!("line {line}: `{time}` is not a time"))?;
        let (input_tokens, output_tokens) = (count(line, &input)?, count(line, &output)?);
        if output_tokens > 0 {
            found.push(Row { at_s, input_tokens, output_tokens, blocks: Vec::new() });
        }
    }
    Ok(Trace { rows: found, block_tokens: 0 })
}

/// `2023-11-16 18:17:03.9799600`, with or without a fraction and a zone, in seconds since 1970. The zone is passed
/// over: only differences count.
fn seconds(text: &str) -> Option<f64> {
    let (date, time) = text.split_once([' ', 'T'])?;
    let mut date = date.split('-').map(|part| part.parse::<i64>().ok());
    let (year, month, day) = (date.next()??, date.next()??, date.next()??);
    if !(1..=12).contains(&month) || !(1..=31).contains(&day) || date.next().is_some() {
        return None;
    }
    let time = time.split(['+', 'Z']).next()?;
    let mut parts = time.split(':');
    let (hour, minute) = (parts.next()?.parse::<i64>().ok()?, parts.next()?.parse::<i64>().ok()?);
    let second: f64 = parts.next()?.parse().ok()?;
    if !(0..24).contains(&hour) || !(0..60).contains(&minute) || !(0.0..61.0).contains(&second) {
        return None;
    }
    let whole = (day_number(year, month, day) * 24 + hour) * 3600 + minute * 60;
    Some(whole as f64 + second)
}

/// Days since 1970-01-01 in the Gregorian calendar.
pub(super) fn day_number(year: i64, month: i64, day: i64) -> i64 {
    // Years that begin in March: the leap day is their last.
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let of_era = year.rem_euclid(400);
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_are_counted_over_leap_years() {
        let cases =
            [((1970, 1, 1), 0), ((2000, 2, 29), 11_016), ((2000, 3, 1), 11_017), ((2023, 11, 16), 19_677)];
        for ((year, month, day), days) in cases {
            assert_eq!(day_number(year, month, day), days, "{year}-{month}-{day}");
        }
    }
}
