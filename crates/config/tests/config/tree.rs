//! Made-up folders on disk, removed at the end of their test.

use pinion_config::{Command, Config, Faults, Machine, parse};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

/// A folder of this test alone.
pub(crate) struct Tree(PathBuf);

impl Tree {
    pub(crate) fn new() -> Tree {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let name = format!("pinion-config-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path).expect("a temporary folder");
        Tree(path)
    }

    /// A servable folder of GPT-2's shape.
    pub(crate) fn gpt2() -> Tree {
        let tree = Tree::new();
        tree.file("config.json", GPT2);
        tree.file("tokenizer.json", "{}");
        tree.file("model.safetensors", "weights");
        tree
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    pub(crate) fn text(&self) -> String {
        self.0.display().to_string()
    }

    pub(crate) fn file(&self, name: &str, text: &str) -> String {
        let path = self.0.join(name);
        std::fs::create_dir_all(path.parent().expect("a file has a folder")).expect("a folder");
        std::fs::write(&path, text).expect("a file");
        path.display().to_string()
    }

    pub(crate) fn remove(&self, name: &str) {
        std::fs::remove_file(self.0.join(name)).expect("a file to remove");
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

pub(crate) const GPT2: &str = r#"{"model_type":"gpt2","n_positions":1024,"vocab_size":50257,"n_layer":12,"n_head":12,
    "n_embd":768,"eos_token_id":50256}"#;

/// What `pinion <args>` with these variables comes to on this machine.
pub(crate) fn run_on(machine: &Machine, args: &[&str], env: &[(&str, &str)]) -> Result<Command, Faults> {
    let args: Vec<OsString> = args.iter().map(OsString::from).collect();
    let env: Vec<(OsString, OsString)> = env.iter().map(|(n, v)| (n.into(), v.into())).collect();
    parse(args, env, machine)
}

/// A `serve` of this folder that must work.
pub(crate) fn serve(machine: &Machine, model: &Tree, args: &[&str], env: &[(&str, &str)]) -> Config {
    match serve_result(machine, model, args, env) {
        Ok(config) => config,
        Err(faults) => panic!("{args:?} {env:?}:\n{faults}"),
    }
}

/// A `serve` of this folder.
pub(crate) fn serve_result(
    machine: &Machine,
    model: &Tree,
    args: &[&str],
    env: &[(&str, &str)],
) -> Result<Config, Faults> {
    let dir = model.text();
    let mut all = vec!["serve", "--model", &dir];
    all.extend(args);
    match run_on(machine, &all, env)? {
        Command::Serve(config) => Ok(*config),
        other => panic!("serve gave {other:?}"),
    }
}
