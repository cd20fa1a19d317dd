//! The flags of `sei-operator run`.
//!
//! Every flag of the Go operator is accepted, so that its Deployment starts this operator once the
//! image is changed. [`Flags::warnings`] reports those that have no effect here.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::{Parser, ValueEnum};
use sei_exec::token::TokenSource;
use uuid::Uuid;

use crate::runtime::serve::{Bind, parse_bind_address};

const SERVICE_ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

/// Runs the operator.
#[derive(Parser, Clone, Debug)]
#[command(name = "sei-operator", version = crate::VERSION)]
pub struct Flags {
    /// Wait for the lease before acting; with `false`, make sure that no other operator acts.
    #[arg(
        long, value_name = "BOOL", default_value = "true", default_missing_value = "true",
        num_args = 0..=1, require_equals = true, value_parser = parse_go_bool,
        action = clap::ArgAction::Set
    )]
    pub leader_elect: bool,

    /// Where /metrics is served: host:port, :port, or 0 to turn it off.
    #[arg(long, value_name = "ADDRESS", default_value = ":8080", value_parser = parse_bind_address)]
    pub metrics_bind_address: Bind,

    /// Serve /metrics as HTTPS, only to callers whom the API server allows to get /metrics.
    #[arg(
        long, value_name = "BOOL", default_value = "false", default_missing_value = "true",
        num_args = 0..=1, require_equals = true, value_parser = parse_go_bool,
        action = clap::ArgAction::Set
    )]
    pub metrics_secure: bool,

    /// Folder with the certificate for --metrics-secure. Without it the certificate is self-signed.
    #[arg(long, value_name = "FOLDER", default_value = "", hide_default_value = true)]
    metrics_cert_path: String,

    /// File of the certificate in that folder.
    #[arg(long, value_name = "FILE", default_value = "tls.crt")]
    metrics_cert_name: String,

    /// File of the key in that folder.
    #[arg(long, value_name = "FILE", default_value = "tls.key")]
    metrics_cert_key: String,

    /// Where /healthz and /readyz are served: host:port, :port, or 0 to turn it off.
    #[arg(long, value_name = "ADDRESS", default_value = ":8081", value_parser = parse_bind_address)]
    pub health_probe_bind_address: Bind,

    /// File with the platform configuration.
    #[arg(long, value_name = "FILE", env = "SEI_CONTROLLER_CONFIG")]
    pub config: Option<PathBuf>,

    /// Only the nodes and fleets of these namespaces, separated by commas [default: all].
    #[arg(
        long,
        value_name = "NAMES",
        env = "WATCH_NAMESPACES",
        default_value = "",
        hide_default_value = true
    )]
    watch_namespaces: String,

    #[arg(long, value_enum, default_value_t = LogFormat::Text)]
    pub log_format: LogFormat,

    /// Namespace of the lease [default: namespace of the service account, or `default`].
    #[arg(long, value_name = "NAME", env = "POD_NAMESPACE")]
    leader_election_namespace: Option<String>,

    /// Holder name in the lease, unique among all processes [default: random].
    #[arg(long, value_name = "NAME", env = "POD_NAME")]
    identity: Option<String>,

    /// File with one bearer token for all sidecars [default: a token for each node, requested for
    /// the service account `sei-sidecar-caller`].
    #[arg(long, value_name = "FILE")]
    sidecar_token_file: Option<PathBuf>,

    /// Divides every wait and deadline. For tests only.
    #[arg(
        long, value_name = "N", hide = true, default_value_t = 1,
        value_parser = clap::value_parser!(u32).range(1..=1000)
    )]
    pub speed: u32,

    #[command(flatten)]
    ignored: Ignored,
}

#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    Text,
    Json,
}

/// Flags of the Go operator that have no effect here.
#[derive(clap::Args, Clone, Debug)]
struct Ignored {
    #[arg(
        long, hide = true, default_missing_value = "true", num_args = 0..=1,
        require_equals = true, value_parser = parse_go_bool
    )]
    enable_http2: Option<bool>,
    #[arg(
        long, hide = true, default_missing_value = "true", num_args = 0..=1,
        require_equals = true, value_parser = parse_go_bool
    )]
    zap_devel: Option<bool>,
    #[arg(long, hide = true)]
    zap_encoder: Option<String>,
    #[arg(long, hide = true)]
    zap_log_level: Option<String>,
    #[arg(long, hide = true)]
    zap_stacktrace_level: Option<String>,
    #[arg(long, hide = true)]
    zap_time_encoding: Option<String>,
}

impl Flags {
    /// One sentence for each flag that is set and has no effect. For the log, once it is open.
    pub fn warnings(&self) -> Vec<String> {
        let Ignored {
            enable_http2,
            zap_devel,
            zap_encoder,
            zap_log_level,
            zap_stacktrace_level,
            zap_time_encoding,
        } = &self.ignored;
        let plain = "metrics are served as plain HTTP without --metrics-secure";
        let has_unused_certificate = !self.metrics_secure && self.metrics_certificate().is_some();
        let log = "see --log-format and RUST_LOG";
        let http1 = "the servers use HTTP/1.1";
        // A switch that is off needs no warning: its feature is off here anyway.
        [
            ("--metrics-cert-path", has_unused_certificate, plain),
            ("--enable-http2", *enable_http2 == Some(true), http1),
            ("--zap-devel", *zap_devel == Some(true), log),
            ("--zap-encoder", zap_encoder.is_some(), log),
            ("--zap-log-level", zap_log_level.is_some(), log),
            ("--zap-stacktrace-level", zap_stacktrace_level.is_some(), log),
            ("--zap-time-encoding", zap_time_encoding.is_some(), log),
        ]
        .into_iter()
        .filter(|(_, is_set, _)| *is_set)
        .map(|(flag, _, reason)| format!("{flag} has no effect: {reason}"))
        .collect()
    }

    /// Files of the certificate for secured metrics and of its key, if there are any. An empty folder is
    /// the default of the Go operator.
    pub fn metrics_certificate(&self) -> Option<(PathBuf, PathBuf)> {
        let folder = Path::new(&self.metrics_cert_path);
        let is_set = !self.metrics_cert_path.is_empty();
        is_set.then(|| (folder.join(&self.metrics_cert_name), folder.join(&self.metrics_cert_key)))
    }

    /// Namespace of the lease.
    pub fn leader_election_namespace(&self) -> String {
        self.namespace_or(Path::new(SERVICE_ACCOUNT))
    }

    fn namespace_or(&self, service_account: &Path) -> String {
        let flag = self.leader_election_namespace.clone();
        let mounted = || fs::read_to_string(service_account.join("namespace")).ok();
        let nonempty = |name: String| Some(name.trim().to_owned()).filter(|name| !name.is_empty());
        flag.and_then(nonempty)
            .or_else(|| mounted().and_then(nonempty))
            .unwrap_or_else(|| "default".to_owned())
    }

    /// The namespaces to watch, each once; none for all.
    pub fn watch_namespaces(&self) -> Arc<[String]> {
        let names = self.watch_namespaces.split(',').map(str::trim);
        let names: BTreeSet<&str> = names.filter(|name| !name.is_empty()).collect();
        names.into_iter().map(str::to_owned).collect()
    }

    /// Holder name of this process in the lease. Call it once: it may be random.
    ///
    /// The pod's name is used without a suffix: a container that is restarted in its pod then
    /// resumes its own lease instead of waiting until it expires. This is safe, because a pod never
    /// runs two of these containers at once.
    pub fn identity(&self) -> String {
        match self.identity.as_deref().map(str::trim) {
            Some(name) if !name.is_empty() => name.to_owned(),
            _ => format!("sei-operator_{}", Uuid::new_v4()),
        }
    }

    /// Where the tokens for sidecars come from. The operator's own token is never shown to a pod.
    pub fn sidecar_tokens(&self) -> TokenSource {
        match &self.sidecar_token_file {
            Some(path) => TokenSource::File(path.clone()),
            None => TokenSource::Account { namespace: self.leader_election_namespace() },
        }
    }
}

/// Converts arguments from the syntax of Go to that of clap: `-leader-elect` becomes
/// `--leader-elect`. A single letter after a dash is kept: `-h`.
pub fn from_go_style(arguments: impl IntoIterator<Item = OsString>) -> Vec<OsString> {
    let mut is_over = false;
    let mut rewrite = |argument: OsString| {
        is_over |= argument == "--";
        let long = argument.to_str().and_then(|text| text.strip_prefix('-')).filter(|name| {
            let mut letters = name.chars();
            letters.next().is_some_and(char::is_alphabetic) && letters.next().is_some()
        });
        match long {
            Some(name) if !is_over => OsString::from(format!("--{name}")),
            _ => argument,
        }
    };
    arguments.into_iter().map(&mut rewrite).collect()
}

/// Parses the spellings of a bool that Go accepts.
fn parse_go_bool(text: &str) -> Result<bool, &'static str> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(false),
        _ => Err("expected true or false"),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;
    use expect_test::{Expect, expect};

    use super::*;

    fn parse(line: &str) -> Result<Flags, clap::Error> {
        let arguments = std::iter::once("run").chain(line.split_whitespace()).map(OsString::from);
        // The environment variables of the test process must not affect the result.
        let command = Flags::command().mut_args(|argument| argument.env(None::<&str>));
        let matches = command.try_get_matches_from(from_go_style(arguments))?;
        clap::FromArgMatches::from_arg_matches(&matches)
    }

    fn bind(text: &str) -> Bind {
        parse_bind_address(text).unwrap()
    }

    #[test]
    fn the_defaults_are_those_of_the_go_operator() {
        let flags = parse("").unwrap();
        assert!(flags.leader_elect);
        assert_eq!(flags.metrics_bind_address, bind(":8080"));
        assert_eq!(flags.health_probe_bind_address, bind(":8081"));
        assert_eq!((flags.config.as_ref(), flags.log_format), (None, LogFormat::Text));
        assert_eq!(flags.speed, 1);
        assert!(flags.warnings().is_empty());
    }

    #[test]
    fn every_flag_and_its_variable_stand_in_the_docs() {
        let docs = include_str!("../../../docs/configuration.md");
        let command = Flags::command();
        let flags: Vec<String> = command
            .get_arguments()
            .filter_map(|argument| Some(format!("--{}", argument.get_long()?)))
            .collect();
        assert!(flags.len() > 15, "{flags:?}");
        for flag in &flags {
            assert!(docs.contains(&format!("`{flag}`")), "{flag}");
        }
        for argument in command.get_arguments() {
            let (flag, variable) = (argument.get_long(), argument.get_env());
            let variable = variable.map(|name| name.to_string_lossy().into_owned());
            if let (Some(flag), Some(variable)) = (flag, variable) {
                let row = format!("| `--{flag}` | `{variable}` |");
                assert!(docs.contains(&row), "{row}");
            }
        }
        let documented = docs.split('`').filter(|text| text.starts_with("--"));
        for flag in documented {
            assert!(flags.iter().any(|known| known == flag), "{flag} is documented but unknown");
        }
    }

    #[test]
    fn namespaces_are_separated_by_commas() {
        let watched = |line: &str| parse(line).unwrap().watch_namespaces().join(" ");
        assert_eq!(watched(""), "");
        assert_eq!(watched("--watch-namespaces="), "");
        assert_eq!(watched("--watch-namespaces=b,a,,b"), "a b");
    }

    #[test]
    fn the_command_is_well_formed() {
        Flags::command().debug_assert();
    }

    #[test]
    fn a_switch_is_parsed_as_in_go() {
        for (line, expected) in [
            ("--leader-elect", true),
            ("--leader-elect=true", true),
            ("--leader-elect=false", false),
            ("-leader-elect=false", false),
            ("-leader-elect", true),
            ("--leader-elect=0", false),
            ("--leader-elect=T", true),
        ] {
            assert_eq!(parse(line).unwrap().leader_elect, expected, "{line}");
        }
    }

    #[test]
    fn the_flags_of_a_go_operator_deployment_are_accepted() {
        let flags = parse(
            "--leader-elect --health-probe-bind-address=:8081 --metrics-bind-address=0 \
             -metrics-secure=false --enable-http2=false --zap-devel=false",
        )
        .unwrap();
        assert_eq!(flags.metrics_bind_address, Bind::Off);
        assert_eq!(flags.warnings(), Vec::<String>::new());
    }

    #[test]
    fn every_flag_without_effect_causes_a_warning() {
        let flags = parse(
            "--metrics-cert-path=/certs --enable-http2 -zap-devel --zap-encoder=json \
             --zap-log-level debug --zap-stacktrace-level=error -zap-time-encoding rfc3339",
        )
        .unwrap();
        expect![[r#"
            --metrics-cert-path has no effect: metrics are served as plain HTTP without --metrics-secure
            --enable-http2 has no effect: the servers use HTTP/1.1
            --zap-devel has no effect: see --log-format and RUST_LOG
            --zap-encoder has no effect: see --log-format and RUST_LOG
            --zap-log-level has no effect: see --log-format and RUST_LOG
            --zap-stacktrace-level has no effect: see --log-format and RUST_LOG
            --zap-time-encoding has no effect: see --log-format and RUST_LOG"#]]
        .assert_eq(&flags.warnings().join("\n"));
    }

    #[test]
    fn the_certificate_of_secured_metrics_is_found() {
        let files = |line: &str| parse(line).unwrap().metrics_certificate();
        let of = |chain: &str, key: &str| Some((PathBuf::from(chain), PathBuf::from(key)));
        let secure = "--metrics-secure --metrics-cert-path=/certs";
        assert_eq!(files(secure), of("/certs/tls.crt", "/certs/tls.key"));
        let named = format!("{secure} -metrics-cert-name a.crt --metrics-cert-key=a.key");
        assert_eq!(files(&named), of("/certs/a.crt", "/certs/a.key"));
        assert_eq!(parse(secure).unwrap().warnings(), Vec::<String>::new());
        // The Go operator accepts both.
        for line in ["--metrics-secure", "--metrics-secure --metrics-cert-path="] {
            let flags = parse(line).unwrap();
            assert!(flags.metrics_secure, "{line}");
            assert_eq!((flags.metrics_certificate(), flags.warnings()), (None, vec![]), "{line}");
        }
    }

    fn check_refused(line: &str, expected: &Expect) {
        let error = parse(line).unwrap_err().to_string();
        expected.assert_eq(error.split("\n\n").next().unwrap_or_default());
    }

    #[test]
    fn the_error_of_a_bad_value_names_its_flag() {
        check_refused(
            "--metrics-bind-address=8080",
            &expect![
                "error: invalid value '8080' for '--metrics-bind-address <ADDRESS>': expected host:port, :port, or 0 for no server"
            ],
        );
        check_refused(
            "--health-probe-bind-address=:http",
            &expect![[
                r#"error: invalid value ':http' for '--health-probe-bind-address <ADDRESS>': "http" is not a port: expected a number from 0 to 65535"#
            ]],
        );
        check_refused(
            "--leader-elect=yes",
            &expect![
                "error: invalid value 'yes' for '--leader-elect[=<BOOL>]': expected true or false"
            ],
        );
        check_refused("--leader-elect false", &expect!["error: unexpected argument 'false' found"]);
        check_refused(
            "--log-format=yaml",
            &expect![[r#"
            error: invalid value 'yaml' for '--log-format <LOG_FORMAT>'
              [possible values: text, json]"#]],
        );
        check_refused(
            "--speed=0",
            &expect!["error: invalid value '0' for '--speed <N>': 0 is not in 1..=1000"],
        );
        check_refused(
            "--metrics-bind-adress=:1",
            &expect!["error: unexpected argument '--metrics-bind-adress' found"],
        );
    }

    #[test]
    fn only_long_names_get_a_second_dash() {
        let rewritten = |line: &str| {
            let arguments = from_go_style(line.split(' ').map(OsString::from));
            arguments
                .into_iter()
                .map(|argument| argument.into_string().unwrap())
                .collect::<Vec<_>>()
                .join(" ")
        };
        assert_eq!(rewritten("run -h -a=b --c -5 - -de f"), "run -h --a=b --c -5 - --de f");
        assert_eq!(rewritten("-ab -- -ab"), "--ab -- -ab");
    }

    #[test]
    fn unset_flags_default_to_the_mounted_service_account() {
        let folder = std::env::temp_dir().join(format!("sei-operator-flags-{}", Uuid::new_v4()));
        fs::create_dir(&folder).unwrap();
        let flags = parse("").unwrap();
        assert_eq!(flags.namespace_or(&folder), "default");
        fs::write(folder.join("namespace"), "sei\n").unwrap();
        assert_eq!(flags.namespace_or(&folder), "sei");
        let line = "--leader-election-namespace=ops --sidecar-token-file=/token";
        let flags = parse(line).unwrap();
        assert_eq!(flags.namespace_or(&folder), "ops");
        assert_eq!(flags.sidecar_tokens(), TokenSource::File(PathBuf::from("/token")));
        let flags = parse("--leader-election-namespace=ops").unwrap();
        let namespace = "ops".to_owned();
        assert_eq!(flags.sidecar_tokens(), TokenSource::Account { namespace });
        assert_eq!(parse("--leader-election-namespace=").unwrap().namespace_or(&folder), "sei");
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn an_identity_is_the_pod_name_or_random() {
        assert_eq!(parse("--identity=sei-operator-0").unwrap().identity(), "sei-operator-0");
        for line in ["", "--identity="] {
            let flags = parse(line).unwrap();
            assert!(flags.identity().starts_with("sei-operator_"));
            assert_ne!(flags.identity(), flags.identity());
        }
    }
}
