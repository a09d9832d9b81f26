//! KV events, from the command line to the config, the plan and the rings.

use crate::tree::{Tree, serve, serve_result};
use pinion_config::{KvEvents, Machine, Topology};
use pinion_protocol::limits::CACHE_RECORD_BYTES_MAX;
use pinion_protocol::{Peer, Role};

const EVENTS: Peer = Peer::new(Role::Events, 0);

#[test]
fn the_endpoints_and_the_topic_are_settled_or_named() {
    let (machine, model) = (Machine::uniform(4, 1), Tree::gpt2());
    assert_eq!(serve(&machine, &model, &[], &[]).kv_events, None);
    let on = ["--kv-events=tcp://*:5557"];
    let expected = KvEvents { publish: "0.0.0.0:5557".parse().unwrap(), replay: None, topic: String::new() };
    assert_eq!(serve(&machine, &model, &on, &[]).kv_events, Some(expected.clone()));
    let more = [&on[..], &["--kv-events-replay=tcp://[::1]:5558", "--kv-events-topic=kv@pod@m"]].concat();
    let expected =
        KvEvents { replay: Some("[::1]:5558".parse().unwrap()), topic: "kv@pod@m".to_owned(), ..expected };
    assert_eq!(serve(&machine, &model, &more, &[]).kv_events, Some(expected));

    for (args, reason) in [
        (&["--kv-events=5557"][..], "no endpoint like tcp://"),
        (&["--kv-events=tcp://*:1", "--kv-events-replay=ipc:///x"], "no endpoint like tcp://"),
        (&["--kv-events=tcp://*:1", "--kv-events-replay=tcp://*:1"], "has the port of --kv-events, 1"),
        (&["--kv-events=tcp://*:1", "--no-prefix-cache"], "--no-prefix-cache switches that off"),
        (&["--kv-events=tcp://*:1", "--pooling=last"], "keeps no prefix cache"),
        (&["--kv-events-replay=tcp://*:1"], "needs --kv-events"),
        (&["--kv-events-topic=x"], "needs --kv-events"),
        (&["--cpus-events=1"], "needs --kv-events"),
        (&["--kv-events-config={}"], "--kv-events-topic"),
    ] {
        let faults = serve_result(&machine, &model, args, &[]).expect_err(reason).to_string();
        assert!(faults.contains(reason), "{args:?}: {faults}");
    }
}

#[test]
fn the_process_shares_the_tokenizer_s_cores_and_has_one_ring() {
    let model = Tree::gpt2();
    for (cores, args, cpus) in [
        (8, &["--kv-events=tcp://*:1"][..], None),
        (2, &["--kv-events=tcp://*:1"], None),
        (8, &["--kv-events=tcp://*:1", "--cpus-events=3"], Some(vec![3])),
    ] {
        let machine = Machine::uniform(cores, 1);
        let config = serve(&machine, &model, args, &[]);
        let topology = Topology::new(&config);
        let of = |peer| topology.process(peer).expect("it is there").cpus.clone();
        assert_eq!(of(EVENTS), cpus.unwrap_or_else(|| of(Peer::new(Role::Tokenizer, 0))), "{cores} {args:?}");
        assert_eq!(topology.processes.last().map(|process| process.peer), Some(EVENTS));
        let edges: Vec<_> =
            topology.edges.iter().filter(|edge| [edge.from, edge.to].contains(&EVENTS)).collect();
        assert_eq!(edges.len(), 1);
        assert_eq!(edges[0].from, Peer::new(Role::Engine, 0));
        assert!(edges[0].payload_bytes_max() >= CACHE_RECORD_BYTES_MAX);
    }
    let without = serve(&Machine::uniform(8, 1), &model, &[], &[]);
    assert!(Topology::new(&without).process(EVENTS).is_none());
}
