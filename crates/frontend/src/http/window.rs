//! The texts of one request of a model that pools, on their way to their vectors.
//!
//! Each text is a request that generates nothing. A text begins whenever another one ends, so that a long text delays
//! none of the others. An HTTP request takes no further slot while it holds as many as are free. So each of n such
//! requests comes to hold about one part in n + 1 of the slots, and one part stays free.

use crate::admission::Texts;
use crate::http::app::App;
use crate::http::generate::origin;
use crate::http::routes::Arrival;
use crate::limits::TEXTS_PER_ROW;
use crate::observe::otlp::TracedSequence;
use crate::requests::claim::claim;
use crate::requests::ledger::Origin;
use crate::requests::outgoing::Job;
use crate::requests::request::{Form, Outcome};
use crate::requests::shared_line::SharedLine;
use crate::requests::ticket::Ticket;
use pinion_os::clock;
use pinion_protocol::detokenizer_inbox::TextForm;
use pinion_protocol::limits::CHOICES_MAX;
use pinion_protocol::names::Stage;
use pinion_protocol::tokenizer_inbox::{Prompt, Truncation};
use pinion_protocol::{Claim, Fault, FaultCode, Sampling};
use std::future::poll_fn;
use std::iter::{Enumerate, Peekable};
use std::rc::Rc;
use std::task::{Context, Poll};

/// All texts have their vectors.
pub(crate) struct Done {
    /// Tokens of all of them.
    pub(crate) prompt_tokens: u64,
    /// The last one's request. It goes with the answer: while it is open, a drain waits for the answer.
    pub(crate) last: Vec<Ticket>,
}

/// A text has no vector; the others were given up.
pub(crate) struct Failed {
    /// Which one.
    pub(crate) index: usize,
    pub(crate) fault: Fault,
}

/// A text that has its vector.
struct Made {
    index: usize,
    ticket: Ticket,
    values: Vec<f32>,
    prompt_tokens: u32,
}

/// Has each text made a vector of `width` numbers, and hands each on with its text's index when it comes, in any order.
pub(crate) async fn vectors(
    app: &App,
    arrival: &Arrival,
    texts: Texts,
    width: u32,
    mut take: impl FnMut(usize, Vec<f32>),
) -> Result<Done, Failed> {
    let mut window = Window::new(app, arrival, texts, width);
    let done = window.run(&mut take).await;
    done.inspect_err(|_| window.under_way.iter().for_each(|(_, ticket)| ticket.withdraw()))
}

struct Window<'a> {
    app: &'a App,
    arrival: &'a Arrival,
    line: Rc<SharedLine>,
    claim: Claim,
    sampling: Box<Sampling>,
    truncation: Truncation,
    width: u32,
    /// Texts under way, at most.
    at_a_time: usize,
    /// Those that have not begun, with their indices.
    left: Peekable<Enumerate<std::vec::IntoIter<Prompt>>>,
    /// Those that have, and have no vector yet.
    under_way: Vec<(usize, Ticket)>,
}

impl<'a> Window<'a> {
    fn new(app: &'a App, arrival: &'a Arrival, texts: Texts, width: u32) -> Window<'a> {
        let Texts { prompts, truncation, priority, user, .. } = texts;
        Window {
            app,
            arrival,
            line: SharedLine::new(arrival.route, &arrival.label),
            claim: claim(&app.settings.fairness, arrival.key, user.as_deref(), priority),
            sampling: Box::new(Sampling { max_tokens: Some(0), ..Sampling::default() }),
            truncation,
            width,
            at_a_time: (app.settings.running_max as usize * TEXTS_PER_ROW).clamp(1, CHOICES_MAX),
            left: prompts.into_iter().enumerate().peekable(),
            under_way: Vec::new(),
        }
    }

    async fn run(&mut self, take: &mut impl FnMut(usize, Vec<f32>)) -> Result<Done, Failed> {
        let mut done = Done { prompt_tokens: 0, last: Vec::new() };
        while !self.is_over() {
            self.begin()?;
            let made = poll_fn(|context| self.poll_made(context)).await?;
            take(made.index, made.values);
            done.prompt_tokens += u64::from(made.prompt_tokens);
            if self.is_over() {
                done.last.push(made.ticket);
            } else {
                // Its slot is free now, also for the next text.
                made.ticket.stamp(Stage::LastWrite);
            }
        }
        Ok(done)
    }

    fn is_over(&mut self) -> bool {
        self.under_way.is_empty() && self.left.peek().is_none()
    }

    /// Begins texts as far as this request's share of the slots goes.
    fn begin(&mut self) -> Result<(), Failed> {
        while self.has_room() {
            let Some((index, prompt)) = self.left.peek() else { break };
            let index = *index;
            let job = Job::Generate {
                claim: self.claim,
                sampling: self.sampling.clone(),
                prompt: Rc::new(prompt.clone()),
                truncation: self.truncation,
                asked_unix_s: clock::unix_s(),
                stop: Vec::new(),
                form: TextForm::default(),
            };
            let line = Some(self.line.clone());
            let number = u32::try_from(index).unwrap_or(u32::MAX);
            let trace = self.arrival.trace.as_ref().map(|trace| TracedSequence::new(trace, number));
            let origin = Origin { continues: index > 0, line, trace, ..origin(self.arrival) };
            let form = Form::Vector { width: self.width, values: None };
            match Ticket::begin(&self.app.ledger, origin, job, form) {
                Ok(ticket) => self.under_way.push((index, ticket)),
                // A ring is full: there is room when one of the others has ended.
                Err(fault) if fault.code == FaultCode::TooManyRequests && !self.under_way.is_empty() => break,
                Err(fault) => return Err(Failed { index, fault }),
            }
            self.left.next();
        }
        Ok(())
    }

    /// One text may always be under way. More are if they are fewer than the slots that they leave free.
    fn has_room(&self) -> bool {
        let ledger = self.app.ledger.borrow();
        let (held, free) = (self.under_way.len(), ledger.slots_total() - ledger.slots_used());
        held == 0 || held < free.min(self.at_a_time)
    }

    /// Waits until a text has its vector, or one has failed.
    fn poll_made(&mut self, context: &Context<'_>) -> Poll<Result<Made, Failed>> {
        let Some(at) = self.under_way.iter().position(|(_, ticket)| ticket.is_over()) else {
            for (_, ticket) in &self.under_way {
                ticket.request.borrow_mut().wake_later(context);
            }
            return Poll::Pending;
        };
        let (index, ticket) = self.under_way.swap_remove(at);
        Poll::Ready(match vector_of(&ticket) {
            Ok((values, prompt_tokens)) => Ok(Made { index, ticket, values, prompt_tokens }),
            Err(fault) => Err(Failed { index, fault }),
        })
    }
}

/// The vector of a request that is over, and its prompt's tokens.
fn vector_of(ticket: &Ticket) -> Result<(Vec<f32>, u32), Fault> {
    let mut request = ticket.request.borrow_mut();
    let prompt_tokens = match request.outcome() {
        Some(Outcome::Vector(prompt_tokens)) => Some(*prompt_tokens),
        Some(Outcome::Failed(fault)) => return Err(fault.clone()),
        _ => None,
    };
    request.take_vector().zip(prompt_tokens).ok_or_else(|| {
        Fault::new(FaultCode::Internal, "a role answered with something else than was asked for")
    })
}
