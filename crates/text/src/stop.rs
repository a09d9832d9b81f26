//! Stop strings, found wherever tokens and chunks happen to be cut.

/// Bytes of a piece of text for which room is made beforehand; longer ones are taken too.
const PIECE_BYTES: usize = 256;

/// Watches one text for its stop strings.
///
/// The text ends where the first occurrence *begins*, counted over the whole text: the result depends only
/// on the text, never on how it arrived. What could be the beginning of a stop string is held back, so no
/// part of one is ever sent: at most one byte less than the longest stop string. If an occurrence is found
/// while an earlier beginning is still undecided ("bc" inside a possible "abcd"), the earlier one is
/// waited for. Of several that begin at the same place the shortest is the one found.
#[derive(Clone, Debug, Default)]
pub struct StopMatcher {
    stops: Vec<Box<str>>,
    /// The text ends behind the occurrence instead of before it.
    include: bool,
    /// Text that begins with a proper prefix of a stop string, or nothing.
    held: String,
    /// The place of the stop string that was found.
    found: Option<usize>,
}

/// What a position of the text is.
enum Verdict {
    /// No stop string begins here.
    Clear,
    /// One may begin here; the text is too short to tell.
    Open,
    /// The one at this place begins here.
    Found(usize),
}

impl StopMatcher {
    /// Watches for these strings; empty ones are ignored (they would match everywhere).
    pub fn new(stops: impl IntoIterator<Item = impl Into<Box<str>>>) -> StopMatcher {
        let stops: Vec<Box<str>> =
            stops.into_iter().map(Into::into).filter(|stop| !stop.is_empty()).collect();
        // Room for what is held back and one long piece more, so that pushing does not allocate.
        let longest = stops.iter().map(|stop| stop.len()).max();
        let held = longest.map_or(String::new(), |longest| String::with_capacity(longest + PIECE_BYTES));
        StopMatcher { stops, include: false, held, found: None }
    }

    /// Makes the found stop string part of the text.
    pub fn including(self, include: bool) -> StopMatcher {
        StopMatcher { include, ..self }
    }

    /// Which of the stop strings was found: its place among those that are not empty.
    pub fn found(&self) -> Option<usize> {
        self.found
    }

    /// Takes the next piece of text and appends to `out` what may be sent. True once a stop string has been
    /// found; nothing is sent from then on.
    pub fn push(&mut self, text: &str, out: &mut String) -> bool {
        if self.found.is_some() {
            return true;
        }
        if self.stops.is_empty() {
            out.push_str(text);
            return false;
        }
        self.held.push_str(text);
        self.decide(false, out)
    }

    /// The text is complete: appends what was held back, up to a stop string if there is one in it after
    /// all. True if a stop string was found, now or before.
    pub fn finish(&mut self, out: &mut String) -> bool {
        self.found.is_some() || self.decide(true, out)
    }

    fn decide(&mut self, complete: bool, out: &mut String) -> bool {
        let bytes = self.held.as_bytes();
        let mut clear = 0;
        while clear < bytes.len() {
            match self.verdict(&bytes[clear..]) {
                Verdict::Found(place) => {
                    self.found = Some(place);
                    clear += if self.include { self.stops[place].len() } else { 0 };
                    break;
                }
                Verdict::Open if !complete => break,
                Verdict::Open | Verdict::Clear => clear += 1,
            }
        }
        // A stop string begins with the first byte of a character and is whole, so `clear` is a boundary.
        out.push_str(&self.held[..clear]);
        if self.found.is_some() {
            self.held.clear();
        } else {
            self.held.drain(..clear);
        }
        self.found.is_some()
    }

    fn verdict(&self, rest: &[u8]) -> Verdict {
        let mut verdict = Verdict::Clear;
        let mut shortest: Option<usize> = None;
        for (place, stop) in self.stops.iter().enumerate() {
            let stop = stop.as_bytes();
            if stop[0] != rest[0] {
                continue;
            }
            if rest.starts_with(stop) {
                let is_shorter = |found: usize| stop.len() < self.stops[found].len();
                shortest = if shortest.is_none_or(is_shorter) { Some(place) } else { shortest };
            } else if stop.starts_with(rest) {
                verdict = Verdict::Open;
            }
        }
        shortest.map_or(verdict, Verdict::Found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The text up to the first occurrence of any stop string, or behind it, and whether there is one.
    fn naive(text: &str, stops: &[String], include: bool) -> (String, bool) {
        match stops.iter().filter_map(|stop| Some((text.find(stop.as_str())?, stop.len()))).min() {
            Some((cut, len)) => (text[..cut + if include { len } else { 0 }].to_owned(), true),
            None => (text.to_owned(), false),
        }
    }

    fn check(pieces: &[String], stops: &[String]) {
        for include in [false, true] {
            check_one(pieces, stops, include);
        }
    }

    fn check_one(pieces: &[String], stops: &[String], include: bool) {
        let text = pieces.concat();
        let longest = stops.iter().map(String::len).max().unwrap_or(0);
        let mut matcher = StopMatcher::new(stops.iter().map(String::as_str)).including(include);
        let (mut sent, mut arrived, mut stopped) = (String::new(), 0, false);
        for piece in pieces {
            arrived += piece.len();
            stopped = matcher.push(piece, &mut sent);
            assert!(stopped || arrived - sent.len() < longest.max(1), "held too much: {pieces:?} {stops:?}");
        }
        let at_end = matcher.finish(&mut sent);
        assert!(at_end || !stopped);
        assert_eq!((sent, at_end), naive(&text, stops, include), "{pieces:?} {stops:?} {include}");
    }

    #[test]
    fn known_cases_in_every_split() {
        let cases: [(&str, &[&str]); 14] = [
            ("xabc", &["abc", "ab", "a"]),
            ("xabc", &["a", "abc"]),
            ("one\n\ntwo", &["\n\n"]),
            ("one\ntwo", &["\n\n"]),
            ("aab", &["ab"]),
            ("aaaab", &["aab", "b"]),
            ("abcd", &["bc", "abcd"]),
            ("abcx", &["bc", "abcd"]),
            ("abc", &["bc", "abcd"]),
            ("文章は終わり。", &["終わり"]),
            ("文章は終", &["終わり"]),
            ("👩‍👩‍👧!", &["👧", "‍👩‍👧"]),
            ("naïve", &["ï", "v"]),
            ("", &["x"]),
        ];
        for (text, stops) in cases {
            let stops: Vec<String> = stops.iter().map(|&s| s.to_owned()).collect();
            let marks: Vec<usize> = text.char_indices().map(|(i, _)| i).chain([text.len()]).collect();
            for &a in &marks {
                for &b in marks.iter().filter(|&&b| b >= a) {
                    check(&[text[..a].to_owned(), text[a..b].to_owned(), text[b..].to_owned()], &stops);
                }
            }
            check(&text.chars().map(String::from).collect::<Vec<_>>(), &stops);
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]
        #[test]
        fn random_texts_and_splits_equal_the_naive_search(
            pieces in prop::collection::vec("[abcé終]{0,5}", 0..10),
            stops in prop::collection::vec("[abcé終]{1,5}", 0..5),
        ) {
            check(&pieces, &stops);
        }
    }
}
