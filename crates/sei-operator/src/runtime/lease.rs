//! Leader election on a Lease, as client-go does it: the peer and this operator exclude each other.
//!
//! The lease is no fence. A leader that was stopped for minutes may still have calls in flight when
//! it wakes; those are made harmless by the resourceVersion and uid that every write carries.

use std::future::Future;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use kube::api::PostParams;
use kube::{Api, Client};
use sei_api::names::LEASE_NAME;
use tokio::time::{Instant, sleep, sleep_until, timeout, timeout_at};

/// How long others leave a silent holder alone. The peer's value: both sides must agree on it.
pub const LEASE_DURATION: Duration = Duration::from_secs(LEASE_SECONDS as u64);
const LEASE_SECONDS: i32 = 15;
/// How long a leader may go on without a renewal. The distance to [`LEASE_DURATION`] is the time
/// for its calls in flight to end before anybody else can lead.
pub const RENEW_DEADLINE: Duration = Duration::from_secs(10);
/// Between two tries, of a leader to renew and of the others to acquire.
pub const RETRY: Duration = Duration::from_secs(2);
/// How long the API server may take. Half the renew deadline: a hung call leaves time for another.
const CALL_DEADLINE: Duration = Duration::from_secs(5);

/// Why a call about the lease failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("failed to {action} the lease {LEASE_NAME}")]
    Call { action: &'static str, source: Box<kube::Error> },
    #[error("no answer in {} s to: {action} the lease {LEASE_NAME}", CALL_DEADLINE.as_secs())]
    NoAnswer { action: &'static str },
}

impl Error {
    /// Whether what the write was based on is no longer there: worth a look, not a failure.
    fn is_stale(&self) -> bool {
        match self {
            Self::Call { source, .. } => match source.as_ref() {
                kube::Error::Api(status) => matches!(status.code, 404 | 409),
                _ => false,
            },
            Self::NoAnswer { .. } => false,
        }
    }
}

/// Why a leader is none any more.
#[derive(Debug, thiserror::Error)]
pub enum Lost {
    #[error("the lease {LEASE_NAME} is no longer ours; its holder is {by:?}")]
    Taken { by: String },
    #[error("the lease {LEASE_NAME} was not renewed within {} s", RENEW_DEADLINE.as_secs())]
    NotRenewed { source: Option<Error> },
}

/// What to do about the lease now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Move {
    /// There is none.
    Create,
    /// It is free, or its holder fell silent.
    Acquire,
    /// It is ours.
    Renew,
    /// Somebody else leads; look again then.
    Wait(Duration),
}

/// The record that was seen last, and since when it stands unchanged by the own monotonic clock.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    record: Option<(LeaseSpec, Instant)>,
}

impl Seen {
    /// Takes note of a record. The time moves only if it differs from the last one.
    pub fn note(&mut self, record: &LeaseSpec, now: Instant) {
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

/// What `me` does next, given the stored record and what was seen of it before.
///
/// The record's timestamps are not looked at, only whether they change: clocks of two machines may
/// differ by hours.
pub fn next_move(lease: Option<&LeaseSpec>, me: &str, seen: &Seen, now: Instant) -> Move {
    let Some(record) = lease else { return Move::Create };
    match holder(record) {
        "" => Move::Acquire,
        holder if holder == me => Move::Renew,
        _ => match term(record).saturating_sub(seen.unchanged_for(record, now)) {
            Duration::ZERO => Move::Acquire,
            left => Move::Wait(left.min(RETRY)),
        },
    }
}

fn holder(record: &LeaseSpec) -> &str {
    record.holder_identity.as_deref().unwrap_or_default()
}

/// How long the holder may be silent. A record without a sensible term is given ours; client-go
/// would take it at once, and two leaders are worse than a wait.
fn term(record: &LeaseSpec) -> Duration {
    let seconds = record.lease_duration_seconds.and_then(|seconds| u64::try_from(seconds).ok());
    match seconds {
        None | Some(0) => LEASE_DURATION,
        Some(seconds) => Duration::from_secs(seconds),
    }
}

/// The record that makes or keeps `me` the holder.
fn held(before: Option<&LeaseSpec>, me: &str, now: Timestamp) -> LeaseSpec {
    let ours = before.filter(|record| holder(record) == me);
    let transitions = |record: &LeaseSpec| record.lease_transitions.unwrap_or_default();
    let acquired = ours.and_then(|record| record.acquire_time.clone());
    LeaseSpec {
        holder_identity: Some(me.to_owned()),
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

/// The record that leaves the lease to whoever comes first.
fn released(before: &LeaseSpec, now: Timestamp) -> LeaseSpec {
    LeaseSpec {
        holder_identity: Some(String::new()),
        // The server refuses 0.
        lease_duration_seconds: Some(1),
        acquire_time: Some(MicroTime(now)),
        renew_time: Some(MicroTime(now)),
        lease_transitions: before.lease_transitions,
        ..LeaseSpec::default()
    }
}

/// A candidate for the lease.
///
/// The process that lost the lease is to exit: what it holds in memory may be of another time.
pub struct Elector {
    leases: Api<Lease>,
    identity: String,
    seen: Seen,
    /// The lease as it was last read or written; its resourceVersion guards the next write.
    lease: Option<Lease>,
    /// When the last write that made or kept us the holder was sent.
    renewed: Option<Instant>,
    held_since: Option<Instant>,
}

/// How a try to renew went.
enum Renewal {
    Done,
    Taken { by: String },
}

impl Elector {
    /// A candidate of this name. No two processes that run at once may have the same one.
    pub fn new(client: Client, namespace: &str, identity: &str) -> Self {
        debug_assert!(!identity.is_empty(), "an empty identity is the mark of a free lease");
        Self {
            leases: Api::namespaced(client, namespace),
            identity: identity.to_owned(),
            seen: Seen::default(),
            lease: None,
            renewed: None,
            held_since: None,
        }
    }

    /// Since when this candidate leads, if it does.
    pub fn held_since(&self) -> Option<Instant> {
        self.held_since
    }

    /// Returns once this candidate leads. May be dropped at any time.
    pub async fn acquire(&mut self) {
        let mut holder_told = None;
        loop {
            let pause = match self.try_acquire().await {
                Ok(Move::Wait(pause)) => {
                    let holder = self.holder().to_owned();
                    if holder_told.as_ref() != Some(&holder) {
                        tracing::info!(%holder, "waits for the lease");
                        holder_told = Some(holder);
                    }
                    pause
                }
                Ok(Move::Create | Move::Acquire | Move::Renew) => break,
                Err(error) => {
                    tracing::warn!(error = sei_exec::call::chain(&error), "tries again to lead");
                    RETRY
                }
            };
            sleep(pause).await;
        }
        self.held_since = Some(Instant::now());
    }

    /// Keeps the lease, and returns when it is lost. May be dropped and called again.
    pub async fn hold(&mut self) -> Lost {
        let mut trouble = None;
        let lost = loop {
            let deadline = self.renewed.map_or_else(Instant::now, |sent| sent + RENEW_DEADLINE);
            sleep_until(deadline.min(Instant::now() + RETRY)).await;
            // Looked at before the write: a process that was stopped for long must not renew what
            // somebody else may have taken meanwhile and given back.
            if Instant::now() >= deadline {
                break Lost::NotRenewed { source: trouble };
            }
            match timeout_at(deadline, self.renew()).await {
                Ok(Ok(Renewal::Done)) => trouble = None,
                Ok(Ok(Renewal::Taken { by })) => break Lost::Taken { by },
                Ok(Err(error)) => {
                    let cause = sei_exec::call::chain(&error);
                    tracing::warn!(error = cause, "tries again to renew the lease");
                    trouble = Some(error);
                }
                Err(_) => {}
            }
        };
        self.held_since = None;
        lost
    }

    /// Gives the lease up, if it is held, so that a successor need not wait for it to run out.
    /// To be called once all work that needs the lease has ended.
    pub async fn release(&mut self) -> Result<(), Error> {
        if self.held_since.take().is_none() {
            return Ok(());
        }
        self.renewed = None;
        // A renewal that was dropped half-way may have been stored: read the version anew.
        let next = self.look().await?;
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
        let next = self.look().await?;
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
        match self.look().await? {
            // A lease that somebody deleted is made again, as client-go does.
            Move::Create | Move::Renew => self.take().await.map(|()| Renewal::Done),
            // Free is not ours either: somebody else may have led and gone.
            Move::Acquire | Move::Wait(_) => Ok(Renewal::Taken { by: self.holder().to_owned() }),
        }
    }

    /// Reads the lease and says what to do about it.
    async fn look(&mut self) -> Result<Move, Error> {
        let lease = call("read", self.leases.get_opt(LEASE_NAME)).await?;
        let now = Instant::now();
        // A lease without a record is free, and must be replaced, not created.
        self.lease = lease.map(|mut lease| {
            lease.spec.get_or_insert_default();
            lease
        });
        let record = self.lease.as_ref().and_then(|lease| lease.spec.as_ref());
        if let Some(record) = record {
            self.seen.note(record, now);
        }
        Ok(next_move(record, &self.identity, &self.seen, now))
    }

    /// Writes this candidate as the holder, over the lease as it was last seen.
    async fn take(&mut self) -> Result<(), Error> {
        // Counted from before the call: others count from when they see its effect.
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
        Ok(answer) => answer.map_err(|source| Error::Call { action, source: Box::new(source) }),
        Err(_) => Err(Error::NoAnswer { action }),
    }
}

#[cfg(test)]
mod tests;
