//! A role that the test itself runs, step by step.

use super::*;
use crate::host::RoleEnd;
use std::cell::RefCell;
use std::rc::Rc;

/// What the launcher gives a role.
type Started = (Peer, OwnedFd, RoleEnd);

/// A service of one tokenizer that has attached and said that it is ready, which nothing has looked at.
fn service_by_hand() -> (Service, Session, RoleEnd) {
    let started: Rc<RefCell<Vec<Started>>> = Rc::default();
    let place = started.clone();
    let take = move |peer, socket, end| place.borrow_mut().push((peer, socket, end));
    let service = service(config(), Host::Caller(Rc::new(take)));
    let (peer, socket, end) = started.borrow_mut().pop().unwrap();
    let mut session = Session::attach_over(peer.role, socket, clock::now_ns).unwrap();
    session.ready("");
    (service, session, end)
}

/// The launcher looked at the socket before the role had attached, and then, after a pause, at its messages: it never
/// sent that role a message again.
#[test]
fn a_role_whose_readiness_is_read_first_has_attached() {
    let (mut service, mut session, _end) = service_by_hand();
    let Service { members, wiring, .. } = &mut service;
    assert!(matches!(members[0].next_message(wiring), Some(RoleEvent::Ready { .. })));
    members[0].reattach(wiring, ENGINE).unwrap();
    members[0].tell(wiring, &ToRole::Stop);
    let told: Vec<_> = std::iter::from_fn(|| session.control()).collect();
    assert!(matches!(told.last(), Some(ControlEvent::Stop)), "nothing comes");
    assert!(!members[0].has_old_links(wiring), "it has taken them");
}

/// What the kernel could not take was dropped: a frontend that had not heard of a role's return parked its requests for
/// ever.
#[test]
fn a_message_that_cannot_be_sent_now_is_sent_later_and_in_its_place() {
    const MESSAGES: u16 = 2000;
    let (mut service, mut session, _end) = service_by_hand();
    is_ready(&mut service);
    let Service { members, wiring, .. } = &mut service;
    let page = wiring.page(TOKENIZER).clone();
    for index in 0..MESSAGES {
        // As if it had read them all: the socket is full before the launcher stops by itself.
        page.set(Gauge::ControlSeen as usize, page.get(Gauge::ControlSequence as usize));
        members[0].tell(wiring, &ToRole::PeerReady { peer: Peer::new(Role::Engine, index) });
    }
    let sent = page.get(Gauge::ControlSequence as usize);
    assert!(sent < u64::from(MESSAGES), "the socket has taken all of them: the test shows nothing");
    let (mut heard, mut looks) = (Vec::new(), 0);
    while heard.len() < usize::from(MESSAGES) && looks < MESSAGES {
        heard.extend(std::iter::from_fn(|| session.control()));
        assert!(members[0].poll(wiring).unwrap().is_none());
        looks += 1;
    }
    let indices = heard.iter().filter_map(|event| match event {
        ControlEvent::PeerReady(peer) => Some(peer.index),
        _ => None,
    });
    assert!(indices.eq(0..MESSAGES), "{} of them came", heard.len());
}
