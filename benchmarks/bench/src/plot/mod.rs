//! `plot`: pictures and a report from result files. Every picture is SVG made here ([`svg`], [`scale`], [`panel`] are
//! the drawing board), and PNG made from that.

mod caption;
mod data;
mod effects;
mod latency;
mod lead;
mod lines;
mod panel;
mod report;
mod scale;
mod svg;
mod throughput;

use crate::results::{ResultFile, write_whole};
use clap::Args;
use data::Data;
use std::path::{Path, PathBuf};

#[derive(Args, Clone, Debug)]
pub(crate) struct PlotArgs {
    /// Result files (online.json, offline.json, compare.json, ablate.json) or folders that hold them. Series of the
    /// same label are one; `--label` of a measurement keeps servers apart.
    #[arg(required = true)]
    results: Vec<PathBuf>,
    /// Folder for pictures and report [default: plots/ beside the first result].
    #[arg(long)]
    out: Option<PathBuf>,
    /// Title of the report.
    #[arg(long, default_value = "Pinion benchmark")]
    title: String,
    /// SVG and report only.
    #[arg(long)]
    no_png: bool,
}

/// Names of the result files that a folder may hold.
const NAMES: [&str; 4] = ["online.json", "offline.json", "compare.json", "ablate.json"];

fn read(paths: &[PathBuf]) -> Result<Vec<(String, ResultFile)>, String> {
    let mut files = Vec::new();
    for path in paths {
        let found: Vec<PathBuf> = if path.is_dir() {
            NAMES.iter().map(|name| path.join(name)).filter(|path| path.is_file()).collect()
        } else {
            vec![path.clone()]
        };
        if found.is_empty() {
            return Err(format!("{}: none of {} is there", path.display(), NAMES.join(", ")));
        }
        for path in found {
            files.push((path.display().to_string(), ResultFile::read(&path)?));
        }
    }
    Ok(files)
}

/// (file name, SVG) of everything that these results can show.
fn pictures(data: &Data) -> Vec<(String, String)> {
    let mut found = vec![
        ("latency".to_owned(), latency::picture(data)),
        ("throughput".to_owned(), throughput::bars(&data.online, "Output tokens per second, online")),
        ("offline".to_owned(), throughput::bars(&data.offline, "Output tokens per second, one batch")),
        ("stages".to_owned(), throughput::stages(data)),
        ("gaps".to_owned(), throughput::gap_histogram(data)),
    ];
    let metrics = crate::ablate::distinct(data.compared.iter().map(|row| row.metric.as_str()));
    found.extend(metrics.into_iter().map(|name| (format!("ratio-{name}"), effects::picture(data, name))));
    found.into_iter().filter_map(|(name, picture)| Some((name, picture?))).collect()
}

pub(crate) fn run(args: &PlotArgs) -> Result<(), String> {
    let files = read(&args.results)?;
    let out = args.out.clone().unwrap_or_else(|| {
        let first = &args.results[0];
        let folder = if first.is_dir() { first.as_path() } else { first.parent().unwrap_or(Path::new(".")) };
        folder.join("plots")
    });
    std::fs::create_dir_all(&out).map_err(|error| format!("{}: {error}", out.display()))?;
    let data = Data::of(&files.iter().map(|(_, file)| file.clone()).collect::<Vec<_>>());
    let pictures = pictures(&data);
    if pictures.is_empty() {
        return Err("nothing was measured in these results".to_owned());
    }
    for (name, picture) in &pictures {
        write_whole(&out.join(format!("{name}.svg")), picture.as_bytes())?;
        if !args.no_png {
            write_whole(&out.join(format!("{name}.png")), &svg::png(picture)?)?;
        }
    }
    let report = report::html(&args.title, &files, &data, &pictures);
    write_whole(&out.join("report.html"), report.as_bytes())?;
    println!("{} pictures and report.html in {}", pictures.len(), out.display());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figures::Spread;
    use crate::results::RunRecord;

    fn run(label: &str, round: u32, scale: f64) -> RunRecord {
        let ms = |p50: f64| Spread {
            count: 1000,
            mean: p50,
            p50,
            p90: p50 * 2.0,
            p99: p50 * 3.0,
            p999: p50 * 4.0,
            max: p50 * 5.0,
        };
        let mut run = RunRecord {
            label: label.to_owned(),
            round,
            scale,
            offered_per_s: 4.0 / scale,
            ..RunRecord::default()
        };
        run.server.model = if scale == 0.4 { "tiny" } else { "gpt2" }.to_owned();
        run.figures.ttft_ms = ms(40.0 / scale);
        run.figures.tpot_ms = ms(8.0);
        run.figures.itl_ms = ms(7.0);
        run.figures.e2e_ms = ms(900.0 / scale);
        run.figures.output_tokens_per_s = 200.0 / scale + f64::from(round);
        run.gap_histogram_ms = vec![(1.0, 5), (1.122, 900), (10.0, 2)];
        run.stages_ms = vec![("queue".to_owned(), 3.0), ("prefill & <more>".to_owned(), 30.0)];
        run
    }

    fn result() -> ResultFile {
        let mut runs = Vec::new();
        for label in ["base", "-x <off> & \"quoted\""] {
            for round in 0..3 {
                runs.extend([0.4, 0.8, 1.6].map(|scale| run(label, round, scale)));
            }
        }
        let mut batch = run("base", 0, 1.0);
        batch.scale = 0.0;
        batch.figures.ttft_ms = Spread::default();
        let scenario = "name = \"<t>\"".to_owned();
        let mut file = ResultFile {
            kind: "ablate".to_owned(),
            scenario,
            base: "base".to_owned(),
            runs,
            ..ResultFile::default()
        };
        file.compare(&[]);
        file.runs.push(batch);
        file
    }

    #[test]
    fn every_picture_is_well_formed_and_can_be_drawn() {
        let pictures = pictures(&Data::of(&[result()]));
        let names: Vec<&str> = pictures.iter().map(|(name, _)| name.as_str()).collect();
        for name in ["latency", "throughput", "offline", "stages", "gaps", "ratio-e2e_p99_ms"] {
            assert!(names.contains(&name), "{name} is missing in {names:?}");
        }
        for (name, picture) in &pictures {
            assert!(!picture.contains("NaN") && !picture.contains("inf"), "{name}");
            // The drawing library is strict about XML, about SVG's attributes less so.
            let tree = resvg::usvg::Tree::from_str(picture, &resvg::usvg::Options::default());
            let tree = tree.unwrap_or_else(|error| panic!("{name}: {error}"));
            assert!(tree.root().has_children(), "{name} is empty");
        }
    }

    #[test]
    fn variants_do_not_crowd_servers_out_and_stages_stand_in_order() {
        let mut online = ResultFile { kind: "online".to_owned(), ..ResultFile::default() };
        online.runs.push(run("server", 0, 0.4));
        online.runs[0].stages_ms =
            ["decode", "write", "admission"].map(|name| (name.to_owned(), 1.0)).to_vec();
        let data = Data::of(&[result(), online]);
        let labels: Vec<&str> = data.online.iter().map(|series| series.label.as_str()).collect();
        assert_eq!(labels, ["server"], "an ablation has its ratios");
        assert!(!data.compared.is_empty());
        let stages: Vec<&str> =
            data.online[0].cells[0].stages_ms.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(stages, ["admission", "decode", "write"]);
        let mut many = ResultFile { kind: "ablate".to_owned(), ..ResultFile::default() };
        many.runs = (0..40).map(|index| run(&format!("variant {index}"), 0, 1.0)).collect();
        assert_eq!(Data::of(&[many]).online.len(), svg::SERIES_MAX, "each has a colour of its own");
    }

    #[test]
    fn nothing_is_drawn_outside_of_its_picture() {
        for (name, picture) in pictures(&Data::of(&[result()])) {
            let attribute = |element: &str, name: &str| {
                let at = element.find(&format!(" {name}=\""))? + name.len() + 3;
                element[at..].split('"').next()?.parse::<f64>().ok()
            };
            let head = picture.lines().next().expect("a head");
            let (width, height) =
                (attribute(head, "width").expect("width"), attribute(head, "height").expect("height"));
            for element in picture.lines().skip(1) {
                for (axis, most) in [
                    ("x", width),
                    ("x1", width),
                    ("x2", width),
                    ("cx", width),
                    ("y", height),
                    ("y1", height),
                    ("y2", height),
                    ("cy", height),
                ] {
                    if let Some(value) = attribute(element, axis) {
                        assert!((0.0..=most).contains(&value), "{name}: {element}");
                    }
                }
            }
        }
    }

    /// Variants whose effects are in no order.
    fn compared(rounds: u32) -> ResultFile {
        let variants = [("base", 1.0), ("+small", 1.05), ("+none", 1.0), ("+halves", 0.5), ("+more", 1.6)];
        let inert = [("+inert a", 1.01), ("+inert b", 0.99), ("+inert c", 1.0)];
        let mut file =
            ResultFile { kind: "ablate".to_owned(), base: "base".to_owned(), ..ResultFile::default() };
        for round in 0..rounds {
            for (label, factor) in variants.into_iter().chain(inert) {
                let mut run = RunRecord { label: label.to_owned(), round, ..RunRecord::default() };
                run.figures.output_tokens_per_s = 100.0 * factor;
                file.runs.push(run);
            }
        }
        file.inert = inert.map(|(label, _)| label.to_owned()).to_vec();
        file.compare(&["output_tok_s".to_owned()]);
        file
    }

    #[test]
    fn the_strongest_effect_is_first_in_pictures_and_lead() {
        let file = compared(5);
        let data = Data::of(std::slice::from_ref(&file));
        let picture = effects::picture(&data, "output_tok_s").expect("a picture");
        let order = |text: &str, names: &[&str]| {
            let places: Vec<_> = names.iter().map(|name| text.find(&format!(">{name}<"))).collect();
            assert!(places.iter().all(Option::is_some) && places.is_sorted(), "{names:?}: {places:?}");
        };
        order(&picture, &["+halves", "+more", "+small", "+none", "+inert b (cannot act)"]);
        let text = report::html("t", &[("ablate.json".to_owned(), file)], &data, &[]);
        let lead = text.split("<h2>Differences</h2>").nth(1).expect("a lead");
        order(lead.split("</table>").next().expect("a table"), &["+halves", "+more", "+small"]);
        assert!(lead.contains("3 of 4 comparisons") && !lead.contains("no verdict"));
    }

    #[test]
    fn the_noise_is_drawn_and_what_is_off_the_scale_is_marked() {
        let file = compared(5);
        let picture = effects::picture(&Data::of(&[file]), "output_tok_s").expect("a picture");
        assert!(picture.contains("noise: ×0.990–1.010, from 3 variants that cannot act"), "{picture}");
        // A half is far beyond the others, and 1.05 is not.
        assert!(picture.contains("×0.500 worse, off the scale<"), "{picture}");
        assert!(picture.contains(">×1.050 better<"), "{picture}");
        let few = compared(3);
        let picture = effects::picture(&Data::of(&[few]), "output_tok_s").expect("a picture");
        assert!(
            !picture.contains("noise: ") && !picture.contains(" worse"),
            "no band, no verdict: {picture}"
        );
    }

    #[test]
    fn there_is_one_latency_figure_with_bars_where_there_is_one_scale() {
        let names = |file: &ResultFile| {
            let found = pictures(&Data::of(std::slice::from_ref(file)));
            found.into_iter().filter(|(name, _)| name.starts_with("latency")).collect::<Vec<_>>()
        };
        let mut file = result();
        let over_scales = names(&file);
        assert_eq!(over_scales.len(), 1);
        assert!(over_scales[0].1.contains("Latency by load"));
        file.runs.retain(|run| run.scale == 0.8);
        let alone = names(&file);
        assert!(alone.len() == 1 && alone[0].1.contains("bar to p50"), "{alone:?}");
        let title = |picture: &str| picture.contains("p99 150 ms");
        assert!(title(&alone[0].1));
        // With too few requests neither draws a p99.
        for run in &mut file.runs {
            run.figures.ttft_ms.count = 999;
        }
        let few = names(&file);
        assert!(!title(&few[0].1) && few[0].1.contains("p90 100 ms, p99 - ms"), "{few:?}");
    }

    #[test]
    fn two_files_with_prompts_in_two_forms_support_no_comparison() {
        let file = |label: &str, form: &str| {
            let mut run = run(label, 0, 1.0);
            (run.prompt_form, run.server.version) = (form.to_owned(), Some("1".into()));
            (
                label.to_owned(),
                ResultFile { kind: "online".to_owned(), runs: vec![run], ..ResultFile::default() },
            )
        };
        let lead = |files: &[(String, ResultFile)]| {
            let data = Data::of(&files.iter().map(|(_, file)| file.clone()).collect::<Vec<_>>());
            report::html("t", files, &data, &[])
        };
        assert!(!lead(&[file("a", "ids"), file("b", "ids")]).contains("support no comparison"));
        assert!(lead(&[file("a", "ids"), file("b", "text")]).contains("support no comparison"));
    }

    #[test]
    fn captions_say_what_to_see() {
        let caption = |name: &str, file: ResultFile| caption::caption(name, &Data::of(&[file]));
        assert!(caption("latency", result()).contains("scale 0.400, the median first token takes 100 ms"));
        assert!(caption("stages", result()).contains("91 % of it is prefill"));
        let judged = caption("ratio-output_tok_s", compared(5));
        assert!(judged.contains("Of 4 variants 2 are better than the base and 1 worse"), "{judged}");
        let few = caption("ratio-output_tok_s", compared(3));
        assert!(few.contains("No variant is called better or worse: no verdict: 3 of the 5"), "{few}");
    }

    #[test]
    fn a_report_of_three_rounds_says_that_it_tells_no_difference() {
        let file = compared(3);
        let data = Data::of(std::slice::from_ref(&file));
        let text = report::html("t", &[("ablate.json".to_owned(), file)], &data, &[]);
        assert!(text.contains("None of 4 comparisons with base has a verdict"), "{text}");
        assert!(text.contains("4 comparisons: no verdict: 3 of the 5 paired rounds that it takes"), "{text}");
    }

    #[test]
    fn the_report_stands_alone() {
        let file = result();
        let data = Data::of(std::slice::from_ref(&file));
        let text = report::html("t & u", &[("ablate.json".to_owned(), file)], &data, &pictures(&data));
        // The main result, then what a picture shows.
        let at = |part: &str| text.find(part).unwrap_or_else(|| panic!("no {part:?} in the report"));
        assert!(at("<h2>Main result</h2>") < at("<svg ") && at("<h2>Differences</h2>") < at("<svg "));
        assert!(text.contains("<td>not known</td>"), "neither version nor form of the prompts was recorded");
        assert!(text.contains("<figcaption>") && text.contains("prefers-color-scheme:dark"));
        assert!(at("model tiny, gpt2<br>") < at("<h2>Main result</h2>"));
        let links: Vec<&str> =
            text.split("href=\"").skip(1).filter_map(|rest| rest.split('"').next()).collect();
        assert_eq!(links.len(), pictures(&data).len() + 1, "{links:?}");
        for link in links {
            let id = link.strip_prefix('#').expect("nothing outside of the report");
            assert!(text.contains(&format!(" id=\"{id}\"")), "{id}");
        }
        assert!(!text.contains("href=\"#\""));
        assert!(!text.contains(", </dd>"), "a fact that is empty leaves no comma");
        assert!(
            text.contains("<svg ") && text.contains("&lt;t&gt;") && text.contains("<title>t &amp; u</title>")
        );
        for outside in ["src=", "@import", "url("] {
            assert!(!text.contains(outside), "{outside}");
        }
    }
}
