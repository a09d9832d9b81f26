//! `pinion chat`: prompts in, answers out, until the input ends.

use crate::End;
use crate::answer::{self, Answer, Failure, Outcome};
use crate::ask::{Question, ask_whole};
use crate::conversation::{Conversation, lacks_template};
use crate::input::Input;
use crate::interrupt::Interrupts;
use crate::orders::{self, Order};
use crate::screen::{self, Part, Screen};
use crate::service::Service;
use pinion_config::{ChatCommand, ChatTarget, ServerUrl};
use serde_json::Value;
use std::time::Duration;

/// A server names its models in this time.
const MODELS_PATIENCE: Duration = Duration::from_secs(30);

/// A chat and what it needs.
struct Chat<'a> {
    command: &'a ChatCommand,
    url: ServerUrl,
    conversation: Conversation,
    screen: Screen,
    interrupts: Interrupts,
    shows_timings: bool,
    /// A prompt got no answer, or an order was wrong.
    has_failed: bool,
}

/// Runs until the input ends. Without a terminal, a prompt without an answer makes the end an error.
pub(crate) fn run(command: &ChatCommand) -> Result<(), End> {
    let interrupts =
        Interrupts::new().map_err(|error| End::system(format!("cannot take signals: {error}")))?;
    let screen = Screen::new(command.no_colour);
    // It stops when it goes out of scope, however this ends.
    let service = match &command.target {
        ChatTarget::Server(_) => None,
        ChatTarget::Model { model, flags } => Some(Service::start(model, flags, screen)?),
    };
    let url = match (&command.target, &service) {
        (ChatTarget::Server(url), _) => url.clone(),
        (ChatTarget::Model { .. }, service) => service.as_ref().expect("it was started above").url.clone(),
    };
    let model = match &command.model {
        Some(model) => model.clone(),
        None => first_model(&url, command.key.as_deref()).map_err(End::system)?,
    };
    let mut input = Input::new(command.once).map_err(End::system)?;
    let is_terminal = matches!(input, Input::Terminal(_));
    if is_terminal {
        screen.note(&format!("{url} serves {model}. /help lists the orders, Ctrl-D ends."));
    }
    let conversation = Conversation::new(model, command.system.clone());
    let shows_timings = command.timings || screen.is_terminal;
    let mut chat = Chat { command, url, conversation, screen, interrupts, shows_timings, has_failed: false };
    while let Some(line) = input.next().map_err(End::system)? {
        let order = if command.once { Order::Prompt(&line) } else { orders::read(&line) };
        if !chat.follow(order) {
            break;
        }
    }
    match chat.has_failed && !is_terminal {
        true => Err(End::system("")),
        false => Ok(()),
    }
}

/// The first model that the server names. Errors: why there is none, for the operator.
fn first_model(url: &ServerUrl, key: Option<&str>) -> Result<String, String> {
    let asked = ask_whole(&Question { url, path: "/v1/models", key, body: None, patience: MODELS_PATIENCE });
    let hint = "`pinion serve DIR` starts a server, `pinion chat DIR` starts one for a chat";
    let (status, text) = asked.map_err(|error| format!("{url} does not answer: {error}; {hint}"))?;
    match status {
        200 => {}
        401 => return Err(format!("{url} wants a key: set PINION_API_KEY, or give --api-key")),
        _ => return Err(format!("{url} answers {status} to /v1/models: {}", answer::message_of(&text))),
    }
    let models: Value =
        serde_json::from_str(&text).map_err(|_| format!("{url} does not speak OpenAI's API"))?;
    let first = models["data"][0]["id"].as_str();
    first.map(str::to_owned).ok_or_else(|| format!("{url} names no model; give one with --model"))
}

impl Chat<'_> {
    /// Does what a line asks for; whether the chat goes on.
    fn follow(&mut self, order: Order<'_>) -> bool {
        match order {
            Order::Nothing => {}
            Order::End => return false,
            Order::Prompt(text) => self.prompt(text),
            Order::Help => self.screen.note(orders::HELP),
            Order::System(text) => self.conversation.system = text.map(str::to_owned),
            Order::Reset => self.conversation.reset(),
            Order::Settings => self.screen.note(&self.conversation.settings()),
            Order::Timings => {
                self.shows_timings = !self.shows_timings;
                self.screen.note(if self.shows_timings {
                    "timings are shown"
                } else {
                    "timings are not shown"
                });
            }
            Order::Set(name, value) => {
                if let Err(reason) = self.conversation.set(name, value) {
                    self.fail(&reason);
                }
            }
            Order::Save(file) => match std::fs::write(file, self.conversation.saved(file)) {
                Ok(()) => self.screen.note(&format!("written to {file}")),
                Err(error) => self.fail(&format!("cannot write {file}: {error}")),
            },
            Order::Wrong(reason) => self.fail(&reason),
        }
        true
    }

    fn fail(&mut self, reason: &str) {
        self.has_failed = true;
        screen::error(reason);
    }

    fn prompt(&mut self, text: &str) {
        self.conversation.say(text);
        let mut answer = self.ask();
        if let Err(Failure::Refused { status, message }) = &answer
            && lacks_template(*status, message)
            && !self.conversation.completes
        {
            self.screen.note(
                "This model has no chat template, so it cannot chat: from now on it goes on with each prompt as it stands.",
            );
            self.conversation.completes = true;
            answer = self.ask();
        }
        match answer {
            Err(failure) => {
                self.conversation.take_back();
                self.fail(&failure.to_string());
            }
            Ok(answer) => {
                self.screen.end_answer();
                if answer.outcome == Outcome::Stopped {
                    self.screen.note("(stopped)");
                }
                if self.shows_timings {
                    self.screen.timing(&answer.timing, answer.finish.as_deref());
                }
                self.conversation.answered(&answer.text);
            }
        }
    }

    fn ask(&self) -> Result<Answer, Failure> {
        let (path, body) = self.conversation.request();
        let (screen, mut last) = (self.screen, Part::default());
        let key = self.command.key.as_deref();
        answer::ask(&self.url, path, key, &body, &self.interrupts, |delta| screen.delta(delta, &mut last))
    }
}
