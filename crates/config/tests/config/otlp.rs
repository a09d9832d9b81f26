//! Where spans go: the option, OpenTelemetry's variables, and which of them counts.

use crate::tree::{Tree, serve, serve_result};
use pinion_config::Machine;

fn machine() -> Machine {
    Machine::uniform(4, 1)
}

/// Where traces are posted to with these flags and variables.
fn url(args: &[&str], env: &[(&str, &str)]) -> Option<String> {
    serve(&machine(), &Tree::gpt2(), args, env).observe.otlp.map(|otlp| otlp.url())
}

#[test]
fn the_option_goes_before_the_variables_and_nothing_is_sent_without_either() {
    const OWN: (&str, &str) = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://own:1/x");
    const SHARED: (&str, &str) = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://shared:2/");
    // (flags, variables, where traces go)
    type Case<'a> = (&'a [&'a str], &'a [(&'a str, &'a str)], Option<&'a str>);
    let cases: [Case; 12] = [
        (&[], &[], None),
        (&[], &[("OTEL_SERVICE_NAME", "a"), ("OTEL_TRACES_EXPORTER", "otlp")], None),
        (&["--otlp-traces-endpoint=http://a:4318"], &[OWN, SHARED], Some("http://a:4318/v1/traces")),
        (&["--otlp-traces-endpoint=http://a/v1/traces"], &[], Some("http://a/v1/traces")),
        (&["--otlp-traces-endpoint=none"], &[OWN, SHARED], None),
        (&[], &[("PINION_OTLP_TRACES_ENDPOINT", "http://a:1"), OWN], Some("http://a:1/v1/traces")),
        (&[], &[OWN, SHARED], Some("http://own:1/x")),
        (&[], &[SHARED], Some("http://shared:2/v1/traces")),
        (&[], &[SHARED, ("OTEL_SDK_DISABLED", "True")], None),
        (&[], &[SHARED, ("OTEL_TRACES_EXPORTER", "none")], None),
        (&[], &[SHARED, ("OTEL_TRACES_EXPORTER", "console, otlp")], Some("http://shared:2/v1/traces")),
        (
            &["--otlp-traces-endpoint=http://a:1"],
            &[("OTEL_SDK_DISABLED", "true")],
            Some("http://a:1/v1/traces"),
        ),
    ];
    for (args, env, expected) in cases {
        assert_eq!(url(args, env).as_deref(), expected, "{args:?} {env:?}");
    }
}

#[test]
fn an_address_is_settled_and_a_name_is_left_to_be_looked_up() {
    let model = Tree::gpt2();
    let otlp = |url: &str| {
        let args = ["--otlp-traces-endpoint", url];
        serve(&machine(), &model, &args, &[]).observe.otlp.expect("it is on")
    };
    let address = otlp("http://[::1]:4318");
    assert_eq!(address.addresses, ["[::1]:4318".parse().unwrap()]);
    assert_eq!((address.authority.as_str(), address.path.as_str()), ("[::1]:4318", "/v1/traces"));
    let name = otlp("http://localhost");
    assert_eq!((name.host.as_str(), name.port, name.addresses.len()), ("localhost", 80, 0));
}

#[test]
fn the_resource_has_the_service_s_name_first() {
    let model = Tree::gpt2();
    let resource = |env: &[(&str, &str)]| {
        let args = ["--otlp-traces-endpoint=http://a:1"];
        let otlp = serve(&machine(), &model, &args, env).observe.otlp.expect("it is on");
        otlp.resource.into_iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>()
    };
    assert_eq!(resource(&[]), ["service.name=pinion"]);
    let more = ("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=a%20b,service.name=c,x=1");
    assert_eq!(resource(&[more]), ["service.name=c", "deployment.environment.name=a b", "x=1"]);
    let all = [more, ("OTEL_SERVICE_NAME", "d")];
    assert_eq!(resource(&all), ["service.name=d", "deployment.environment.name=a b", "x=1"]);
}

#[test]
fn what_cannot_be_sent_to_is_named_with_its_place() {
    let model = Tree::gpt2();
    type Case<'a> = (&'a [&'a str], &'a [(&'a str, &'a str)], &'a str);
    const SHARED: (&str, &str) = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://a:1");
    let cases: [Case; 7] = [
        (
            &["--otlp-traces-endpoint=https://a:1"],
            &[],
            "--otlp-traces-endpoint: `https://a:1/v1/traces`: TLS",
        ),
        (&["--otlp-traces-endpoint=a:1"], &[], "--otlp-traces-endpoint: `a:1/v1/traces` is no address"),
        (&[], &[("OTEL_EXPORTER_OTLP_ENDPOINT", "a")], "OTEL_EXPORTER_OTLP_ENDPOINT: `a/v1/traces` is no"),
        (
            &[],
            &[("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "a")],
            "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT: `a` is no",
        ),
        (&[], &[SHARED, ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")], "OTEL_EXPORTER_OTLP_PROTOCOL: spans are"),
        (&[], &[SHARED, ("OTEL_RESOURCE_ATTRIBUTES", "a")], "OTEL_RESOURCE_ATTRIBUTES: `a` is no KEY=VALUE"),
        (&["--otlp-endpoint=http://a:1"], &[], "it is called --otlp-traces-endpoint here"),
    ];
    for (args, env, reason) in cases {
        let faults = serve_result(&machine(), &model, args, env).expect_err(reason).to_string();
        assert!(faults.contains(reason) && !faults.contains('\n'), "{args:?} {env:?}: {faults}");
    }
    // Nothing is wrong with them where no traces are sent, or where the option says how.
    let odd = [("OTEL_RESOURCE_ATTRIBUTES", "a"), ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")];
    assert_eq!(url(&[], &odd), None);
    let traces = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "http/protobuf");
    assert!(url(&[], &[SHARED, odd[1], traces]).is_some(), "that of traces counts");
    assert!(url(&["--otlp-traces-endpoint=http://a:1"], &[SHARED, odd[1]]).is_some());
}
