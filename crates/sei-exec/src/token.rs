//! The bearer tokens that sidecars are shown. The operator's own token is never one of them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::ServiceAccount;
use kube::api::PostParams;
use kube::{Api, Client};
use sei_api::key::ObjectKey;
use sei_api::names::{SIDECAR_CALLER, sidecar_audience};
use sei_plan::request::Failure;
use sei_plan::view::Proxy;

use crate::call::call;

/// How long a token of the account is valid.
const LIFE: Duration = Duration::from_secs(3600);
/// How long no token is requested after the server refused one.
const RETRY: Duration = Duration::from_secs(60);
/// How long a token is used before its file is read again: projected tokens rotate.
const FILE_AGE: Duration = Duration::from_secs(50);

/// The tokens for sidecars, each cached until most of its life is over.
pub struct Tokens {
    source: Source,
    /// By the node that a token is for; `None` for tokens that all nodes accept.
    cached: Mutex<BTreeMap<Option<ObjectKey>, Cached>>,
    /// Why no token can be requested, and when to try again.
    missing: Mutex<Option<(String, Instant)>>,
}

/// Where the tokens for sidecars come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TokenSource {
    /// No token is sent.
    None,
    /// The token in this file, for every sidecar.
    File(PathBuf),
    /// Tokens of the account [`SIDECAR_CALLER`] in this namespace.
    Account { namespace: String },
}

enum Source {
    None,
    File(PathBuf),
    Account { accounts: Box<Api<ServiceAccount>>, namespace: String },
}

#[derive(Clone)]
struct Cached {
    token: String,
    renew_at: Instant,
}

impl Tokens {
    /// No token is sent.
    pub fn none() -> Self {
        Self::of(Source::None)
    }

    pub fn new(source: &TokenSource, client: &Client) -> Self {
        Self::of(match source {
            TokenSource::None => Source::None,
            TokenSource::File(path) => Source::File(path.clone()),
            TokenSource::Account { namespace } => Source::Account {
                accounts: Box::new(Api::namespaced(client.clone(), namespace)),
                namespace: namespace.clone(),
            },
        })
    }

    fn of(source: Source) -> Self {
        Self { source, cached: Mutex::default(), missing: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Option<ObjectKey>, Cached>> {
        self.cached.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The token for the proxy of this node.
    pub(crate) async fn get(
        &self,
        node: &ObjectKey,
        proxy: Proxy,
    ) -> Result<Option<String>, Failure> {
        let key = self.key(node, proxy);
        let known = self.lock().get(&key).cloned();
        if let Some(known) = known.as_ref().filter(|known| known.renew_at > Instant::now()) {
            return Ok(Some(known.token.clone()));
        }
        if known.is_none() && self.missing().is_some() {
            return Ok(None);
        }
        let renewed = match &self.source {
            Source::None => return Ok(None),
            Source::File(path) => read(path).map(|token| (token, FILE_AGE)),
            Source::Account { accounts, namespace } => {
                let audience =
                    key.as_ref().map(|node| sidecar_audience(&node.namespace, &node.name));
                request(accounts, namespace, audience).await.map(|token| (token, LIFE * 4 / 5))
            }
        };
        match (renewed, known) {
            (Ok((token, age)), _) => {
                let now = Instant::now();
                let mut cached = self.lock();
                // Those of deleted nodes.
                cached.retain(|_, known| known.renew_at + LIFE > now);
                cached.insert(key, Cached { token: token.clone(), renew_at: now + age });
                Ok(Some(token))
            }
            // The previous token is valid for a while.
            (Err(_), Some(known)) => Ok(Some(known.token)),
            (Err(Failure::Unauthorized(why)), None) => {
                tracing::warn!(why, "sidecars are called without a token");
                let mut missing = self.missing.lock().unwrap_or_else(PoisonError::into_inner);
                *missing = Some((why, Instant::now() + RETRY));
                Ok(None)
            }
            (Err(failure), None) => Err(failure),
        }
    }

    /// Why there is no token to send. A sidecar without authentication needs none.
    pub(crate) fn missing(&self) -> Option<String> {
        let missing = self.missing.lock().unwrap_or_else(PoisonError::into_inner);
        missing.as_ref().filter(|(_, until)| *until > Instant::now()).map(|(why, _)| why.clone())
    }

    /// Forgets a token that a proxy has rejected.
    pub(crate) fn invalidate(&self, node: &ObjectKey, proxy: Proxy) {
        self.lock().remove(&self.key(node, proxy));
    }

    fn key(&self, node: &ObjectKey, proxy: Proxy) -> Option<ObjectKey> {
        let is_own = proxy.own_audience && matches!(self.source, Source::Account { .. });
        is_own.then(|| node.clone())
    }
}

fn read(path: &Path) -> Result<String, Failure> {
    let token = std::fs::read_to_string(path).map(|text| text.trim().to_owned());
    let token = token.ok().filter(|token| !token.is_empty());
    token.ok_or_else(|| Failure::Unauthorized("the token file cannot be read".to_owned()))
}

/// Requests a token with this audience; without one, a token with the default audience.
async fn request(
    accounts: &Api<ServiceAccount>,
    namespace: &str,
    audience: Option<String>,
) -> Result<String, Failure> {
    let spec = TokenRequestSpec {
        audiences: audience.map(|audience| vec![audience]),
        expiration_seconds: i64::try_from(LIFE.as_secs()).ok(),
        ..TokenRequestSpec::default()
    };
    let body = TokenRequest { spec: Some(spec), ..TokenRequest::default() };
    let params = PostParams::default();
    let created = accounts.create_token_request(SIDECAR_CALLER, &params, &body);
    match call("request a token for sidecars", created).await {
        Ok(created) => {
            let token = created.status.and_then(|status| status.token);
            token.filter(|token| !token.is_empty()).ok_or_else(|| {
                Failure::Unauthorized("the server returned no token for sidecars".to_owned())
            })
        }
        Err(Failure::NotFound(_)) => Err(Failure::Unauthorized(format!(
            "service account {SIDECAR_CALLER} not found in namespace {namespace}"
        ))),
        Err(
            Failure::Forbidden(text)
            | Failure::Rejected(text)
            | Failure::NamespaceTerminating(text),
        ) => Err(Failure::Unauthorized(text)),
        Err(failure) => Err(failure),
    }
}
