//! Models on the Hugging Face hub: which one is meant, and where its files are kept. Nothing is downloaded here.
//!
//! The variables are those of `huggingface_hub`, so that Pinion, vLLM and transformers share one cache and one token.

use crate::fault::{Collector, Origin};
use crate::secret::TOKEN_VARIABLES;
use crate::sources::{Environment, Settings};
use std::path::{Path, PathBuf};

/// The hub itself.
const ENDPOINT: &str = "https://huggingface.co";
/// What is pulled unless a revision is named.
const MAIN: &str = "main";
/// Longest ORG, NAME and REV in bytes, each.
const PART_BYTES_MAX: usize = 96;
/// Longest token in bytes.
const TOKEN_BYTES_MAX: usize = 4096;

/// A model of the hub: `ORG/NAME[@REV]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HubModel {
    /// `ORG/NAME`.
    pub repository: String,
    /// A branch, a tag or a commit.
    pub revision: String,
}

impl HubModel {
    /// Reads `ORG/NAME[@REV]`; `None` if the text has another form, as paths have.
    pub fn parse(text: &str) -> Option<HubModel> {
        let (repository, revision) = text.split_once('@').unwrap_or((text, MAIN));
        let (owner, name) = repository.split_once('/')?;
        let is_part = |part: &str| {
            let first = part.bytes().next();
            let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_');
            first.is_some_and(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
                && part.bytes().all(plain)
                && !part.contains("..")
                && part.len() <= PART_BYTES_MAX
        };
        // a branch may have slashes in its name: refs/pr/1
        let named = [owner, name].into_iter().chain(revision.split('/')).all(is_part);
        let short = revision.len() <= PART_BYTES_MAX;
        (named && short)
            .then(|| HubModel { repository: repository.to_owned(), revision: revision.to_owned() })
    }
}

impl std::fmt::Display for HubModel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.repository)?;
        if self.revision == MAIN { Ok(()) } else { write!(f, "@{}", self.revision) }
    }
}

/// An access token of the hub. `Debug` does not show it.
#[derive(Clone, PartialEq, Eq)]
pub struct HubToken(String);

impl HubToken {
    /// The text, for a request's header.
    pub fn secret(&self) -> &str {
        &self.0
    }
}

impl std::fmt::Debug for HubToken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("HubToken(hidden)")
    }
}

/// A model to pull, and everything that decides how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PullCommand {
    /// Which.
    pub model: HubModel,
    /// The folder of `models--ORG--NAME` and of the others.
    pub cache: PathBuf,
    /// `http[s]://HOST[:PORT][/PATH]`, without a slash at the end.
    pub endpoint: String,
    /// Whether only the cache is looked at.
    pub offline: bool,
    /// What the hub knows its user by.
    pub token: Option<HubToken>,
}

/// The model of the hub that `--model` names. A folder of that name in the working directory goes first.
pub(crate) fn named(settings: &Settings) -> Option<HubModel> {
    let text = settings.text("model")?;
    // models/x.gguf is a file that is not there, not a repository.
    if Path::new(text).exists() || pinion_gguf::has_name(Path::new(text)) {
        None
    } else {
        HubModel::parse(text)
    }
}

/// How to pull `model`.
pub(crate) fn pull(
    model: HubModel,
    settings: &Settings,
    environment: &Environment,
    faults: &mut Collector,
) -> PullCommand {
    let variable = |name: &str| environment.text(name).map(str::to_owned);
    let cache = cache(settings, environment).unwrap_or_else(|| {
        faults.add(&Origin::Flag("--hub-cache".into()), "is needed where neither HF_HOME nor HOME is set");
        PathBuf::new()
    });
    let is_true = |text: String| matches!(text.to_ascii_uppercase().as_str(), "1" | "ON" | "YES" | "TRUE");
    let offline = settings.switch("hub-offline").or_else(|| variable("HF_HUB_OFFLINE").map(is_true));
    PullCommand {
        model,
        cache,
        endpoint: endpoint(settings, environment, faults),
        offline: offline.unwrap_or(false),
        token: token(home(environment).as_deref(), environment, faults),
    }
}

/// The folder of huggingface_hub.
fn home(environment: &Environment) -> Option<PathBuf> {
    let variable = |name: &str| environment.text(name).map(str::to_owned);
    let home = variable("HF_HOME").or_else(|| variable("XDG_CACHE_HOME").map(|dir| dir + "/huggingface"));
    home.or_else(|| variable("HOME").map(|dir| dir + "/.cache/huggingface")).map(PathBuf::from)
}

/// Where models of the hub are kept; `None` if nothing says it.
pub(crate) fn cache(settings: &Settings, environment: &Environment) -> Option<PathBuf> {
    let told = settings.text("hub-cache").or_else(|| environment.text("HF_HUB_CACHE")).map(PathBuf::from);
    let cache = told.or_else(|| home(environment).map(|home| home.join("hub")))?;
    Some(std::path::absolute(&cache).unwrap_or(cache))
}

fn endpoint(settings: &Settings, environment: &Environment, faults: &mut Collector) -> String {
    let (text, origin) = match (settings.text("hub-endpoint"), environment.text("HF_ENDPOINT")) {
        (Some(text), _) => (text, settings.origin("hub-endpoint")),
        (None, Some(text)) => (text, Origin::Environment("HF_ENDPOINT".to_owned())),
        (None, None) => (ENDPOINT, Origin::Default),
    };
    let text = text.trim_end_matches('/');
    let rest = text.strip_prefix("https://").or_else(|| text.strip_prefix("http://"));
    let is_address = |rest: &str| {
        !rest.is_empty()
            && rest.bytes().all(|byte| byte.is_ascii_graphic())
            && !rest.contains(['?', '#', '@'])
    };
    if !rest.is_some_and(is_address) {
        faults.add(&origin, "is no address of a hub; expected https://HOST[:PORT][/PATH]");
    }
    text.to_owned()
}

/// From the variable, or from the file that `hf auth login` writes. Faults never have a part of it in them.
fn token(home: Option<&Path>, environment: &Environment, faults: &mut Collector) -> Option<HubToken> {
    let of_variable = TOKEN_VARIABLES.iter().find_map(|&name| {
        let text = environment.text(name)?;
        Some((text.to_owned(), Origin::Environment(name.to_owned())))
    });
    let path = environment.text("HF_TOKEN_PATH").map(PathBuf::from).or_else(|| Some(home?.join("token")));
    let of_file = || {
        let path = path?;
        let text = std::fs::read_to_string(&path).ok()?;
        Some((text, Origin::WholeFile(path.display().to_string())))
    };
    let (text, origin) = of_variable.or_else(of_file)?;
    let text = text.trim();
    if text.len() > TOKEN_BYTES_MAX || !text.bytes().all(|byte| byte.is_ascii_graphic()) {
        faults.add(&origin, "holds no token of the hub: a token is one word of printable ASCII");
        return None;
    }
    (!text.is_empty()).then(|| HubToken(text.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_an_owner_and_a_name_and_perhaps_a_revision() {
        for (text, repository, revision) in [
            ("Qwen/Qwen3-0.6B", "Qwen/Qwen3-0.6B", "main"),
            ("a/b@v1.0", "a/b", "v1.0"),
            ("a/b_c@refs/pr/1", "a/b_c", "refs/pr/1"),
        ] {
            let expected = HubModel { repository: repository.to_owned(), revision: revision.to_owned() };
            assert_eq!(HubModel::parse(text).as_ref(), Some(&expected), "{text}");
        }
        let long = format!("a/{}", "b".repeat(PART_BYTES_MAX + 1));
        for path in [
            "gpt2",
            "",
            "/a/b",
            "./a",
            "../a",
            "a/b/c",
            "a/",
            "/b",
            "a/b@",
            "a/..",
            "a/b@../c",
            "a b/c",
            "a/.b",
            "a/b@x//y",
            "a/b@-x",
            "é/b",
            long.as_str(),
        ] {
            assert_eq!(HubModel::parse(path), None, "{path}");
        }
    }
}
