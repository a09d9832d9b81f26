//! The NVIDIA driver, our CUDA object, the device, cuBLASLt, and whether the CUDA engine takes the model. What is
//! missing is a failure with `--device cuda`, a warning where `auto` would have used the GPU, else a note: the CPU
//! serves without any of it.

use crate::check::{Check, Status};
use crate::engine::Probe;
use crate::fatbin::{self, Target};
use crate::tree;
use pinion_config::{DeviceChoice, DoctorCommand, human_bytes};
use serde_json::Value;
use std::path::Path;

/// All that was found of a GPU; one line where none was looked for.
pub(crate) fn all(command: &DoctorCommand, root: &Path, probe: &Probe, has_gpu: bool) -> Vec<Check> {
    let module = module_version(&tree::text(root, "proc/driver/nvidia/version"));
    let Some(answer) = &probe.cuda else {
        return vec![Check::ok("cuda.driver", "no NVIDIA driver here; the CPU needs none")];
    };
    let missing = match command.device {
        DeviceChoice::Cuda => Status::Failure,
        DeviceChoice::Auto if has_gpu && command.cuda_object.is_file() => Status::Warning,
        DeviceChoice::Cpu | DeviceChoice::Auto => Status::Note,
    };
    let answer = match answer {
        Ok(answer) => &answer["cuda"],
        Err(reason) => {
            let remedy = "Look at dmesg and nvidia-smi: the driver or the object does not answer.";
            return vec![Check::with(
                "cuda.driver",
                missing,
                format!("the probe of the GPU fails: {reason}"),
                remedy,
            )];
        }
    };
    if !answer["torch"].is_null() {
        // libtorch's operators need the driver, and nothing of ours.
        return vec![driver(&answer["driver"], module.as_deref(), missing), torch(&answer["torch"], missing)];
    }
    let targets = std::fs::read(&command.cuda_object).map(|bytes| fatbin::targets(&bytes));
    let driver_line = driver(&answer["driver"], module.as_deref(), missing);
    let object_line = object(&command.cuda_object, targets.as_deref().ok(), &answer["device"], missing);
    let is_blamed = [&driver_line, &object_line].iter().any(|check| check.status != Status::Ok);
    let targets = targets.as_deref().unwrap_or(&[]);
    let device_line = match is_blamed {
        true => Check::with("cuda.device", missing, "no device was opened", "Mend the lines above first."),
        false => device(&answer["device"], &answer["driver"], targets, missing),
    };
    let mut checks = vec![driver_line, object_line, device_line, products(&answer["products"], missing)];
    checks.extend(model(&answer["model"], missing));
    checks
}

/// `580.95.05` of the line that the kernel module has in /proc.
fn module_version(text: &str) -> Option<String> {
    let line = text.lines().find(|line| line.starts_with("NVRM version"))?;
    let is_version =
        |word: &&str| word.contains('.') && word.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    line.split_whitespace().find(is_version).map(str::to_owned)
}

/// What is missing and its remedy, as the engine's libraries tell them.
fn refusal(found: &Value) -> Option<(&str, String)> {
    let reason = found["error"].as_str()?;
    let mut remedy = found["remedy"].as_str().unwrap_or("see docs/GPU.md").to_owned();
    if let Some(first) = remedy.get_mut(..1) {
        first.make_ascii_uppercase();
    }
    Some((reason, remedy + "."))
}

fn driver(found: &Value, module: Option<&str>, missing: Status) -> Check {
    let id = "cuda.driver";
    if let Some((reason, remedy)) = refusal(found) {
        let module = module.map_or(String::new(), |version| format!(" (kernel module {version})"));
        return Check::with(id, missing, format!("{reason}{module}"), &remedy);
    }
    let module = module.map_or(String::new(), |version| format!(" {version}"));
    let (version, count) =
        (found["cuda_version"].as_u64().unwrap_or(0), found["devices"].as_array().map_or(0, Vec::len));
    let said = format!(
        "NVIDIA driver{module} for CUDA {}.{}; devices: {count}",
        version / 1000,
        version % 1000 / 10
    );
    Check::ok(id, said)
}

fn object(path: &Path, targets: Option<&[Target]>, device: &Value, missing: Status) -> Check {
    let id = "cuda.object";
    let Some(targets) = targets else {
        let remedy = "Build it with deploy/cuda.sh, or name it with --cuda-object.";
        return Check::with(id, missing, format!("there is no {}", path.display()), remedy);
    };
    // What the device refuses is said below; what the loader refuses names the file.
    let names_object = |reason: &str| reason.contains(&*path.to_string_lossy());
    if let Some((reason, remedy)) = refusal(device).filter(|(reason, _)| names_object(reason)) {
        return Check::with(id, missing, reason, &remedy);
    }
    let shown: Vec<String> = targets.iter().map(Target::to_string).collect();
    let code = if shown.is_empty() { "no device code".to_owned() } else { shown.join(", ") };
    Check::ok(id, format!("{} has {code}", path.display()))
}

fn device(found: &Value, driver: &Value, targets: &[Target], missing: Status) -> Check {
    let id = "cuda.device";
    if let Some((reason, remedy)) = refusal(found) {
        return Check::with(id, missing, reason, &remedy);
    }
    let capability = found["capability"].as_u64().and_then(|number| u32::try_from(number).ok()).unwrap_or(0);
    let bytes = |key: &str| human_bytes(found[key].as_u64().unwrap_or(0));
    let mut said = format!(
        "{}, compute capability {}.{}, {} with {} free",
        found["name"].as_str().unwrap_or("a device"),
        capability / 10,
        capability % 10,
        bytes("memory_bytes"),
        bytes("free_bytes"),
    );
    if found["emulated"] == true {
        return Check::with(id, Status::Note, said + ": emulated by this process", "For tests only.");
    }
    let others = driver["devices"].as_array().map_or(0, |devices| devices.len().saturating_sub(1));
    if others > 0 {
        said += &format!("; {others} more are not used");
    }
    if targets.iter().any(|target| target.runs_on(capability)) {
        return Check::ok(id, said);
    }
    let remedy =
        "Use a GPU of compute capability 8.0 or newer, or add its target to CUDA_TARGETS in deploy/cuda.sh.";
    Check::with(id, missing, said + ": the object has no code for it", remedy)
}

fn products(found: &Value, missing: Status) -> Check {
    let id = "cuda.cublaslt";
    match (found.is_null(), refusal(found)) {
        (true, _) => Check::note(id, "not looked for without a device", "Mend the lines above first."),
        (false, None) => Check::ok(id, "found, and it opens"),
        (false, Some((reason, remedy))) => Check::with(id, missing, reason, &remedy),
    }
}

/// Whether libtorch has CUDA and a device, where its operators would compute.
fn torch(found: &Value, missing: Status) -> Check {
    let id = "cuda.torch";
    match found["error"].as_str() {
        None => Check::ok(id, "libtorch has CUDA and finds a device"),
        Some(reason) => Check::with(id, missing, reason, "Mend what it names; docs/GPU.md has the rest."),
    }
}

/// Whether the CUDA engine takes the model, where one was named that would be served on a GPU.
fn model(found: &Value, missing: Status) -> Option<Check> {
    let id = "cuda.model";
    match (found.is_null(), found["error"].as_str()) {
        (true, _) => None,
        (false, None) => Some(Check::ok(id, "the CUDA engine takes it")),
        (false, Some(reason)) => {
            let remedy = "Serve it with --backend torch, which is slower on the GPU, or with --device cpu.";
            Some(Check::with(id, missing, reason, remedy))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const TEXT: &str = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.95.05  Tue Sep 23 10:11:16 UTC 2025\nGCC version: 13";

    #[test]
    fn drivers_that_are_absent_old_or_without_a_device_are_told_apart() {
        assert_eq!(module_version(TEXT).as_deref(), Some("580.95.05"));
        assert_eq!(module_version(""), None);
        for (found, status, says, remedy) in [
            (
                json!({"error": "the NVIDIA driver has no device", "remedy": "give it one"}),
                Status::Failure,
                "the NVIDIA driver has no device (kernel module 580.95.05)",
                "Give it one.",
            ),
            (
                json!({"cuda_version": 13010, "devices": [1]}),
                Status::Ok,
                "NVIDIA driver 580.95.05 for CUDA 13.1; devices: 1",
                "",
            ),
        ] {
            let check = driver(&found, Some("580.95.05"), Status::Failure);
            assert_eq!((check.status, check.found.as_str()), (status, says));
            assert_eq!(check.remedy.unwrap_or_default(), remedy);
        }
    }

    #[test]
    fn an_object_that_is_absent_wrong_or_for_other_devices_is_named() {
        let path = Path::new("/o/libpinion_cuda.so");
        let sm = |number| Target { number, is_ptx: false };
        assert!(object(path, None, &json!({}), Status::Note).remedy.unwrap().contains("deploy/cuda.sh"));
        let wrong =
            json!({"error": "/o/libpinion_cuda.so cannot be used: it has interface 5", "remedy": "build"});
        assert_eq!(object(path, Some(&[sm(80)]), &wrong, Status::Failure).status, Status::Failure);
        let refused = json!({"error": "the device does not open: busy", "remedy": "ask nvidia-smi"});
        let fine = object(path, Some(&[sm(80), sm(89)]), &refused, Status::Failure);
        assert_eq!(fine, Check::ok("cuda.object", "/o/libpinion_cuda.so has sm_80, sm_89"));

        let card =
            json!({"name": "T", "capability": 75, "memory_bytes": 16_u64 << 30, "free_bytes": 15_u64 << 30});
        let check = device(&card, &json!({"devices": [1, 2]}), &[sm(80)], Status::Failure);
        assert!(
            check.status == Status::Failure
                && check.found.contains("7.5, 16.0 GiB with 15.0 GiB free; 1 more")
        );
        assert_eq!(device(&card, &json!({}), &[sm(75)], Status::Failure).status, Status::Ok);
        assert_eq!(device(&refused, &json!({}), &[], Status::Note).status, Status::Note);
        for remedy in ["", "\u{e9}teindre"] {
            let shown = refusal(&json!({"error": "no", "remedy": remedy})).map(|(_, remedy)| remedy);
            assert_eq!(shown, Some(format!("{remedy}.")), "what begins with no ASCII letter stays");
        }
        assert_eq!(torch(&json!({}), Status::Failure).status, Status::Ok);
        let check = torch(&json!({"error": "no libcudart"}), Status::Failure);
        assert_eq!((check.status, check.found.as_str()), (Status::Failure, "no libcudart"));
        assert_eq!(model(&Value::Null, Status::Warning), None);
        assert_eq!(model(&json!({}), Status::Warning).map(|check| check.status), Some(Status::Ok));
        let check = model(&json!({"error": "head_dim 12"}), Status::Warning).unwrap();
        assert_eq!((check.status, check.found.as_str()), (Status::Warning, "head_dim 12"));
        assert!(check.remedy.is_some_and(|remedy| remedy.contains("--backend torch")));
        let check = products(&json!({"error": "no", "remedy": "install it"}), Status::Failure);
        assert_eq!((check.status, check.remedy.as_deref()), (Status::Failure, Some("Install it.")));
        assert_eq!(products(&json!({}), Status::Failure).status, Status::Ok);
    }
}
