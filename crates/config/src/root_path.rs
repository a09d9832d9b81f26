//! `--root-path`: the path below which a proxy serves the service.

use crate::fault::Collector;
use crate::sources::Settings;

const NAME: &str = "root-path";
/// Longest path, in bytes.
const BYTES_MAX: usize = 256;

/// The path without a slash at its end; empty where there is none.
pub(crate) fn read(settings: &Settings, faults: &mut Collector) -> String {
    let path = settings.text(NAME).unwrap_or_default().trim_end_matches('/');
    if !path.is_empty() && !is_path(path) {
        let reason = format!(
            "{path}: is not a path like /llm (letters, digits and - . _ ~ between slashes, {BYTES_MAX} bytes at most)"
        );
        faults.add(&settings.origin(NAME), reason);
    }
    path.to_owned()
}

/// As it stands in a request, so that it needs no decoding.
fn is_path(text: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    let is_part = |part: &str| !matches!(part, "" | "." | "..") && part.bytes().all(plain);
    text.len() <= BYTES_MAX && text.strip_prefix('/').is_some_and(|rest| rest.split('/').all(is_part))
}
