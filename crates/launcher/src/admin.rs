//! Operators' commands in flight: the frontend that passed each on, the roles that still carry it out, the deadline.
//! Pure.
//!
//! A command ends exactly once: when all roles have answered, when one of them refuses or dies, or at its deadline. A
//! frontend that dies takes its orders along; what they asked for may happen all the same.

use pinion_protocol::Peer;
use pinion_protocol::control::AdminOutcome;

/// Orders under way at a time.
const ORDERS_MAX: usize = 64;

/// The answer for a frontend.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// The frontend that passed the command on.
    pub to: Peer,
    /// Its number there.
    pub number: u64,
    /// The result.
    pub outcome: AdminOutcome,
}

struct Order {
    number: u64,
    asker: Peer,
    asker_number: u64,
    deadline_ns: u64,
    missing: Vec<Peer>,
}

impl Order {
    fn ends(self, outcome: AdminOutcome) -> Answer {
        Answer { to: self.asker, number: self.asker_number, outcome }
    }
}

/// All that are under way.
#[derive(Default)]
pub struct Orders {
    last_number: u64,
    orders: Vec<Order>,
}

impl Orders {
    /// Takes a command that `doers` carry out, and returns the launcher's number for it.
    ///
    /// # Errors
    /// Errors: the answer to send at once; too many commands are in flight, or no role can carry it out.
    pub fn take(
        &mut self,
        asker: Peer,
        asker_number: u64,
        deadline_ns: u64,
        doers: Vec<Peer>,
    ) -> Result<u64, Answer> {
        let no = |reason: &str| Answer { to: asker, number: asker_number, outcome: Err(reason.to_owned()) };
        if self.orders.len() >= ORDERS_MAX {
            return Err(no("too many administrative requests are under way"));
        }
        if doers.is_empty() {
            return Err(no("this service has no process that can do it"));
        }
        self.last_number += 1;
        let number = self.last_number;
        self.orders.push(Order { number, asker, asker_number, deadline_ns, missing: doers });
        Ok(number)
    }

    /// A role's answer; the command ends if it was the last one, or a refusal.
    pub fn answered(&mut self, by: Peer, number: u64, outcome: AdminOutcome) -> Option<Answer> {
        let index = self.orders.iter().position(|order| order.number == number)?;
        let order = &mut self.orders[index];
        let place = order.missing.iter().position(|peer| *peer == by)?;
        order.missing.swap_remove(place);
        let over = outcome.is_err() || order.missing.is_empty();
        over.then(|| self.orders.swap_remove(index).ends(outcome.map_err(|reason| format!("{by}: {reason}"))))
    }

    /// A process died: commands that it should carry out fail, and those that it passed on are forgotten.
    pub fn lost(&mut self, peer: Peer) -> Vec<Answer> {
        self.orders.retain(|order| order.asker != peer);
        self.end(|order| order.missing.contains(&peer), &format!("{peer} died before it was done"))
    }

    /// Ends the commands whose deadline has passed.
    pub fn expired(&mut self, now_ns: u64) -> Vec<Answer> {
        self.end(|order| now_ns > order.deadline_ns, "not done in time")
    }

    fn end(&mut self, which: impl Fn(&Order) -> bool, reason: &str) -> Vec<Answer> {
        let ended = self.orders.extract_if(.., |order| which(order));
        ended.map(|order| order.ends(Err(reason.to_owned()))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pinion_protocol::Role;

    const FRONTEND: Peer = Peer::new(Role::Frontend, 0);
    const ENGINES: [Peer; 2] = [Peer::new(Role::Engine, 0), Peer::new(Role::Engine, 1)];

    fn one() -> (Orders, u64) {
        let mut orders = Orders::default();
        let number = orders.take(FRONTEND, 7, 1000, ENGINES.to_vec()).expect("there is room");
        (orders, number)
    }

    fn answer(outcome: AdminOutcome) -> Answer {
        Answer { to: FRONTEND, number: 7, outcome }
    }

    #[test]
    fn an_order_is_done_when_all_have_done_it_and_is_answered_once() {
        let (mut orders, number) = one();
        assert_eq!(orders.answered(ENGINES[1], number, Ok(())), None);
        assert_eq!(orders.answered(ENGINES[1], number, Ok(())), None, "twice by one is not by two");
        assert_eq!(orders.answered(FRONTEND, number, Ok(())), None, "it was not asked");
        assert_eq!(orders.answered(ENGINES[0], number, Ok(())), Some(answer(Ok(()))));
        assert_eq!(orders.answered(ENGINES[0], number, Ok(())), None);
        assert_eq!(orders.expired(u64::MAX), []);
    }

    #[test]
    fn a_no_a_death_and_the_deadline_end_it_too() {
        let (mut orders, number) = one();
        let refused = orders.answered(ENGINES[0], number, Err("busy".into()));
        assert_eq!(refused, Some(answer(Err("engine-0: busy".into()))));

        let (mut orders, _) = one();
        assert_eq!(orders.lost(ENGINES[1]), [answer(Err("engine-1 died before it was done".into()))]);
        assert_eq!(orders.lost(ENGINES[0]), []);

        let (mut orders, _) = one();
        assert_eq!(orders.expired(1000), []);
        assert_eq!(orders.expired(1001), [answer(Err("not done in time".into()))]);

        let (mut orders, number) = one();
        assert_eq!(orders.lost(FRONTEND), []);
        assert_eq!(orders.answered(ENGINES[0], number, Err("late".into())), None, "the asker is gone");
    }

    #[test]
    fn commands_have_a_bound_and_need_a_role_that_carries_them_out() {
        let mut orders = Orders::default();
        assert!(orders.take(FRONTEND, 1, 0, Vec::new()).is_err());
        for number in 0..ORDERS_MAX as u64 {
            orders.take(FRONTEND, number, 0, ENGINES.to_vec()).expect("below the bound");
        }
        assert!(orders.take(FRONTEND, 99, 0, ENGINES.to_vec()).is_err());
    }
}
