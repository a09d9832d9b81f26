//! Open connections and what each is doing, so that an idle one makes room for a new one before descriptors run out.
//!
//! The roles that come back after a death bring descriptors too, so connections never take the last ones: a
//! connection's own descriptor, always the lowest free number, tells how near the limit is.

use crate::limits::{CONNECTIONS_MAX, DESCRIPTOR_RESERVE_MAX, DESCRIPTOR_RESERVE_MIN, TRIM_CONNECTIONS};
use nix::sys::resource::{Resource, getrlimit};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::task::{Context, Waker};
use tokio::sync::Notify;

/// What a connection is doing, shared by the socket and the service behind hyper.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Doing {
    /// Between requests.
    Waiting,
    /// Receiving a head.
    Head,
    /// From a complete head to the end of the answer.
    Serving,
}

/// Whether one more connection can be held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Room {
    /// Yes.
    Free,
    /// Yes, if an idle one goes.
    Tight,
    /// No.
    None,
}

/// The most connections, by number and by descriptor.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    count: usize,
    /// Descriptors from this number on are left to the roles' links and to refusals.
    descriptors: u64,
    /// Part of those that a connection may use whose room another one is about to leave.
    spill: u64,
}

impl Bounds {
    /// From this process's limit.
    pub(crate) fn of_process() -> Bounds {
        let soft = getrlimit(Resource::RLIMIT_NOFILE).map_or(u64::MAX, |(soft, _)| soft);
        Bounds::new(CONNECTIONS_MAX, soft)
    }

    fn new(count: usize, soft: u64) -> Bounds {
        let reserve = (soft / 8).clamp(DESCRIPTOR_RESERVE_MIN, DESCRIPTOR_RESERVE_MAX);
        Bounds { count, descriptors: soft.saturating_sub(reserve), spill: reserve / 2 }
    }

    /// For a connection on this descriptor beside `open` others, of which there should be fewer than `limit`.
    fn room(&self, open: usize, limit: usize, descriptor: u64) -> Room {
        let spill = usize::try_from(self.spill).unwrap_or(usize::MAX);
        if open < limit && descriptor < self.descriptors {
            Room::Free
        } else if open < self.count + spill && descriptor < self.descriptors + self.spill {
            Room::Tight
        } else {
            Room::None
        }
    }
}

/// All connections of this process.
#[derive(Debug, Default)]
pub struct Connections {
    open: Cell<usize>,
    /// How many were open when the descriptors were used up. A connection that leaves frees a low number, so from then
    /// on the number of a new one no longer tells how many are in use.
    limit: Cell<Option<usize>>,
    /// The most that were open since the last fall.
    peak: Cell<usize>,
    fallen: Notify,
    next: Cell<u64>,
    /// The idle ones in the order in which they became so, each with what tells it to close.
    idle: RefCell<BTreeMap<u64, Rc<Notify>>>,
    /// Those with an answer that is not all in the socket yet.
    answering: Cell<usize>,
}

impl Connections {
    /// Whether bytes of any answer are not in their socket yet.
    pub fn any_answers(&self) -> bool {
        self.answering.get() > 0
    }

    /// For one more on this descriptor.
    pub(crate) fn room(&self, bounds: &Bounds, descriptor: i32) -> Room {
        let (open, descriptor) = (self.open.get(), u64::try_from(descriptor).unwrap_or(u64::MAX));
        if descriptor >= bounds.descriptors {
            self.limit.set(Some(self.limit.get().map_or(open, |limit| limit.min(open))));
        }
        bounds.room(open, self.limit.get().unwrap_or(bounds.count).min(bounds.count), descriptor)
    }

    /// Tells the one that has been idle longest to close; false if none is idle.
    pub(crate) fn close_longest_idle(&self) -> bool {
        let longest = self.idle.borrow_mut().pop_first();
        longest.is_some_and(|(_, close)| {
            close.notify_one();
            true
        })
    }

    /// Waits until far fewer are open than there were.
    pub(crate) async fn fall(&self) {
        self.fallen.notified().await;
    }

    fn begin(&self) {
        self.open.set(self.open.get() + 1);
        self.peak.set(self.peak.get().max(self.open.get()));
    }

    fn end(&self) {
        self.open.set(self.open.get() - 1);
        if self.limit.get().is_some_and(|limit| self.open.get() < limit / 2) {
            self.limit.set(None);
        }
        if self.peak.get() - self.open.get() >= TRIM_CONNECTIONS {
            self.peak.set(self.open.get());
            self.fallen.notify_one();
        }
    }
}

/// One connection's part.
#[derive(Debug)]
pub(crate) struct Activity {
    doing: Cell<Doing>,
    /// An answer has begun, and some of it may still be in the buffer in front of the socket.
    answers: Cell<bool>,
    /// Its place among the idle ones.
    idle_key: Cell<u64>,
    close: Rc<Notify>,
    /// The task of the socket, which waits for the next request after the answer: nothing else wakes it then.
    reader: RefCell<Option<Waker>>,
    all: Rc<Connections>,
}

impl Activity {
    /// A connection that has just been accepted: it is idle.
    pub(crate) fn new(all: Rc<Connections>) -> Activity {
        all.begin();
        let doing = Cell::new(Doing::Head);
        let (idle_key, close, reader) = (Cell::new(0), Rc::default(), RefCell::default());
        let activity = Activity { doing, answers: Cell::new(false), idle_key, close, reader, all };
        activity.set(Doing::Waiting);
        activity
    }

    pub(crate) fn doing(&self) -> Doing {
        self.doing.get()
    }

    pub(crate) fn set(&self, doing: Doing) {
        let before = self.doing.replace(doing);
        match (before == Doing::Waiting, doing == Doing::Waiting) {
            (false, true) => {
                let key = self.all.next.get();
                self.all.next.set(key + 1);
                self.idle_key.set(key);
                self.all.idle.borrow_mut().insert(key, self.close.clone());
                self.reader.take().into_iter().for_each(Waker::wake);
            }
            (true, false) => {
                self.all.idle.borrow_mut().remove(&self.idle_key.get());
            }
            _ => {}
        }
    }

    /// An answer begins.
    pub(crate) fn begin_answer(&self) {
        if !self.answers.replace(true) {
            self.all.answering.set(self.all.answering.get() + 1);
        }
    }

    /// The socket has all of the answer, if there was one.
    pub(crate) fn end_answer(&self) {
        if self.answers.replace(false) {
            self.all.answering.set(self.all.answering.get() - 1);
        }
    }

    /// Wakes the task of `context` when the connection is idle again.
    pub(crate) fn wake_when_waiting(&self, context: &Context<'_>) {
        match &mut *self.reader.borrow_mut() {
            Some(waker) => waker.clone_from(context.waker()),
            none => *none = Some(context.waker().clone()),
        }
    }

    /// Waits until it is told to close.
    pub(crate) async fn told_to_close(&self) {
        self.close.notified().await;
    }
}

impl Drop for Activity {
    fn drop(&mut self) {
        self.set(Doing::Serving);
        self.end_answer();
        self.all.end();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_descriptors_are_kept_back() {
        for (soft, last_free, last_tight) in
            [(1024, 959, 991), (64, 55, 59), (1 << 30, (1 << 30) - 65, (1 << 30) - 33)]
        {
            let bounds = Bounds::new(100, soft);
            let room = |descriptor| bounds.room(0, 100, descriptor);
            assert_eq!((room(last_free), room(last_free + 1)), (Room::Free, Room::Tight), "{soft}");
            assert_eq!((room(last_tight), room(last_tight + 1)), (Room::Tight, Room::None), "{soft}");
        }
        let bounds = Bounds::new(100, 1024);
        let room = |open| bounds.room(open, 100, 10);
        assert_eq!(
            [room(99), room(100), room(131), room(132)],
            [Room::Free, Room::Tight, Room::Tight, Room::None]
        );
    }

    #[test]
    fn a_low_number_does_not_hide_that_the_descriptors_are_used_up() {
        let bounds = Bounds::new(100, 64);
        let all = Rc::new(Connections::default());
        let mut made: Vec<Activity> = (0..20).map(|_| Activity::new(all.clone())).collect();
        assert_eq!(all.room(&bounds, 55), Room::Free);
        assert_eq!(all.room(&bounds, 56), Room::Tight);
        assert_eq!(all.room(&bounds, 30), Room::Tight, "one has left, another has come");
        made.truncate(19);
        assert_eq!(all.room(&bounds, 30), Room::Free);
        made.truncate(9);
        made.extend((0..20).map(|_| Activity::new(all.clone())));
        assert_eq!(all.room(&bounds, 30), Room::Free, "most have left: the limit is found anew");
    }

    #[test]
    fn the_longest_idle_goes_and_one_that_works_stays() {
        let all = Rc::new(Connections::default());
        let made: Vec<Activity> = (0..3).map(|_| Activity::new(all.clone())).collect();
        made[0].set(Doing::Head);
        made[0].set(Doing::Serving);
        made[1].set(Doing::Serving);
        made[1].set(Doing::Waiting);
        let told = |activity: &Activity| {
            let mut waiting = std::pin::pin!(activity.told_to_close());
            let waker = std::task::Waker::noop();
            waiting.as_mut().poll(&mut std::task::Context::from_waker(waker)).is_ready()
        };
        assert!(all.close_longest_idle());
        assert_eq!([told(&made[0]), told(&made[1]), told(&made[2])], [false, false, true]);
        assert!(all.close_longest_idle());
        assert!(told(&made[1]));
        assert!(!all.close_longest_idle(), "what works is left alone");
        drop(made);
        let fallen = || {
            let mut fall = std::pin::pin!(all.fall());
            fall.as_mut().poll(&mut std::task::Context::from_waker(std::task::Waker::noop())).is_ready()
        };
        assert!(!fallen());
        drop((0..TRIM_CONNECTIONS).map(|_| Activity::new(all.clone())).collect::<Vec<_>>());
        assert!(fallen(), "many have ended");
        drop((1..TRIM_CONNECTIONS).map(|_| Activity::new(all.clone())).collect::<Vec<_>>());
        assert!(!fallen(), "one too few");
        assert_eq!((all.open.get(), all.idle.borrow().len(), all.any_answers()), (0, 0, false));
    }
}
