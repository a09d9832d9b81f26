//! Options that hold lists, and the one of them that is a secret.

use crate::tree::{Tree, run_on, serve, serve_result};
use pinion_config::{Command, Config, FairShare, Machine};

fn machine() -> Machine {
    Machine::uniform(4, 1)
}

/// The config has these keys, in this order, and no other.
fn has_keys(config: &Config, keys: &[&str]) -> bool {
    let places = keys.iter().map(|key| config.api_keys.place(key.as_bytes()));
    config.api_keys.count() == keys.len() && places.eq((0..keys.len()).map(Some))
}

#[test]
fn flags_add_up_and_a_later_source_replaces_the_list() {
    let model = Tree::gpt2();
    let file = model.file("pinion.toml", "api-key = [\"f1\", \"f2\"]\ncors-origin = \"https://f\"\n");
    // (flags, environment, keys, origins)
    type Case<'a> = (Vec<&'a str>, Vec<(&'a str, &'a str)>, Vec<&'a str>, Vec<&'a str>);
    let cases: Vec<Case> = vec![
        (vec![], vec![], vec![], vec![]),
        (vec!["--config", &file], vec![], vec!["f1", "f2"], vec!["https://f"]),
        (vec!["--config", &file], vec![("PINION_API_KEY", "e1,e2")], vec!["e1", "e2"], vec!["https://f"]),
        (
            vec!["--api-key", "a", "--cors-origin=*", "--api-key=b, c", "--cors-origin", "http://x:1/"],
            vec![("PINION_API_KEY", "e")],
            vec!["a", "b", "c"],
            vec!["*", "http://x:1"],
        ),
    ];
    for (args, env, expected, origins) in cases {
        let config = serve(&machine(), &model, &args, &env);
        assert!(has_keys(&config, expected.as_slice()), "{args:?} {env:?}");
        assert_eq!(config.cors_origins, origins, "{args:?} {env:?}");
    }
}

#[test]
fn allowed_hosts_are_a_list() {
    let model = Tree::gpt2();
    let file = model.file("pinion.toml", "allowed-hosts = [\"a.example\", \"*.b.example\"]\n");
    for (args, env, hosts) in [
        (vec![], vec![], vec![]),
        (vec!["--config", &file], vec![], vec!["a.example", "*.b.example"]),
        (vec!["--config", &file], vec![("PINION_ALLOWED_HOSTS", "C.example")], vec!["c.example"]),
        (vec!["--allowed-hosts", "a,b", "--allowed-hosts=[::2]"], vec![], vec!["a", "b", "::2"]),
    ] {
        let config = serve(&machine(), &model, &args, &env);
        assert_eq!(config.allowed_hosts, hosts, "{args:?} {env:?}");
    }
    let faults = serve_result(&machine(), &model, &["--allowed-hosts", "a:80"], &[]).unwrap_err();
    assert!(faults.to_string().contains("`a:80` is no host name"), "{faults}");
}

#[test]
fn a_key_is_never_shown() {
    const SECRET: &str = "sk-do-not-show";
    let model = Tree::gpt2();
    let file = model.file("keys.toml", &format!("api-key = \"{SECRET}\"\n"));
    let folder = model.text();
    for (args, env, origin) in [
        (vec!["--api-key", SECRET], vec![], "--api-key"),
        (vec![], vec![("PINION_API_KEY", SECRET)], "PINION_API_KEY"),
        (vec!["--config", file.as_str()], vec![], "keys.toml:api-key"),
    ] {
        let all = [&["config", "show", folder.as_str()][..], &args].concat();
        let Ok(Command::ShowConfig(text)) = run_on(&machine(), &all, &env) else { panic!("{args:?}") };
        let line = text.lines().find(|line| line.starts_with("api-key")).unwrap_or_default();
        assert!(line.contains("1 key, hidden") && line.contains(origin), "{line}");
        let config = serve(&machine(), &model, &args, &env);
        assert!(has_keys(&config, &[SECRET]));
        for shown in [text, format!("{config:?}")] {
            assert!(!shown.contains(SECRET), "{shown}");
        }
    }
    let bad = format!("{SECRET} {SECRET}");
    let nested = model.file("bad.toml", &format!("api-key = {{ a = \"{SECRET}\" }}\n"));
    for args in [vec!["--api-key", &bad], vec!["--api-key=sk,,x"], vec!["--config", nested.as_str()]] {
        let faults = serve_result(&machine(), &model, &args, &[("PINION_API_KEY", &bad)]).unwrap_err();
        assert!(!faults.to_string().contains("sk"), "{faults}");
    }
}

#[test]
fn fair_shares_are_off_by_key_or_by_user_and_each_key_has_one_weight() {
    let (machine, model) = (Machine::uniform(4, 1), Tree::gpt2());
    let keys = "--api-key=sk-a,sk-b";
    for (args, by, weights) in [
        (&[][..], FairShare::Off, &[][..]),
        (&["--fair-share=key", keys], FairShare::Key, &[]),
        (&["--fair-share", "user"], FairShare::User, &[]),
        (&["--fair-share=key", keys, "--api-key-weights=1, 1000"], FairShare::Key, &[1, 1000]),
    ] {
        let config = serve(&machine, &model, args, &[]);
        assert_eq!((config.fairness.by, &config.fairness.key_weights[..]), (by, weights), "{args:?}");
    }
    for (weights, reason) in [
        ("--api-key-weights=1", "1 weights, and there are 2"),
        ("--api-key-weights=1,0", "no whole number from 1 to 1000"),
        ("--api-key-weights=1,1001", "no whole number from 1 to 1000"),
        ("--api-key-weights=1,x", "no whole number from 1 to 1000"),
        ("--admission=priority", "works with each"),
    ] {
        let faults = serve_result(&machine, &model, &[keys, weights], &[]).expect_err(weights).to_string();
        assert!(faults.contains(reason), "{weights}: {faults}");
    }
}
