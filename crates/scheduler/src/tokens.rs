//! A sequence's tokens, and the drafts behind them: tokens that an outstanding step takes as given and verifies.
//!
//! Drafts are what the text has after an earlier place that ends as it ends now (prompt lookup): docs/design/0017.

/// Tokens at the end that an earlier place has to share.
const ALIKE_MIN: usize = 2;
/// Places that share this number of them are as good as those that share more; the latest is taken.
const ALIKE_MAX: usize = 4;
/// How far back places are looked for, in tokens: a bound for the time of a look.
const LOOK_BACK_MAX: usize = 4096;

/// The prompt, what was generated, and drafts. It has its final capacity from the start, so that it never reallocates.
#[derive(Debug, Clone)]
pub(crate) struct Tokens {
    ids: Vec<u32>,
    /// How many of `ids`, at their end, are drafts.
    drafts: u32,
}

impl Tokens {
    /// Known tokens, of a sequence that becomes this long.
    pub(crate) fn new(mut ids: Vec<u32>, length_max: u32) -> Tokens {
        ids.reserve_exact((length_max as usize).saturating_sub(ids.len()));
        Tokens { ids, drafts: 0 }
    }

    /// Those that are known.
    pub(crate) fn known(&self) -> &[u32] {
        &self.ids[..self.ids.len() - self.drafts as usize]
    }

    /// Those that are known, then the drafts.
    pub(crate) fn with_drafts(&self) -> &[u32] {
        &self.ids
    }

    /// Number of those that are known.
    pub(crate) fn len(&self) -> u32 {
        self.ids.len() as u32 - self.drafts
    }

    pub(crate) fn drafts(&self) -> u32 {
        self.drafts
    }

    /// Adds a sampled token. The first draft becomes it if they are the same, else all drafts go. Whether it was a
    /// draft.
    pub(crate) fn push(&mut self, token: u32) -> bool {
        let known = self.len() as usize;
        if self.ids.get(known) == Some(&token) {
            self.drafts -= 1;
            return true;
        }
        self.drop_drafts();
        self.ids.push(token);
        false
    }

    pub(crate) fn drop_drafts(&mut self) {
        self.ids.truncate(self.len() as usize);
        self.drafts = 0;
    }

    /// Whether there is something to propose.
    pub(crate) fn repeats(&self) -> bool {
        continuation(self.known()).is_some()
    }

    /// Proposes up to `most` tokens in place of earlier drafts. Gives how many.
    pub(crate) fn propose(&mut self, most: u32) -> u32 {
        self.drop_drafts();
        let found = if most > 0 { continuation(&self.ids) } else { None };
        let Some(from) = found else { return 0 };
        for at in from..from + most as usize {
            // Behind the last token it goes on with the drafts themselves: a text that goes round in circles.
            self.ids.push(self.ids[at]);
        }
        self.drafts = most;
        most
    }
}

/// Index of the token behind the latest earlier place that ends as `ids` end, over the most tokens.
fn continuation(ids: &[u32]) -> Option<usize> {
    let (last, before) = ids.split_last()?;
    let first = before.len().saturating_sub(LOOK_BACK_MAX);
    let (mut best, mut from) = (ALIKE_MIN - 1, None);
    for end in (first..before.len()).rev().filter(|&end| before[end] == *last) {
        let pairs = before[..end].iter().rev().zip(before.iter().rev());
        let alike = 1 + pairs.take(ALIKE_MAX - 1).take_while(|(theirs, own)| theirs == own).count();
        if alike > best {
            (best, from) = (alike, Some(end + 1));
        }
        if best == ALIKE_MAX {
            break;
        }
    }
    from
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drafts(ids: &[u32], most: u32) -> Vec<u32> {
        let mut tokens = Tokens::new(ids.to_vec(), 64);
        let count = tokens.propose(most);
        assert_eq!((tokens.drafts(), tokens.known()), (count, ids));
        assert!(tokens.repeats() || count == 0);
        tokens.with_drafts()[ids.len()..].to_vec()
    }

    #[test]
    fn what_followed_the_longest_and_latest_like_end_is_proposed() {
        let cases: [(&[u32], u32, &[u32]); 10] = [
            (&[], 3, &[]),
            (&[1], 3, &[]),
            (&[1, 2, 3, 4], 3, &[]),
            (&[1, 2, 9, 2], 3, &[]), // one token is too few
            (&[1, 2, 3, 4, 1, 2], 2, &[3, 4]),
            (&[1, 2, 3, 4, 1, 2], 0, &[]),
            (&[1, 2, 7, 5, 1, 2, 8, 5, 1, 2], 1, &[8]), // the latest
            (&[6, 1, 2, 7, 5, 1, 2, 8, 6, 1, 2], 1, &[7]), // the longest
            (&[5, 5], 3, &[]),
            (&[5, 5, 5], 4, &[5, 5, 5, 5]), // round in circles
        ];
        for (ids, most, expected) in cases {
            assert_eq!(drafts(ids, most), expected, "{ids:?}");
        }
        assert_eq!(drafts(&[1, 2, 3, 1, 2, 3, 1], 7), [2, 3, 1, 2, 3, 1, 2]);
    }

    #[test]
    fn places_too_far_back_are_not_looked_for() {
        let text = |gap: usize| {
            let between = (0..gap as u32).map(|n| 100 + n);
            [1, 2, 3].into_iter().chain(between).chain([1, 2]).collect::<Vec<u32>>()
        };
        assert_eq!(drafts(&text(LOOK_BACK_MAX - 4), 1), [3]);
        assert!(drafts(&text(LOOK_BACK_MAX + 4), 1).is_empty());
    }

    #[test]
    fn a_sampled_token_takes_a_draft_or_all_of_them() {
        let mut tokens = Tokens::new(vec![1, 2, 3, 4, 1, 2], 16);
        assert_eq!(tokens.propose(3), 3);
        assert!(tokens.push(3) && tokens.drafts() == 2);
        assert_eq!((tokens.known(), tokens.len()), (&[1, 2, 3, 4, 1, 2, 3][..], 7));
        assert!(!tokens.push(9) && tokens.drafts() == 0);
        assert_eq!(tokens.with_drafts(), [1, 2, 3, 4, 1, 2, 3, 9]);
        assert!(!tokens.push(9));
        assert_eq!(tokens.propose(2), 0, "one token is too few");
    }
}
