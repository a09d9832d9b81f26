//! The files of the pages for people, which are in the program; nothing is read from a disk. Their source is the folder
//! `ui/` of this crate.

/// Content type of pages.
pub(crate) const HTML: &str = "text/html; charset=utf-8";
const STYLE: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";

/// A file in the program.
#[derive(Clone, Copy)]
pub struct File {
    /// Its path at the service.
    pub path: &'static str,
    pub(crate) content_type: &'static str,
    /// What is in it.
    pub bytes: &'static [u8],
}

const fn file(path: &'static str, content_type: &'static str, bytes: &'static [u8]) -> File {
    File { path, content_type, bytes }
}

/// All of them; the page itself is the first.
pub const FILES: &[File] = &[
    file("/", HTML, concat!(include_str!("../ui/head.html"), include_str!("../ui/index.html")).as_bytes()),
    file("/ui/style.css", STYLE, include_bytes!("../ui/style.css")),
    file("/ui/docs.css", STYLE, include_bytes!("../ui/docs.css")),
    file("/ui/icon.svg", "image/svg+xml", include_bytes!("../ui/icon.svg")),
    file("/ui/theme.js", SCRIPT, include_bytes!("../ui/theme.js")),
    file("/ui/main.js", SCRIPT, include_bytes!("../ui/main.js")),
    file("/ui/api.js", SCRIPT, include_bytes!("../ui/api.js")),
    file("/ui/answer.js", SCRIPT, include_bytes!("../ui/answer.js")),
    file("/ui/chat.js", SCRIPT, include_bytes!("../ui/chat.js")),
    file("/ui/completion.js", SCRIPT, include_bytes!("../ui/completion.js")),
    file("/ui/conversations.js", SCRIPT, include_bytes!("../ui/conversations.js")),
    file("/ui/docs.js", SCRIPT, include_bytes!("../ui/docs.js")),
    file("/ui/dom.js", SCRIPT, include_bytes!("../ui/dom.js")),
    file("/ui/highlight.js", SCRIPT, include_bytes!("../ui/highlight.js")),
    file("/ui/live.js", SCRIPT, include_bytes!("../ui/live.js")),
    file("/ui/markdown.js", SCRIPT, include_bytes!("../ui/markdown.js")),
    file("/ui/pooled.js", SCRIPT, include_bytes!("../ui/pooled.js")),
    file("/ui/settings.js", SCRIPT, include_bytes!("../ui/settings.js")),
];

/// The file at a path.
pub fn at(path: &str) -> Option<&'static File> {
    FILES.iter().find(|file| file.path == path)
}
