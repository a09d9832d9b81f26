//! Random logits and parameters through the sampler kernel of any device and the host's sampler.

use pinion_cuda::{
    DRAW_BYTES, Device, Draw, DrawMode, NO_LANE, RowChanges, SAMPLE_VOCAB_MAX, SAMPLED_BYTES, Sample,
    Sampled, SampledState,
};
use pinion_model::{RowOutcome, SampleParams, Sampler};
use pinion_random::{Random, mix};

/// In [0, 1).
fn unit(random: &mut Random) -> f32 {
    (random.bits() >> 40) as f32 / (1u64 << 24) as f32
}

/// `uniform` of the host's sampler, which the host also makes the device's draws with.
fn uniform(seed: u64, position: u64) -> f64 {
    let bits = mix(mix(seed) ^ position.wrapping_mul(0xd6e8_feb8_6659_fd93));
    (bits >> 11) as f64 / (1u64 << 53) as f64
}

/// Samples every row on the device; gives the outcomes and the lanes' tokens.
fn on_device(
    device: &Device,
    rows: &[Vec<f32>],
    draws: &[Draw],
    lanes: u32,
) -> (Vec<SampledState>, Vec<u32>) {
    let stream = device.stream().unwrap();
    let put = |bytes: &[u8]| {
        let span = device.alloc(bytes.len()).unwrap();
        stream.upload(span, bytes).unwrap();
        span
    };
    let mut draw_bytes = vec![0; draws.len() * DRAW_BYTES];
    for (draw, to) in draws.iter().zip(draw_bytes.chunks_exact_mut(DRAW_BYTES)) {
        draw.write(to);
    }
    let logits: Vec<u8> = rows.iter().flatten().flat_map(|logit| logit.to_le_bytes()).collect();
    let sampled = put(&vec![0xee; rows.len() * SAMPLED_BYTES]);
    let lane_tokens = put(&vec![0xff; lanes as usize * 4]);
    let args = Sample {
        logits: put(&logits),
        draws: put(&draw_bytes),
        sampled,
        lane_tokens,
        changes: None,
        masks: None,
        rows: rows.len() as u32,
        logits_rows: rows.len() as u32,
        vocab: rows[0].len() as u32,
        lanes,
    };
    stream.sample(&args).unwrap();
    let mut bytes = vec![0; sampled.bytes()];
    stream.download(&mut bytes, sampled).unwrap();
    let mut tokens = vec![0; lane_tokens.bytes()];
    stream.download(&mut tokens, lane_tokens).unwrap();
    let words = tokens.chunks_exact(4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
    (bytes.chunks_exact(SAMPLED_BYTES).map(Sampled::read).collect(), words)
}

pub(crate) fn logits(random: &mut Random, vocab: usize) -> Vec<f32> {
    let (shape, spread) = (random.below(5), 1.0 + 20.0 * unit(random));
    (0..vocab)
        .map(|id| match shape {
            // Ties, all equal, a few peaks, a smooth slope, a spread.
            0 => random.below(4) as f32,
            1 => 1.5,
            2 if random.below(20) == 0 => spread,
            2 => -spread,
            3 => -(id as f32) * spread / vocab as f32,
            _ => spread * (unit(random) + unit(random) - 1.0),
        })
        .collect()
}

pub(crate) fn params(random: &mut Random, vocab: usize) -> SampleParams {
    SampleParams {
        temperature: random.pick(&[0.0, 0.3, 0.7, 1.0, 1.0, 2.5]),
        top_k: if random.below(2) == 0 { 0 } else { 1 + random.below(vocab + 2) as u32 },
        top_p: random.pick(&[1.0, 1.0, 0.95, 0.5, 0.1, 0.0]),
        min_p: random.pick(&[0.0, 0.0, 0.05, 0.5, 1.0]),
        seed: random.bits(),
        position: random.between(0, 999),
        ..SampleParams::GREEDY
    }
}

pub(crate) fn draw_of(params: &SampleParams, lane: u32) -> Draw {
    let greedy = params.temperature <= 0.0 || params.top_k == 1 || params.top_p <= 0.0;
    Draw {
        draw: uniform(params.seed, params.position),
        inverse_temperature: if greedy { 0.0 } else { 1.0 / params.temperature },
        top_p: params.top_p,
        min_p: params.min_p,
        top_k: params.top_k,
        lane,
        mode: if greedy { DrawMode::Greedy } else { DrawMode::Draw },
        changes: RowChanges::NONE,
        row: lane,
        is_scored: false,
        mask: None,
    }
}

/// `cases` launches of a few rows with mixed parameters.
pub(crate) fn sweep(device: &Device, cases: u64, vocab_max: usize) {
    let mut different = 0u32;
    for seed in 0..cases {
        let mut random = Random::new(seed);
        let vocab = 1 + random.below(vocab_max);
        let row_count = 1 + random.below(4);
        let rows: Vec<Vec<f32>> = (0..row_count).map(|_| logits(&mut random, vocab)).collect();
        let all: Vec<SampleParams> = (0..row_count).map(|_| params(&mut random, vocab)).collect();
        let draws: Vec<Draw> =
            all.iter().enumerate().map(|(lane, params)| draw_of(params, lane as u32)).collect();
        let (states, lanes) = on_device(device, &rows, &draws, row_count as u32);
        for index in 0..row_count {
            let want = Sampler::new(vocab).sample(&rows[index], &all[index]);
            let RowOutcome::Token(want) = want else { panic!("seed {seed}: finite logits") };
            assert_eq!(
                states[index],
                SampledState::Token(want),
                "seed {seed}, row {index}: {:?}",
                all[index]
            );
            assert_eq!(lanes[index], want, "seed {seed}: the lane of row {index}");
            different += u32::from(want != 0);
        }
    }
    // Not every answer is the first id.
    assert!(different > 0);
}

/// The widest vocabulary that the kernel takes; where all tokens are equally likely, their sum is the largest there is.
pub(crate) fn widest(device: &Device) {
    let vocab = SAMPLE_VOCAB_MAX as usize;
    let mut random = Random::new(1);
    let one = |temperature, top_k, top_p, seed| SampleParams {
        temperature,
        top_k,
        top_p,
        seed,
        ..SampleParams::GREEDY
    };
    let all = [
        one(0.0, 0, 1.0, 0),
        one(1.0, 0, 1.0, 1),
        one(1.0, 0, 0.95, 2),
        one(1.0, 200_000, 1.0, 3),
        one(1.0, 0, 1.0, 5),
    ];
    let draws: Vec<Draw> =
        all.iter().enumerate().map(|(lane, params)| draw_of(params, lane as u32)).collect();
    let peaked = |id: usize| -> Vec<f32> { (0..vocab).map(|at| if at == id { 30.0 } else { 0.0 }).collect() };
    let mut last_half = 0;
    let spread: Vec<f32> = (0..vocab).map(|_| 9.0 * unit(&mut random)).collect();
    for row in [vec![1.5; vocab], spread, peaked(vocab - 1), peaked(131_072)] {
        let rows = vec![row; all.len()];
        let (states, lanes) = on_device(device, &rows, &draws, all.len() as u32);
        for (index, params) in all.iter().enumerate() {
            let want = Sampler::new(vocab).sample(&rows[index], params);
            let RowOutcome::Token(want) = want else { panic!("finite logits") };
            assert_eq!((states[index], lanes[index]), (SampledState::Token(want), want), "{params:?}");
            last_half += u32::from(want as usize >= vocab / 2);
        }
    }
    assert!(last_half > 10, "{last_half}");
}

/// What is not finite, rows that are skipped, lanes that are not there, one-token vocabularies.
pub(crate) fn odd_logits(device: &Device) {
    let greedy = |lane: u32| draw_of(&SampleParams::GREEDY, lane);
    let drawn = |lane: u32| {
        draw_of(
            &SampleParams { temperature: 1.0, top_k: 3, top_p: 0.9, seed: 7, ..SampleParams::GREEDY },
            lane,
        )
    };
    let rows = vec![
        vec![1.0, f32::NAN, 0.0],
        vec![1.0, f32::INFINITY, 0.0],
        vec![f32::NEG_INFINITY, 1.0, 0.0],
        vec![0.0, -0.0, 0.0],
        vec![f32::MIN, f32::MIN, f32::MAX],
        vec![5.0, 6.0, 7.0],
        vec![5.0, 6.0, 7.0],
    ];
    let skipped = Draw { mode: DrawMode::Skip, ..greedy(2) };
    let mut draws = [greedy(0), drawn(1), drawn(3), greedy(4), drawn(5), skipped, greedy(NO_LANE)];
    draws.iter_mut().enumerate().for_each(|(row, draw)| draw.row = row as u32);
    let (states, lanes) = on_device(device, &rows, &draws, 6);
    let bad = SampledState::NonFinite;
    let token = SampledState::Token;
    assert_eq!(states, [bad, bad, bad, token(0), token(2), SampledState::None, token(2)]);
    assert_eq!(lanes, [u32::MAX, u32::MAX, u32::MAX, u32::MAX, 0, 2]);
    let (states, _) = on_device(device, &[vec![-3.0]], &[drawn(0)], 1);
    assert_eq!(states, [token(0)]);
}
