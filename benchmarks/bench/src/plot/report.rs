//! The report: one HTML file with machine, commit and main result first, then every picture inline, the tables and the
//! scenario. It loads nothing.

use super::caption::caption;
use super::data::Data;
use super::lead;
use super::svg::{DARK_PAGE, dark_style};
use crate::ablate;
use crate::machine::Origin;
use crate::results::{ResultFile, narrow};
use crate::table::number;
use std::fmt::Write;

const STYLE: &str = "body{font:15px/1.5 system-ui,sans-serif;max-width:1000px;margin:2em auto;padding:0 1em;color:#222}\
h1{font-size:1.5em}h2{font-size:1.2em;margin-top:2em}table{border-collapse:collapse;font-size:13px;margin:1em 0;display:block;overflow-x:auto}\
td,th{border-bottom:1px solid #ddd;padding:.3em .6em;text-align:right;white-space:nowrap}td:first-child,th:first-child{text-align:left}\
pre{background:#f6f6f6;padding:.8em;overflow-x:auto;font-size:12px}svg{max-width:100%;height:auto}dt{font-weight:600}dd{margin:0 0 .4em 1em}\
figure{margin:1.5em 0}figcaption,.lead{color:#555;font-size:14px}nav ul{columns:2;padding-left:1.2em}";

/// The rules for a dark page.
fn dark() -> String {
    format!(
        "@media (prefers-color-scheme:dark){{body{{background:{DARK_PAGE};color:#dcdcdc}}a{{color:#8ab4f8}}td,th{{border-color:#3a3e45}}\
         pre{{background:#22252b}}figcaption,.lead{{color:#a8adb5}}{}}}",
        dark_style()
    )
}

pub(super) fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// A Markdown table of ours as HTML.
pub(super) fn html_table(markdown: &str) -> String {
    let mut out = "<table>".to_owned();
    for (index, line) in markdown.lines().filter(|line| line.starts_with('|')).enumerate() {
        if index == 1 {
            continue; // the rule
        }
        let tag = if index == 0 { "th" } else { "td" };
        out.push_str("<tr>");
        for cell in line.trim_matches('|').split('|') {
            let _ = write!(out, "<{tag}>{}</{tag}>", escaped(cell.trim()));
        }
        out.push_str("</tr>");
    }
    out.push_str("</table>\n");
    out
}

/// Puts the report together; `pictures` are (title, SVG).
pub(super) fn html(
    title: &str,
    files: &[(String, ResultFile)],
    data: &Data,
    pictures: &[(String, String)],
) -> String {
    let title = escaped(title);
    let mut out = format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"color-scheme\" content=\"light dark\"><title>{title}</title><style>{STYLE}{}</style></head>\n\
         <body><h1>{title}</h1>\n",
        dark()
    );
    lead::write(&mut out, files, data);
    contents(&mut out, files, pictures);
    for (name, picture) in pictures {
        let caption = escaped(&caption(name, data));
        let _ = writeln!(out, "<figure id=\"{name}\">{picture}<figcaption>{caption}</figcaption></figure>");
    }
    for (index, (name, file)) in files.iter().enumerate() {
        let _ = writeln!(out, "<h2 id=\"file-{index}\">{}</h2>", escaped(name));
        section(&mut out, file);
    }
    out.push_str("</body></html>\n");
    out
}

/// Links to the pictures and to what was measured.
fn contents(out: &mut String, files: &[(String, ResultFile)], pictures: &[(String, String)]) {
    let pictures = pictures.iter().map(|(name, _)| (name.clone(), lead::title(name)));
    let files = files.iter().enumerate().map(|(index, (name, _))| (format!("file-{index}"), escaped(name)));
    out.push_str("<nav aria-label=\"Contents\"><ul>");
    for (id, text) in pictures.chain(files) {
        let _ = write!(out, "<li><a href=\"#{id}\">{text}</a></li>");
    }
    out.push_str("</ul></nav>\n");
}

/// Tables of ours, one behind another, with the lines between them as headings.
fn html_tables(text: &str) -> String {
    let parts = text.split("\n\n").filter(|part| !part.trim().is_empty());
    let html = |part: &str| match part.trim() {
        part if part.starts_with('|') => html_table(part),
        part if part.starts_with(ablate::SCALE_HEADING) => format!("<h3>{}</h3>", escaped(part)),
        part => format!("<p>{}</p>", escaped(part).replace('\n', "<br>")),
    };
    parts.map(html).collect()
}

fn section(out: &mut String, file: &ResultFile) {
    let hardware = &file.origin.hardware;
    let facts = [
        ("what", file.kind.clone()),
        ("when", file.origin.time_utc.clone()),
        ("tool and commit", tool(&file.origin)),
        (
            "machine",
            format!(
                "{}, {} logical CPUs, {} GiB, Linux {}, load average before: {}",
                hardware.cpu,
                hardware.logical_cpus,
                hardware.memory_gib,
                hardware.kernel,
                hardware.load_before
            ),
        ),
        ("seed", file.seed.to_string()),
        ("command", file.origin.command.join(" ")),
        ("servers", servers(file)),
    ];
    out.push_str("<dl>");
    for (term, text) in facts {
        let _ = write!(out, "<dt>{term}</dt><dd>{}</dd>", escaped(&text));
    }
    out.push_str("</dl>\n");
    for note in file.notes.iter().chain(&file.lacks()) {
        let _ = writeln!(out, "<p>{}</p>", escaped(note));
    }
    if file.compared.is_empty() {
        out.push_str(&html_tables(&narrow(&file.runs)));
    } else {
        out.push_str(&html_tables(&ablate::tables(&file.compared, &file.base)));
        let runs = html_tables(&narrow(&file.runs));
        let _ = write!(out, "<details><summary>every run</summary>{runs}</details>");
    }
    let lag = file.runs.iter().map(|run| run.figures.send_lag_ms.max).fold(0.0, f64::max);
    let share = file.runs.iter().map(|run| run.figures.client.cpu_share_of_one_core).fold(0.0, f64::max);
    let _ = writeln!(
        out,
        "<p>The client was late by at most {} ms and used at most {} of one core.</p>",
        number(lag),
        number(share)
    );
    let _ = writeln!(out, "<h3>Scenario</h3><pre>{}</pre>", escaped(&file.scenario));
}

/// Outside of a checkout there is no commit.
fn tool(origin: &Origin) -> String {
    let facts = [origin.tool.as_str(), origin.commit.as_str()];
    facts.into_iter().filter(|fact| !fact.is_empty()).collect::<Vec<_>>().join(", ")
}

fn servers(file: &ResultFile) -> String {
    let described = file.runs.iter().map(|run| {
        let how = run.server.command.clone().unwrap_or_else(|| run.server.url.clone());
        // The port is another one in each run.
        let version = run.server.version.as_ref().map_or(String::new(), |version| format!(" {version}"));
        format!("{} ({}; {}{version})", run.label, how, run.cache_state)
    });
    let mut first: Vec<String> = Vec::new();
    let mut labels: Vec<&str> = Vec::new();
    for (text, run) in described.zip(&file.runs) {
        if !labels.contains(&run.label.as_str()) {
            labels.push(&run.label);
            first.push(text);
        }
    }
    first.join("; ")
}
