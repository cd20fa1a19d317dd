//! Whose tokens pods are shown. A token of the operator's own account, or of any other user of the
//! plane, ends the test program: every pod of the lane is covered, whether its scenario checks tokens
//! or not.

use std::io::Write as _;

use k8s_openapi::ByteString;
use serde_json::Value;

use super::{Received, Sidecars, lock};

/// Accounts for calls to sidecars have this suffix: `sei-sidecar-caller`, or `sidecar-caller` as the
/// documents create it.
const POWERLESS: &str = "sidecar-caller";

impl Sidecars {
    /// Records a request to a pod, and ends the program if it shows a token that no pod may see.
    pub(crate) fn receive(&self, received: Received) {
        let owner = received.token.as_deref().and_then(owner).filter(|owner| !is_powerless(owner));
        if let Some(owner) = owner {
            let is_expected = lock(&self.own_tokens).contains_key(&received.namespace);
            if !is_expected {
                let Received { namespace, node, pod_uid, request, .. } = &received;
                // Not `eprintln`, which the test harness captures.
                let _ = writeln!(
                    std::io::stderr(),
                    "the lane fails: pod {pod_uid} of {namespace}/{node} was shown a token of \
                     {owner} by {request}"
                );
                std::process::exit(1);
            }
            lock(&self.own_tokens).entry(received.namespace.clone()).or_default().push(owner);
        }
        lock(&self.received).push(received);
    }

    /// Pods of this namespace are shown tokens on purpose that no pod may see.
    pub fn expect_own_tokens(&self, namespace: &str) {
        lock(&self.own_tokens).entry(namespace.to_owned()).or_default();
    }

    /// The owners of such tokens, one for each request.
    pub fn own_tokens_shown(&self, namespace: &str) -> Vec<String> {
        lock(&self.own_tokens).get(namespace).cloned().unwrap_or_default()
    }
}

/// The owner of a token: a user of the plane, or the account that a service account token names.
/// `None` for a text that a test made up.
fn owner(token: &str) -> Option<String> {
    let token = token.strip_prefix("Bearer ").unwrap_or(token);
    if let Some(user) = token.strip_prefix(crate::plane::TOKEN_PREFIX) {
        return Some(user.to_owned());
    }
    let mut claims = token.split('.').nth(1)?.replace('-', "+").replace('_', "/");
    while !claims.len().is_multiple_of(4) {
        claims.push('=');
    }
    let claims: ByteString = serde_json::from_value(Value::String(claims)).ok()?;
    let claims: Value = serde_json::from_slice(&claims.0).ok()?;
    Some(claims["sub"].as_str()?.to_owned())
}

fn is_powerless(owner: &str) -> bool {
    let account =
        owner.strip_prefix("system:serviceaccount:").and_then(|name| name.split_once(':'));
    account.is_some_and(|(_, name)| name.ends_with(POWERLESS))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A service account token of this subject, without a signature.
    fn token(subject: &str) -> String {
        let claims = serde_json::json!({ "iss": "https://kubernetes", "sub": subject });
        let claims = ByteString(claims.to_string().into_bytes());
        let claims = serde_json::to_value(claims).unwrap();
        let claims = claims.as_str().unwrap().replace('+', "-").replace('/', "_");
        format!("head.{}.signature", claims.trim_end_matches('='))
    }

    #[test]
    fn only_tokens_of_accounts_that_may_call_sidecars_are_shown_to_pods() {
        let forbidden = |token: &str| owner(token).is_some_and(|owner| !is_powerless(&owner));
        for account in ["sei-operator", "default", "sidecar-caller-admin"] {
            let token = token(&format!("system:serviceaccount:ns:{account}"));
            assert!(forbidden(&token) && forbidden(&format!("Bearer {token}")), "{account}");
        }
        assert!(forbidden("token-of-sei-operator") && forbidden("token-of-admin"));
        assert!(forbidden(&token("sidecar-caller")), "a user, not a service account");
        for account in ["sei-sidecar-caller", "sidecar-caller"] {
            assert!(!forbidden(&token(&format!("system:serviceaccount:ns:{account}"))));
        }
        assert!(!forbidden("secret") && !forbidden("a.b.c"), "texts of tests");
    }

    #[test]
    fn a_token_that_is_shown_on_purpose_is_recorded_and_ends_nothing() {
        let sidecars = Sidecars::default();
        sidecars.expect_own_tokens("ns");
        assert!(sidecars.own_tokens_shown("ns").is_empty());
        sidecars.receive(Received {
            namespace: "ns".to_owned(),
            node: "a".to_owned(),
            pod_uid: "pod".to_owned(),
            request: "GET /v0/tasks".to_owned(),
            token: Some("token-of-sei-operator".to_owned()),
            audience: None,
        });
        assert_eq!(sidecars.own_tokens_shown("ns"), ["sei-operator"]);
        assert_eq!(sidecars.received_in("ns").len(), 1);
    }
}
