//! The life of a service in one loop: start every role, open the port when all are ready, watch, restart,
//! drain, end. One thread; every wait has a deadline.

#[cfg(test)]
pub(crate) mod tests;
mod watch;

use crate::admin::{Answer, Orders};
use crate::collector;
use crate::ending::{Ending, not_started, role_exit};
use crate::host::Host;
use crate::member::Member;
use crate::notify::Notifier;
use crate::port::{bind_port, event_sockets, open_port};
use crate::profile::Recording;
use crate::role_event::RoleEvent;
use crate::signals::Signals;
use crate::spare::Spare;
use crate::welcome;
use crate::wiring::Wiring;
use pinion_config::{Config, Exit, Profiler, Topology};
use pinion_os::clock::{self, Clock};
use pinion_protocol::control::{Admin, ToRole};
use pinion_protocol::status::LauncherGauge;
use pinion_protocol::{Peer, Role};
use pinion_shm::doorbell;
use pinion_worker::telemetry::{self, LogPage};
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::time::Duration;

/// The loop's longest sleep: how old the ring depths that frontends report can get.
const TICK: Duration = Duration::from_millis(50);
/// How long roles have to leave after everything is done, before they are killed.
const STOP_TIMEOUT_NS: u64 = 2_000_000_000;
/// The same when each has a profiler around it.
const REPORT_TIMEOUT_NS: u64 = 60_000_000_000;
/// A longer pause of the launcher has stopped the roles too: their heartbeats are then timed anew.
const OWN_PAUSE_NS: u64 = 1_000_000_000;
/// Signals that come within this time of the first are one with it: timeout(1) sends its signal to the process and to
/// its group, and a terminal that goes away sends SIGHUP beside that of a shell.
const SAME_SIGNAL_NS: u64 = 500_000_000;
const MS_NS: u64 = 1_000_000;

enum Stage {
    Starting,
    Serving,
    /// As before, but `/ready` says no, so that load balancers send requests elsewhere. Then it drains.
    Leaving {
        until_ns: u64,
    },
    /// Frontends finish what is in flight.
    Draining {
        deadline_ns: u64,
    },
    /// No request is left; the roles leave.
    Stopping {
        deadline_ns: u64,
    },
}

/// A service that runs: its roles, what they share, and how far it is.
pub struct Service {
    config: Config,
    clock: Clock,
    host: Host,
    address: SocketAddr,
    wiring: Wiring,
    members: Vec<Member>,
    /// Of the engine, where there may be one.
    spare: Option<Spare>,
    orders: Orders,
    recording: Recording,
    notifier: Notifier,
    stage: Stage,
    restarts: u64,
    /// Restarted roles that are ready and not announced to the others yet.
    unannounced: Vec<Peer>,
    cut_short: bool,
    /// When the signal came that ends it, if one did.
    signalled_ns: Option<u64>,
    /// Why the service ends by itself, if it does.
    reason: Option<Ending>,
    /// The last turn of the loop.
    turned_ns: u64,
    /// Heartbeats are timed from this instant or later.
    silent_from_ns: u64,
}

/// Runs the service to its end. Returns when no role is left, but for threads that did not leave in time.
pub fn serve(config: Config, host: Host) -> Ending {
    let signals = match Signals::new() {
        Ok(signals) => signals,
        Err(error) => return Ending::system("cannot take signals", error),
    };
    let topology = Topology::new(&config);
    let mut service = match Service::start(config, topology, host, clock::now_ns) {
        Ok(service) => service,
        Err(ending) => return ending,
    };
    let ending = loop {
        match service.turn(&signals) {
            Ok(None) => {}
            Ok(Some(ending)) | Err(ending) => break ending,
        }
    };
    service.kill_all();
    if let Some(profile) = service.host.profile() {
        profile.write_manifest();
    }
    ending
}

impl Service {
    /// Makes what the roles share and starts every role. `topology` is the config's, as far as the roles can tell; the
    /// loop reads `clock`.
    ///
    /// # Errors
    /// Why it cannot.
    pub fn start(
        mut config: Config,
        topology: Topology,
        host: Host,
        clock: Clock,
    ) -> Result<Service, Ending> {
        collector::look_up(&mut config);
        let (listener, address) = bind_port((config.host, config.port).into(), "--port")?;
        let event_sockets = event_sockets(&config)?;
        let wiring = Wiring::new(&config, &topology, listener)
            .map_err(|e| Ending::system("cannot make shared memory", e))?
            .with_event_sockets(event_sockets);
        telemetry::show_on(
            "launcher".to_owned(),
            LogPage {
                page: wiring.board().clone(),
                dropped_word: LauncherGauge::LogLinesDropped as usize,
                losing_word: LauncherGauge::LogLosing as usize,
            },
        );
        telemetry::say(&config.cpu_plan.to_string());
        tracing::info!(
            rings = topology.edges.len(),
            rings_mib = topology.shared_bytes() >> 20,
            "starting {} {}",
            topology.processes.len(),
            if config.in_process { "threads" } else { "processes" }
        );
        let spare = Spare::of(&config, &host, &topology);
        let start_timeout_ns = config.lifecycle.start_timeout_ms * MS_NS;
        let members = topology
            .processes
            .into_iter()
            .map(|process| Member::new(process, start_timeout_ns, clock))
            .collect();
        let mut service = Service {
            config,
            clock,
            host,
            address,
            wiring,
            members,
            spare,
            orders: Orders::default(),
            recording: Recording::default(),
            notifier: Notifier::of_process(),
            stage: Stage::Starting,
            restarts: 0,
            unannounced: Vec::new(),
            cut_short: false,
            signalled_ns: None,
            reason: None,
            turned_ns: clock(),
            silent_from_ns: 0,
        };
        for index in 0..service.members.len() {
            if let Err(ending) = service.spawn(index) {
                service.kill_all();
                return Err(ending);
            }
        }
        Ok(service)
    }

    fn spawn(&mut self, index: usize) -> Result<(), Ending> {
        let (member, now_ns) = (&mut self.members[index], (self.clock)());
        // The spare is taken last: what fails before that leaves it where it is.
        let control = self.wiring.control().map_err(|error| not_started(member.peer, &error))?;
        let spare = self.spare.as_mut().and_then(|spare| spare.take(member.peer, now_ns));
        let was_spare = spare.is_some();
        let started = member.spawn(&self.wiring, &self.host, control, spare);
        started.map_err(|error| not_started(member.peer, &error))?;
        let how = if was_spare { "started from the spare process" } else { "started" };
        tracing::info!(peer = %member.peer, pid = member.pid(), "{how}");
        Ok(())
    }

    /// One turn of the loop: wait, take signals, look at every role, move on.
    fn turn(&mut self, signals: &Signals) -> Result<Option<Ending>, Ending> {
        let fds = std::iter::once(signals.fd()).chain(self.member_fds());
        wait(fds).map_err(|e| Ending::system("cannot wait", e))?;
        if signals.ending()
            && let Some(ending) = self.signalled()
        {
            return Ok(Some(ending));
        }
        self.look()
    }

    /// Looks at every role and moves the service on; never waits. Gives its end when it is over.
    ///
    /// # Errors
    /// An end before that.
    pub fn look(&mut self) -> Result<Option<Ending>, Ending> {
        for index in 0..self.members.len() {
            while let Some(event) = self.members[index]
                .poll(&self.wiring)
                .map_err(|e| Ending::system("cannot watch a role", e))?
            {
                self.on_event(index, event)?;
            }
        }
        if let Some((to, number, outcome)) = self.recording.look((self.clock)()) {
            self.answer([Answer { to, number, outcome }]);
        }
        if let Some(spare) = &mut self.spare {
            spare.look((self.clock)());
        }
        self.notifier.turn((self.clock)());
        self.wiring.mend_headers();
        self.wiring.update_board(self.restarts, u64::from(self.spare_lives()));
        let late = self.orders.expired((self.clock)());
        self.answer(late);
        self.advance()
    }

    /// Takes a signal that ends the service: the first one drains, the second ends at once. One that comes right after
    /// the first says the same as it.
    pub fn signalled(&mut self) -> Option<Ending> {
        let now_ns = (self.clock)();
        match self.stage {
            Stage::Starting => Some(Ending::new(Exit::Ok, "stopped before it was ready")),
            Stage::Serving => {
                self.signalled_ns = Some(now_ns);
                self.leave();
                None
            }
            Stage::Leaving { .. } | Stage::Draining { .. } | Stage::Stopping { .. }
                if self.signalled_ns.is_some_and(|first_ns| now_ns - first_ns < SAME_SIGNAL_NS) =>
            {
                None
            }
            Stage::Leaving { .. } | Stage::Draining { .. } | Stage::Stopping { .. } => {
                let at_once = || Ending::new(Exit::DrainCut, "stopped at once by a second signal");
                Some(self.reason.take().unwrap_or_else(at_once))
            }
        }
    }

    /// The end that was asked for: `/ready` says no for a time in which requests are still served, then the drain.
    fn leave(&mut self) {
        let delay_ms = self.config.lifecycle.drain_delay_ms;
        if delay_ms == 0 {
            self.drain();
            return;
        }
        tracing::info!(
            delay_ms,
            "/ready says no; requests are served until the drain; a second signal stops at once"
        );
        self.stage = Stage::Leaving { until_ns: (self.clock)() + delay_ms * MS_NS };
        self.tell_end("/ready says no; requests are still served", delay_ms);
        self.tell_role(Role::Frontend, &ToRole::Leaving);
    }

    /// Frontends finish the requests in flight, then all roles leave.
    fn drain(&mut self) {
        let timeout_ms = self.config.lifecycle.drain_timeout_ms;
        tracing::info!(timeout_ms, "draining; a second signal stops at once");
        self.tell_end("draining", 0);
        let deadline_ns = (self.clock)() + timeout_ms * MS_NS;
        self.stage = Stage::Draining { deadline_ns };
        self.spare.iter_mut().for_each(Spare::leave);
        self.tell_role(Role::Frontend, &ToRole::Drain { deadline_ns });
    }

    /// Tells the supervisor that the service ends: after `delay_ms`, the drain, and the time that roles have to leave.
    fn tell_end(&mut self, status: &str, delay_ms: u64) {
        let within_ms =
            delay_ms + self.config.lifecycle.drain_timeout_ms + 2 * self.stop_timeout_ns() / MS_NS;
        self.notifier.stopping(status, Duration::from_millis(within_ms));
    }

    /// Ends a service that cannot continue. It drains first, so that each open request gets its end.
    fn shut_down(&mut self, reason: Ending) {
        tracing::error!(reason = reason.reason, "the service ends");
        self.reason = Some(reason);
        self.drain();
    }

    /// Descriptors that wake the loop: deaths of all roles first, then messages of roles that start.
    fn member_fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let deaths = self.members.iter().filter_map(Member::death_fd);
        let starts = self.members.iter().filter_map(Member::start_fd);
        deaths.chain(starts).chain(self.spare.iter().filter_map(Spare::death_fd))
    }

    fn spare_lives(&self) -> bool {
        self.spare.as_ref().is_some_and(Spare::lives)
    }

    fn on_event(&mut self, index: usize, event: RoleEvent) -> Result<(), Ending> {
        let peer = self.members[index].peer;
        match event {
            RoleEvent::Ready { summary } => {
                tracing::info!(%peer, "ready: {summary}");
                let now_ns = (self.clock)();
                self.spare.iter_mut().for_each(|spare| spare.settle(now_ns));
                if !matches!(self.stage, Stage::Starting) {
                    self.unannounced.push(peer);
                }
                Ok(())
            }
            RoleEvent::Failed { reason, exit_code } => {
                if matches!(self.stage, Stage::Starting) && !self.may_fail(index) {
                    // The service ends with these words.
                    let code = role_exit(exit_code);
                    return Err(Ending::new(code, format!("{peer}: {reason}")));
                }
                tracing::error!(%peer, "{reason}");
                Ok(())
            }
            RoleEvent::Ordered { number, deadline_ns, admin } => {
                self.ordered(peer, number, deadline_ns, admin);
                Ok(())
            }
            RoleEvent::Corrupt(edge) => self.corrupt(&edge),
            RoleEvent::Answered { number, outcome } => {
                let answer = self.orders.answered(peer, number, outcome);
                self.answer(answer);
                Ok(())
            }
            RoleEvent::Ended { status, was_standby } => {
                if let Some(profile) = self.host.profile().filter(|_| !status.success()) {
                    profile.ended(peer, &status.to_string());
                }
                let answers = self.orders.lost(peer);
                self.answer(answers);
                self.ended(index, status, was_standby)
            }
        }
    }

    /// Passes a frontend's command to the roles that carry it out.
    fn ordered(&mut self, asker: Peer, number: u64, deadline_ns: u64, admin: Admin) {
        let wrapped = self.config.observe.profiler.is_none_or(Profiler::wraps);
        if wrapped && matches!(admin, Admin::StartProfile | Admin::StopProfile) {
            let starts = admin == Admin::StartProfile;
            let order = (asker, number, deadline_ns);
            let outcome = self.recording.order(self.host.profile(), starts, order);
            self.answer(outcome.map(|outcome| Answer { to: asker, number, outcome }));
            return;
        }
        let concerned = |member: &&Member| admin.roles().contains(&member.peer.role);
        let all_ready = self.members.iter().filter(concerned).all(Member::is_ready);
        let doers: Vec<Peer> = self.members.iter().filter(concerned).map(|member| member.peer).collect();
        let taken = if all_ready {
            self.orders.take(asker, number, deadline_ns, doers.clone())
        } else {
            Err(Answer { to: asker, number, outcome: Err("a role that has to do it is down".to_owned()) })
        };
        match taken {
            Ok(number) => {
                tracing::info!(%asker, number, ?admin, "operator's command passed on");
                for member in self.members.iter_mut().filter(|member| doers.contains(&member.peer)) {
                    member.tell(&self.wiring, &ToRole::Admin { number, admin });
                }
            }
            Err(refusal) => self.answer(Some(refusal)),
        }
    }

    /// A profiler writes its report before its role counts as gone.
    fn stop_timeout_ns(&self) -> u64 {
        self.host.profile().map_or(STOP_TIMEOUT_NS, |_| REPORT_TIMEOUT_NS)
    }

    fn answer(&mut self, answers: impl IntoIterator<Item = Answer>) {
        for Answer { to, number, outcome } in answers {
            let message = ToRole::AdminDone { number, outcome };
            for member in self.members.iter_mut().filter(|member| member.peer == to) {
                member.tell(&self.wiring, &message);
            }
        }
    }

    /// Moves the service on: restarts that are due, starts that took too long, the next stage.
    fn advance(&mut self) -> Result<Option<Ending>, Ending> {
        let now_ns = (self.clock)();
        self.announce();
        match self.stage {
            Stage::Starting => {
                self.check_start_deadlines(now_ns)?;
                self.restart_due(now_ns)?;
                if self.members.iter().all(Member::is_ready) {
                    self.open()?;
                }
            }
            Stage::Serving | Stage::Leaving { .. } => {
                self.kill_stuck(now_ns);
                self.kill_late_standby(now_ns);
                self.keep_spare(now_ns);
                let kept = self.check_start_deadlines(now_ns).and_then(|()| self.restart_due(now_ns));
                if let Err(reason) = kept {
                    self.shut_down(reason);
                } else if matches!(self.stage, Stage::Leaving { until_ns } if now_ns >= until_ns) {
                    self.drain();
                }
            }
            Stage::Draining { deadline_ns } => {
                self.kill_stuck(now_ns);
                let frontend_left = |member: &Member| member.peer.role == Role::Frontend && member.lives();
                if !self.members.iter().any(frontend_left) || now_ns > deadline_ns {
                    self.cut_short |= now_ns > deadline_ns;
                    self.stage = Stage::Stopping { deadline_ns: now_ns + self.stop_timeout_ns() };
                    for member in &mut self.members {
                        member.tell(&self.wiring, &ToRole::Stop);
                    }
                }
            }
            Stage::Stopping { deadline_ns } => {
                if !self.members.iter().any(Member::lives) && !self.spare_lives() {
                    return Ok(Some(self.stopped()));
                }
                if now_ns > deadline_ns {
                    // No request is open any more, so nothing is lost with a process that is slow to leave.
                    for member in self.members.iter().filter(|member| member.lives()) {
                        tracing::warn!(peer = %member.peer, "has not left in time; killing it");
                    }
                    return Ok(Some(self.stopped()));
                }
            }
        }
        Ok(None)
    }

    fn stopped(&mut self) -> Ending {
        if let Some(reason) = self.reason.take() {
            return reason;
        }
        if self.cut_short {
            return Ending::new(
                Exit::DrainCut,
                "the drain deadline passed or a role was gone; what was in flight was cut short",
            );
        }
        tracing::info!("stopped");
        Ending::new(Exit::Ok, "")
    }

    /// Every role is ready: listen, and let the frontends accept.
    fn open(&mut self) -> Result<(), Ending> {
        open_port(self.wiring.listener(), self.address, "--port")?;
        self.stage = Stage::Serving;
        self.tell_role(Role::Frontend, &ToRole::Open);
        for member in &self.members {
            tracing::info!(peer = %member.peer, pid = member.pid(), "serving");
        }
        telemetry::say(&welcome::lines(&self.config, self.address));
        let model = &self.config.served_model_name;
        self.notifier.ready(&format!("http://{} serves {model}", self.address));
        Ok(())
    }

    fn tell_role(&mut self, role: Role, message: &ToRole) {
        for member in self.members.iter_mut().filter(|member| member.peer.role == role) {
            member.tell(&self.wiring, message);
        }
    }

    fn tell_others(&mut self, peer: Peer, message: &ToRole) {
        for member in self.members.iter_mut().filter(|member| member.peer != peer) {
            member.tell(&self.wiring, message);
        }
    }
}

/// Waits until a descriptor is readable, or for a tick. Descriptors beyond the limit are looked at after the tick.
fn wait<'a>(fds: impl Iterator<Item = BorrowedFd<'a>>) -> std::io::Result<()> {
    let fds: Vec<_> = fds.take(doorbell::WAIT_FDS_MAX).collect();
    doorbell::wait(&fds, TICK).map(drop)
}
