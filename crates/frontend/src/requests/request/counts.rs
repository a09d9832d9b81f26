//! The tokens of a request, as its answer counts them.

use super::Request;
use crate::answers::openai::Usage;

impl Request {
    /// Whether each chunk has the counts so far.
    pub fn shows_counts(&self) -> bool {
        self.extras.as_ref().is_some_and(|extras| extras.shows_counts())
    }

    /// Says how many tokens the prompt has, and how many of them the engine found in its cache.
    pub fn count_prompt(&mut self, prompt_tokens: u32, cached_tokens: u32) {
        if let Some(extras) = &mut self.extras {
            extras.count_prompt(prompt_tokens, cached_tokens);
        }
    }

    /// Prompt tokens from the prefix cache, as the answer counts them: those of the first engine that drew a token.
    pub fn cached_tokens(&self) -> u32 {
        let of_last = || self.finished.map_or(0, |finished| finished.cached_tokens);
        self.cached_tokens.unwrap_or_else(of_last)
    }

    /// Of the cached tokens those count that the first engine found which drew a token for the answer.
    pub(super) fn usage(&self, prompt_tokens: u32, cached_tokens: u32) -> Usage {
        let cached_tokens = self.cached_tokens.unwrap_or(cached_tokens);
        Usage {
            prompt_tokens,
            cached_tokens,
            completion_tokens: self.token_count(),
            reasoning_tokens: self.reasoning_tokens(),
        }
    }

    /// Tokens of the answer so far.
    pub fn token_count(&self) -> u32 {
        u32::try_from(self.ids.len()).unwrap_or(u32::MAX)
    }
}
