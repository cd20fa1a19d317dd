use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::{Request, State};
use axum::http::{Method, StatusCode};
use axum::response::{IntoResponse, Response};
use serde_json::json;

use super::*;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + second).unwrap()
}

fn record(holder: &str, seconds: Option<i32>, renewed: Timestamp) -> LeaseSpec {
    LeaseSpec {
        holder_identity: Some(holder.to_owned()),
        lease_duration_seconds: seconds,
        acquire_time: Some(MicroTime(at(0))),
        renew_time: Some(MicroTime(renewed)),
        lease_transitions: Some(4),
        ..LeaseSpec::default()
    }
}

const HOUR: i64 = 3600;

#[test]
fn next_move_follows_the_table() {
    let start = Instant::now();
    let fresh = record("other", Some(15), at(0));
    let retry = Move::Wait(RETRY);
    // The stored record, the record observed before and how many milliseconds ago, the next move.
    let table = [
        ("no lease", None, None, Move::Create),
        ("no lease any more", None, Some((fresh.clone(), 99_000)), Move::Create),
        ("no record", Some(LeaseSpec::default()), None, Move::Acquire),
        ("released", Some(record("", Some(1), at(0))), None, Move::Acquire),
        ("ours", Some(record("me", Some(15), at(0))), None, Move::Renew),
        ("ours, old", Some(record("me", Some(15), at(-HOUR))), None, Move::Renew),
        ("foreign, first observed", Some(fresh.clone()), None, retry),
        ("foreign, fresh", Some(fresh.clone()), Some((fresh.clone(), 12_000)), retry),
        (
            "foreign, nearly expired",
            Some(fresh.clone()),
            Some((fresh.clone(), 14_400)),
            Move::Wait(Duration::from_millis(600)),
        ),
        ("foreign, expired", Some(fresh.clone()), Some((fresh.clone(), 15_000)), Move::Acquire),
        (
            "foreign, renewed since",
            Some(record("other", Some(15), at(14))),
            Some((fresh.clone(), 99_000)),
            retry,
        ),
        (
            "foreign, another took over",
            Some(record("third", Some(15), at(0))),
            Some((fresh.clone(), 99_000)),
            retry,
        ),
        ("its clock is behind", Some(record("other", Some(15), at(-HOUR))), None, retry),
        ("its clock is ahead", Some(record("other", Some(15), at(HOUR))), None, retry),
        (
            "its clock jumped back, which counts as a change",
            Some(record("other", Some(15), at(-HOUR))),
            Some((fresh.clone(), 99_000)),
            retry,
        ),
        ("a short term", Some(record("other", Some(1), at(0))), None, Move::Wait(RETRY / 2)),
        ("no term", Some(record("other", None, at(0))), None, retry),
        ("an invalid term", Some(record("other", Some(-5), at(0))), None, retry),
        (
            "an endless term",
            Some(record("other", Some(i32::MAX), at(0))),
            Some((record("other", Some(i32::MAX), at(0)), 99_000)),
            retry,
        ),
    ];
    for (name, stored, before, expected) in table {
        let mut last = LastRecord::default();
        let mut now = start;
        if let Some((before, milliseconds)) = before {
            last.observe(&before, start);
            now += Duration::from_millis(milliseconds);
        }
        if let Some(stored) = &stored {
            last.observe(stored, now);
        }
        assert_eq!(next_move(stored.as_ref(), "me", &last, now), expected, "{name}");
    }
}

#[test]
fn an_own_clock_that_runs_backwards_causes_no_acquisition() {
    let fresh = record("other", Some(15), at(0));
    let now = Instant::now();
    let mut last = LastRecord::default();
    last.observe(&fresh, now + Duration::from_secs(60));
    assert_eq!(next_move(Some(&fresh), "me", &last, now), Move::Wait(RETRY));
}

#[test]
fn a_record_counts_its_transitions_as_client_go_does() {
    let times = |record: &LeaseSpec| {
        let at = |time: &Option<MicroTime>| time.as_ref().map(|time| time.0);
        (record.lease_transitions, at(&record.acquire_time), at(&record.renew_time))
    };
    let created = held(None, "me", at(9));
    assert_eq!(times(&created), (Some(0), Some(at(9)), Some(at(9))));
    let taken = held(Some(&record("other", Some(15), at(0))), "me", at(9));
    assert_eq!(times(&taken), (Some(5), Some(at(9)), Some(at(9))));
    let renewed = held(Some(&taken), "me", at(11));
    assert_eq!(times(&renewed), (Some(5), Some(at(9)), Some(at(11))));
    assert_eq!(renewed.lease_duration_seconds, Some(15));
}

/// How the server misbehaves.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Fault {
    #[default]
    None,
    Fails,
    Hangs,
    /// Stores the write, and never responds.
    LosesResponses,
}

#[derive(Default)]
struct Stored {
    lease: Option<Lease>,
    version: u64,
    fault: Fault,
}

/// An API server with a single lease.
#[derive(Clone, Default)]
struct Server(Arc<Mutex<Stored>>);

impl Server {
    fn elector(&self, identity: &str) -> Elector {
        let router = Router::new().fallback(respond).with_state(self.clone());
        Elector::new(Client::new(router, "default"), "sei", identity)
    }

    fn record(&self) -> LeaseSpec {
        self.0.lock().unwrap().lease.clone().unwrap().spec.unwrap()
    }

    fn fail(&self, fault: Fault) {
        self.0.lock().unwrap().fault = fault;
    }

    /// Writes as another process does.
    fn write(&self, record: Option<LeaseSpec>) {
        let mut stored = self.0.lock().unwrap();
        stored.version += 1;
        let mut lease = stored.lease.take().unwrap_or_default();
        lease.metadata.resource_version = Some(stored.version.to_string());
        stored.lease = record.map(|record| Lease { spec: Some(record), ..lease });
    }

    /// Another holder that renews every two seconds until it is stopped.
    fn renewing(&self, holder: &'static str) -> tokio::task::JoinHandle<()> {
        let server = self.clone();
        tokio::spawn(async move {
            for second in 0.. {
                // Its clock is an hour behind and stands still for a minute at a time.
                let mut record = record(holder, Some(15), at(second / 60 - HOUR));
                record.lease_transitions = Some(i32::try_from(second % 1000).unwrap());
                server.write(Some(record));
                sleep(RETRY).await;
            }
        })
    }
}

async fn respond(State(server): State<Server>, request: Request) -> Response {
    let fault = server.0.lock().unwrap().fault;
    if fault == Fault::Fails {
        return failure(StatusCode::INTERNAL_SERVER_ERROR, "InternalError");
    }
    if fault == Fault::Hangs {
        std::future::pending::<()>().await;
    }
    let (parts, body) = request.into_parts();
    let body = to_bytes(body, usize::MAX).await.unwrap();
    let is_write = parts.method != Method::GET;
    let response = server.store(&parts.method, &body);
    if is_write && fault == Fault::LosesResponses {
        std::future::pending::<()>().await;
    }
    response
}

impl Server {
    fn store(&self, method: &Method, body: &[u8]) -> Response {
        let mut stored = self.0.lock().unwrap();
        match (method, &stored.lease) {
            (&Method::GET, Some(lease)) => return found(lease),
            (&Method::POST, Some(_)) => return failure(StatusCode::CONFLICT, "AlreadyExists"),
            (&Method::GET | &Method::PUT, None) => {
                return failure(StatusCode::NOT_FOUND, "NotFound");
            }
            _ => {}
        }
        let mut lease: Lease = serde_json::from_slice(body).unwrap();
        let version = |lease: &Lease| lease.metadata.resource_version.clone();
        if version(&lease) != stored.lease.as_ref().and_then(version) {
            return failure(StatusCode::CONFLICT, "Conflict");
        }
        stored.version += 1;
        lease.metadata.resource_version = Some(stored.version.to_string());
        stored.lease = Some(lease.clone());
        found(&lease)
    }
}

fn found(lease: &Lease) -> Response {
    Body::from(serde_json::to_vec(lease).unwrap()).into_response()
}

fn failure(code: StatusCode, reason: &str) -> Response {
    let status = json!({
        "kind": "Status", "apiVersion": "v1", "status": "Failure",
        "reason": reason, "message": reason, "code": code.as_u16(),
    });
    (code, status.to_string()).into_response()
}

/// Awaits a future and returns how many seconds it took.
async fn seconds<T>(future: impl Future<Output = T>) -> (u64, T) {
    let start = Instant::now();
    let value =
        timeout(Duration::from_secs(3600), future).await.expect("the future ends within an hour");
    (start.elapsed().as_secs(), value)
}

#[tokio::test(start_paused = true)]
async fn a_missing_lease_is_created_at_once() {
    let server = Server::default();
    let mut elector = server.elector("me");
    assert_eq!(elector.held_since(), None);
    assert_eq!(seconds(elector.acquire()).await, (0, ()));
    assert!(elector.held_since().is_some());
    let record = server.record();
    assert_eq!(record.holder_identity.as_deref(), Some("me"));
    assert_eq!((record.lease_duration_seconds, record.lease_transitions), (Some(15), Some(0)));
    assert_eq!(record.acquire_time, record.renew_time);
}

#[tokio::test(start_paused = true)]
async fn a_holder_that_stops_renewing_is_replaced_after_its_term() {
    let server = Server::default();
    server.write(Some(record("other", Some(15), at(HOUR))));
    let mut elector = server.elector("me");
    assert_eq!(seconds(elector.acquire()).await, (15, ()));
    assert_eq!(server.record().lease_transitions, Some(5));
}

#[tokio::test(start_paused = true)]
async fn a_holder_that_keeps_renewing_is_never_replaced() {
    let server = Server::default();
    let holder = server.renewing("other");
    let mut elector = server.elector("me");
    assert!(timeout(Duration::from_secs(600), elector.acquire()).await.is_err());
    holder.abort();
    let (waited, ()) = seconds(elector.acquire()).await;
    assert!((13..=17).contains(&waited), "{waited}");
}

#[tokio::test(start_paused = true)]
async fn an_own_lease_is_resumed_at_once() {
    let server = Server::default();
    server.write(Some(record("me", Some(15), at(-HOUR))));
    let mut elector = server.elector("me");
    assert_eq!(seconds(elector.acquire()).await, (0, ()));
    assert_eq!(server.record().lease_transitions, Some(4));
    assert_eq!(server.record().acquire_time, Some(MicroTime(at(0))));
}

#[tokio::test(start_paused = true)]
async fn a_healthy_leader_keeps_its_lease() {
    let server = Server::default();
    let mut elector = server.elector("me");
    elector.acquire().await;
    let before = server.record();
    assert!(timeout(Duration::from_secs(600), elector.hold()).await.is_err());
    assert_eq!(server.0.lock().unwrap().version, 300, "a write each two seconds, and no more");
    assert_eq!(server.record().acquire_time, before.acquire_time);
}

#[tokio::test(start_paused = true)]
async fn a_leader_stops_before_its_lease_expires() {
    for fault in [Fault::Fails, Fault::Hangs] {
        let server = Server::default();
        let mut elector = server.elector("me");
        elector.acquire().await;
        server.fail(fault);
        let (took, lost) = seconds(elector.hold()).await;
        assert_eq!(took, 10);
        let Lost::NotRenewed { source: Some(_) } = lost else { panic!("{lost:?}") };
        assert_eq!(elector.held_since(), None);
    }
}

#[tokio::test(start_paused = true)]
async fn a_leader_survives_a_short_outage() {
    let server = Server::default();
    let mut elector = server.elector("me");
    elector.acquire().await;
    let leader = tokio::spawn(async move { elector.hold().await });
    for fault in [Fault::Fails, Fault::Hangs, Fault::LosesResponses] {
        server.fail(fault);
        sleep(Duration::from_secs(6)).await;
        server.fail(Fault::None);
        sleep(Duration::from_secs(60)).await;
    }
    assert!(!leader.is_finished());
    assert_eq!(server.record().lease_transitions, Some(0));
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_was_suspended_past_its_deadline_does_not_renew() {
    let server = Server::default();
    let mut elector = server.elector("me");
    elector.acquire().await;
    tokio::time::advance(Duration::from_secs(120)).await;
    let (took, lost) = seconds(elector.hold()).await;
    assert!(took == 0 && matches!(lost, Lost::NotRenewed { .. }), "{lost:?}");
    assert_eq!(server.0.lock().unwrap().version, 1);
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_was_replaced_stops() {
    for (record, holder) in [
        (record("other", Some(15), at(0)), "other"),
        // Free, but another process may have led meanwhile.
        (record("", Some(1), at(0)), ""),
    ] {
        let server = Server::default();
        let mut elector = server.elector("me");
        elector.acquire().await;
        server.write(Some(record));
        let (took, lost) = seconds(elector.hold()).await;
        let Lost::Taken { by } = lost else { panic!("{lost:?}") };
        assert_eq!((took, by.as_str()), (2, holder));
        elector.release().await.unwrap();
        assert_eq!(server.record().holder_identity.as_deref(), Some(holder));
    }
}

#[tokio::test(start_paused = true)]
async fn a_deleted_lease_is_created_again() {
    let server = Server::default();
    let mut elector = server.elector("me");
    elector.acquire().await;
    server.write(None);
    assert!(timeout(Duration::from_secs(5), elector.hold()).await.is_err());
    assert_eq!(server.record().holder_identity.as_deref(), Some("me"));
}

#[tokio::test(start_paused = true)]
async fn after_a_release_the_next_candidate_leads_at_once() {
    let server = Server::default();
    let mut first = server.elector("first");
    first.acquire().await;
    // Its renewal is stored, but the response is lost.
    server.fail(Fault::LosesResponses);
    assert!(timeout(Duration::from_secs(3), first.hold()).await.is_err());
    server.fail(Fault::None);
    first.release().await.unwrap();
    let record = server.record();
    assert_eq!(record.holder_identity.as_deref(), Some(""));
    assert_eq!((record.lease_duration_seconds, record.lease_transitions), (Some(1), Some(0)));
    assert_eq!(first.held_since(), None);
    let mut second = server.elector("second");
    assert_eq!(seconds(second.acquire()).await, (0, ()));
    assert_eq!(server.record().lease_transitions, Some(1));
    first.release().await.unwrap();
    assert_eq!(server.record().holder_identity.as_deref(), Some("second"));
}

#[tokio::test(start_paused = true)]
async fn a_release_times_out_on_an_unresponsive_server() {
    let server = Server::default();
    let mut elector = server.elector("me");
    elector.acquire().await;
    server.fail(Fault::Hangs);
    let (took, result) = seconds(elector.release()).await;
    assert!(took == 5 && matches!(result, Err(Error::NoResponse { .. })), "{result:?}");
}

#[tokio::test(start_paused = true)]
async fn a_lost_response_does_not_lose_the_lease() {
    let server = Server::default();
    server.fail(Fault::LosesResponses);
    let mut elector = server.elector("me");
    assert!(timeout(Duration::from_secs(6), elector.acquire()).await.is_err());
    server.fail(Fault::None);
    let (took, ()) = seconds(elector.acquire()).await;
    assert!(took <= 2, "{took}");
    assert_eq!(server.record().lease_transitions, Some(0));
}

#[tokio::test(start_paused = true)]
async fn only_one_candidate_leads_at_a_time() {
    let server = Server::default();
    let leaders = Arc::new(Mutex::new((0, 0)));
    let mut candidates = Vec::new();
    for name in ["a", "b", "c", "d"] {
        let (mut elector, leaders) = (server.elector(name), leaders.clone());
        candidates.push(tokio::spawn(async move {
            elector.acquire().await;
            {
                let mut leaders = leaders.lock().unwrap();
                leaders.0 += 1;
                assert_eq!(leaders.0, 1, "{name} leads together with another");
                leaders.1 += 1;
            }
            assert!(timeout(Duration::from_secs(30), elector.hold()).await.is_err());
            leaders.lock().unwrap().0 -= 1;
            elector.release().await.unwrap();
        }));
    }
    for candidate in candidates {
        candidate.await.unwrap();
    }
    assert_eq!(leaders.lock().unwrap().1, 4);
    assert_eq!(server.record().lease_transitions, Some(3));
}
