//! Which tokens may be drawn, by their ids: the only ones, and sequences that must not come about.

use serde_json::Value;

/// The rules of one text, and as much of its end as they look at.
#[derive(Clone, Debug)]
pub(crate) struct TokenRules {
    /// One bit for each token that may be drawn; all of them without it.
    allowed: Option<Vec<u32>>,
    /// Sequences whose last token may not follow the others.
    banned: Vec<Vec<u32>>,
    recent: Vec<u32>,
    recent_max: usize,
    words: usize,
}

impl TokenRules {
    /// The rules in `text`, for ids below `vocab_size`.
    ///
    /// # Errors
    /// The text is not what [`pinion_protocol::GrammarKind::Tokens`] says.
    pub(crate) fn parse(text: &str, vocab_size: u32) -> Result<TokenRules, String> {
        let rules: Value = serde_json::from_str(text).map_err(|error| format!("is not JSON: {error}"))?;
        let ids = |list: &Value| -> Option<Vec<u32>> {
            let id =
                |id: &Value| id.as_u64().and_then(|id| u32::try_from(id).ok()).filter(|id| *id < vocab_size);
            list.as_array()?.iter().map(id).collect()
        };
        let wrong = || "is not made of token ids of this model".to_owned();
        let words = vocab_size.div_ceil(u32::BITS) as usize;
        let allowed = match &rules["allowed"] {
            Value::Null => None,
            list => {
                let mut bits = vec![0u32; words];
                ids(list).ok_or_else(wrong)?.iter().for_each(|id| set(&mut bits, *id, true));
                Some(bits)
            }
        };
        let banned = match &rules["banned"] {
            Value::Null => Vec::new(),
            Value::Array(all) => all.iter().map(ids).collect::<Option<Vec<_>>>().ok_or_else(wrong)?,
            _ => return Err(wrong()),
        };
        if banned.iter().any(Vec::is_empty) {
            return Err("has a word without tokens".to_owned());
        }
        let recent_max = banned.iter().map(|one| one.len() - 1).max().unwrap_or(0);
        Ok(TokenRules { allowed, banned, recent: Vec::with_capacity(recent_max), recent_max, words })
    }

    /// Takes the next token.
    ///
    /// # Errors
    /// It may not follow.
    pub(crate) fn advance(&mut self, token: u32) -> Result<(), String> {
        if !self.allows(token) {
            return Err(format!("token {token} may not follow"));
        }
        if self.recent_max > 0 {
            if self.recent.len() == self.recent_max {
                self.recent.remove(0);
            }
            self.recent.push(token);
        }
        Ok(())
    }

    /// Whether the token may follow.
    pub(crate) fn allows(&self, token: u32) -> bool {
        let is_allowed = self.allowed.as_ref().is_none_or(|bits| is_set(bits, token));
        is_allowed && !self.ended().any(|last| last == token)
    }

    /// Replaces `bits` by those of the tokens that may follow.
    ///
    /// # Errors
    /// None may.
    pub(crate) fn next(&self, bits: &mut Vec<u32>) -> Result<(), String> {
        bits.clear();
        match &self.allowed {
            Some(allowed) => bits.extend_from_slice(allowed),
            None => bits.resize(self.words, u32::MAX),
        }
        self.ended().for_each(|last| set(bits, last, false));
        if bits.iter().all(|word| *word == 0) { Err("no token can follow".to_owned()) } else { Ok(()) }
    }

    /// The last tokens of the sequences that have come about but for them.
    fn ended(&self) -> impl Iterator<Item = u32> + '_ {
        self.banned.iter().filter_map(|one| {
            let (last, before) = one.split_last()?;
            self.recent.ends_with(before).then_some(*last)
        })
    }
}

fn is_set(bits: &[u32], id: u32) -> bool {
    bits.get(id as usize / 32).is_some_and(|word| word >> (id % 32) & 1 == 1)
}

fn set(bits: &mut [u32], id: u32, on: bool) {
    if let Some(word) = bits.get_mut(id as usize / 32) {
        *word = if on { *word | 1 << (id % 32) } else { *word & !(1 << (id % 32)) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn following(rules: &TokenRules, vocab_size: u32) -> Vec<u32> {
        let mut bits = Vec::new();
        if rules.next(&mut bits).is_err() {
            return Vec::new();
        }
        let found: Vec<u32> = (0..vocab_size).filter(|id| is_set(&bits, *id)).collect();
        assert!((0..vocab_size).all(|id| rules.allows(id) == found.contains(&id)));
        found
    }

    #[test]
    fn a_sequence_is_banned_where_it_would_come_about() {
        let mut rules = TokenRules::parse(r#"{"banned": [[3], [1, 2, 1], [2, 0]]}"#, 5).unwrap();
        assert_eq!(following(&rules, 5), [0, 1, 2, 4]);
        for (token, next) in [(1, &[0, 1, 2, 4][..]), (2, &[2, 4]), (2, &[1, 2, 4]), (1, &[0, 1, 2, 4])] {
            rules.advance(token).unwrap();
            assert_eq!(following(&rules, 5), next, "after {token}");
        }
        assert!(rules.advance(3).is_err());
    }

    #[test]
    fn only_what_is_allowed_may_be_drawn() {
        let rules = TokenRules::parse(r#"{"allowed": [40, 2, 40], "banned": [[2]]}"#, 41).unwrap();
        assert_eq!(following(&rules, 41), [40]);
        let none = TokenRules::parse(r#"{"allowed": [2], "banned": [[2]]}"#, 41).unwrap();
        assert_eq!(following(&none, 41), [0; 0]);
        for wrong in
            ["", "{\"allowed\": [41]}", "{\"allowed\": 1}", "{\"banned\": [1]}", "{\"banned\": [[]]}"]
        {
            assert!(TokenRules::parse(wrong, 41).is_err(), "{wrong}");
        }
    }
}
