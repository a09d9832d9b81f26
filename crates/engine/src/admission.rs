//! From an admit record to the scheduler's queue: everything is checked again, and what cannot run is told so.

use crate::engine::Engine;
use crate::ports::Ports;
use pinion_protocol::engine_inbox::Admit;
use pinion_protocol::frontend_inbox::{self, Reject};
use pinion_protocol::names::Stage;
use pinion_protocol::status::Gauge;
use pinion_protocol::{Fault, FaultCode, Malformed, Peer, RequestId, Role};
use pinion_scheduler::{Refusal, Request};

impl Engine {
    /// Takes records from the inboxes in turn, at most the command budget, or as many as the engine lacks to fill a
    /// step; without a budget all that there can be, so that even then a turn ends. Gives how many there were.
    pub(crate) fn drain(&mut self, ports: &mut impl Ports) -> u32 {
        let here = (self.scheduler.running().len() + self.scheduler.waiting().len()) as u32;
        let lacking = self.sizes.limits.max_num_seqs.saturating_sub(here);
        let budget = match self.sizes.command_budget {
            0 => self.sizes.limits.max_requests,
            budget => budget.max(if self.sizes.fill_to_target { lacking } else { 0 }),
        };
        let mut taken = 0;
        while taken < budget {
            let Some((inbox, decoded)) = self.next_decoded(ports) else { break };
            if let Err(malformed) = decoded.and_then(|admit| self.admit(admit, ports)) {
                ports.condemn(inbox, malformed.0);
            }
            taken += 1;
        }
        taken
    }

    fn next_decoded(&mut self, ports: &mut impl Ports) -> Option<(usize, Result<Admit, Malformed>)> {
        let inbox_count = ports.inbox_count();
        for _ in 0..inbox_count {
            self.next_inbox = (self.next_inbox + 1) % inbox_count;
            if let Some(record) = ports.next_record(self.next_inbox) {
                return Some((self.next_inbox, Admit::decode(record.kind, record.payload)));
            }
        }
        None
    }

    /// Takes one record of a ring that has been replaced. One that is none is passed over: its writer is dead, and the
    /// frontends send again what that had.
    pub fn take_record(&mut self, kind: u16, payload: &[u8], ports: &mut impl Ports) {
        let taken = Admit::decode(kind, payload).and_then(|admit| self.admit(admit, ports));
        if taken.is_err() {
            ports.add_one(Gauge::MalformedRecords);
        }
    }

    /// Errors: there never was such a request.
    fn admit(&mut self, admit: Admit, ports: &mut impl Ports) -> Result<(), Malformed> {
        let id = admit.id;
        let state = ports.slot(id).filter(|state| state.has_reached(id.generation));
        let state = state.ok_or(Malformed("request of an admission"))?;
        if !state.live || state.generation != id.generation {
            ports.add_one(Gauge::StaleRecords);
            return Ok(());
        }
        let now_ns = ports.now_ns();
        ports.stamp(id, Stage::EngineReceived, now_ns);
        if let Some(fault) = self.objection(&admit) {
            self.reject(id, fault, ports);
            return Ok(());
        }
        let here = self.scheduler.running().len() + self.scheduler.waiting().len();
        if here + self.constraints.waiting() >= self.sizes.limits.max_requests as usize {
            self.discard_stale(ports);
        }
        if self.constraints.has(id) {
            self.duplicate(id, ports);
        } else if admit.sampling.grammar.is_some() {
            if let Err(fault) = self.constraints.order(admit) {
                self.reject(id, fault, ports);
            }
        } else {
            self.schedule(admit, now_ns, ports);
        }
        Ok(())
    }

    /// Hands the requests whose grammars are ready to the scheduler. Gives how many there were.
    pub(crate) fn admit_compiled(&mut self, ports: &mut impl Ports) -> u32 {
        let mut taken = 0;
        while let Some((admit, compiled)) = self.constraints.next_compiled() {
            taken += 1;
            let id = admit.id;
            if !is_current(id, ports) {
                ports.add_one(Gauge::StaleRecords);
                continue;
            }
            match compiled {
                Ok(mask) => {
                    self.constraints.start(id, mask);
                    if !self.schedule(admit, ports.now_ns(), ports) {
                        self.constraints.forget(id);
                    }
                }
                Err(fault) => self.reject(id, fault, ports),
            }
        }
        taken
    }

    fn duplicate(&self, id: RequestId, ports: &impl Ports) {
        ports.add_one(Gauge::MalformedRecords);
        tracing::error!(%id, "admitted twice; the first one goes on");
    }

    /// Whether the scheduler has it; otherwise its client was told why not.
    fn schedule(&mut self, admit: Admit, now_ns: u64, ports: &mut impl Ports) -> bool {
        let Admit { id, claim, sampling, ids, prompt_tokens } = admit;
        match self.scheduler.admit(Request { id, claim, sampling, ids, prompt_tokens }, now_ns) {
            Ok(()) => return true,
            Err(Refusal::Fault(fault)) => self.reject(id, fault, ports),
            Err(Refusal::Duplicate) => self.duplicate(id, ports),
        }
        false
    }

    /// Checks that the scheduler cannot make: the vocabulary, and the detokenizer that takes the tokens.
    fn objection(&self, admit: &Admit) -> Option<Fault> {
        let vocab_size = self.pipeline.info().vocab_size;
        if let Some(token) = admit.ids.iter().find(|&&token| token >= vocab_size) {
            let message = format!("token id {token} is not below the vocabulary size {vocab_size}");
            return Some(Fault::field("prompt", message));
        }
        let foreign = |id: u32| id >= vocab_size;
        for (field, found) in [
            ("logit_bias", admit.sampling.logit_bias.iter().any(|(id, _)| foreign(*id))),
            ("stop_token_ids", admit.sampling.stop_token_ids.iter().any(|id| foreign(*id))),
        ] {
            if found {
                let message =
                    format!("{field} has a token id that is not below the vocabulary size {vocab_size}");
                return Some(Fault::field(field, message));
            }
        }
        if self.pipeline.info().vector_width.is_some() && admit.sampling.max_tokens != Some(0) {
            return Some(Fault::field("max_tokens", "the served model pools; it generates no token"));
        }
        let stuck = self.streams.is_stuck(admit.id);
        stuck.then(|| Fault::new(FaultCode::Unavailable, "the detokenizer does not keep up"))
    }

    fn reject(&mut self, id: RequestId, fault: Fault, ports: &mut impl Ports) {
        Reject { id, fault }.encode(&mut self.encoded);
        self.tell_frontend(id.frontend, frontend_inbox::kind::REJECT, ports);
    }

    /// Sends the record in `encoded`. A frontend has at most one end per slot outstanding, far less than its ring and
    /// backlog hold: one that overflows does not read at all, and its requests have no reader left.
    pub(crate) fn tell_frontend(&mut self, frontend: u16, kind: u16, ports: &mut impl Ports) {
        if ports.send(Peer::new(Role::Frontend, frontend), kind, &self.encoded).is_err() {
            tracing::error!(frontend, "the frontend does not read; its requests are dropped");
            self.discard_where(|id| id.frontend == frontend);
        }
    }
}

fn is_current(id: RequestId, ports: &impl Ports) -> bool {
    ports.slot(id).is_some_and(|state| state.live && state.generation == id.generation)
}
