//! Models of the hub: what is pulled, from where, and what the service is called afterwards.

use crate::tree::{Tree, run_on};
use pinion_config::{Command, Machine, PullCommand, parse_pulled};
use std::ffi::OsString;

fn machine() -> Machine {
    Machine::uniform(4, 1)
}

fn pull(words: &[&str], env: &[(&str, &str)]) -> PullCommand {
    match run_on(&machine(), words, env) {
        Ok(Command::Pull(command) | Command::PullFirst(command)) => command,
        other => panic!("{words:?} is {other:?}"),
    }
}

#[test]
fn the_variables_of_other_programs_count_unless_an_option_says_otherwise() {
    let home = [("HOME", "/h")];
    let plain = pull(&["pull", "org/name"], &home);
    assert_eq!((plain.model.repository.as_str(), plain.model.revision.as_str()), ("org/name", "main"));
    assert_eq!((plain.endpoint.as_str(), plain.offline), ("https://huggingface.co", false));
    // (variables, flags, cache)
    type Case<'a> = (&'a [(&'a str, &'a str)], &'a [&'a str], &'a str);
    let cases: [Case; 6] = [
        (&home, &[], "/h/.cache/huggingface/hub"),
        (&[("HOME", "/h"), ("XDG_CACHE_HOME", "/x")], &[], "/x/huggingface/hub"),
        (&[("HF_HOME", "/f"), ("XDG_CACHE_HOME", "/x")], &[], "/f/hub"),
        (&[("HF_HOME", "/f"), ("HF_HUB_CACHE", "/c")], &[], "/c"),
        (&[("HF_HUB_CACHE", "/c"), ("PINION_HUB_CACHE", "/p")], &[], "/p"),
        (&[("PINION_HUB_CACHE", "/p")], &["--hub-cache", "/g"], "/g"),
    ];
    for (env, flags, cache) in cases {
        let command = pull(&[&["pull", "org/name"], flags].concat(), env);
        assert_eq!(command.cache.to_str(), Some(cache), "{env:?} {flags:?}");
    }
    let env = [("HOME", "/h"), ("HF_ENDPOINT", "http://mirror:1/hub/"), ("HF_HUB_OFFLINE", "yes")];
    let other = pull(&["pull", "org/name@v1", "--no-hub-offline"], &env);
    assert_eq!((other.endpoint.as_str(), other.offline), ("http://mirror:1/hub", false));
    assert_eq!(other.model.revision, "v1");
    assert!(pull(&["pull", "org/name"], &env).offline);
}

#[test]
fn a_token_comes_from_a_variable_or_a_file_and_is_never_shown() {
    let home = Tree::new();
    let text = home.text();
    let token = |env: &[(&str, &str)]| {
        let command = pull(&["pull", "org/name"], &[env, &[("HF_HOME", &text)]].concat());
        assert!(!format!("{command:?}").contains("hf_"), "{command:?}");
        command.token.map(|token| token.secret().to_owned())
    };
    assert_eq!(token(&[]), None);
    home.file("token", "hf_file\n");
    let other = home.file("other", "hf_other");
    assert_eq!(token(&[]).as_deref(), Some("hf_file"));
    assert_eq!(token(&[("HF_TOKEN_PATH", &other)]).as_deref(), Some("hf_other"));
    assert_eq!(token(&[("HF_TOKEN", "hf_variable")]).as_deref(), Some("hf_variable"));
    let env = [("HF_HOME", &text[..]), ("HF_TOKEN", "hf_a secret")];
    let faults = run_on(&machine(), &["pull", "org/name"], &env).unwrap_err().to_string();
    assert!(faults.starts_with("HF_TOKEN: ") && !faults.contains("secret"), "{faults}");
}

#[test]
fn a_folder_goes_before_the_hub_and_faults_before_the_download() {
    let env = [("HOME", "/h")];
    let model = Tree::gpt2();
    assert!(matches!(run_on(&machine(), &["serve", &model.text()], &env), Ok(Command::Serve(_))));
    assert_eq!(pull(&["serve", "org/name", "--port", "1"], &env).model.repository, "org/name");
    let faults = run_on(&machine(), &["serve", "org/name", "--max-num-seqs", "900"], &env).unwrap_err();
    assert!(faults.to_string().contains("max-num-seqs"), "{faults}");
    assert!(matches!(
        run_on(&machine(), &["config", "show", "--model", "org/name"], &env),
        Ok(Command::ShowConfig(_))
    ));
    for words in [&["pull"][..], &["pull", "gpt2"], &["pull", "./org/name"], &["pull", "org/name", "more"]] {
        assert!(run_on(&machine(), words, &env).is_err(), "{words:?}");
    }
}

#[test]
fn a_pulled_model_is_served_under_its_repositorys_name() {
    let model = Tree::gpt2();
    let served = |flags: &[&str]| {
        let words = [&["serve", "org/name@v1"], flags].concat();
        let args = words.into_iter().map(OsString::from);
        match parse_pulled(args, [], &machine(), Some(model.path())) {
            Ok(Command::Serve(config)) => (config.served_model_name.clone(), config.model_dir.clone()),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(served(&[]), ("org/name".to_owned(), model.path().to_owned()));
    assert_eq!(served(&["--served-model-name", "mine"]).0, "mine");
}
