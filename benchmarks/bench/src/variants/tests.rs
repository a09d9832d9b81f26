//! Scenarios of a few lines.

use super::*;

fn args(line: &[&str]) -> ScenarioArgs {
    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: ScenarioArgs,
    }
    Line::parse_from([&["x", "s.toml"], line].concat()).args
}

const TEXT: &str = "name = \"t\"\nworkload = \"online --poisson 4 --requests 5 --vocab 100 --context 64 \
                    --input-len 8 --output-len 4\"\nserver = \"{bin} serve --device {device} --port {port}\"\n\
                    switches = [\"--no-prefix-cache\", \"--linear plain\"]\ninert = [\"--no-ui\", \"--no-cuda-graphs\"]\n\
                    [[variant]]\nlabel = \"peer\"\nurl = \"http://127.0.0.1:1\"\nworkload = \"--rate 2,8\"\n\
                    [[variant]]\nlabel = \"again\"\ninert = true\n\
                    [set]\nbin = \"pinion\"\ndevice = \"cpu\"\n";

fn scenario(text: &str) -> Scenario {
    toml::from_str(text).expect("a scenario")
}

#[test]
fn a_scenario_becomes_commands() {
    let mut scenario = scenario(TEXT);
    scenario.set.insert("bin".to_owned(), "other/pinion".to_owned());
    let found = variants(&scenario, &args(&["--", "--requests", "7"])).expect("variants");
    let commands: Vec<_> = found.iter().map(|v| (v.label.as_str(), v.command.as_deref())).collect();
    let base = "other/pinion serve --device cpu --port {port}";
    let expected = [
        ("base", Some(base.to_owned())),
        ("-prefix-cache", Some(format!("{base} --no-prefix-cache"))),
        ("+linear plain", Some(format!("{base} --linear plain"))),
        ("peer", None),
        ("again", Some(base.to_owned())),
        ("-ui", Some(format!("{base} --no-ui"))),
        ("-cuda-graphs", Some(format!("{base} --no-cuda-graphs"))),
    ];
    assert_eq!(commands, expected.each_ref().map(|(label, command)| (*label, command.as_deref())));
    assert_eq!(found[0].workload.points().len(), 1);
    assert_eq!(found[3].workload.points().len(), 2);
    assert!(found[0].workload.notes()[0].starts_with("7 requests"), "the command line wins");
}

#[test]
fn what_cannot_act_is_marked_and_stays_with_only() {
    let inert = |scenario: &Scenario, line: &[&str]| -> Vec<(String, bool)> {
        let found = variants(scenario, &args(line)).expect("variants");
        found.into_iter().map(|variant| (variant.label, variant.inert)).collect()
    };
    let mut scenario = scenario(TEXT);
    let own = |rows: &[(&str, bool)]| rows.iter().map(|(l, i)| ((*l).to_owned(), *i)).collect::<Vec<_>>();
    let kept = own(&[
        ("base", false),
        ("-prefix-cache", false),
        ("again", true),
        ("-ui", true),
        ("-cuda-graphs", true),
    ]);
    assert_eq!(inert(&scenario, &["--only", "-prefix"]), kept);
    // On a GPU that one acts.
    scenario.set.insert("device".to_owned(), "cuda".to_owned());
    assert_eq!(inert(&scenario, &["--only", "-prefix"]), kept[..4]);
    assert!(inert(&scenario, &[]).contains(&("-cuda-graphs".to_owned(), false)));
    assert!(variants(&scenario, &args(&["--only", "nothing"])).is_err());
    scenario.switches.push("--no-ui".to_owned());
    let fault = variants(&scenario, &args(&[])).err().expect("one label stands for two");
    assert!(fault.contains("two variants have the label -ui"), "{fault}");
    // Each has files of its own.
    scenario.switches = vec!["--overlap".to_owned(), "--no-overlap".to_owned(), "--peer=1".to_owned()];
    assert!(variants(&scenario, &args(&[])).is_ok());
    scenario.switches.push("--no-peer".to_owned());
    let fault = variants(&scenario, &args(&[])).err().expect("-peer has the name of peer");
    assert!(fault.contains("the files of -peer and peer have one name"), "{fault}");
}

#[test]
fn what_follows_the_dashes_can_make_a_control_act() {
    let mut scenario = scenario(TEXT);
    scenario.inert.push("--strict-fields".to_owned());
    let strict = |line: &[&str]| {
        let found = variants(&scenario, &args(line)).expect("variants");
        found.into_iter().find(|variant| variant.label == "+strict-fields").map(|v| (v.inert, v.notes))
    };
    let (inert, notes) = strict(&[]).expect("it is there");
    assert!(
        inert && notes == ["+strict-fields cannot act: no request has a field that is unknown"],
        "{notes:?}"
    );
    let extra = ["--", "--extra-fields", "{\"cache\": true}"];
    let (inert, notes) = strict(&extra).expect("it is judged like others");
    assert!(
        !inert && notes[0].starts_with("+strict-fields acts on this workload: --extra-fields"),
        "{notes:?}"
    );
    assert_eq!(strict(&[&["--only", "-prefix"], &extra[..]].concat()), None, "and runs only if it is wanted");
}

#[test]
fn a_control_is_the_base_with_flags_that_are_known() {
    for (change, words) in [
        ("inert = [\"--no-prefix-cache\", ", "inert: --no-prefix-cache may act"),
        ("inert = [\"--no-resume\", ", "inert: --no-resume may act"),
    ] {
        let text =
            TEXT.replace("switches = [\"--no-prefix-cache\", ", "switches = [").replace("inert = [", change);
        let fault = variants(&scenario(&text), &args(&[])).err().expect("refused");
        assert!(fault.starts_with(words), "{fault}");
    }
    let text = TEXT.replace("label = \"peer\"", "label = \"peer\"\ninert = true");
    let fault = variants(&scenario(&text), &args(&[])).err().expect("refused");
    assert_eq!(fault, "peer: what cannot act is the base again, or the base with flags");
}

#[test]
fn a_variant_may_be_the_engine_alone() {
    let text = TEXT.replace("url = \"http://127.0.0.1:1\"", "engine = \"DIR --device {device}\"");
    let found = variants(&scenario(&text), &args(&[])).expect("variants");
    let flags = ["DIR", "--device", "cpu"].map(str::to_owned);
    assert_eq!((found[3].engine.as_deref(), &found[3].command), (Some(&flags[..]), &None));
    let load = found[3].workload.load(Some(found[3].workload.points()[0].expect("an online workload")), 0);
    let load = load.expect("requests");
    assert_eq!((load.measured.requests.len(), load.measured.streams, load.streamed), (5, None, true));
    assert_eq!((load.warm_up.requests.len(), load.warm_up.streams), (5, Some(1)));
    assert!(
        load.measured.requests.iter().all(|request| (request.ids.len(), request.output_tokens) == (8, 4))
    );
    for (flags, named) in [
        ("--extra-fields {}", "--extra-fields: an engine alone"),
        ("--cancel-share 0.5", "--cancel-share: an engine alone"),
    ] {
        let line: Vec<&str> = ["--"].into_iter().chain(flags.split(' ')).collect();
        let found = variants(&scenario(&text), &args(&line)).expect("variants");
        let fault = found[3].workload.load(found[3].workload.points()[0], 0).expect_err(flags);
        assert!(fault.starts_with(named), "{fault}");
    }
}

/// The batch that a service is sent and the one that an engine alone gets are the same.
#[test]
fn an_engine_alone_gets_the_ids_that_a_service_is_sent() {
    let words = words("offline --vocab 100 --num-prompts 3 --input-len 9 --output-len 2").expect("words");
    let Workload::Offline(batch) = parse_workload(&words).expect("a workload") else { panic!("a batch") };
    let load = batch.load(0).expect("requests");
    assert!(!load.streamed && load.measured.streams.is_none());
    let bodies = batch.bodies("m").expect("bodies");
    assert_eq!((bodies.len(), load.warm_up.requests.len()), (3, 3));
    for (body, request) in bodies.iter().zip(&load.measured.requests) {
        let body: serde_json::Value = serde_json::from_slice(body).expect("JSON");
        assert_eq!(body["prompt"], serde_json::json!(request.ids));
        assert_eq!(body["max_tokens"], serde_json::json!(request.output_tokens));
    }
    assert!(load.warm_up.requests[0].ids != load.measured.requests[0].ids, "a cache would find it");
}

#[test]
fn prompts_in_two_forms_are_refused() {
    let model = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/demo-model");
    let as_text = format!("--prompt-form text --tokenizer {}", model.display());
    let text = TEXT.replace("--rate 2,8", &as_text);
    let fault = variants(&scenario(&text), &args(&[])).err().expect("refused");
    assert!(fault.starts_with("base is sent prompts as ids, peer as text"), "{fault}");
    // The same for all is fine.
    assert!(
        variants(&scenario(&TEXT.replace("--input-len 8", &format!("--input-len 8 {as_text}"))), &args(&[]))
            .is_ok()
    );
}

#[test]
fn a_scenario_has_five_rounds_unless_it_says_otherwise() {
    assert_eq!(scenario(TEXT).rounds, 5);
    assert_eq!(scenario(&TEXT.replacen("workload =", "rounds = 3\nworkload =", 1)).rounds, 3);
}
