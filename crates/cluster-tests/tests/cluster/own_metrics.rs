//! The metrics of the operator about itself, and who may read them.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context as _, Result};
use cluster_tests::docs::commands;
use cluster_tests::install::Shell;
use cluster_tests::{boot, wait_for};
use jiff::Timestamp;
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding};
use kube::api::{Api, Patch, PatchParams, PostParams};
use kube::config::{AuthInfo, KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use sei_api::SeiNode;
use sei_api::rbac::METRICS_RULES;
use sei_rig::{AuditLog, ControlPlane, Lane, User};
use serde_json::json;

use crate::process::{Process, allow_leader_election, get, program, start_with};
use crate::recording::{Scrape, scrape};

/// Verb, resource and code, as labels of the metric.
type Requests = BTreeMap<String, u64>;

/// The operator's requests so far. Those for the lease are left out: they never end.
struct Audited {
    log: AuditLog,
    requests: Requests,
}

impl Audited {
    fn read(&mut self) -> Result<&Requests> {
        for entry in self.log.read_new()? {
            let sub = entry.subresource.map(|sub| format!("/{sub}")).unwrap_or_default();
            let (verb, resource, code) =
                (entry.verb, format!("{}{sub}", entry.resource), entry.code);
            if entry.user == User::Operator.name() && resource != "leases" {
                let labels = format!("verb=\"{verb}\",resource=\"{resource}\",code=\"{code}\"");
                *self.requests.entry(labels).or_default() += 1;
            }
        }
        Ok(&self.requests)
    }
}

/// The values of one metric by their labels.
fn values(scrape: &Scrape, name: &str) -> BTreeMap<String, f64> {
    let prefix = format!("{name}{{job=\"\",instance=\"\"");
    let of_metric = scrape.iter().filter_map(|(series, value)| {
        let labels = series.strip_prefix(&prefix)?.trim_start_matches(',');
        Some((labels.trim_end_matches('}').to_owned(), *value))
    });
    of_metric.collect()
}

fn counted(scrape: &Scrape) -> Requests {
    let requests = values(scrape, "sei_controller_api_requests_total").into_iter();
    let requests = requests.filter(|(labels, _)| !labels.contains("\"leases\""));
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it is a count")]
    requests.map(|(labels, count)| (labels, count as u64)).collect()
}

async fn scraped(operator: &Process) -> Result<Scrape> {
    let response = get(operator.metrics, "/metrics").await?;
    let (_, body) = response.split_once("\r\n\r\n").context("the response has no body")?;
    scrape(body, "", "")
}

/// Waits until the operator is at rest and has counted what the API server has logged.
async fn at_rest(operator: &Process, audited: &mut Audited) -> Result<Scrape> {
    let mut compared = String::new();
    let equal = wait_for("the operator counted what the server logged", async || {
        let found = scraped(operator).await?;
        let in_flight = values(&found, "sei_controller_reconcile_in_flight");
        let (counted, logged) = (counted(&found), audited.read()?);
        let is_at_rest = in_flight.len() == 2 && in_flight.values().all(|count| *count == 0.0);
        compared = format!("counted {counted:#?}\nlogged {logged:#?}\nin flight {in_flight:?}");
        Ok((is_at_rest && counted == *logged).then_some(found))
    });
    equal.await.context(compared)
}

fn check_reconciles(scrape: &Scrape, runs_for: f64) {
    let of = |name: &str| values(scrape, &format!("sei_controller_reconcile_{name}"));
    for controller in ["seinode", "seinodedeployment"] {
        let label = format!("controller=\"{controller}\"");
        for name in ["queue_depth", "oldest_seconds"] {
            assert_eq!(of(name).get(&label), Some(&0.0), "{name} of {controller}: {:?}", of(name));
        }
    }
    let sum = |name: &str| {
        let of_nodes = of(name).into_iter();
        of_nodes.filter(|(labels, _)| labels.contains("\"seinode\"")).map(|(_, value)| value).sum()
    };
    let (count, seconds): (f64, f64) = (sum("duration_seconds_count"), sum("duration_seconds_sum"));
    // A plan and its end take a reconcile each, for the creation and for the update.
    assert!(count >= 4.0, "{count}");
    assert!(seconds > 0.0 && seconds < runs_for, "{seconds} of {runs_for}");
}

fn check_process(scrape: &Scrape, started: Timestamp) {
    let of = |name: &str| values(scrape, &format!("process_{name}"))[""];
    let start = started.as_duration().as_secs_f64();
    // The clock of processes counts from the boot, which is known to the second.
    assert!((of("start_time_seconds") - start).abs() < 5.0, "{}", of("start_time_seconds"));
    assert!(of("cpu_seconds_total") > 0.0);
    assert!(of("resident_memory_bytes") > 1e6);
    assert!(of("resident_memory_bytes") < of("virtual_memory_bytes"));
    assert!(of("open_fds") > 5.0 && of("open_fds") < of("max_fds"));
}

#[tokio::test]
async fn the_operator_counts_the_requests_that_the_server_logs() -> Result<()> {
    let lane = Lane::start(boot().await?)?;
    allow_leader_election(lane.plane()).await?;
    let program = program()?;
    let mut audited = Audited { log: lane.plane().audit(), requests: Requests::new() };
    let started = Timestamp::now();
    let operator = start_with(User::Operator, &program, lane.plane(), "alpha", &[])?;
    let nodes: Api<SeiNode> = Api::namespaced(lane.plane().client(User::Admin)?, "default");
    let node: SeiNode = serde_json::from_value(json!({
        "apiVersion": "sei.io/v1alpha1", "kind": "SeiNode", "metadata": { "name": "rpc" },
        "spec": { "chainId": "demo-1", "image": "seid:v1", "fullNode": {} },
    }))?;
    nodes.create(&PostParams::default(), &node).await?;
    for image in ["seid:v1", "seid:v2"] {
        let patch = Patch::Merge(json!({ "spec": { "image": image } }));
        nodes.patch("rpc", &PatchParams::default(), &patch).await?;
        wait_for(&format!("it runs {image}"), async || {
            let status = nodes.get("rpc").await?.status.unwrap_or_default();
            let done = status.plan.is_none() && status.current_image.as_deref() == Some(image);
            Ok(done.then_some(()))
        })
        .await?;
    }
    let scrape = at_rest(&operator, &mut audited).await?;
    let runs_for = Timestamp::now().duration_since(started).as_secs_f64();

    let requests = counted(&scrape);
    let created = "verb=\"create\",resource=\"statefulsets\",code=\"201\"";
    assert_eq!(requests.get(created), Some(&1), "{requests:?}");
    assert!(!requests.keys().any(|labels| labels.contains("\"other\"")), "{requests:?}");
    let with =
        |text: &'static str| requests.iter().filter(move |(labels, _)| labels.contains(text));
    let patches: u64 = with("\"patch\"").map(|(_, count)| count).sum();
    let durations = values(&scrape, "sei_controller_api_request_duration_seconds_count");
    assert_eq!(durations["verb=\"patch\""].to_string(), patches.to_string(), "{durations:?}");
    // Each watch has an age, and nothing else.
    let ages = values(&scrape, "sei_controller_watch_age_seconds");
    let watched = with("\"watch\"").filter_map(|(labels, _)| labels.split(',').nth(1));
    let watched: Vec<&str> = watched.collect();
    assert!(watched.contains(&"resource=\"seinodes\""), "{watched:?}");
    assert_eq!(ages.keys().collect::<Vec<_>>(), watched);
    assert!(ages.values().all(|age| *age >= 0.0 && *age < runs_for), "{ages:?}");
    check_reconciles(&scrape, runs_for);
    check_process(&scrape, started);
    Ok(())
}

/// How a caller verifies the certificate of the metrics.
enum Trust {
    Anything,
    /// Certificates of the API server's authority.
    Authority,
}

/// Calls the metrics by HTTPS. Returns the page, or the code of a refusal.
async fn call(
    plane: &ControlPlane,
    port: u16,
    trust: &Trust,
    token: Option<&str>,
) -> Result<Result<String, u16>> {
    let mut config = Config::new(format!("https://127.0.0.1:{port}").parse()?);
    match trust {
        Trust::Anything => config.accept_invalid_certs = true,
        Trust::Authority => {
            let kubeconfig = Kubeconfig::read_from(plane.kubeconfig(User::Admin))?;
            let server =
                Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
            config.root_cert = server.root_cert;
        }
    }
    let token = token.map(|token| token.to_owned().into());
    config.auth_info = AuthInfo { token, ..AuthInfo::default() };
    let request = http::Request::get("/metrics").body(Vec::new())?;
    match Client::try_from(config)?.request_text(request).await {
        Ok(page) => Ok(Ok(page)),
        Err(kube::Error::Api(refusal)) => Ok(Err(refusal.code)),
        Err(error) => Err(error.into()),
    }
}

/// Grants the operator the reviews, and a role to readers, as `config/components/metrics-secure` does.
async fn allow_reviews(plane: &ControlPlane) -> Result<()> {
    let shell = Shell::on(plane)?;
    let folder = "config/components/metrics-secure";
    shell.run(&format!("kubectl apply -f {folder}/role.yaml -f {folder}/bindings.yaml"))?;
    let admin = plane.client(User::Admin)?;
    let roles: Api<ClusterRole> = Api::all(admin.clone());
    roles.get("sei-operator-metrics-reviews").await?;
    // This operator is a user, not a service account.
    let binding: ClusterRoleBinding = serde_json::from_value(json!({
        "metadata": { "name": "operator-reviews" },
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole",
            "name": "sei-operator-metrics-reviews" },
        "subjects": [{ "apiGroup": "rbac.authorization.k8s.io", "kind": "User",
            "name": User::Operator.name() }],
    }))?;
    Api::all(admin).create(&PostParams::default(), &binding).await?;
    Ok(())
}

/// Tokens of an account that may read the metrics, by the documented command, and of one that may not.
fn readers(plane: &ControlPlane) -> Result<(String, String)> {
    let shell = Shell::on(plane)?;
    shell.run(
        "kubectl create namespace monitoring
         kubectl --namespace monitoring create serviceaccount prometheus
         kubectl --namespace monitoring create serviceaccount other",
    )?;
    shell.run(&commands("docs/security.md", "Who reads the metrics")?)?;
    let token = |account: &str| {
        let token = shell.run(&format!("kubectl --namespace monitoring create token {account}"))?;
        anyhow::Ok(token.trim().to_owned())
    };
    Ok((token("prometheus")?, token("other")?))
}

#[tokio::test]
async fn secured_metrics_are_for_callers_whom_the_server_allows() -> Result<()> {
    let plane = boot().await?;
    allow_leader_election(&plane).await?;
    allow_reviews(&plane).await?;
    let (reader, stranger) = readers(&plane)?;
    let program = program()?;
    // The certificate of the API server is for this address too.
    let certificates = plane.folder().join("certificates");
    let folder = format!("--metrics-cert-path={}", certificates.display());
    let files = [
        "--metrics-secure",
        &folder,
        "--metrics-cert-name=apiserver.crt",
        "--metrics-cert-key=apiserver.key",
    ];
    let mut log = plane.audit();
    let self_signed = start_with(User::Operator, &program, &plane, "alpha", &["--metrics-secure"])?;
    let from_files = start_with(User::Operator, &program, &plane, "beta", &files)?;

    for (operator, trust) in [(&self_signed, Trust::Anything), (&from_files, Trust::Authority)] {
        let call = async |token: Option<&str>| call(&plane, operator.metrics, &trust, token).await;
        wait_for("the metrics are served", async || Ok(call(None).await.ok().map(drop))).await?;
        assert_eq!(call(None).await?, Err(401));
        assert_eq!(call(Some("no token")).await?, Err(401));
        assert_eq!(call(Some(&stranger)).await?, Err(403));
        for _ in 0..5 {
            let page = call(Some(&reader)).await?;
            assert!(page.is_ok_and(|page| page.contains("sei_controller_leader ")));
        }
        assert_eq!(call(Some(&stranger)).await?, Err(403));
        let plain = get(operator.metrics, "/metrics").await.unwrap_or_default();
        assert!(!plain.starts_with("HTTP/"), "{plain}");
    }
    // No caller can verify what the operator has signed itself, and its log has a warning.
    assert!(call(&plane, self_signed.metrics, &Trust::Authority, Some(&reader)).await.is_err());
    let warns = |operator: &Process| {
        anyhow::Ok(std::fs::read_to_string(&operator.log)?.contains("is self-signed"))
    };
    assert_eq!((warns(&self_signed)?, warns(&from_files)?), (true, false));

    // Those are the two permissions that this needs, and each is used.
    let granted: BTreeSet<&str> = METRICS_RULES.iter().map(|rule| rule.resource).collect();
    let mut used = BTreeSet::new();
    let logged = wait_for("the reviews are logged", async || {
        let own = log.read_new()?.into_iter().filter(|entry| entry.user == User::Operator.name());
        used.extend(own.map(|entry| entry.resource).filter(|name| name.ends_with("reviews")));
        Ok(used.iter().eq(&granted).then_some(()))
    });
    logged.await.with_context(|| format!("{used:?}"))
}
