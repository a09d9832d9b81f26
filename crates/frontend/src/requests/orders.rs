//! Orders of operators: from an admin route to the launcher, and the launcher's word back to the route.
//!
//! The launcher has them carried out by the roles that they concern; [`pinion_protocol::control::Admin`] lists them.
//! A client waits for one at most [`crate::limits::ORDER_TIMEOUT`], and at most [`ORDERS_MAX`] wait at a time.

use crate::limits::ORDERS_MAX;
use crate::requests::outgoing::Outlet;
use pinion_os::clock;
use pinion_protocol::control::{Admin, AdminOutcome};
use pinion_protocol::{Fault, FaultCode};
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::time::Duration;
use tokio::sync::oneshot;

/// The orders of this frontend that the launcher has not answered.
pub struct Orders {
    outlet: Rc<RefCell<dyn Outlet>>,
    timeout: Duration,
    last_number: Cell<u64>,
    waiting: RefCell<HashMap<u64, oneshot::Sender<AdminOutcome>>>,
}

impl Orders {
    /// None yet. Each is given up after `timeout`.
    pub fn new(outlet: Rc<RefCell<dyn Outlet>>, timeout: Duration) -> Orders {
        Orders { outlet, timeout, last_number: Cell::new(0), waiting: RefCell::default() }
    }

    /// The launcher's answer. Its client may be gone.
    pub fn done(&self, number: u64, outcome: AdminOutcome) {
        if let Some(waiter) = self.waiting.borrow_mut().remove(&number) {
            // A client that left in this moment does not want to know.
            let _ = waiter.send(outcome);
        }
    }

    /// Has one carried out.
    pub(crate) async fn give(&self, admin: Admin) -> Result<(), Fault> {
        if self.waiting.borrow().len() >= ORDERS_MAX {
            let message = format!("{ORDERS_MAX} administrative requests are under way");
            return Err(Fault::new(FaultCode::TooManyRequests, message));
        }
        let number = self.last_number.get() + 1;
        self.last_number.set(number);
        let (sender, receiver) = oneshot::channel();
        self.waiting.borrow_mut().insert(number, sender);
        let _entry = Entry { orders: self, number };
        let timeout_ns = u64::try_from(self.timeout.as_nanos()).unwrap_or(u64::MAX);
        self.outlet.borrow_mut().order(number, clock::now_ns().saturating_add(timeout_ns), admin);
        match tokio::time::timeout(self.timeout, receiver).await {
            Ok(Ok(Ok(()))) => Ok(()),
            Ok(Ok(Err(reason))) => Err(Fault::new(FaultCode::Unavailable, reason)),
            Ok(Err(_)) | Err(_) => {
                let message = format!("not done within {:?}", self.timeout);
                Err(Fault::new(FaultCode::Unavailable, message))
            }
        }
    }
}

/// Takes the order off the list however its wait ends: answered, timed out, or left by its client.
struct Entry<'a> {
    orders: &'a Orders,
    number: u64,
}

impl Drop for Entry<'_> {
    fn drop(&mut self) {
        self.orders.waiting.borrow_mut().remove(&self.number);
    }
}
