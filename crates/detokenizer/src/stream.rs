//! What one request's text needs: decode state, stop strings, position.

use crate::waiting::Waiting;
use pinion_protocol::RequestId;
use pinion_protocol::detokenizer_inbox::{EVENT_EOS, EVENT_LAST, EVENT_TOKEN, Open, TextForm, TokenEvent};
use pinion_protocol::frontend_inbox::{DELTA_LAST, DELTA_MARK, stopped_by};
use pinion_text::reasoning::{CLOSE, OPEN};
use pinion_text::{StopMatcher, TextCodec, TextStream};

/// How far a stream is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    /// Text goes to the frontend.
    Flowing,
    /// A stop string was found and the last delta sent; the engine's remaining events are ignored.
    Stopped,
    /// A delta could not be delivered: the request is cancelled, and only its end is still sent.
    Lost,
}

/// One request's state, from its opening to its last event.
pub(crate) struct Stream {
    pub(crate) id: RequestId,
    pub(crate) progress: Progress,
    /// Sequence number of the next token.
    pub(crate) next_sequence: u32,
    /// Index of the next token of the prompt whose score comes.
    pub(crate) next_scored: u32,
    /// Whether any text was sent.
    pub(crate) has_text: bool,
    /// What leaves with a later token.
    pub(crate) waiting: Waiting,
    /// How the text is made.
    form: TextForm,
    /// Tokens that are sent by themselves, with what they show.
    marks: Option<MarkIds>,
    text: TextStream,
    stop: StopMatcher,
}

impl Stream {
    /// The state after the tokens that `open` resumes, none of which is the request's last. Their text was sent before
    /// the restart, except what was held back then and is held back again now. `piece` and `text` are overwritten.
    pub(crate) fn new(
        open: Open,
        (codec, marks): (&TextCodec, Option<MarkIds>),
        interval: u32,
        piece: &mut String,
        text: &mut String,
    ) -> Stream {
        let mut stream = Stream {
            id: open.id,
            progress: Progress::Flowing,
            next_sequence: open.resume.len() as u32,
            next_scored: 0,
            has_text: false,
            waiting: Waiting::new(interval),
            form: open.form,
            marks: marks.filter(|_| open.form.marks),
            text: if open.form.continues { TextStream::continuing(codec) } else { TextStream::new(codec) },
            stop: StopMatcher::new(open.stop).including(open.form.include_stop),
        };
        for token in open.resume {
            text.clear();
            let stopped = match stream.mark_of(token) {
                Some(mark) => {
                    stream.settle(codec, piece, text) || stream.push_mark(codec, (token, mark), piece, text)
                }
                None => stream.push(codec, token, piece, text),
            };
            if stopped {
                break;
            }
        }
        stream
    }

    /// Whether the event is the one that comes next. Of a text that has ended no more is looked at.
    pub(crate) fn expects(&self, event: &TokenEvent) -> bool {
        let has_token = event.flags & EVENT_TOKEN != 0;
        self.progress != Progress::Flowing || !has_token || event.sequence == self.next_sequence
    }

    /// Appends to `text` what the event gives. The flags of the delta to send, or `None` if nothing is sent
    /// any more. `piece` is overwritten.
    pub(crate) fn advance(
        &mut self,
        codec: &TextCodec,
        event: &TokenEvent,
        piece: &mut String,
        text: &mut String,
    ) -> Option<u32> {
        let (has_token, last) = (event.flags & EVENT_TOKEN != 0, event.flags & EVENT_LAST != 0);
        if has_token {
            self.next_sequence = event.sequence.wrapping_add(1);
        }
        match self.progress {
            Progress::Stopped => return None,
            Progress::Lost => return last.then_some(DELTA_LAST),
            Progress::Flowing => {}
        }
        let shows = has_token && (event.flags & EVENT_EOS == 0 || self.form.include_stop);
        let stopped = (shows && self.push(codec, event.token, piece, text))
            || (last && self.finish(codec, piece, text));
        if stopped {
            self.progress = Progress::Stopped;
            return Some(DELTA_LAST | self.stopped_by());
        }
        Some(if last { DELTA_LAST } else { 0 })
    }

    /// The flags that say which stop string was found.
    fn stopped_by(&self) -> u32 {
        stopped_by(self.stop.found().unwrap_or_default())
    }

    /// What a token shows that is to be sent by itself.
    fn mark_of(&self, token: u32) -> Option<&'static str> {
        self.marks.iter().flatten().find(|(id, _)| *id == token).map(|(_, mark)| *mark)
    }

    /// The mark that an event brings, if it is to be sent by itself.
    pub(crate) fn mark(&self, event: &TokenEvent) -> Option<&'static str> {
        let shows = event.flags & EVENT_TOKEN != 0 && event.flags & EVENT_EOS == 0;
        self.mark_of(event.token).filter(|_| shows && self.progress == Progress::Flowing)
    }

    /// As [`Stream::advance`] for a mark: `before` gets what was held back, `text` the mark. If a stop string is found,
    /// `text` gets all that is left.
    pub(crate) fn advance_mark(
        &mut self,
        codec: &TextCodec,
        (event, mark): (&TokenEvent, &str),
        piece: &mut String,
        (before, text): (&mut String, &mut String),
    ) -> u32 {
        self.next_sequence = event.sequence.wrapping_add(1);
        let stopped = if self.settle(codec, piece, before) {
            std::mem::swap(before, text);
            true
        } else {
            self.push_mark(codec, (event.token, mark), piece, text)
        };
        if stopped {
            self.progress = Progress::Stopped;
            return DELTA_LAST | self.stopped_by();
        }
        let last = event.flags & EVENT_LAST != 0;
        DELTA_MARK | if last { DELTA_LAST } else { 0 }
    }

    /// Appends what was held back, though the text goes on; true if a stop string was found.
    fn settle(&mut self, codec: &TextCodec, piece: &mut String, text: &mut String) -> bool {
        piece.clear();
        self.text.finish(codec, piece);
        self.stop.push(piece, text) || self.stop.finish(text)
    }

    /// Appends a mark; true if a stop string was found.
    fn push_mark(
        &mut self,
        codec: &TextCodec,
        (token, mark): (u32, &str),
        piece: &mut String,
        text: &mut String,
    ) -> bool {
        // The decoder sees the token, and what it makes of it is the mark.
        piece.clear();
        self.text.push(codec, token, piece);
        self.stop.push(mark, text) || self.stop.finish(text)
    }

    /// True if a stop string was found.
    fn push(&mut self, codec: &TextCodec, token: u32, piece: &mut String, text: &mut String) -> bool {
        piece.clear();
        if self.form.special {
            self.text.push_shown(codec, token, piece);
        } else {
            self.text.push(codec, token, piece);
        }
        self.stop.push(piece, text)
    }

    /// Appends what was held back; true if a stop string was found after all.
    fn finish(&mut self, codec: &TextCodec, piece: &mut String, text: &mut String) -> bool {
        piece.clear();
        self.text.finish(codec, piece);
        self.stop.push(piece, text) || self.stop.finish(text)
    }
}

/// The marks of reasoning, each with its token and what it shows.
pub(crate) type MarkIds = [(u32, &'static str); 2];

/// Those of a vocabulary, if it has both.
pub(crate) fn mark_ids(codec: &TextCodec) -> Option<MarkIds> {
    Some([(codec.mark_id(OPEN)?, OPEN), (codec.mark_id(CLOSE)?, CLOSE)])
}
