//! What one request needs to go on after the death of a role, and what it has gone through.

use crate::observe::timeline::Stamps;
use crate::requests::outgoing::Job;

/// From this suspicion on, a request goes alone.
const ALONE: u32 = 2;
/// With this suspicion it is given up: two deaths at work on it, or four that had it.
const QUARANTINE: u32 = 4;

/// What outlives a death.
pub(super) struct Recovery {
    job: Option<Job>,
    suspicion: u32,
    resumptions: u32,
    lost_ns: Option<u64>,
    earlier: Option<Box<Stamps>>,
}

impl Recovery {
    /// Of a request that was not sent on yet.
    pub(super) fn new(job: Job) -> Recovery {
        Recovery { job: Some(job), suspicion: 0, resumptions: 0, lost_ns: None, earlier: None }
    }

    /// What was asked; none once it was sent if requests do not go on here.
    pub(super) fn job(&self) -> Option<&Job> {
        self.job.as_ref()
    }

    /// Its stages before the last death.
    pub(super) fn earlier(&self) -> Option<&Stamps> {
        self.earlier.as_deref()
    }

    /// Times that it went on after a death.
    pub(super) fn resumptions(&self) -> u32 {
        self.resumptions
    }

    /// Times that it has gone on when it is sent next.
    pub(super) fn resumptions_when_sent(&self) -> u32 {
        self.resumptions + u32::from(self.earlier.is_some())
    }

    /// The request was submitted. Unless it `resumes`, a death ends it: it cannot be submitted again.
    pub(super) fn sent(&mut self, resumes: bool) {
        self.resumptions = self.resumptions_when_sent();
        if !resumes {
            self.job = None;
        }
    }

    /// A role died that held it, and with it `weight` of suspicion falls on it. `moved`: it got tokens since it was
    /// submitted. Whether it may go on.
    pub(super) fn suspect(&mut self, moved: bool, weight: u32) -> bool {
        self.suspicion = if moved { 0 } else { self.suspicion + weight };
        self.suspicion < QUARANTINE
    }

    /// Whether it goes on only when all others have.
    pub(super) fn goes_alone(&self) -> bool {
        self.suspicion >= ALONE
    }

    /// Its roles do not have it any more, since `now_ns`.
    pub(super) fn interrupted(&mut self, stamps: Stamps, now_ns: u64) {
        self.earlier = Some(Box::new(stamps));
        self.lost_ns.get_or_insert(now_ns);
    }

    /// A token came. CLOCK_MONOTONIC ns of the first death since the last one, if there was one.
    pub(super) fn token_came(&mut self) -> Option<u64> {
        self.lost_ns.take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recovery() -> Recovery {
        Recovery::new(Job::Decode(Vec::new()))
    }

    #[test]
    fn progress_clears_a_request_and_two_deaths_at_work_on_it_end_it() {
        let mut request = recovery();
        assert!(request.suspect(false, 2) && request.goes_alone());
        assert!(request.suspect(true, 2) && !request.goes_alone());
        assert!(request.suspect(false, 1) && !request.goes_alone());
        assert!(request.suspect(false, 2) && request.goes_alone());
        assert!(!request.suspect(false, 1));
    }

    #[test]
    fn an_interruption_lasts_from_the_first_death_to_the_next_token() {
        let mut request = recovery();
        assert_eq!(request.token_came(), None);
        request.interrupted(Stamps::default(), 10);
        request.interrupted(Stamps::default(), 20);
        assert_eq!((request.token_came(), request.token_came()), (Some(10), None));
    }

    #[test]
    fn it_is_resumed_once_for_each_time_it_is_sent_after_a_death() {
        let mut request = recovery();
        request.sent(true);
        assert!(request.resumptions() == 0 && request.job().is_some());
        request.interrupted(Stamps::default(), 10);
        assert_eq!(request.resumptions_when_sent(), 1);
        request.sent(false);
        assert!(request.resumptions() == 1 && request.job().is_none());
    }
}
