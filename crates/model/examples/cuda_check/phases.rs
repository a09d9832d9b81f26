//! Where the fused decode step spends its time: of each phase what a block takes for its rows, for its part of the
//! work, and at the barrier behind it, in microseconds, over the blocks and the layers.

use crate::Outcome;
use crate::filled::Filled;
use pinion_cuda::{
    DECODE_PHASES, DecodeModel, DecodePlan, DecodeSplit, DecodeStep, Device, GEMV_ROWS_MAX, Stamp,
};
use pinion_model::cuda::fused_splits;
use serde_json::json;
use std::path::Path;

/// Stamps of a step by phase and block: clocks of [`Stamp`]'s four.
struct Stamps {
    clocks: Vec<u64>,
    blocks: usize,
}

impl Stamps {
    fn of(&self, phase: usize, block: usize, stamp: Stamp) -> u64 {
        self.clocks[(phase * 4 + stamp as usize) * self.blocks + block]
    }

    /// (rows, work, barrier) in clocks.
    fn parts(&self, phase: usize, block: usize) -> [u64; 3] {
        let [begun, brought, done, passed] = [Stamp::Begun, Stamp::Brought, Stamp::Done, Stamp::Passed]
            .map(|stamp| self.of(phase, block, stamp));
        // Attention brings its rows as it goes.
        let brought = if brought == 0 { begun } else { brought };
        [brought - begun, done - brought, passed - done]
    }

    /// From the first phase's begin to the last one's end, in the block that takes longest.
    fn whole(&self) -> u64 {
        let last = self.clocks.len() / self.blocks / 4 - 1;
        let clocks = |block| self.of(last, block, Stamp::Done) - self.of(0, block, Stamp::Begun);
        (0..self.blocks).map(clocks).max().unwrap_or(0)
    }
}

/// Phases of steps of one to eight rows; the context whole, in a few parts, and in as many as the engine splits it
/// into.
pub(crate) fn phases(object: &str) -> Outcome {
    let device = Device::open(Path::new(object), 0)?;
    let on = Filled::new(&device, GEMV_ROWS_MAX, GEMV_ROWS_MAX)?;
    let model = DecodeModel::new(&on.stream, on.shape, on.tables, &on.layers)?;
    let rows: &[u32] = if device.facts().emulated { &[1, 3] } else { &[1, 2, 4, 8] };
    let heads = on.shape.heads;
    for &rows in rows {
        let plan = model.plan(&on.stream, rows)?;
        let planned = fused_splits(&plan, heads);
        let mut ways = vec![1, planned.div_ceil(3), planned];
        ways.dedup();
        for splits in ways {
            one(&on, &model, &plan, splits)?;
        }
    }
    Ok(())
}

/// One step, without stamps and with.
fn one(on: &Filled, model: &DecodeModel, plan: &DecodePlan, splits: u32) -> Outcome {
    let (device, heads, rows) = (&on.device, on.shape.heads, plan.rows);
    let counters = device.alloc((rows * heads) as usize * 4)?;
    on.stream.fill(counters, 0)?;
    let partials = device.alloc((rows * heads * splits * (on.shape.hidden / heads + 2)) as usize * 4)?;
    let stamps = device.alloc(model.stamp_bytes(plan))?;
    on.stream.fill(stamps, 0)?;
    let step = DecodeStep {
        tokens: on.lanes,
        lanes: on.lanes,
        positions: on.positions,
        tables: on.block_tables,
        table_stride: on.context.div_ceil(on.shape.block_size),
        lane_tokens: on.lanes,
        buffers: on.buffers,
        split: (splits > 1).then_some(DecodeSplit { splits, partials, counters }),
        stamps: None,
    };
    let plain_ms = on.ms_of(|| on.stream.decode_step(model, plan, &step))?;
    let stamped = DecodeStep { stamps: Some(stamps), ..step };
    let stamped_ms = on.ms_of(|| on.stream.decode_step(model, plan, &stamped))?;
    let mut bytes = vec![0; stamps.bytes()];
    on.stream.download(&mut bytes, stamps)?;
    let word = |bytes: &[u8]| bytes.iter().rev().fold(0, |word, &byte| word << 8 | u64::from(byte));
    let clocks = bytes.chunks_exact(8).map(word).collect();
    tell(plan, splits, [plain_ms, stamped_ms], &Stamps { clocks, blocks: plan.blocks as usize });
    Ok(())
}

fn tell(plan: &DecodePlan, splits: u32, [plain_ms, stamped_ms]: [f64; 2], stamps: &Stamps) {
    // The clock's rate is not asked of the driver: the step's time is known in both units.
    let us = stamped_ms * 1e3 / stamps.whole() as f64;
    println!(
        "{}",
        json!({"fused_rows": plan.rows, "splits": splits, "blocks": plan.blocks, "group_slots": plan.group_slots, "step_ms": plain_ms,
            "step_with_stamps_ms": stamped_ms, "clocks": stamps.whole()})
    );
    let phase_count = stamps.clocks.len() / stamps.blocks / 4;
    let names = DECODE_PHASES.iter().chain(["head"].iter());
    for (index, name) in names.enumerate() {
        let of_name: Vec<usize> = match index {
            index if index == DECODE_PHASES.len() => vec![phase_count - 1],
            index => (index..phase_count - 1).step_by(DECODE_PHASES.len()).collect(),
        };
        let parts: Vec<[u64; 3]> = of_name
            .iter()
            .flat_map(|&phase| (0..stamps.blocks).map(move |block| stamps.parts(phase, block)))
            .collect();
        let mean =
            |part: usize| parts.iter().map(|parts| parts[part]).sum::<u64>() as f64 / parts.len() as f64 * us;
        // The shortest wait is the last block's: what the barrier itself takes.
        let least_wait = of_name.iter().map(|&phase| {
            (0..stamps.blocks).map(|block| stamps.parts(phase, block)[2]).min().unwrap_or(0) as f64
        });
        println!(
            "{}",
            json!({"fused_rows": plan.rows, "splits": splits, "phase": name, "times": of_name.len(), "rows_us": mean(0), "work_us": mean(1),
                "barrier_us": mean(2), "barrier_least_us": least_wait.sum::<f64>() / of_name.len() as f64 * us})
        );
    }
}
