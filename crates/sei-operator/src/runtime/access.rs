//! Who may read the metrics (`--metrics-secure`): the API server is asked who the caller is, and
//! whether this user may `get` the path `/metrics`.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::http::{HeaderMap, StatusCode, header};
use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec, UserInfo};
use k8s_openapi::api::authorization::v1::{
    NonResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec,
};
use kube::api::{Api, PostParams};
use kube::{Client, Resource};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::Semaphore;
use tokio::time::Instant;

/// How long a verdict is kept: a scraper comes every half minute, and two reviews for each of its
/// requests would be the only requests of an operator at rest.
const KEPT: Duration = Duration::from_secs(60);
/// Verdicts that are kept. There are few scrapers; tokens of others must not fill the memory.
const KEPT_MAX: usize = 64;
/// Reviews at once: callers without a token must not flood the API server through the operator.
const REVIEWS_MAX: usize = 4;
const REVIEW_TIMEOUT: Duration = Duration::from_secs(5);

/// What a caller may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Allowed,
    /// Without a token that the API server knows.
    Unauthenticated,
    Forbidden,
}

/// Decides who may read the metrics. Clones share what they know.
#[derive(Clone)]
pub struct Access {
    client: Client,
    kept: Arc<Mutex<Kept>>,
    reviews: Arc<Semaphore>,
}

impl Access {
    pub fn new(client: Client) -> Self {
        Self { client, kept: Arc::default(), reviews: Arc::new(Semaphore::new(REVIEWS_MAX)) }
    }

    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Admits a request, or returns its status and the reason.
    pub async fn admit(&self, headers: &HeaderMap) -> Result<(), (StatusCode, &'static str)> {
        let verdict = match bearer_token(headers) {
            None => Verdict::Unauthenticated,
            Some(token) => self.verdict(token).await?,
        };
        match verdict {
            Verdict::Allowed => Ok(()),
            Verdict::Unauthenticated => {
                Err((StatusCode::UNAUTHORIZED, "a bearer token of the cluster is needed"))
            }
            Verdict::Forbidden => Err((
                StatusCode::FORBIDDEN,
                "this user needs the verb get on the non-resource URL /metrics",
            )),
        }
    }

    async fn verdict(&self, token: &str) -> Result<Verdict, (StatusCode, &'static str)> {
        // A digest: nothing in memory can be used as a token.
        let digest = sei_plan::fingerprint::digest_of(&token);
        if let Some(verdict) = self.lock().get(&digest, Instant::now()) {
            return Ok(verdict);
        }
        let reviewed = async {
            let _permit = self.reviews.acquire().await;
            self.review(token).await
        };
        match tokio::time::timeout(REVIEW_TIMEOUT, reviewed).await {
            Ok(Ok(verdict)) => {
                self.lock().insert(digest, verdict, Instant::now());
                Ok(verdict)
            }
            Ok(Err(error)) => {
                let error = sei_exec::call::chain(&error);
                tracing::warn!(error, "failed to review who reads the metrics");
                Err((StatusCode::INTERNAL_SERVER_ERROR, "the API server refused the review"))
            }
            Err(_) => {
                Err((StatusCode::INTERNAL_SERVER_ERROR, "the API server did not answer in time"))
            }
        }
    }

    async fn review(&self, token: &str) -> kube::Result<Verdict> {
        let spec = TokenReviewSpec { token: token.to_owned(), ..TokenReviewSpec::default() };
        let review = self.create(TokenReview { spec, ..TokenReview::default() }).await?;
        let Some(user) = authenticated(review) else { return Ok(Verdict::Unauthenticated) };
        let review = self.create(may_read_metrics(user)).await?;
        let is_allowed = review.status.is_some_and(|status| status.allowed);
        Ok(if is_allowed { Verdict::Allowed } else { Verdict::Forbidden })
    }

    async fn create<K>(&self, review: K) -> kube::Result<K>
    where
        K: Resource<DynamicType = ()> + Clone + Serialize + DeserializeOwned + std::fmt::Debug,
    {
        Api::<K>::all(self.client.clone()).create(&PostParams::default(), &review).await
    }
}

/// The token of a header `Authorization: Bearer …`.
fn bearer_token(headers: &HeaderMap) -> Option<&str> {
    let (scheme, token) = headers.get(header::AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    let token = token.trim();
    (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty()).then_some(token)
}

fn authenticated(review: TokenReview) -> Option<UserInfo> {
    let status = review.status.filter(|status| status.authenticated == Some(true))?;
    status.user
}

fn may_read_metrics(user: UserInfo) -> SubjectAccessReview {
    let UserInfo { extra, groups, uid, username } = user;
    let attributes =
        NonResourceAttributes { path: Some("/metrics".to_owned()), verb: Some("get".to_owned()) };
    let spec = SubjectAccessReviewSpec {
        user: username,
        groups,
        uid,
        extra,
        non_resource_attributes: Some(attributes),
        ..SubjectAccessReviewSpec::default()
    };
    SubjectAccessReview { spec, ..SubjectAccessReview::default() }
}

/// Verdicts by the digest of their token, and since when.
#[derive(Debug, Default)]
struct Kept(BTreeMap<String, (Instant, Verdict)>);

impl Kept {
    fn get(&self, digest: &str, now: Instant) -> Option<Verdict> {
        let (since, verdict) = self.0.get(digest)?;
        (now.duration_since(*since) < KEPT).then_some(*verdict)
    }

    fn insert(&mut self, digest: String, verdict: Verdict, now: Instant) {
        if self.0.len() >= KEPT_MAX {
            self.0.retain(|_, (since, _)| now.duration_since(*since) < KEPT);
        }
        // Tokens without a meaning must not push out those of scrapers.
        if self.0.len() < KEPT_MAX || verdict == Verdict::Allowed {
            self.0.insert(digest, (now, verdict));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use http_body_util::{BodyExt as _, Full};
    use hyper::body::Bytes;
    use kube::client::Body;
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn only_a_bearer_token_is_a_token() {
        let token = |value: &str| {
            let headers = HeaderMap::from_iter([(header::AUTHORIZATION, value.parse().unwrap())]);
            bearer_token(&headers).map(str::to_owned)
        };
        assert_eq!(token("Bearer abc").as_deref(), Some("abc"));
        assert_eq!(token("bearer  abc ").as_deref(), Some("abc"));
        assert_eq!(token("Basic abc"), None);
        assert_eq!(token("Bearer "), None);
        assert_eq!(token("abc"), None);
        assert_eq!(bearer_token(&HeaderMap::new()), None);
    }

    /// An API server that knows the token `good` of a user who may, and `weak` of one who may not.
    fn api_server() -> (Client, Arc<AtomicUsize>) {
        let requests = Arc::new(AtomicUsize::new(0));
        let counted = requests.clone();
        let service = tower::service_fn(move |request: http::Request<Body>| {
            counted.fetch_add(1, Ordering::SeqCst);
            async move {
                let (parts, body) = request.into_parts();
                let bytes = body.collect().await.unwrap().to_bytes();
                let mut review: Value = serde_json::from_slice(&bytes).unwrap();
                let token = review["spec"]["token"].as_str().map(str::to_owned);
                review["status"] = match token.as_deref() {
                    Some("down") => return Err(std::io::Error::other("down")),
                    Some(name @ ("good" | "weak")) => json!({ "authenticated": true, "user": {
                        "username": name, "groups": ["g"], "extra": { "k": ["v"] } } }),
                    Some(_) => json!({ "authenticated": false }),
                    None => {
                        let spec = &review["spec"];
                        let asked = json!({ "path": "/metrics", "verb": "get" });
                        assert_eq!(spec["nonResourceAttributes"], asked, "{}", parts.uri);
                        assert_eq!(
                            (&spec["groups"][0], &spec["extra"]["k"][0]),
                            (&json!("g"), &json!("v"))
                        );
                        json!({ "allowed": spec["user"] == "good" })
                    }
                };
                let body = Full::new(Bytes::from(review.to_string()));
                Ok(http::Response::builder().status(201).body(body).unwrap())
            }
        });
        (Client::new(service, "default"), requests)
    }

    async fn status(access: &Access, token: Option<&str>) -> u16 {
        let value = token.map(|token| (header::AUTHORIZATION, format!("Bearer {token}")));
        let headers = value.map(|(name, value)| (name, value.parse().unwrap()));
        match access.admit(&HeaderMap::from_iter(headers)).await {
            Ok(()) => 200,
            Err((status, _)) => status.as_u16(),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_api_server_decides_who_may_read() {
        let (client, requests) = api_server();
        let access = Access::new(client);
        let requested = || requests.swap(0, Ordering::SeqCst);
        assert_eq!((status(&access, None).await, requested()), (401, 0));
        assert_eq!((status(&access, Some("bad")).await, requested()), (401, 1));
        assert_eq!((status(&access, Some("weak")).await, requested()), (403, 2));
        assert_eq!((status(&access, Some("good")).await, requested()), (200, 2));
        assert_eq!((status(&access, Some("down")).await, requested()), (500, 1));
        // Verdicts are kept for a minute; a failure is none.
        for (token, expected) in [("bad", 401), ("weak", 403), ("good", 200)] {
            assert_eq!((status(&access, Some(token)).await, requested()), (expected, 0));
        }
        assert_eq!((status(&access, Some("down")).await, requested()), (500, 1));
        tokio::time::advance(KEPT).await;
        assert_eq!((status(&access, Some("good")).await, requested()), (200, 2));
    }

    #[tokio::test(start_paused = true)]
    async fn few_reviews_run_at_once() {
        let running = Arc::new((AtomicUsize::new(0), AtomicUsize::new(0)));
        let counted = running.clone();
        let service = tower::service_fn(move |_: http::Request<Body>| {
            let running = counted.clone();
            async move {
                let now = running.0.fetch_add(1, Ordering::SeqCst) + 1;
                running.1.fetch_max(now, Ordering::SeqCst);
                tokio::time::sleep(REVIEW_TIMEOUT / 4).await;
                running.0.fetch_sub(1, Ordering::SeqCst);
                let review = json!({ "apiVersion": "authentication.k8s.io/v1",
                    "kind": "TokenReview", "spec": {}, "status": { "authenticated": false } });
                let body = Full::new(Bytes::from(review.to_string()));
                Ok::<_, std::io::Error>(http::Response::new(body))
            }
        });
        let access = Access::new(Client::new(service, "default"));
        let tokens: Vec<String> = (0..20).map(|number| number.to_string()).collect();
        let callers = tokens.iter().map(|token| status(&access, Some(token)));
        let statuses = futures::future::join_all(callers).await;
        assert_eq!(running.1.load(Ordering::SeqCst), REVIEWS_MAX);
        // Those that waited for too long are not answered by a guess.
        assert!(statuses.iter().all(|status| [401, 500].contains(status)), "{statuses:?}");
        assert!(statuses.contains(&401) && statuses.contains(&500), "{statuses:?}");
    }

    #[test]
    fn tokens_without_a_meaning_do_not_fill_the_memory() {
        let (mut kept, now) = (Kept::default(), Instant::now());
        let digest = |number: u32| number.to_string();
        for number in 0..1000 {
            kept.insert(digest(number), Verdict::Unauthenticated, now);
        }
        assert_eq!(kept.0.len(), KEPT_MAX);
        kept.insert(digest(2000), Verdict::Allowed, now);
        assert_eq!(kept.get(&digest(2000), now), Some(Verdict::Allowed));
        kept.insert(digest(3000), Verdict::Forbidden, now + KEPT);
        assert_eq!(kept.0.len(), 1, "what is too old is dropped");
        assert_eq!(kept.get(&digest(2000), now + KEPT), None);
    }
}
