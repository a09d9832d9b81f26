//! One run: the choices, and what must hold.

use crate::client::{Client, End};
use crate::clock;
use crate::coverage::Coverage;
use crate::host::Places;
use crate::observer::Observer;
use crate::oracle::Oracle;
use crate::plan::Plan;
use crate::request;
use crate::role::{Life, Stage, Turned};
use pinion_launcher::serve::Service;
use pinion_protocol::{Peer, Role};
use pinion_random::Random;
use std::collections::BTreeMap;
use std::fmt;
use tokio::task::LocalSet;

const MS_NS: u64 = 1_000_000;
/// A run takes fewer choices than this.
const CHOICES_MAX: u64 = 400_000;
/// Virtual time in which every client has its end once nothing goes wrong any more.
const QUIET_NS_MAX: u64 = 120_000 * MS_NS;
/// Virtual time for the sweep of what a dead role left, and for the launcher's tick.
const SETTLE_NS: u64 = 1_000 * MS_NS;

/// A run that went wrong.
#[derive(Clone, Debug)]
pub struct Failure {
    /// Replays it.
    pub seed: u64,
    /// What went wrong.
    pub message: String,
    /// The last choices before that.
    pub trace: Vec<String>,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for line in &self.trace {
            writeln!(f, "    {line}")?;
        }
        write!(f, "seed {}: {}", self.seed, self.message)
    }
}

/// A run that went well.
#[derive(Clone, Debug)]
pub struct Report {
    /// What it has reached.
    pub coverage: Coverage,
    /// Of all choices and what came of them: the same for the same seed.
    pub digest: u64,
    /// Choices.
    pub choices: u64,
}

/// Runs the service of this seed.
///
/// # Errors
/// What did not hold.
pub fn run(seed: u64, traced: usize) -> Result<Report, Failure> {
    // Roles would install their own, which writes to standard error.
    let _ = tracing::subscriber::set_global_default(tracing::subscriber::NoSubscriber::new());
    clock::reset();
    let mut random = Random::new(seed);
    let plan = Plan::new(&mut random);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.expect("a runtime needs some descriptors only");
    let tasks = LocalSet::new();
    let _runtime = runtime.enter();
    let _tasks = tasks.enter();
    let mut world =
        World::new(plan, random, traced).map_err(|message| Failure { seed, message, trace: Vec::new() })?;
    match world.run() {
        Ok(()) => Ok(Report { coverage: world.coverage, digest: world.digest, choices: world.choices }),
        Err(message) => Err(Failure { seed, message, trace: world.trace }),
    }
}

pub(crate) struct World {
    pub(crate) plan: Plan,
    random: Random,
    service: Service,
    places: Places,
    pub(crate) lives: BTreeMap<Peer, Life>,
    pub(crate) clients: Vec<Client>,
    oracle: Oracle,
    asked: usize,
    /// When roles died.
    pub(crate) deaths_ns: Vec<u64>,
    /// Deaths that may still come.
    deaths_left: usize,
    stalls_left: usize,
    pub(crate) drained: bool,
    /// The service has ended.
    over: bool,
    coverage: Coverage,
    observer: Observer,
    digest: u64,
    choices: u64,
    traced: usize,
    trace: Vec<String>,
}

impl World {
    fn new(plan: Plan, random: Random, traced: usize) -> Result<World, String> {
        let places = Places::default();
        let service =
            Service::start(plan.config.clone(), plan.topology.clone(), places.host(), clock::now_ns);
        let service = service.map_err(|ending| ending.reason)?;
        let peers = plan.topology.processes.iter().map(|process| process.peer);
        let lives = peers.map(|peer| (peer, Life::new(places.take(peer), 1))).collect();
        Ok(World {
            deaths_left: plan.deaths,
            stalls_left: plan.stalls,
            plan,
            random,
            service,
            places,
            lives,
            clients: Vec::new(),
            oracle: Oracle::new(),
            asked: 0,
            deaths_ns: Vec::new(),
            drained: false,
            over: false,
            coverage: Coverage::default(),
            observer: Observer::default(),
            digest: 0,
            choices: 0,
            traced,
            trace: Vec::new(),
        })
    }

    fn run(&mut self) -> Result<(), String> {
        self.start()?;
        while self.goes_on() {
            self.choose()?;
            if self.random.below(60) == 0 {
                self.disturb()?;
            }
        }
        let quiet_ns = clock::now_ns();
        self.clients.iter_mut().for_each(|client| client.stalled_until_ns = 0);
        while !self.clients.is_empty() {
            self.choose()?;
            if clock::now_ns() - quiet_ns > QUIET_NS_MAX {
                return Err(self.stuck("clients have no end though nothing goes wrong any more"));
            }
        }
        if self.plan.drains {
            return self.stop();
        }
        self.settle()?;
        self.check_baseline()
    }

    /// Until every role serves.
    fn start(&mut self) -> Result<(), String> {
        while !self.lives.values().all(|life| matches!(life.stage, Stage::Serving(_))) {
            self.choose()?;
        }
        // A death that the launcher sees before it knows that all are ready ends the service.
        self.look().and_then(|()| self.look())
    }

    /// Whether something may still go wrong.
    fn goes_on(&self) -> bool {
        !self.drained && (self.asked < self.plan.requests || self.clients.len() > self.plan.together / 2)
            || self.deaths_left > 0 && !self.clients.is_empty() && !self.drained
    }

    fn note(&mut self, what: impl FnOnce() -> String, code: u64) {
        self.digest = (self.digest ^ code ^ clock::now_ns()).wrapping_mul(0x0100_0000_01b3).rotate_left(17);
        if self.traced > 0 {
            if self.trace.len() >= self.traced {
                self.trace.remove(0);
            }
            let us = (clock::now_ns() - clock::BEGIN_NS) / 1_000;
            self.trace.push(format!("{us:>10} us  {}", what()));
        }
    }

    /// One choice: the loop that turns next.
    fn choose(&mut self) -> Result<(), String> {
        self.observer.look(&self.lives, &mut self.coverage);
        self.observer.look_at(&self.service, &mut self.coverage);
        self.choices += 1;
        if self.choices > CHOICES_MAX {
            return Err(self.stuck("too many choices"));
        }
        clock::pass_ns(self.random.between(1_000, 200_000));
        match self.random.below(100) {
            0..8 => self.look(),
            8..72 => {
                let turns = self.random.between(1, 3);
                let Some(peer) = self.awake() else { return self.idle() };
                let mut worked = false;
                for _ in 0..turns {
                    worked |= self.turn(peer)? != Turned::Idle;
                }
                if worked || self.random.chance(70) { Ok(()) } else { self.idle() }
            }
            72..94 => {
                let at = self.random.below(self.clients.len().max(1));
                if at < self.clients.len() && self.may_read(at) { self.read(at) } else { Ok(()) }
            }
            _ => (0..self.plan.burst).try_for_each(|_| self.ask()),
        }
    }

    /// A role that is not stopped.
    fn awake(&mut self) -> Option<Peer> {
        let now_ns = clock::now_ns();
        let awake = |life: &&Life| !life.is_gone() && life.stalled_until_ns <= now_ns;
        let peers: Vec<Peer> = self.lives.values().filter(awake).map(|life| life.peer).collect();
        if peers.is_empty() {
            return None;
        }
        let peer = self.random.pick(&peers);
        let passed_over = self.lags(peer) && self.random.chance(85);
        Some(if passed_over { self.random.pick(&peers) } else { peer })
    }

    fn lags(&self, peer: Peer) -> bool {
        self.plan.lagging == Some(peer.role)
    }

    /// Every role turns; time passes if none has anything to do.
    fn idle(&mut self) -> Result<(), String> {
        let now_ns = clock::now_ns();
        let mut worked = false;
        let peers: Vec<Peer> = self.lives.keys().copied().collect();
        for peer in peers {
            let awake = |life: &Life| !life.is_gone() && life.stalled_until_ns <= now_ns;
            let passed_over = self.lags(peer) && self.random.chance(60);
            if self.lives.get(&peer).is_some_and(awake) && !passed_over {
                worked |= self.turn(peer)? != Turned::Idle;
            }
        }
        self.look()?;
        let mut at = 0;
        while at < self.clients.len() {
            let count = self.clients.len();
            if self.may_read(at) {
                worked = true;
                self.read(at)?;
            }
            at += usize::from(self.clients.len() == count);
        }
        if !worked {
            let ms = self.random.pick(&[1, 5, 40]);
            clock::pass_ns(ms * MS_NS);
        }
        Ok(())
    }

    fn turn(&mut self, peer: Peer) -> Result<Turned, String> {
        let Some(life) = self.lives.get_mut(&peer) else { return Ok(Turned::Idle) };
        let early = self.random.chance(self.plan.early);
        let topology = &self.plan.topology;
        let turned = if early { life.turn_early(topology) } else { life.turn(topology).map(|t| (t, false)) };
        let (turned, missed) = turned.map_err(|error| format!("{peer}: {error}"))?;
        let epoch = life.epoch;
        if missed {
            self.coverage.see("role: turned before it saw its messages");
        }
        if let Turned::Left { .. } = turned {
            life.seen_gone_ns = clock::now_ns();
            self.break_connections(peer)?;
        }
        self.check_turn(peer)?;
        self.note(
            || format!("{peer} (life {epoch}) turns: {turned:?}"),
            1 + u64::from(turned == Turned::Idle),
        );
        Ok(turned)
    }

    /// The launcher turns: it sees at most one end, so that their order is the seed's.
    fn look(&mut self) -> Result<(), String> {
        if self.over {
            return Ok(());
        }
        let now_ns = clock::now_ns();
        let due = |life: &&mut Life| life.is_gone() && !life.has_shown_end() && life.seen_gone_ns <= now_ns;
        let ended = self.lives.values_mut().find(due).map(|life| {
            life.show_end();
            (life.peer, life.epoch)
        });
        match self.service.look() {
            Ok(None) => {}
            Ok(Some(ending)) => {
                self.over = true;
                self.coverage.see(format!("service: ended {:?}", ending.code));
            }
            Err(ending) => return Err(format!("the service ends: {}", ending.reason)),
        }
        if let Some((peer, epoch)) = ended
            && !self.over
            && self.service.life(peer) == Some(epoch)
        {
            return Err(format!("the launcher does not see that {peer} has ended"));
        }
        self.note(|| format!("the launcher turns, sees {ended:?}"), 3);
        self.follow_launcher()
    }

    /// Ends what the launcher has killed, and takes in what it has started.
    fn follow_launcher(&mut self) -> Result<(), String> {
        let peers: Vec<Peer> = self.lives.keys().copied().collect();
        for peer in peers {
            let (now, life) = (self.service.life(peer), self.lives.get_mut(&peer));
            let Some(life) = life.filter(|life| now != Some(life.epoch)) else { continue };
            if !life.is_gone() {
                self.deaths_ns.push(clock::now_ns());
                self.coverage.see(format!("death: {} killed as stuck", peer.role.name()));
                life.drop_state();
                life.show_end();
                self.break_connections(peer)?;
            }
            if let Some(epoch) = now {
                self.coverage.see(format!("restart: {}", peer.role.name()));
                self.note(|| format!("{peer} starts, life {epoch}"), 4);
                self.lives.insert(peer, Life::new(self.places.take(peer), epoch));
            }
        }
        Ok(())
    }

    /// Something goes wrong.
    fn disturb(&mut self) -> Result<(), String> {
        let peers: Vec<Peer> = self.lives.keys().copied().collect();
        let (peer, now_ns) = (self.random.pick(&peers), clock::now_ns());
        let life = self.lives.get_mut(&peer).expect("every peer has a life");
        match self.random.below(3) {
            0 if self.deaths_left > 0 && !life.is_gone() => {
                let (stage, epoch) = (stage_name(&life.stage), life.epoch);
                life.drop_state();
                life.seen_gone_ns = now_ns + self.random.pick(&[0, 0, MS_NS, 50 * MS_NS]);
                self.deaths_left -= 1;
                self.deaths_ns.push(clock::now_ns());
                self.coverage.see(format!("death: {} {stage}", peer.role.name()));
                self.note(|| format!("{peer} (life {epoch}) dies, {stage}"), 5);
                self.break_connections(peer)?;
            }
            1 if self.stalls_left > 0 && matches!(life.stage, Stage::Serving(_)) => {
                let ms = self.random.pick(&[1, 5, 20, 100, 400, 1_500, 2_500, 1_000_000]);
                life.stalled_until_ns = now_ns + ms * MS_NS;
                self.stalls_left -= 1;
                self.coverage.see(format!("stall: {}", peer.role.name()));
                self.note(|| format!("{peer} stops for {ms} ms"), 6);
            }
            2 if self.plan.drains && self.asked >= self.plan.requests / 2 && !self.drained => self.drain(),
            _ => {}
        }
        Ok(())
    }

    fn drain(&mut self) {
        self.drained = true;
        self.coverage.see("service: drained under load");
        self.note(|| "the service is told to stop".to_owned(), 7);
        let _ = self.service.signalled();
    }

    /// A frontend is gone and with it the connections of its clients. What had come was checked as it came.
    fn break_connections(&mut self, peer: Peer) -> Result<(), String> {
        if peer.role != Role::Frontend {
            return Ok(());
        }
        let theirs = |client: &Client| client.frontend == peer.index;
        let broken = self.clients.iter().filter(|client| theirs(client)).count();
        self.coverage.add("client: connection broken by a death", broken as u64);
        self.clients.retain(|client| !theirs(client));
        Ok(())
    }

    /// A client comes.
    fn ask(&mut self) -> Result<(), String> {
        if self.drained || self.asked >= self.plan.requests || self.clients.len() >= self.plan.together {
            return Ok(());
        }
        let index = self.random.below(usize::from(self.plan.config.frontends)) as u16;
        let now_ns = clock::now_ns();
        let Some(life) = self.lives.get(&Peer::new(Role::Frontend, index)) else { return Ok(()) };
        let may_ask = life.accepts() && life.stalled_until_ns <= now_ns;
        let Some(app) = life.app().filter(|_| may_ask) else { return Ok(()) };
        let choices_max = self.plan.config.max_inflight as usize;
        let asked = request::make(&mut self.random, &self.oracle, choices_max);
        self.asked += 1;
        let mut client = Client::new(self.asked, asked, index, app, now_ns);
        if self.random.chance(self.plan.leaving) {
            client.leaves_ns = Some(now_ns + self.random.between(0, 60 * MS_NS));
        }
        let number = self.asked;
        let body = client.asked.body.to_string();
        self.note(|| format!("client {number} asks frontend {index}: {body}"), 8);
        self.clients.push(client);
        self.read(self.clients.len() - 1)
    }

    fn may_read(&self, at: usize) -> bool {
        let (client, now_ns) = (&self.clients[at], clock::now_ns());
        let leaves = client.leaves_ns.is_some_and(|at_ns| at_ns <= now_ns);
        let life = self.lives.get(&Peer::new(Role::Frontend, client.frontend));
        let serves = life.is_some_and(|life| life.app().is_some() && life.stalled_until_ns <= now_ns);
        serves && (leaves || client.is_woken() && client.stalled_until_ns <= now_ns)
    }

    /// A client reads, stops reading, or leaves.
    fn read(&mut self, at: usize) -> Result<(), String> {
        let now_ns = clock::now_ns();
        let client = &mut self.clients[at];
        let number = client.number;
        if client.leaves_ns.is_some_and(|at_ns| at_ns <= now_ns) {
            self.coverage.see("client: left");
            self.note(|| format!("client {number} leaves"), 9);
            return self.remove(at).map(drop);
        }
        if self.random.chance(self.plan.slow) && self.random.chance(20) && self.goes_on() {
            let client = &mut self.clients[at];
            client.stalled_until_ns = now_ns + self.random.pick(&[1, 20, 300]) * MS_NS;
            self.coverage.see("client: stopped reading");
            return Ok(());
        }
        let end = self.clients[at].read().map_err(|error| format!("client {number}: {error}"))?;
        let said = format!("{end:?}");
        self.note(|| format!("client {number} reads: {said}"), 10 + said.len() as u64);
        let Some(end) = end else { return Ok(()) };
        let client = self.remove(at)?;
        let name = match &end {
            End::Complete => "client: complete".to_owned(),
            End::Failed { code, .. } => format!("client: {code}"),
        };
        self.coverage.see(name);
        match end {
            End::Failed { code, message, at_once } if !self.may_fail(&client, &code, at_once) => {
                Err(format!("client {number} failed without a reason: {code}: {message}"))
            }
            _ => Ok(()),
        }
    }

    /// Told to stop, the service ends, and every role leaves.
    fn stop(&mut self) -> Result<(), String> {
        if !self.drained {
            self.drain();
        }
        let begin_ns = clock::now_ns();
        while !self.over {
            self.choose()?;
            if clock::now_ns() - begin_ns > QUIET_NS_MAX {
                return Err(self.stuck("the service does not end"));
            }
        }
        Ok(())
    }

    /// Time for what is done after the last answer, once every role serves.
    fn settle(&mut self) -> Result<(), String> {
        let serves = |world: &World| world.lives.values().all(|life| matches!(life.stage, Stage::Serving(_)));
        self.lives.values_mut().for_each(|life| life.stalled_until_ns = 0);
        let begin_ns = clock::now_ns();
        while !serves(self) {
            self.idle()?;
            if clock::now_ns() - begin_ns > QUIET_NS_MAX {
                return Err(self.stuck("a role does not come back"));
            }
        }
        let serving_ns = clock::now_ns();
        while clock::now_ns() - serving_ns < SETTLE_NS {
            self.idle()?;
        }
        Ok(())
    }
}

pub(crate) fn stage_name(stage: &Stage) -> &'static str {
    match stage {
        Stage::Started(_) => "before it attached",
        Stage::Attached(_) => "before it was ready",
        Stage::Serving(_) => "while it served",
        Stage::Gone => "gone",
    }
}
