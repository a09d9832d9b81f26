//! Tables in Markdown with columns of even width, for the terminal and for README files alike.

/// Renders a table; the first column is left-aligned, the others right-aligned.
pub(crate) fn render(header: &[&str], rows: &[Vec<String>]) -> String {
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count());
        cells.chain([header[column].chars().count(), 3]).max().unwrap_or(3)
    };
    let widths: Vec<usize> = (0..header.len()).map(width).collect();
    let line = |cells: &[&str]| {
        let padded = widths.iter().enumerate().map(|(column, &width)| {
            let cell = cells.get(column).copied().unwrap_or_default();
            if column == 0 { format!("{cell:<width$}") } else { format!("{cell:>width$}") }
        });
        format!("| {} |\n", padded.collect::<Vec<_>>().join(" | "))
    };
    let rule = |(column, &width): (usize, &usize)| {
        if column == 0 { "-".repeat(width + 2) } else { format!("{}:", "-".repeat(width + 1)) }
    };
    let rules: Vec<String> = widths.iter().enumerate().map(rule).collect();
    let mut out = line(header);
    out.push_str(&format!("|{}|\n", rules.join("|")));
    for row in rows {
        out.push_str(&line(&row.iter().map(String::as_str).collect::<Vec<_>>()));
    }
    out
}

/// The table with `note` below it where a cell of it, or a part of one, is left out.
pub(crate) fn noted(table: String, note: &str) -> String {
    let cells = table.lines().skip(2).flat_map(|line| line.split(['|', '/']));
    if cells.map(str::trim).any(|cell| cell == "-") { format!("{table}\n{note}\n") } else { table }
}

/// A number with about three digits, as people write it.
pub(crate) fn number(value: f64) -> String {
    match value.abs() {
        _ if !value.is_finite() => "–".to_owned(),
        v if v >= 100.0 => format!("{value:.0}"),
        v if v >= 10.0 => format!("{value:.1}"),
        v if v >= 1.0 => format!("{value:.2}"),
        v if v >= 0.001 || v == 0.0 => format!("{value:.3}"),
        _ => format!("{value:.1e}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let rows = [vec!["online".to_owned(), "1.5".to_owned()], vec!["x".to_owned(), "1234".to_owned()]];
        let expected = "| what   | ms   |\n|--------|-----:|\n".replace("ms  ", "  ms");
        assert!(render(&["what", "ms"], &rows).starts_with(&expected), "{}", render(&["what", "ms"], &rows));
        assert!(render(&["what", "ms"], &rows).ends_with("| x      | 1234 |\n"));
    }

    #[test]
    fn a_note_stands_below_a_table_that_lacks_a_cell() {
        let table = |cell: &str| render(&["what", "ms"], &[vec!["a-b".to_owned(), cell.to_owned()]]);
        assert_eq!(noted(table("1 / 2"), "why"), table("1 / 2"));
        for cell in ["-", "1 / -", "- / - / 3"] {
            assert_eq!(noted(table(cell), "why"), format!("{}\nwhy\n", table(cell)));
        }
    }

    #[test]
    fn numbers_keep_three_digits() {
        let cases = [
            (1234.5, "1234"),
            (56.78, "56.8"),
            (1.234, "1.23"),
            (0.0123, "0.012"),
            (0.0, "0.000"),
            (2e-5, "2.0e-5"),
        ];
        for (value, text) in cases {
            assert_eq!(number(value), text);
        }
    }
}
