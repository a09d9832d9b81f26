//! A recording, read whole and checked.

use super::{Group, MAGIC, VERSION, VERSION_ONE_END, frame};
use pinion_config::Config;
use pinion_protocol::{RequestId, detokenizer_inbox};
use pinion_shm::slots::SlotState;
use std::collections::VecDeque;
use std::path::Path;

/// Bytes of a recording that can be replayed.
const RECORDING_BYTES_MAX: u64 = 4 << 30;

/// One row of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlannedRow {
    /// Whose.
    pub id: RequestId,
    /// First position computed.
    pub start: u32,
    /// Positions computed.
    pub len: u32,
    /// Index of the token drawn.
    pub draw: Option<u32>,
}

/// The batch of one step.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Planned {
    /// The step's number.
    pub step: u64,
    /// Its rows, in order.
    pub rows: Vec<PlannedRow>,
}

/// A record from a ring.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Taken {
    /// Index of the inbox.
    pub inbox: u32,
    /// Its kind.
    pub kind: u16,
    /// Its bytes.
    pub payload: Vec<u8>,
}

/// What a slot said at one look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    /// Number of the look in its group.
    pub look: u32,
    /// The request asked about.
    pub id: RequestId,
    /// The answer.
    pub state: Option<SlotState>,
}

/// A group of frames.
#[derive(Clone, Debug, Default)]
pub struct Frames {
    /// Answers of the clock.
    pub clocks: VecDeque<u64>,
    /// Records taken.
    pub records: VecDeque<Taken>,
    /// Answers of slots that were not simply live.
    pub slots: VecDeque<Seen>,
    /// Looks at the detokenizers' backlog that found one, with its bytes.
    pub backlogs: VecDeque<(u32, u64)>,
    /// Sends that were refused.
    pub refused: VecDeque<u32>,
    /// The batch that was planned.
    pub planned: Option<Planned>,
    /// What was sent to detokenizers: the payloads of step records.
    pub steps: Vec<Vec<u8>>,
}

/// All of a file.
pub struct Recording {
    /// The config of the engine that was recorded.
    pub config: Config,
    /// Its inboxes.
    pub inbox_count: usize,
    /// What happened.
    pub groups: Vec<(Group, u16, Frames)>,
    /// Bytes that the file lacks.
    pub lost_bytes: u64,
    /// The recording was ended in order.
    pub complete: bool,
}

/// Reads a file. Errors: one line that says what is wrong with it.
pub fn read(path: &Path) -> Result<Recording, String> {
    let fail = |error: std::io::Error| format!("{}: {error}", path.display());
    let size = std::fs::metadata(path).map_err(fail)?.len();
    if size > RECORDING_BYTES_MAX {
        return Err(format!("{}: {size} bytes are more than {RECORDING_BYTES_MAX}", path.display()));
    }
    let bytes = std::fs::read(path).map_err(fail)?;
    parse(&bytes).map_err(|reason| format!("{}: {reason}", path.display()))
}

fn parse(bytes: &[u8]) -> Result<Recording, String> {
    let mut cursor = Cursor(bytes);
    if cursor.take(MAGIC.len()) != Some(MAGIC) {
        return Err("is no recording of an engine".to_owned());
    }
    let version = match cursor.u32() {
        Some(version @ (VERSION | VERSION_ONE_END)) => version,
        found => {
            let known = format!("this build reads {VERSION_ONE_END} and {VERSION}");
            return Err(format!("has version {found:?}; {known}"));
        }
    };
    let (frame::HEADER, header) = cursor.frame().ok_or("has no header")? else {
        return Err("does not begin with a header".to_owned());
    };
    let mut header: serde_json::Value = serde_json::from_slice(header).map_err(|error| error.to_string())?;
    if version == VERSION_ONE_END {
        raise(&mut header["config"]);
    }
    let config: Config = serde_json::from_value(header["config"].clone())
        .map_err(|error| format!("the config in it is of another build: {error}"))?;
    let inbox_count = header["inboxes"].as_u64().ok_or("its header has no inboxes")? as usize;
    let mut recording = Recording { config, inbox_count, groups: Vec::new(), lost_bytes: 0, complete: false };
    // A file whose service was killed may end within a frame.
    while let Some((kind, payload)) = cursor.frame() {
        take_frame(&mut recording, kind, Cursor(payload)).ok_or("has a frame that is too short")??;
    }
    Ok(recording)
}

/// Makes a config of [`VERSION_ONE_END`] one of [`VERSION`] that means the same.
fn raise(config: &mut serde_json::Value) {
    if let Some(model) = config["model"].as_object_mut() {
        let end = model.remove("eos").unwrap_or_default();
        let ends = if end.is_null() { Vec::new() } else { vec![end] };
        model.insert("stop_ids".to_owned(), ends.into());
        // It knew one family, whose KV heads are its heads and whose context is the longest.
        for (known, name) in [("heads", "kv_heads"), ("max_context", "default_context")] {
            let value = model.get(known).cloned().unwrap_or_default();
            model.entry(name).or_insert(value);
        }
    }
    config["sampling_defaults"] = serde_json::json!({});
    config["reasoning_parser"] = "None".into();
}

fn take_frame(recording: &mut Recording, kind: u8, mut payload: Cursor<'_>) -> Option<Result<(), String>> {
    match kind {
        frame::GROUP => {
            let group = Group::from_byte(payload.take(1)?[0]);
            let index = payload.u16()?;
            match group {
                Some(group) => recording.groups.push((group, index, Frames::default())),
                None => return Some(Err("has an unknown group".to_owned())),
            }
            return Some(Ok(()));
        }
        frame::LOST => {
            recording.lost_bytes += payload.u64()?;
            return Some(Ok(()));
        }
        frame::END => {
            recording.complete = true;
            return Some(Ok(()));
        }
        _ => {}
    }
    let Some((_, _, frames)) = recording.groups.last_mut() else {
        return Some(Err("has a frame outside of a group".to_owned()));
    };
    match kind {
        frame::CLOCK => frames.clocks.push_back(payload.u64()?),
        frame::RECORD => {
            let (inbox, kind) = (payload.u32()?, payload.u16()?);
            frames.records.push_back(Taken { inbox, kind, payload: payload.0.to_vec() });
        }
        frame::SLOT => {
            let (look, id) = (payload.u32()?, payload.request()?);
            let (flags, generation) = (payload.take(1)?[0], payload.u32()?);
            let has = |bit: u8| flags & bit != 0;
            let state =
                has(1).then_some(SlotState { generation, live: has(2), cancelled: has(4), stopped: has(8) });
            frames.slots.push_back(Seen { look, id, state });
        }
        frame::BACKLOG => frames.backlogs.push_back((payload.u32()?, payload.u64()?)),
        frame::REFUSED => frames.refused.push_back(payload.u32()?),
        frame::PLAN => {
            let mut planned = Planned { step: payload.u64()?, rows: Vec::new() };
            while !payload.0.is_empty() {
                let (id, start, len) = (payload.request()?, payload.u32()?, payload.u32()?);
                planned.rows.push(PlannedRow { id, start, len, draw: payload.u32()?.checked_sub(1) });
            }
            frames.planned = Some(planned);
        }
        frame::SENT => {
            let (role, _, kind) = (payload.take(1)?[0], payload.u16()?, payload.u16()?);
            if role == 1 && kind == detokenizer_inbox::kind::STEP {
                frames.steps.push(payload.0.to_vec());
            }
        }
        _ => return Some(Err(format!("has a frame of unknown kind {kind}"))),
    }
    Some(Ok(()))
}

struct Cursor<'a>(&'a [u8]);

impl<'a> Cursor<'a> {
    fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(taken)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N)?.try_into().ok()
    }

    fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_le_bytes)
    }

    fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    fn request(&mut self) -> Option<RequestId> {
        Some(RequestId { frontend: self.u16()?, slot: self.u16()?, generation: self.u32()? })
    }

    fn frame(&mut self) -> Option<(u8, &'a [u8])> {
        let kind = self.take(1)?[0];
        let length = self.u32()? as usize;
        Some((kind, self.take(length)?))
    }
}
