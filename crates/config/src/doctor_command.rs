//! The words after `pinion doctor`: those of `pinion serve`, so that what is checked is what would be served.

use crate::command_line;
use crate::config::Config;
use crate::cuda::default_object;
use crate::fault::{Collector, Faults};
use crate::hub::{self, HubModel};
use crate::machine::Machine;
use crate::resolve;
use crate::sources::{self, Environment, Settings};
use std::ffi::OsString;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

/// Where the model shall run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceChoice {
    /// On the CPU.
    Cpu,
    /// On a GPU.
    Cuda,
    /// On a GPU where there is one.
    Auto,
}

/// The model that is to be checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NamedModel {
    /// A folder, which may not exist.
    Folder(PathBuf),
    /// A model of the hub, which may not be in the cache.
    Hub(HubModel),
}

/// What `pinion doctor` is to do.
#[derive(Clone, Debug)]
pub struct DoctorCommand {
    /// Whether it prints JSON.
    pub json: bool,
    /// Whether colours are unwanted on a terminal (`NO_COLOR`).
    pub no_colour: bool,
    /// Where the service would listen.
    pub address: SocketAddr,
    /// Where the model would run.
    pub device: DeviceChoice,
    /// The object of the CUDA engine.
    pub cuda_object: PathBuf,
    /// The cache for models of the hub; absent if nothing says where it is.
    pub cache: Option<PathBuf>,
    /// The model.
    pub model: Option<NamedModel>,
    /// Whether changes of the prefix cache would be published.
    pub kv_events: bool,
    settings: Settings,
}

impl DoctorCommand {
    /// What `pinion serve` would resolve on `machine`, with the model of the hub in the folder `pulled`. Errors: all
    /// that is wrong.
    pub fn config(&self, machine: &Machine, pulled: Option<&Path>) -> Result<Config, Faults> {
        let (mut settings, mut faults) = (self.settings.clone(), Collector::default());
        if let (Some(NamedModel::Hub(model)), Some(folder)) = (&self.model, pulled) {
            settings.use_pulled(&model.repository, folder);
        }
        let config = resolve::resolve(&settings, machine, &mut faults);
        faults.into_result()?;
        Ok(config.expect("a config without a fault is complete"))
    }

    /// What is wrong with everything but the model.
    pub fn config_without_model(&self, machine: &Machine) -> Result<(), Faults> {
        let mut faults = Collector::default();
        resolve::check_all_but_model(&self.settings, machine, &mut faults);
        faults.into_result()
    }
}

/// What this process, started with the words of `pinion doctor`, is to do. Errors: words that nothing means.
pub fn doctor_command() -> Result<DoctorCommand, Faults> {
    read(std::env::args_os().skip(1), &Environment::new(std::env::vars_os()))
}

fn read(
    args: impl IntoIterator<Item = OsString>,
    environment: &Environment,
) -> Result<DoctorCommand, Faults> {
    let mut faults = Collector::default();
    let (request, typed) = command_line::split(args, &mut faults);
    let settings = sources::settle(typed, environment, &mut faults);
    faults.into_result()?;
    let model = settings.text("model").map(|text| match hub::named(&settings) {
        Some(model) => NamedModel::Hub(model),
        None => NamedModel::Folder(PathBuf::from(text)),
    });
    let host = settings.address("host").unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST));
    let port = settings.number("port").and_then(|port| u16::try_from(port).ok()).unwrap_or(0);
    Ok(DoctorCommand {
        json: request == command_line::Request::Doctor { json: true },
        no_colour: environment.text("NO_COLOR").is_some(),
        address: SocketAddr::new(host, port),
        device: match settings.text("device") {
            Some("cuda") => DeviceChoice::Cuda,
            Some("cpu") => DeviceChoice::Cpu,
            _ => DeviceChoice::Auto,
        },
        cuda_object: settings.text("cuda-object").map_or_else(default_object, PathBuf::from),
        cache: hub::cache(&settings, environment),
        model,
        kv_events: settings.is_set("kv-events"),
        settings,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn command(words: &[&str], variables: &[(&str, &str)]) -> Result<DoctorCommand, Faults> {
        let variables = variables.iter().map(|(name, value)| (name.into(), value.into()));
        read(words.iter().map(OsString::from), &Environment::new(variables))
    }

    #[test]
    fn the_words_are_those_of_serve_and_json() {
        let plain = command(&["doctor"], &[("HOME", "/h"), ("NO_COLOR", "1")]).unwrap();
        assert!(!plain.json && plain.no_colour && plain.model.is_none());
        assert_eq!((plain.device, plain.address.port()), (DeviceChoice::Auto, 8000));
        assert!(
            !plain.kv_events && command(&["doctor", "--kv-events", "tcp://*:5557"], &[]).unwrap().kv_events
        );
        assert_eq!(plain.cache.as_deref(), Some(Path::new("/h/.cache/huggingface/hub")));
        let words =
            ["doctor", "/models/a", "--json", "--port", "9", "--device", "gpu", "--cuda-object", "/o"];
        let told = command(&words, &[]).unwrap();
        assert_eq!(told.model, Some(NamedModel::Folder("/models/a".into())));
        assert_eq!((told.json, told.device, told.address.port()), (true, DeviceChoice::Cuda, 9));
        assert_eq!((told.cuda_object, told.cache), ("/o".into(), None));
        let hub = command(&["doctor", "--model", "org/name@v1"], &[]).unwrap();
        assert_eq!(hub.model, HubModel::parse("org/name@v1").map(NamedModel::Hub));
        let faults = command(&["doctor", "--jsn"], &[]).unwrap_err().to_string();
        assert!(faults.contains("--jsn: no such flag"), "{faults}");
    }

    #[test]
    fn all_faults_of_the_service_are_found() {
        let machine = Machine::uniform(2, 1);
        let command = command(
            &["doctor", "/no/such/folder", "--max-num-seqs", "64", "--max-num-batched-tokens", "8"],
            &[],
        )
        .unwrap();
        let faults = command.config(&machine, None).unwrap_err().to_string();
        assert!(
            faults.contains("/no/such/folder: no such folder") && faults.contains("64 sequences"),
            "{faults}"
        );
        let faults = command.config_without_model(&machine).unwrap_err().to_string();
        assert!(!faults.contains("folder") && faults.contains("64 sequences"), "{faults}");
    }
}
