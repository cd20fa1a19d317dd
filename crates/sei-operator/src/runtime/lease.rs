//! Leader election on a Lease, compatible with client-go: the Go operator and this operator exclude
//! each other.
//!
//! The lease is no fence. A leader that was suspended for minutes may still have calls in flight
//! when it continues; the resourceVersion and uid in every write make those harmless.

use std::future::Future;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use kube::api::PostParams;
use kube::{Api, Client};
use sei_api::names::LEASE_NAME;
use tokio::time::{Instant, sleep, sleep_until, timeout, timeout_at};

/// How long a holder that does not renew keeps the lease. The value of the Go operator: both must
/// agree on it.
pub const LEASE_DURATION: Duration = Duration::from_secs(LEASE_SECONDS as u64);
const LEASE_SECONDS: i32 = 15;
/// How long a leader may continue without a renewal. The difference to [`LEASE_DURATION`] is the
/// time for its calls in flight to end before another process can lead.
pub const RENEW_DEADLINE: Duration = Duration::from_secs(10);
/// The pause between two attempts, of a leader to renew and of a candidate to acquire.
pub const RETRY: Duration = Duration::from_secs(2);
/// How long the API server may take. Half the renew deadline: a hung call leaves time for another.
const CALL_DEADLINE: Duration = Duration::from_secs(5);

/// Why a call about the lease failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("failed to {action} the lease {LEASE_NAME}")]
    Call { action: &'static str, source: Box<kube::Error> },
    #[error("no response in {} s: {action} the lease {LEASE_NAME}", CALL_DEADLINE.as_secs())]
    NoResponse { action: &'static str },
}

impl Error {
    /// Whether the lease has changed since it was read: read it again, this is no failure.
    fn is_stale(&self) -> bool {
        match self {
            Self::Call { source, .. } => match source.as_ref() {
                kube::Error::Api(status) => matches!(status.code, 404 | 409),
                _ => false,
            },
            Self::NoResponse { .. } => false,
        }
    }
}

/// Why a leader has lost the lease.
#[derive(Debug, thiserror::Error)]
pub enum Lost {
    #[error("the lease {LEASE_NAME} has another holder: {by:?}")]
    Taken { by: String },
    #[error("the lease {LEASE_NAME} was not renewed within {} s", RENEW_DEADLINE.as_secs())]
    NotRenewed { source: Option<Error> },
}

/// What to do about the lease now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Move {
    /// The lease does not exist.
    Create,
    /// The lease is free, or its holder has stopped renewing.
    Acquire,
    /// This process holds the lease.
    Renew,
    /// Another process leads; read the lease again after this time.
    Wait(Duration),
}

/// The record that was observed last, and since when it is unchanged on the own monotonic clock.
#[derive(Clone, Debug, Default)]
pub struct LastRecord {
    record: Option<(LeaseSpec, Instant)>,
}

impl LastRecord {
    /// Observes a record. The time changes only if the record does.
    pub fn observe(&mut self, record: &LeaseSpec, now: Instant) {
        if self.record.as_ref().is_none_or(|(last, _)| last != record) {
            self.record = Some((record.clone(), now));
        }
    }

    fn unchanged_for(&self, record: &LeaseSpec, now: Instant) -> Duration {
        match &self.record {
            Some((last, since)) if last == record => now.saturating_duration_since(*since),
            _ => Duration::ZERO,
        }
    }
}

/// What the process `identity` does next, given the stored record and the one observed before.
///
/// Of the record's timestamps only changes matter: the clocks of two machines may differ by hours.
pub fn next_move(
    stored: Option<&LeaseSpec>,
    identity: &str,
    last: &LastRecord,
    now: Instant,
) -> Move {
    let Some(record) = stored else { return Move::Create };
    match holder(record) {
        "" => Move::Acquire,
        holder if holder == identity => Move::Renew,
        _ => match term(record).saturating_sub(last.unchanged_for(record, now)) {
            Duration::ZERO => Move::Acquire,
            left => Move::Wait(left.min(RETRY)),
        },
    }
}

fn holder(record: &LeaseSpec) -> &str {
    record.holder_identity.as_deref().unwrap_or_default()
}

/// How long the holder keeps the lease without a renewal. A record without a valid term gets ours;
/// client-go would acquire such a lease at once, but two leaders are worse than a wait.
fn term(record: &LeaseSpec) -> Duration {
    let seconds = record.lease_duration_seconds.and_then(|seconds| u64::try_from(seconds).ok());
    match seconds {
        None | Some(0) => LEASE_DURATION,
        Some(seconds) => Duration::from_secs(seconds),
    }
}

/// The record that makes or keeps `identity` the holder.
fn held(before: Option<&LeaseSpec>, identity: &str, now: Timestamp) -> LeaseSpec {
    let ours = before.filter(|record| holder(record) == identity);
    let transitions = |record: &LeaseSpec| record.lease_transitions.unwrap_or_default();
    let acquired = ours.and_then(|record| record.acquire_time.clone());
    LeaseSpec {
        holder_identity: Some(identity.to_owned()),
        lease_duration_seconds: Some(LEASE_SECONDS),
        acquire_time: acquired.or(Some(MicroTime(now))),
        renew_time: Some(MicroTime(now)),
        lease_transitions: Some(match (ours, before) {
            (Some(record), _) => transitions(record),
            (None, Some(record)) => transitions(record).saturating_add(1),
            (None, None) => 0,
        }),
        ..LeaseSpec::default()
    }
}

/// The record of a free lease, which any candidate may acquire at once.
fn released(before: &LeaseSpec, now: Timestamp) -> LeaseSpec {
    LeaseSpec {
        holder_identity: Some(String::new()),
        // The API server rejects 0.
        lease_duration_seconds: Some(1),
        acquire_time: Some(MicroTime(now)),
        renew_time: Some(MicroTime(now)),
        lease_transitions: before.lease_transitions,
        ..LeaseSpec::default()
    }
}

/// A candidate for the lease.
///
/// A process that lost the lease must exit: its state in memory may be outdated.
pub struct Elector {
    leases: Api<Lease>,
    identity: String,
    last: LastRecord,
    /// The lease as last read or written; the next write requires its resourceVersion.
    lease: Option<Lease>,
    /// When the last write that made or kept us the holder was sent.
    renewed: Option<Instant>,
    held_since: Option<Instant>,
}

/// The result of an attempt to renew.
enum Renewal {
    Done,
    Taken { by: String },
}

impl Elector {
    /// A candidate with this identity, which must be unique among the running processes.
    pub fn new(client: Client, namespace: &str, identity: &str) -> Self {
        debug_assert!(!identity.is_empty(), "an empty holder marks a free lease");
        Self {
            leases: Api::namespaced(client, namespace),
            identity: identity.to_owned(),
            last: LastRecord::default(),
            lease: None,
            renewed: None,
            held_since: None,
        }
    }

    /// Since when this candidate leads; `None` if it does not.
    pub fn held_since(&self) -> Option<Instant> {
        self.held_since
    }

    /// Returns once this candidate leads. May be dropped at any time.
    pub async fn acquire(&mut self) {
        let mut reported_holder = None;
        loop {
            let pause = match self.try_acquire().await {
                Ok(Move::Wait(pause)) => {
                    let holder = self.holder().to_owned();
                    if reported_holder.as_ref() != Some(&holder) {
                        tracing::info!(%holder, "waiting for the lease");
                        reported_holder = Some(holder);
                    }
                    pause
                }
                Ok(Move::Create | Move::Acquire | Move::Renew) => break,
                Err(error) => {
                    tracing::warn!(
                        error = sei_exec::call::chain(&error),
                        "failed to acquire the lease; retrying"
                    );
                    RETRY
                }
            };
            sleep(pause).await;
        }
        self.held_since = Some(Instant::now());
    }

    /// Keeps the lease, and returns when it is lost. May be dropped and called again.
    pub async fn hold(&mut self) -> Lost {
        let mut last_error = None;
        let lost = loop {
            let deadline = self.renewed.map_or_else(Instant::now, |sent| sent + RENEW_DEADLINE);
            sleep_until(deadline.min(Instant::now() + RETRY)).await;
            // Checked before the write: a process that was suspended for long must not renew a
            // lease that another process may have acquired and released meanwhile.
            if Instant::now() >= deadline {
                break Lost::NotRenewed { source: last_error };
            }
            match timeout_at(deadline, self.renew()).await {
                Ok(Ok(Renewal::Done)) => last_error = None,
                Ok(Ok(Renewal::Taken { by })) => break Lost::Taken { by },
                Ok(Err(error)) => {
                    let cause = sei_exec::call::chain(&error);
                    tracing::warn!(error = cause, "failed to renew the lease; retrying");
                    last_error = Some(error);
                }
                Err(_) => {}
            }
        };
        self.held_since = None;
        lost
    }

    /// Releases the lease, if it is held, so that a successor need not wait until it expires.
    /// Call it once all work that needs the lease has ended.
    pub async fn release(&mut self) -> Result<(), Error> {
        if self.held_since.take().is_none() {
            return Ok(());
        }
        self.renewed = None;
        // A renewal that was dropped half-way may be stored: read the current version.
        let next = self.observe().await?;
        match self.record() {
            Some(record) if next == Move::Renew => {
                let record = released(record, Timestamp::now());
                self.replace("release", record).await
            }
            _ => Ok(()),
        }
    }

    fn record(&self) -> Option<&LeaseSpec> {
        self.lease.as_ref().and_then(|lease| lease.spec.as_ref())
    }

    fn holder(&self) -> &str {
        self.record().map_or("", holder)
    }

    async fn try_acquire(&mut self) -> Result<Move, Error> {
        let next = self.observe().await?;
        if !matches!(next, Move::Wait(_)) {
            self.take().await?;
        }
        Ok(next)
    }

    async fn renew(&mut self) -> Result<Renewal, Error> {
        match self.take().await {
            Ok(()) => return Ok(Renewal::Done),
            Err(error) if error.is_stale() => {}
            Err(error) => return Err(error),
        }
        match self.observe().await? {
            // A deleted lease is created again, as in client-go.
            Move::Create | Move::Renew => self.take().await.map(|()| Renewal::Done),
            // A free lease is lost, too: another process may have acquired and released it.
            Move::Acquire | Move::Wait(_) => Ok(Renewal::Taken { by: self.holder().to_owned() }),
        }
    }

    /// Reads the lease and returns what to do about it.
    async fn observe(&mut self) -> Result<Move, Error> {
        let lease = call("read", self.leases.get_opt(LEASE_NAME)).await?;
        let now = Instant::now();
        // A lease without a record is free, and must be replaced, not created.
        self.lease = lease.map(|mut lease| {
            lease.spec.get_or_insert_default();
            lease
        });
        let record = self.lease.as_ref().and_then(|lease| lease.spec.as_ref());
        if let Some(record) = record {
            self.last.observe(record, now);
        }
        Ok(next_move(record, &self.identity, &self.last, now))
    }

    /// Writes this candidate as the holder, based on the lease as last read or written.
    async fn take(&mut self) -> Result<(), Error> {
        // The time before the call: other candidates count from when they observe its effect.
        let sent = Instant::now();
        let record = held(self.record(), &self.identity, Timestamp::now());
        if self.lease.is_some() {
            self.replace("hold", record).await?;
        } else {
            let name = Some(LEASE_NAME.to_owned());
            let metadata = ObjectMeta { name, ..ObjectMeta::default() };
            let lease = Lease { metadata, spec: Some(record) };
            let parameters = PostParams::default();
            self.lease = Some(call("create", self.leases.create(&parameters, &lease)).await?);
        }
        self.renewed = Some(sent);
        Ok(())
    }

    async fn replace(&mut self, action: &'static str, record: LeaseSpec) -> Result<(), Error> {
        let lease = Lease { spec: Some(record), ..self.lease.clone().unwrap_or_default() };
        let parameters = PostParams::default();
        let request = self.leases.replace(LEASE_NAME, &parameters, &lease);
        self.lease = Some(call(action, request).await?);
        Ok(())
    }
}

async fn call<T>(
    action: &'static str,
    request: impl Future<Output = Result<T, kube::Error>>,
) -> Result<T, Error> {
    match timeout(CALL_DEADLINE, request).await {
        Ok(response) => response.map_err(|source| Error::Call { action, source: Box::new(source) }),
        Err(_) => Err(Error::NoResponse { action }),
    }
}

#[cfg(test)]
mod tests;
