//! What only `pinion-engine` can tell, from `pinion-engine probe`: whether its libraries are found, and what it finds
//! with them. It runs in processes of its own, so that a library that crashes ends none but them.

use crate::check::Check;
use crate::model::Resolved;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use pinion_config::{Backend, CudaModel, DeviceChoice, DoctorCommand, ProbeCommand};
use pinion_os::process::dies_with_parent;
use serde_json::Value;
use std::ffi::OsStr;
use std::io::{BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

/// A process that looks at a disk or a driver ends in this time, or counts as hanging.
const PATIENCE: Duration = Duration::from_secs(90);
/// Bytes that are read of what it says.
const OUTPUT_BYTES_MAX: u64 = 1 << 20;

/// What the engine found, or why it found nothing.
pub(crate) struct Probe {
    /// libtorch, and the model where there is one.
    pub(crate) base: Result<Value, String>,
    /// The GPU, where one was looked for.
    pub(crate) cuda: Option<Result<Value, String>>,
}

impl Probe {
    pub(crate) fn take(engine: &Path, resolved: &Resolved, command: &DoctorCommand) -> Probe {
        let config = resolved.config();
        let model = config.map(|config| config.model_dir.clone());
        let base = answer(engine, &ProbeCommand { model, ..ProbeCommand::default() });
        let driver =
            Path::new("/proc/driver/nvidia/version").exists() || Path::new("/dev/nvidiactl").exists();
        let cuda = (driver || command.device == DeviceChoice::Cuda).then(|| {
            let cuda_object = Some(command.cuda_object.clone());
            let served = config.and_then(|config| Some((config, config.cuda.as_ref()?)));
            let cuda_model = served.map(|(config, cuda)| CudaModel::of(config, cuda));
            let by_operators = config.is_some_and(|config| config.backend == Backend::Operators);
            let torch_device = (by_operators && served.is_some()).then_some(0);
            let cuda_model = cuda_model.filter(|_| !by_operators);
            answer(engine, &ProbeCommand { model: None, cuda_object, cuda_model, torch_device })
        });
        Probe { base, cuda }
    }

    /// Whether `pinion serve --device auto` would not use the GPU.
    pub(crate) fn refuses_gpu(&self) -> bool {
        match &self.cuda {
            None => false,
            Some(Ok(answer)) => !answer["cuda"]["refusal"].is_null(),
            Some(Err(_)) => true,
        }
    }
}

fn answer(engine: &Path, question: &ProbeCommand) -> Result<Value, String> {
    let said = run(engine, &question.words())?;
    serde_json::from_str(said.trim()).map_err(|error| format!("its answer is not understood: {error}"))
}

/// What a program prints, or the last line of its complaint.
pub(crate) fn run(program: &Path, words: &[impl AsRef<OsStr>]) -> Result<String, String> {
    let mut command = Command::new(program);
    command.args(words).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    dies_with_parent(&mut command);
    let mut child =
        command.spawn().map_err(|error| format!("{} cannot be started: {error}", program.display()))?;
    let out = text_of(child.stdout.take());
    let complaint = text_of(child.stderr.take());
    let deadline = Instant::now() + PATIENCE;
    let wait = |texts: &Receiver<String>| {
        texts.recv_timeout(deadline.saturating_duration_since(Instant::now())).ok()
    };
    let (Some(out), Some(complaint)) = (wait(&out), wait(&complaint)) else {
        end(&mut child);
        return Err(format!("{} gives no answer within {} s", program.display(), PATIENCE.as_secs()));
    };
    let status = child.wait().map_err(|error| error.to_string())?;
    if status.success() {
        return Ok(out);
    }
    let last = complaint.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("it does not say why");
    Err(format!("{last} ({status})"))
}

fn end(child: &mut Child) {
    // A process that waits for a driver may not even die; it is not waited for.
    let _ = kill(Pid::from_raw(child.id() as i32), Signal::SIGKILL);
}

/// All that a stream gives until its writer closes it, from a thread.
fn text_of(stream: Option<impl Read + Send + 'static>) -> Receiver<String> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(stream) = stream {
            // What was read before an error is shown all the same.
            let _ = BufReader::new(stream).take(OUTPUT_BYTES_MAX).read_to_end(&mut bytes);
        }
        let _ = sender.send(String::from_utf8_lossy(&bytes).into_owned());
    });
    receiver
}

/// Whether the engine starts and has libtorch.
pub(crate) fn libtorch(probe: &Probe) -> Check {
    let id = "libtorch";
    match &probe.base {
        Ok(found) if found["torch"] == true => {
            let path = found["libtorch"].as_str().unwrap_or("linked into the engine");
            Check::ok(id, format!("the engine loads it: {path}"))
        }
        Ok(_) => Check::note(
            id,
            "this engine was built without libtorch: it serves --device cuda and --backend fake only",
            "Build with deploy/launch.sh --setup-only to serve on the CPU.",
        ),
        Err(reason) => Check::failure(
            id,
            format!("the engine does not start: {reason}"),
            "Run deploy/launch.sh --setup-only, or install the package whole: libtorch's folder goes with the programs.",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::Status;
    use serde_json::json;

    #[test]
    fn a_program_gives_its_text_or_its_last_complaint() {
        let shell = |line: &str| run(Path::new("/bin/sh"), &["-c", line]);
        assert_eq!(shell("echo yes"), Ok("yes\n".to_owned()));
        let reason = shell("echo first >&2; echo 'libtorch_cpu.so: not found' >&2; exit 127").unwrap_err();
        assert_eq!(reason, "libtorch_cpu.so: not found (exit status: 127)");
        assert!(shell("kill -SEGV $$").unwrap_err().contains("signal: 11"));
        let absent = run(Path::new("/no/such/program"), &[] as &[&str]).unwrap_err();
        assert!(absent.starts_with("/no/such/program cannot be started"), "{absent}");
    }

    #[test]
    fn an_engine_that_does_not_start_lacks_its_libraries() {
        let check = |base| libtorch(&Probe { base, cuda: None });
        let found = check(Ok(json!({"torch": true, "libtorch": "/lib/libtorch_cpu.so"})));
        assert_eq!(found, Check::ok("libtorch", "the engine loads it: /lib/libtorch_cpu.so"));
        assert_eq!(check(Ok(json!({"torch": false}))).status, Status::Note);
        let failed = check(Err("cannot open shared object file (exit status: 127)".to_owned()));
        assert!(failed.status == Status::Failure && failed.found.contains("shared object"), "{failed:?}");
    }
}
