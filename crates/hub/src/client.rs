//! HTTP towards the hub: requests that are tried again, redirects that leave the token behind, and what the hub's
//! refusals mean.
//!
//! Redirects are followed here and not by the library: the answer before the redirect carries the hash and the size of
//! the file, and the token goes to the hub's own origin only.

use crate::failure::Failure;
use crate::progress::say;
use pinion_config::PullCommand;
use std::time::Duration;
use ureq::http::{HeaderMap, Request, Response, StatusCode, Uri};
use ureq::{Agent, Body};

/// Tries of one request, and of one file without a byte between them.
pub(crate) const TRIES: u32 = 5;
/// Redirects of one request.
const REDIRECTS_MAX: usize = 8;
/// The hub's list of a repository's files in bytes.
const LIST_BYTES_MAX: u64 = 64 << 20;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(15);
/// From the request to the head of its answer.
const HEAD_TIMEOUT: Duration = Duration::from_secs(60);
/// A connection on which nothing comes for this long is given up, and another is made.
const SILENCE_TIMEOUT: Duration = Duration::from_secs(30);
/// The longest wait that the hub may ask for.
const WAIT_MAX: Duration = Duration::from_secs(60);

/// A file of the repository as the hub describes it.
#[derive(Clone, Debug)]
pub(crate) struct Remote {
    pub(crate) name: String,
    /// Names the blob; the sha256 in hexadecimal for large files.
    pub(crate) etag: String,
    pub(crate) size: u64,
}

/// What the hub says about a revision.
#[derive(Debug)]
pub(crate) struct Listing {
    pub(crate) commit: String,
    pub(crate) files: Vec<String>,
}

pub(crate) struct Client<'a> {
    agent: Agent,
    command: &'a PullCommand,
    origin: Option<String>,
}

impl<'a> Client<'a> {
    pub(crate) fn new(command: &'a PullCommand) -> Client<'a> {
        let agent = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .user_agent(concat!("pinion/", env!("CARGO_PKG_VERSION")))
            .accept_encoding("identity")
            .timeout_connect(Some(CONNECT_TIMEOUT))
            .timeout_recv_response(Some(HEAD_TIMEOUT))
            .timeout_per_read(Some(SILENCE_TIMEOUT))
            .timeout_per_write(Some(SILENCE_TIMEOUT))
            .build()
            .new_agent();
        Client { agent, command, origin: origin(&command.endpoint) }
    }

    /// The files of the revision. `tries` is 1 where the cache can stand in.
    pub(crate) fn list(&self, tries: u32) -> Result<Listing, Failure> {
        let model = &self.command.model;
        let (endpoint, repository) = (&self.command.endpoint, &model.repository);
        let url = format!("{endpoint}/api/models/{repository}/revision/{}", quoted(&model.revision, ""));
        let mut response = self.ask("GET", &url, 0, repository, tries)?.0;
        let bad = |reason: String| Failure::BadAnswer { what: url.clone(), reason };
        let text = response.body_mut().with_config().limit(LIST_BYTES_MAX).read_to_vec();
        let text = text.map_err(|error| bad(error.to_string()))?;
        let value: serde_json::Value =
            serde_json::from_slice(&text).map_err(|error| bad(format!("it is not JSON: {error}")))?;
        let commit = value.get("sha").and_then(|sha| sha.as_str()).filter(|sha| crate::layout::is_name(sha));
        let siblings = value.get("siblings").and_then(|list| list.as_array());
        let (Some(commit), Some(siblings)) = (commit, siblings) else {
            return Err(bad("it has no commit or no list of files".to_owned()));
        };
        let name = |file: &serde_json::Value| Some(file.get("rfilename")?.as_str()?.to_owned());
        Ok(Listing { commit: commit.to_owned(), files: siblings.iter().filter_map(name).collect() })
    }

    /// Hash and size of a file.
    pub(crate) fn describe(&self, commit: &str, name: &str) -> Result<Remote, Failure> {
        let mut url = self.file_url(commit, name);
        for _ in 0..REDIRECTS_MAX {
            let response = self.ask_once_more("HEAD", &url, 0, name, TRIES)?;
            let headers = response.headers();
            let linked = text_of(headers, "x-linked-etag");
            let next = location(&response, &url);
            // Only the last of these answers is about the file; one that is linked to is described in the first.
            if let (Some(next), None) = (&next, &linked)
                && origin(next) == self.origin
            {
                url = next.clone();
                continue;
            }
            let etag = linked.or_else(|| text_of(headers, "etag")).map(unquoted);
            let size = text_of(headers, "x-linked-size").or_else(|| text_of(headers, "content-length"));
            let size = size.and_then(|text| text.parse::<u64>().ok());
            let bad = |reason: &str| Failure::BadAnswer { what: name.to_owned(), reason: reason.to_owned() };
            let etag = etag
                .filter(|etag| crate::layout::is_name(etag))
                .ok_or_else(|| bad("it has no usable etag"))?;
            let size = size.ok_or_else(|| bad("it does not say how large the file is"))?;
            return Ok(Remote { name: name.to_owned(), etag, size });
        }
        Err(Failure::BadAnswer { what: name.to_owned(), reason: "it redirects without an end".to_owned() })
    }

    /// The bytes of a file from `from` on, and the place where they begin.
    pub(crate) fn open(&self, commit: &str, name: &str, from: u64) -> Result<(Response<Body>, u64), Failure> {
        let (response, url) = self.ask("GET", &self.file_url(commit, name), from, name, TRIES)?;
        let begins = match response.status() {
            StatusCode::PARTIAL_CONTENT => {
                let range = text_of(response.headers(), "content-range");
                let first = range
                    .and_then(|text| text.strip_prefix("bytes ")?.split('-').next()?.parse::<u64>().ok());
                first.ok_or_else(|| Failure::BadAnswer {
                    what: url,
                    reason: "it is a part of unknown place".to_owned(),
                })?
            }
            _ => 0,
        };
        Ok((response, begins))
    }

    fn file_url(&self, commit: &str, name: &str) -> String {
        let (endpoint, repository) = (&self.command.endpoint, &self.command.model.repository);
        format!("{endpoint}/{repository}/resolve/{}/{}", quoted(commit, ""), quoted(name, "/"))
    }

    /// Follows redirects to the answer itself, and gives the address that it came from.
    fn ask(
        &self,
        method: &str,
        url: &str,
        from: u64,
        what: &str,
        tries: u32,
    ) -> Result<(Response<Body>, String), Failure> {
        let mut url = url.to_owned();
        for _ in 0..REDIRECTS_MAX {
            let response = self.ask_once_more(method, &url, from, what, tries)?;
            match location(&response, &url) {
                Some(next) => url = next,
                None => return Ok((response, url)),
            }
        }
        Err(Failure::BadAnswer { what: what.to_owned(), reason: "it redirects without an end".to_owned() })
    }

    /// One request, tried again while there is no answer or one that says "later".
    fn ask_once_more(
        &self,
        method: &str,
        url: &str,
        from: u64,
        what: &str,
        tries: u32,
    ) -> Result<Response<Body>, Failure> {
        let mut tried = 0;
        loop {
            tried += 1;
            let (failure, asked) = match self.send(method, url, from) {
                Ok(response) if is_for_later(response.status()) => {
                    let status = response.status().as_u16();
                    let asked = text_of(response.headers(), "retry-after").and_then(|text| text.parse().ok());
                    (Failure::Status { status, what: what.to_owned() }, asked.map(Duration::from_secs))
                }
                Ok(response) if response.status().is_client_error() => {
                    return Err(self.refusal(&response, what));
                }
                Ok(response) if response.status().is_server_error() => {
                    return Err(Failure::Status {
                        status: response.status().as_u16(),
                        what: what.to_owned(),
                    });
                }
                Ok(response) => return Ok(response),
                Err(error) => (Failure::Unreachable { host: host(url), reason: reason(&error) }, None),
            };
            if tried >= tries {
                return Err(failure);
            }
            pause(tried, asked, &failure);
        }
    }

    fn send(&self, method: &str, url: &str, from: u64) -> Result<Response<Body>, ureq::Error> {
        let mut request = Request::builder().method(method).uri(url);
        if from > 0 {
            request = request.header("range", format!("bytes={from}-"));
        }
        let own = self.origin.is_some() && origin(url) == self.origin;
        if let Some(token) = self.command.token.as_ref().filter(|_| own) {
            request = request.header("authorization", format!("Bearer {}", token.secret()));
        }
        self.agent.run(request.body(())?)
    }

    /// What a 4xx means; the hub says it in a header beside the number.
    fn refusal(&self, response: &Response<Body>, what: &str) -> Failure {
        let model = &self.command.model;
        let (repository, endpoint) = (model.repository.clone(), self.command.endpoint.clone());
        let with_token = self.command.token.is_some();
        let code = text_of(response.headers(), "x-error-code").unwrap_or_default();
        let message = text_of(response.headers(), "x-error-message").unwrap_or_default();
        match (code.as_str(), response.status().as_u16()) {
            ("GatedRepo", _) => Failure::Gated { repository, endpoint, with_token },
            ("RevisionNotFound", _) => {
                Failure::NoRevision { repository, revision: model.revision.clone(), endpoint }
            }
            ("RepoNotFound", _) => Failure::NoRepository { repository, endpoint, with_token },
            (_, 401) if with_token && message.contains("Invalid credentials") => {
                Failure::BadToken { endpoint }
            }
            // The hub tells those it does not know the same of what is missing and of what is private.
            (_, 401) if what == repository => Failure::NoRepository { repository, endpoint, with_token },
            (_, 401 | 403) => Failure::Gated { repository, endpoint, with_token },
            (_, 404) if what == repository => Failure::NoRepository { repository, endpoint, with_token },
            (_, status) => {
                Failure::BadAnswer { what: what.to_owned(), reason: format!("its status is {status}") }
            }
        }
    }
}

/// Waits before the next try: as long as the hub asks, else longer each time.
pub(crate) fn pause(tried: u32, asked: Option<Duration>, failure: &Failure) {
    let own = Duration::from_millis(500 << tried.saturating_sub(1).min(5));
    let wait = asked.unwrap_or(own).min(WAIT_MAX);
    let reason = match failure {
        Failure::Status { status, what } => format!("the hub answers {status} for {what}"),
        Failure::Unreachable { host, reason } => format!("{host}: {reason}"),
        other => other.to_string(),
    };
    say(&format!("pinion: {reason}; the next try is in {:.1} s", wait.as_secs_f64()));
    std::thread::sleep(wait);
}

fn is_for_later(status: StatusCode) -> bool {
    matches!(status.as_u16(), 408 | 425 | 429 | 500 | 502 | 503 | 504)
}

/// Why there was no answer, without the address: that is said beside it.
pub(crate) fn reason(error: &ureq::Error) -> String {
    match error {
        ureq::Error::HostNotFound => "its name is not known".to_owned(),
        ureq::Error::Timeout(_) => "no answer in time".to_owned(),
        ureq::Error::Io(error) => error.to_string(),
        other => other.to_string(),
    }
}

/// Where the answer sends its reader, as a whole address.
fn location(response: &Response<Body>, url: &str) -> Option<String> {
    if !matches!(response.status().as_u16(), 301 | 302 | 303 | 307 | 308) {
        return None;
    }
    let to = text_of(response.headers(), "location")?;
    let from: Uri = url.parse().ok()?;
    let scheme = from.scheme_str()?;
    match to {
        whole if whole.contains("://") => Some(whole),
        other_host if other_host.starts_with("//") => Some(format!("{scheme}:{other_host}")),
        path if path.starts_with('/') => Some(format!("{scheme}://{}{path}", from.authority()?)),
        // beside the last part of the path
        name => {
            let folder = from.path().rsplit_once('/').map_or("", |(folder, _)| folder);
            Some(format!("{scheme}://{}{folder}/{name}", from.authority()?))
        }
    }
}

/// Scheme, host and port: what a token belongs to.
fn origin(url: &str) -> Option<String> {
    let uri: Uri = url.parse().ok()?;
    let scheme = uri.scheme_str()?.to_ascii_lowercase();
    let port = uri.port_u16().unwrap_or(if scheme == "https" { 443 } else { 80 });
    Some(format!("{scheme}://{}:{port}", uri.host()?.to_ascii_lowercase()))
}

pub(crate) fn host(url: &str) -> String {
    url.parse::<Uri>().ok().and_then(|uri| uri.host().map(str::to_owned)).unwrap_or_else(|| url.to_owned())
}

fn text_of(headers: &HeaderMap, name: &str) -> Option<String> {
    headers.get(name)?.to_str().ok().map(str::to_owned)
}

/// `W/"x"` and `"x"` are x.
fn unquoted(etag: String) -> String {
    etag.trim_start_matches("W/").trim_matches('"').to_owned()
}

/// Percent-encodes everything that has a meaning in an address, but for the bytes in `kept`.
fn quoted(text: &str, kept: &str) -> String {
    let plain =
        |byte: u8| byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte) || kept.as_bytes().contains(&byte);
    text.bytes()
        .map(|byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_belongs_to_scheme_host_and_port() {
        let hub = origin("https://Hub.org/api");
        assert_eq!(hub, origin("https://hub.org:443/other"));
        for other in
            ["http://hub.org/", "https://hub.org:444/", "https://cdn.hub.org/", "https://hub.org.evil/", "/a"]
        {
            assert_ne!(hub, origin(other), "{other}");
        }
    }

    #[test]
    fn redirects_are_whole_or_relative() {
        let at = |to: &str| {
            let response = Response::builder().status(302).header("location", to);
            location(&response.body(Body::builder().data("")).unwrap(), "https://h:1/a/b?c")
        };
        for (to, expected) in [
            ("https://x/y", "https://x/y"),
            ("//x/y", "https://x/y"),
            ("/y?z", "https://h:1/y?z"),
            ("y", "https://h:1/a/y"),
        ] {
            assert_eq!(at(to).as_deref(), Some(expected), "{to}");
        }
    }

    #[test]
    fn names_in_addresses_are_quoted() {
        assert_eq!(quoted("refs/pr/1", ""), "refs%2Fpr%2F1");
        assert_eq!(quoted("a b/c?.json", "/"), "a%20b/c%3F.json");
        assert_eq!(unquoted("W/\"ab\"".to_owned()), "ab");
    }
}
