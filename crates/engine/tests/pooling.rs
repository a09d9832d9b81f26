//! Vectors of prompts through the engine's loop: one for each request, ahead of its end, whatever its chunks and its
//! company are; its KV is free then.

use crate::rig::{EOS, Random, Rig, VOCABULARY, pipeline, small};
use pinion_engine::{Engine, Sizes, Turn};
use pinion_model::{FakeModel, FakeOptions, FakeShape, fake_vector};
use pinion_protocol::frontend_inbox::FinishReason;
use pinion_protocol::status::Gauge;
use pinion_protocol::{FaultCode, Sampling};
use pinion_scheduler::Policy;

fn engine(overlap: bool) -> Engine {
    let sizes = Sizes { policy: Policy { pools: true, ..Policy::default() }, ..small() };
    let limits = &sizes.limits;
    let shape = FakeShape {
        vocab_size: VOCABULARY,
        max_context: limits.max_model_len,
        eos: Some(EOS),
        block_size: limits.block_size,
        block_count: limits.block_count,
    };
    let model = FakeModel::new(shape, FakeOptions::default()).pooling();
    Engine::new(pipeline(Box::new(model), overlap), sizes)
}

fn nothing() -> Sampling {
    Sampling { max_tokens: Some(0), ..Sampling::default() }
}

#[test]
fn each_request_gets_the_vector_of_its_prompt_and_ends() {
    for overlap in [false, true] {
        let (mut engine, mut rig) = (engine(overlap), Rig::new());
        let mut random = Random::new(5);
        let common = random.prompt(16);
        let mut all = Vec::new();
        for slot in 0..24u16 {
            let mut prompt = common.clone();
            let own_len = 1 + random.below(100);
            prompt.extend(random.prompt(own_len));
            let id = rig.open(slot % 2, slot);
            rig.admit(id, &prompt, prompt.len(), nothing());
            all.push((id, prompt));
            engine.turn(&mut rig).expect("the model works");
            rig.read();
        }
        while engine.turn(&mut rig).expect("the model works") == Turn::Worked {
            rig.read();
        }
        rig.read();
        for (id, prompt) in &all {
            let (story, finished) = rig.ended(*id);
            assert_eq!((finished.reason, finished.generated_tokens), (FinishReason::Length, 0));
            assert_eq!((finished.prompt_tokens, finished.cached_tokens), (prompt.len() as u32, 0));
            assert_eq!((story.vectors, story.tokens), (vec![fake_vector(prompt)], vec![]));
        }
        let longest = all.iter().map(|(_, prompt)| prompt.len() as u32).max().unwrap_or(0);
        assert!(longest > small().limits.max_num_batched_tokens, "some are computed in chunks");
        assert!(engine.is_empty());
        assert_eq!(rig.gauge(Gauge::KvBlocksUsed), 0, "its KV is free");
    }
}

#[test]
fn a_request_for_tokens_is_refused() {
    let (mut engine, mut rig) = (engine(false), Rig::new());
    let id = rig.open(0, 0);
    rig.admit(id, &[1, 2, 3], 3, Sampling { max_tokens: Some(1), ..Sampling::default() });
    engine.turn(&mut rig).expect("the model works");
    rig.read();
    let rejected = &rig.stories[&id].rejected[0];
    assert_eq!(
        (rejected.fault.code, rejected.fault.param.as_deref()),
        (FaultCode::InvalidValue, Some("max_tokens"))
    );
}
