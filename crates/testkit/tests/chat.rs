//! `pinion chat` as people and scripts run it: over pipes, and on a pseudo-terminal with Ctrl-C.

use nix::pty::openpty;
use pinion_testkit::{Api, PATIENCE, Server, fake_model, launcher_binary, wait_until};
use serde_json::json;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};

/// Kills what hangs, after this time.
const LIMIT_S: &str = "170";

struct Ended {
    code: Option<i32>,
    stdout: String,
    stderr: String,
}

/// Runs it over pipes to its end.
fn chat(words: &[&str], variables: &[(&str, &str)], input: &str) -> Ended {
    let mut command = Command::new("timeout");
    command.arg(LIMIT_S).arg(launcher_binary()).arg("chat").args(words);
    command.env_remove("PINION_API_KEY").envs(variables.iter().copied());
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    let mut stdin = child.stdin.take().expect("it is piped");
    // A program that ends early leaves the rest.
    let _ = stdin.write_all(input.as_bytes());
    drop(stdin);
    let output = child.wait_with_output().expect("it ends");
    let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
    Ended { code: output.status.code(), stdout: text(&output.stdout), stderr: text(&output.stderr) }
}

fn url(server: &Server) -> String {
    format!("http://{}", server.address())
}

#[test]
fn each_line_is_a_prompt_and_gets_what_the_api_gives() {
    let server = Server::fake(&[]);
    let first = json!([{"role": "user", "content": "one"}]);
    let fields = |messages| json!({"messages": messages, "max_tokens": 9, "seed": 5, "temperature": 0});
    let alone = server.ask(Api::Chat, &fields(first)).text;
    let talk = json!([{"role": "user", "content": "one"}, {"role": "assistant", "content": alone},
                      {"role": "user", "content": "two"}]);
    let second = server.ask(Api::Chat, &fields(talk)).text;
    let orders = "/set max_tokens 9\n/set seed 5\n/set temperature 0\n";
    let ended = chat(&[&url(&server)], &[], &format!("{orders}one\n\ntwo\n"));
    assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""), "{}", ended.stderr);
    assert_eq!(
        ended.stdout,
        format!("{alone}\n{second}\n"),
        "the second prompt goes with what was said before"
    );

    let whole = server.ask(Api::Chat, &json!({"messages": [{"role": "user", "content": "a\n/b\n"}]})).text;
    let ended = chat(&[&url(&server), "--once", "--timings"], &[], "a\n/b\n");
    assert_eq!((ended.code, ended.stdout), (Some(0), format!("{whole}\n")));
    let said = &ended.stderr;
    assert!(said.starts_with("ttft_ms=") && said.contains(" tokens=") && said.contains("finish="), "{said}");
}

#[test]
fn orders_change_and_save_the_chat() {
    let server = Server::fake(&[]);
    let folder = pinion_testkit::Folder::new();
    let (text, object) = (folder.path().join("chat.md"), folder.path().join("chat.json"));
    let input = format!(
        "/set max_tokens 4\nhello\n/reset\n/system be kind\nagain\n/save {}\n/save {}\n/exit\nnever asked\n",
        text.display(),
        object.display()
    );
    let ended = chat(&[&url(&server)], &[], &input);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    let saved = std::fs::read_to_string(text).unwrap();
    assert!(saved.starts_with("## system\n\nbe kind\n\n## user\n\nagain\n\n## assistant\n\n"), "{saved}");
    assert!(!saved.contains("hello") && !saved.contains("never"), "{saved}");
    let saved: serde_json::Value = serde_json::from_slice(&std::fs::read(object).unwrap()).unwrap();
    assert_eq!(
        (saved["model"].as_str(), saved["messages"].as_array().unwrap().len()),
        (Some(server.model()), 3)
    );
}

#[test]
fn what_goes_wrong_is_said_once_and_ends_with_an_error() {
    let server = Server::fake_with(&[], &[("PINION_API_KEY", "right")]);
    let server_url = url(&server);
    let check = |ended: Ended, says: &str| {
        assert_eq!((ended.code, ended.stdout.as_str()), (Some(1), ""), "{says}: {}", ended.stderr);
        assert_eq!(ended.stderr.matches("pinion: error: ").count(), 1, "{}", ended.stderr);
        assert!(ended.stderr.contains(says), "{says}: {}", ended.stderr);
    };
    check(chat(&[&server_url], &[], "x\n"), "wants a key: set PINION_API_KEY");
    let key = [("PINION_API_KEY", "right")];
    check(chat(&[&server_url], &key, "/set max_tokens 0\nx\n"), "the server answers 400: max_tokens");
    check(chat(&[&server_url], &key, "/nothing\n"), "/nothing: no such order");
    let ended = chat(&[&server_url, "--api-key", "right", "--once"], &[], "x");
    assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""));
    drop(server);
    check(chat(&[&server_url], &[], "x\n"), "does not answer");
    let ended = chat(&["--no-such-flag"], &[], "");
    assert_eq!((ended.code, ended.stdout.as_str()), (Some(2), ""), "{}", ended.stderr);
}

/// Answers one request with this body and closes.
fn serve(listener: &TcpListener, status: &str, body: &str) -> String {
    let (mut stream, _) = listener.accept().expect("it asks");
    let asked = read_request(&mut stream);
    let answer = format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\n\r\n{body}", body.len());
    stream.write_all(answer.as_bytes()).expect("it reads");
    asked
}

fn read_request(stream: &mut TcpStream) -> String {
    let mut reader = BufReader::new(stream);
    let (mut head, mut length) = (String::new(), 0);
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).expect("a head");
        if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().expect("a number");
        }
        if line == "\r\n" {
            break;
        }
        head.push_str(&line);
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).expect("a body");
    head + &String::from_utf8_lossy(&body)
}

#[test]
fn a_server_without_a_chat_template_completes() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}/v1", listener.local_addr().unwrap());
    let server = std::thread::spawn(move || {
        serve(&listener, "200 OK", r#"{"data": [{"id": "base"}]}"#);
        let refusal = r#"{"message": "default chat template is no longer allowed, so you must provide a chat template"}"#;
        let chat = serve(&listener, "400 Bad Request", refusal);
        assert!(chat.starts_with("POST /v1/chat/completions "), "{chat}");
        for text in ["went on", "again"] {
            let events = format!("data: {{\"choices\":[{{\"text\":\"{text}\"}}]}}\n\ndata: [DONE]\n\n");
            let asked = serve(&listener, "200 OK", &events);
            assert!(
                asked.starts_with("POST /v1/completions ") && asked.contains(r#""model":"base""#),
                "{asked}"
            );
            assert!(asked.contains(r#""prompt":"Once"#), "{asked}");
        }
    });
    let ended = chat(&[&address], &[], "Once\nOnce more\n");
    server.join().unwrap();
    assert_eq!((ended.code, ended.stdout.as_str()), (Some(0), "went on\nagain\n"), "{}", ended.stderr);
    assert_eq!(ended.stderr.matches("This model has no chat template").count(), 1, "{}", ended.stderr);
}

#[test]
fn a_model_is_served_for_the_time_of_the_chat() {
    let model = fake_model(256);
    let ended = chat(&[model.text(), "--once", "--", "--backend", "fake"], &[], "hello");
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert!(ended.stdout.len() > 1 && ended.stderr.contains("starting a server for"), "{}", ended.stderr);
    wait_until("no process of the service is left", PATIENCE, || {
        let processes = std::fs::read_dir("/proc").unwrap().flatten();
        let lines = processes.filter_map(|process| std::fs::read(process.path().join("cmdline")).ok());
        let with_model = lines.filter(|line| String::from_utf8_lossy(line).contains(model.text())).count();
        (with_model == 0).then_some(())
    });
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../model/tests/gguf_goldens/qwen3.gguf");
    let ended = chat(&[file, "--once", "--", "--backend", "fake"], &[], "hello");
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert!(ended.stderr.contains("starting a server for"), "{}", ended.stderr);
    let ended = chat(&["/no/such/folder"], &[], "hello");
    assert_eq!((ended.code, ended.stdout.as_str()), (Some(3), ""), "{}", ended.stderr);
    assert!(
        ended.stderr.contains("pinion: error: the server did not start: /no/such/folder: no such folder")
    );
}

/// The program on a terminal of its own.
struct Terminal {
    child: Child,
    keys: File,
    screen: Arc<Mutex<String>>,
}

impl Terminal {
    fn chat(words: &[&str]) -> Terminal {
        let pair = openpty(None, None).expect("there are pseudo-terminals");
        let slave = || Stdio::from(pair.slave.try_clone().expect("a descriptor"));
        let mut command = Command::new("setsid");
        command.args(["--ctty", "--wait"]).arg(launcher_binary()).arg("chat").args(words);
        command.env("TERM", "xterm").env_remove("PINION_API_KEY").env_remove("NO_COLOR");
        let child = command.stdin(slave()).stdout(slave()).stderr(slave()).spawn().expect("setsid is there");
        drop(pair.slave);
        let keys = File::from(pair.master);
        let (mut reader, screen) =
            (keys.try_clone().expect("a descriptor"), Arc::new(Mutex::new(String::new())));
        let shown = screen.clone();
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            // The terminal fails to be read when its last user is gone.
            while let Ok(count @ 1..) = reader.read(&mut bytes) {
                shown.lock().expect("no holder panics").push_str(&String::from_utf8_lossy(&bytes[..count]));
            }
        });
        Terminal { child, keys, screen }
    }

    fn text(&self) -> String {
        self.screen.lock().expect("no holder panics").clone()
    }

    fn press(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).expect("the terminal takes keys");
    }

    /// Types a line at the `number`th prompt: each begins with the mode of the terminal that tells what is pasted.
    fn type_at(&mut self, number: usize, keys: &str) {
        self.wait_for("\x1b[?2004h", number);
        self.press(keys);
    }

    /// Waits until this is shown for the `count`th time.
    fn wait_for(&self, what: &str, count: usize) {
        wait_until(what, PATIENCE, || (self.text().matches(what).count() >= count).then_some(()));
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // It has ended already, unless the test fails.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn ctrl_c_stops_the_answer_and_not_the_program() {
    let server = Server::fake(&["--fake-step-us", "30000"]);
    let mut terminal = Terminal::chat(&[&url(&server)]);
    terminal.wait_for("/help lists the orders", 1);
    terminal.type_at(1, "/set ignore_eos true\r");
    terminal.type_at(2, "tell me\r");
    wait_until("it is being answered", PATIENCE, || {
        (server.metric("pinion_requests_running") > 0.0).then_some(())
    });
    terminal.press("\x03");
    terminal.wait_for("(stopped)", 1);
    terminal.wait_for(" tokens", 1);
    // The server has seen that the client left.
    server.wait_idle();

    terminal.type_at(3, "/set max_tokens 3\r");
    terminal.type_at(4, "a second\\\rline\r");
    terminal.wait_for("3 tokens", 1);
    terminal.wait_for("ended by length", 1);
    terminal.type_at(5, "\x04");
    let status = wait_until("it ends", PATIENCE, || terminal.child.try_wait().expect("an own child"));
    assert_eq!(status.code(), Some(0), "{}", terminal.text());
    assert!(terminal.text().contains("\x1b[2m"), "timings are dim: {}", terminal.text());
}
