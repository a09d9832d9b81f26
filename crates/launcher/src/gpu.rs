//! `--device auto`: the model is served on the GPU that is here, or on the CPU after one line that says why not.
//!
//! Before any role starts, a process of its own asks the driver: `pinion-engine probe`, as `pinion doctor` runs it. If
//! the driver crashes or hangs, only that process ends. What only a start shows, such as too little memory, ends the
//! start on the GPU, and the service starts again on the CPU.

use crate::child::{self, End};
use crate::ending::Ending;
use crate::host::{Host, binary_name};
use crate::serve;
use crate::signals::Signals;
use pinion_config::{Backend, Config, CudaModel, Exit, ProbeCommand, SECRET_VARIABLES};
use pinion_os::privileges::drop_in_child;
use pinion_os::process::dies_with_parent;
use pinion_protocol::Role;
use pinion_worker::telemetry;
use serde_json::Value;
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// A process that asks a driver ends in this time, or counts as hanging; `pinion doctor` waits as long.
const PATIENCE: Duration = Duration::from_secs(90);

/// The service in two forms.
pub(crate) struct Choice {
    /// With the GPU.
    pub(crate) on_gpu: Config,
    /// Without it.
    pub(crate) on_cpu: Config,
}

/// Runs the service to its end. `folder` holds the programs of the roles.
pub(crate) fn serve(choice: Choice, folder: &Path, host: Host) -> Ending {
    let Choice { on_gpu, on_cpu } = choice;
    let reason = match refusal(&on_gpu, &folder.join(binary_name(Role::Engine)), PATIENCE) {
        Err(end) => return end,
        Ok(Some(reason)) => reason,
        Ok(None) => {
            let end = serve::serve(on_gpu, host.clone());
            // An engine says either before it is ready, and no role of a service says so later.
            if !matches!(end.code, Exit::Device | Exit::Usage) {
                return end;
            }
            end.reason
        }
    };
    telemetry::say(&format!("pinion: warning: serving on the CPU, as the GPU is not used: {reason}"));
    serve::serve(on_cpu, host)
}

/// Why the GPU cannot serve the model, if it cannot. Errors: a signal came.
fn refusal(config: &Config, engine: &Path, patience: Duration) -> Result<Option<String>, Ending> {
    let Some(cuda) = &config.cuda else { return Ok(None) };
    let question = match config.backend {
        Backend::Operators => ProbeCommand { torch_device: Some(0), ..ProbeCommand::default() },
        Backend::Native | Backend::Fake => ProbeCommand {
            cuda_object: Some(cuda.object.clone()),
            cuda_model: Some(CudaModel::of(config, cuda)),
            ..ProbeCommand::default()
        },
    };
    let signals = Signals::new().map_err(|error| Ending::system("cannot take signals", error))?;
    let mut command = Command::new(engine);
    command.args(question.words()).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    // Ctrl-C goes to the whole process group: only this process shall hear it.
    command.process_group(0);
    for variable in SECRET_VARIABLES {
        command.env_remove(variable);
    }
    dies_with_parent(&mut command);
    if config.sandbox {
        drop_in_child(&mut command);
    }
    let mut child = match command.spawn() {
        Ok(child) => child,
        Err(error) => return Ok(Some(format!("cannot start {}: {error}", engine.display()))),
    };
    let end = child::wait(&mut child, &signals, Some(patience));
    match end.map_err(|error| Ending::system("cannot wait for the probe of the GPU", error))? {
        End::Signalled => Err(Ending::new(Exit::Ok, "stopped before it was ready")),
        End::Late => Ok(Some(format!("the driver gives no answer within {} s", patience.as_secs()))),
        End::Exited(status) if !status.success() => {
            Ok(Some(format!("the process that asks the driver ended ({status}): see dmesg and nvidia-smi")))
        }
        End::Exited(_) => Ok(answer(&mut child)),
    }
}

/// What the probe has printed; a pipe holds all of it.
fn answer(child: &mut Child) -> Option<String> {
    let mut said = String::new();
    let read = child.stdout.take().map_or(Ok(0), |mut stdout| stdout.read_to_string(&mut said));
    match (read, serde_json::from_str::<Value>(&said)) {
        (Ok(_), Ok(answer)) if answer["cuda"].is_object() => {
            answer["cuda"]["refusal"].as_str().map(str::to_owned)
        }
        _ => Some("the answer of the process that asks the driver is not understood".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pinion_config::CudaConfig;

    fn on_gpu() -> Config {
        let cuda = CudaConfig {
            object: "/o/libpinion_cuda.so".into(),
            products: None,
            kv_share: None,
            graphs: true,
            mixed_graphs: false,
            dependent_launch: false,
            fused_norms: true,
            fused_products: true,
            fused_decode: false,
            gemm_measured: true,
            shaped_on_device: true,
            scored_on_device: true,
            masked_on_device: true,
            may_fall_back: true,
            beyond_object: None,
        };
        Config { cuda: Some(cuda), backend: Backend::Native, ..serve::tests::config() }
    }

    /// Each line of shell is an engine.
    #[test]
    fn the_gpu_is_used_unless_the_probe_says_why_not_or_fails() {
        let folder = std::env::temp_dir().join(format!("pinion-probes-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let engine = folder.join("pinion-engine");
        serve::tests::write_program(&engine, ". \"$0.line\"");
        let refusal_of = |line: &str, patience: Duration| {
            // Not the program itself: one that is open for writing cannot be started.
            std::fs::write(folder.join("pinion-engine.line"), line).unwrap();
            refusal(&on_gpu(), &engine, patience).unwrap()
        };
        let says = |line: &str| refusal_of(line, PATIENCE).unwrap_or_default();
        assert_eq!(refusal_of(r#"echo '{"cuda": {"refusal": null}}'"#, PATIENCE), None);
        assert_eq!(says(r#"echo '{"cuda": {"refusal": "no driver: get one"}}'"#), "no driver: get one");
        // The words are those of the engine's probe.
        let words = r#"[ "$1 $2 $3 $4" = "probe --cuda-object /o/libpinion_cuda.so --cuda-model" ]"#;
        assert_eq!(refusal_of(&format!(r#"{words} && echo '{{"cuda": {{}}}}'"#), PATIENCE), None);
        assert!(says("exit 3").contains("(exit status: 3)"));
        assert!(says("kill -SEGV $$").contains("signal: 11"));
        assert!(says("echo nonsense").contains("is not understood"));
        let late = refusal_of("exec sleep 100", Duration::from_millis(10));
        assert!(late.is_some_and(|reason| reason.contains("gives no answer")));
        std::fs::remove_dir_all(folder).unwrap();
        assert!(refusal(&on_gpu(), &engine, PATIENCE).unwrap().unwrap().starts_with("cannot start "));
    }
}
