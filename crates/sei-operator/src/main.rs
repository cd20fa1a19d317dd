//! `sei-operator run`: parses its flags, waits for the lease, and runs until a signal stops it.

use std::ffi::OsString;
use std::io::IsTerminal as _;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context as _, Result, bail};
use axum::Router;
use clap::Parser as _;
use kube::Client;
use sei_operator::flags::{Flags, LogFormat, from_go_style};
use sei_operator::node::read_platform;
use sei_operator::runtime::access::Access;
use sei_operator::runtime::certificate::Certificate;
use sei_operator::runtime::client;
use sei_operator::runtime::controller::InFlight;
use sei_operator::runtime::lease::Elector;
use sei_operator::runtime::metrics::Metrics;
use sei_operator::runtime::serve::{Bind, Ready, health_router, listen, metrics_router, serve_on};
use sei_operator::{Options, TokenSource, VERSION, run};
use sei_plan::fingerprint::Algorithm;
use sei_plan::timing::Timing;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tracing_subscriber::EnvFilter;

#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// Prints the error that ends the process as one line, also if backtraces are enabled.
///
/// Two threads, on any machine: an update is mostly waiting, and waking more threads costs CPU time. A
/// single one could delay the renewal of the lease.
#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> ExitCode {
    match operate().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn operate() -> Result<()> {
    let flags = Flags::parse_from(from_go_style(arguments()));
    open_log(flags.log_format);
    for warning in flags.warnings() {
        tracing::warn!("{warning}");
    }
    let Some(path) = flags.config.clone() else {
        bail!("--config or SEI_CONTROLLER_CONFIG must name the platform configuration");
    };
    // A bad file is reported at the start, not only once this process leads.
    read_platform(&path).map_err(anyhow::Error::msg)?;
    let config = kube::Config::infer().await.context("found no configuration of a cluster")?;
    let metrics = Metrics::new();
    let client = client::counted(config, &metrics).context("failed to create a client")?;
    let in_flight = InFlight::default();
    let ready = Ready::waiting("waiting for the lease");
    let stop = stop_on_signals()?;
    let router = health_router(ready.clone(), in_flight.clone());
    let mut servers = serve(&flags, &client, &metrics, router, &stop).await?;

    let mut elector = None;
    if flags.leader_elect {
        let namespace = flags.leader_election_namespace();
        let mut candidate = Elector::new(client.clone(), &namespace, &flags.identity());
        tracing::info!(%namespace, "waiting for the lease");
        // A candidate that waits for the lease is healthy and ready to take over.
        ready.set();
        tokio::select! {
            () = candidate.acquire() => {}
            error = ended(&mut servers, &stop) => return Err(error),
            () = stopped(stop.clone()) => return Ok(()),
        }
        elector = Some(candidate);
    }
    // The file may have changed during the wait: a new leader must not roll nodes back to the
    // configuration of an earlier file.
    let mut platform = match (read_platform(&path), elector.as_mut()) {
        (Ok(platform), _) => platform,
        (Err(message), None) => bail!(message),
        (Err(message), Some(elector)) => {
            elector.release().await.context("failed to release the lease")?;
            bail!(message);
        }
    };
    let sidecar_token = flags.sidecar_tokens();
    platform.sidecar_audience = matches!(sidecar_token, TokenSource::Account { .. });
    // A leader reconciles nothing until it has listed its nodes.
    ready.unset("the first lists are not loaded");
    metrics.leading(true);
    tracing::info!(version = VERSION, "leading");
    let options = Options {
        platform: Arc::new(platform),
        platform_path: Some(path),
        namespaces: flags.watch_namespaces(),
        sidecar_token,
        timing: Timing::faster(flags.speed),
        rpc_reads: sei_operator::RPC_READS,
        version: VERSION.to_owned(),
        algorithm: Algorithm::CURRENT,
        metrics,
        in_flight,
    };
    let leading = lead(client, options, elector, ready, stop.clone());
    tokio::select! {
        result = leading => result,
        error = ended(&mut servers, &stop) => Err(error),
    }
}

/// Runs while the lease is held. A lost lease ends the process at once: another process may lead
/// already.
async fn lead(
    client: Client,
    options: Options,
    elector: Option<Elector>,
    ready: Ready,
    stop: watch::Receiver<bool>,
) -> Result<()> {
    let (filled, mut is_filled) = watch::channel(false);
    tokio::spawn(async move {
        if is_filled.wait_for(|filled| *filled).await.is_ok() {
            ready.set();
        }
    });
    let running = run(client, options, stop, filled);
    let Some(mut elector) = elector else { return running.await };
    tokio::select! {
        ended = running => {
            ended?;
            elector.release().await.context("failed to release the lease")
        }
        lost = elector.hold() => {
            Err(anyhow::Error::new(lost).context("lost the lease; another process may lead now"))
        }
    }
}

/// The arguments without the subcommand `run`, which is optional: the Go operator has none.
fn arguments() -> Vec<OsString> {
    let mut arguments: Vec<OsString> = std::env::args_os().collect();
    if arguments.get(1).is_some_and(|first| first == "run") {
        arguments.remove(1);
    }
    arguments
}

fn open_log(format: LogFormat) {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(std::io::stderr().is_terminal())
        .with_writer(std::io::stderr);
    match format {
        LogFormat::Text => log.init(),
        LogFormat::Json => log.json().init(),
    }
}

async fn serve(
    flags: &Flags,
    client: &Client,
    metrics: &Metrics,
    health: Router,
    stop: &watch::Receiver<bool>,
) -> Result<JoinSet<()>> {
    let mut tasks = JoinSet::new();
    if let Bind::On(address) = &flags.metrics_bind_address {
        let certificate = flags.metrics_secure.then(|| open_certificate(flags)).transpose()?;
        let access = certificate.is_some().then(|| Access::new(client.clone()));
        let router = metrics_router(metrics.clone(), access);
        let listener = listen(address).await?;
        tasks.spawn(serve_on(listener, router, certificate, stopped(stop.clone())));
    }
    if let Bind::On(address) = &flags.health_probe_bind_address {
        let listener = listen(address).await?;
        tasks.spawn(serve_on(listener, health, None, stopped(stop.clone())));
    }
    Ok(tasks)
}

fn open_certificate(flags: &Flags) -> Result<Certificate> {
    let Some((chain, key)) = flags.metrics_certificate() else {
        tracing::warn!(
            "the certificate of the metrics is self-signed, so no caller can verify it: set --metrics-cert-path"
        );
        return Ok(Certificate::self_signed()?);
    };
    Ok(Certificate::open(chain, key)?)
}

/// Waits for the end of a server before the process is stopped: probes and metrics would be missing.
async fn ended(servers: &mut JoinSet<()>, stop: &watch::Receiver<bool>) -> anyhow::Error {
    match servers.join_next().await {
        Some(end) if !*stop.borrow() => match end {
            Ok(()) => anyhow::anyhow!("a server has ended"),
            Err(error) => anyhow::Error::new(error).context("the task of a server has ended"),
        },
        _ => std::future::pending().await,
    }
}

/// Turns true on the first SIGTERM or SIGINT.
fn stop_on_signals() -> Result<watch::Receiver<bool>> {
    let (sender, receiver) = watch::channel(false);
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    tokio::spawn(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        tracing::info!("stopping");
        sender.send_replace(true);
        // Keeps the sender alive: receivers must not mistake a closed channel for a signal.
        std::future::pending::<()>().await;
    });
    Ok(receiver)
}

async fn stopped(mut stop: watch::Receiver<bool>) {
    if stop.wait_for(|stop| *stop).await.is_err() {
        std::future::pending::<()>().await;
    }
}
