//! `pinion-frontend`: started by the launcher, never by hand.

use pinion_config::Exit;
use pinion_protocol::Role;
use pinion_worker::Session;
use std::cell::RefCell;
use std::process::ExitCode;
use std::rc::Rc;

fn main() -> ExitCode {
    let session = match Session::attach(Role::Frontend) {
        Ok(session) => Rc::new(RefCell::new(session)),
        Err(error) => {
            eprintln!("pinion-frontend: {error}");
            return Exit::System.into();
        }
    };
    let served = pinion_frontend::build(&session).and_then(|app| {
        let summary = pinion_frontend::summary(&session.borrow());
        session.borrow_mut().ready(&summary);
        pinion_frontend::run(&session, app)
    });
    let Some(session) = Rc::into_inner(session).map(RefCell::into_inner) else { return Exit::System.into() };
    match served {
        Ok(Exit::Ok) => session.stop(),
        // Answers were cut: the launcher sees it in the exit code and ends with the same one.
        Ok(cut) => {
            session.stop();
            cut.into()
        }
        Err(reason) => session.fail(&reason, Exit::System.code().into()),
    }
}
