//! The model of the simulation: see the head of the folder's first file.

use super::{EOS, VOCABULARY};
use pinion_protocol::{FaultCode, WindowKv};
use pinion_scheduler::{BlockCopy, Limits, PlanRow, RowResult, RowView, Scheduler};

pub fn mix(state: u64, value: u64) -> u64 {
    pinion_random::mix(state ^ value.wrapping_mul(0xd6e8_feb8_6659_fd93))
}

/// The token behind `position`.
fn draw(state: u64, position: usize, repeats: bool) -> u32 {
    match (repeats, state % 4) {
        (true, 1..) => position as u32 % 3 + 1,
        _ => (state >> 33) as u32 % VOCABULARY,
    }
}

/// What a request gets when it is alone in the world.
pub fn alone(ids: &[u32], generate: usize, ignore_eos: bool, repeats: bool) -> Vec<u32> {
    let feed = |state: u64, token: u32| mix(state, mix(state, u64::from(token)));
    let mut state = ids.iter().fold(1, |state, &token| feed(state, token));
    let mut out = Vec::new();
    while out.len() < generate && (ignore_eos || out.last() != Some(&EOS)) {
        let token = draw(state, ids.len() + out.len() - 1, repeats);
        state = feed(state, token);
        out.push(token);
    }
    out
}

fn copy_within(kv: &mut [u64], block_size: usize, copy: &BlockCopy) {
    let [from, to] = [copy.from, copy.to].map(|block| block as usize * block_size);
    kv.copy_within(from..from + copy.tokens as usize, to);
}

pub struct Mock {
    block_size: usize,
    kv: Vec<u64>,
    /// The same numbers as layers with a window keep them, in window blocks.
    window_kv: Vec<u64>,
    /// Positions that these layers see.
    window: Option<u32>,
    /// What the last step drew, by lane.
    drawn: Vec<u32>,
    repeats: bool,
}

impl Mock {
    pub fn new(limits: &Limits, window: Option<WindowKv>, repeats: bool) -> Mock {
        let size = limits.block_size as usize;
        let kv = vec![0xdead; size * limits.block_count as usize];
        let window_kv = vec![0xbeef; size * window.map_or(0, |window| window.blocks as usize)];
        let (window, drawn) = (window.map(|window| window.tokens), vec![EOS; limits.max_num_seqs as usize]);
        Mock { block_size: size, kv, window_kv, window, drawn, repeats }
    }

    fn at(&mut self, blocks: &[u32], position: usize) -> &mut u64 {
        &mut self.kv
            [blocks[position / self.block_size] as usize * self.block_size + position % self.block_size]
    }

    /// Carries out the copies of the current plan. No row reads where they write.
    pub fn copy(&mut self, scheduler: &Scheduler) {
        let plan = scheduler.current_plan();
        for (at, copy) in plan.copies.iter().enumerate() {
            assert!(copy.tokens > 0 && copy.tokens <= self.block_size as u32);
            assert!(plan.copies[..at].iter().all(|earlier| earlier.to != copy.to && earlier.to != copy.from));
            let holders = plan.rows.iter().filter(|row| scheduler.row(row).blocks.contains(&copy.to)).count();
            assert_eq!(holders, 1, "a copy is for one");
            copy_within(&mut self.kv, self.block_size, copy);
        }
        assert!(
            self.window.is_none() || plan.copies.len() == plan.window_copies.len(),
            "both parts are copied"
        );
        for copy in &plan.window_copies {
            copy_within(&mut self.window_kv, self.block_size, copy);
        }
    }

    /// Writes one position of layers with a window, and looks at all that its query sees there.
    fn write_window(&mut self, view: &RowView<'_>, position: usize, value: u64) {
        let Some(window) = self.window else { return assert!(view.windows.is_empty()) };
        let size = self.block_size;
        let index = |position: usize| view.windows[position / size] as usize * size + position % size;
        self.window_kv[index(position)] = value;
        for seen in (position + 1).saturating_sub(window as usize)..=position {
            let expected = self.kv[view.blocks[seen / size] as usize * size + seen % size];
            assert_eq!(self.window_kv[index(seen)], expected, "position {seen}, seen from {position}");
        }
    }

    /// Computes a row. What a poisoned row writes is wrong.
    pub fn row(&mut self, scheduler: &Scheduler, row: &PlanRow, poisoned: bool) -> RowResult {
        let view = scheduler.row(row);
        let future = self.drawn[row.lane as usize];
        let tokens: Vec<u32> = view.tokens.iter().copied().chain([future]).take(row.len as usize).collect();
        assert_eq!(tokens.len(), row.len as usize, "at most one token is not known");
        if view.sampling.reads_output() {
            assert_eq!(view.tokens.len(), tokens.len(), "its draw looks at all tokens before it");
        }
        let known = view.tokens.len() == tokens.len();
        if let Some(draw) = row.draw.filter(|_| known) {
            assert_eq!(
                view.ids.len() as u32,
                view.prompt_tokens + draw,
                "it looks at no draft behind its own"
            );
        }
        let start = row.start as usize;
        let mut state = (0..start).fold(1, |state, position| mix(state, *self.at(view.blocks, position)));
        for (offset, &token) in tokens.iter().enumerate() {
            let value = mix(state, u64::from(token) + if poisoned { 1 << 40 } else { 0 });
            *self.at(view.blocks, start + offset) = value;
            self.write_window(&view, start + offset, value);
            state = mix(state, value);
        }
        match row.draw {
            Some(_) if poisoned => RowResult::Failed(FaultCode::NonFinite),
            Some(_) => {
                let token = draw(state, start + tokens.len() - 1, self.repeats);
                self.drawn[row.lane as usize] = token;
                RowResult::Token(token)
            }
            None => RowResult::Computed,
        }
    }

    /// No sequence writes where another reads or writes.
    pub fn check_writes(&self, scheduler: &Scheduler, rows: &[PlanRow]) {
        for row in rows {
            let (first, last) = (row.start as usize, (row.start + row.len - 1) as usize);
            let written = &scheduler.row(row).blocks[first / self.block_size..=last / self.block_size];
            let windows = scheduler.row(row).windows;
            let in_window = windows.get(first / self.block_size..=last / self.block_size).unwrap_or_default();
            for other in rows.iter().filter(|other| other.id != row.id) {
                let theirs = scheduler.row(other);
                let hits = written.iter().any(|block| theirs.blocks.contains(block))
                    || in_window.iter().any(|block| theirs.windows.contains(block));
                assert!(!hits, "{} writes to {}", row.id, other.id);
            }
        }
    }
}
