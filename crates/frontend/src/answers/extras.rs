//! What an answer shows beside its text where the client asks for it: token ids, and counts in every chunk.

/// What one choice shows.
#[derive(Debug, Default)]
pub struct Extras {
    /// The prompt's ids; a stream has them in its first chunk.
    prompt_ids: Option<Vec<u32>>,
    shows_ids: bool,
    /// Ids of the answer that chunks have shown.
    shown: usize,
    shows_counts: bool,
    /// Tokens of the prompt, and those of them that came from the cache, once they are known.
    counted: (u32, u32),
}

impl Extras {
    /// Ids if there are some of the prompt, and counts.
    pub fn new(prompt_ids: Option<Vec<u32>>, shows_counts: bool) -> Extras {
        Extras { shows_ids: prompt_ids.is_some(), prompt_ids, shows_counts, ..Extras::default() }
    }

    /// Whether each chunk has the counts so far.
    pub(crate) fn shows_counts(&self) -> bool {
        self.shows_counts
    }

    pub(crate) fn count_prompt(&mut self, prompt_tokens: u32, cached_tokens: u32) {
        self.counted = (prompt_tokens, cached_tokens);
    }

    /// The counts of the prompt, if chunks show them.
    pub(crate) fn counts(&self) -> Option<(u32, u32)> {
        self.shows_counts.then_some(self.counted)
    }

    /// The prompt's ids, for the first chunk or the whole answer.
    pub(crate) fn take_prompt_ids(&mut self) -> Option<Vec<u32>> {
        self.prompt_ids.take()
    }

    /// Those of `ids` that no chunk has shown.
    pub(crate) fn next_ids<'a>(&mut self, ids: &'a [u32]) -> Option<&'a [u32]> {
        let next = ids.get(self.shown..).unwrap_or_default();
        self.shown += next.len();
        self.shows_ids.then_some(next)
    }
}
