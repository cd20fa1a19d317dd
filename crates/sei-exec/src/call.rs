//! A call to the API server, with a deadline and a classified failure.

use std::future::Future;
use std::time::Duration;

use kube::core::Status;
use sei_plan::request::Failure;

/// How long the API server may take. A healthy server responds in milliseconds; the next reconcile
/// is a better retry than a call that may never end.
pub const DEADLINE: Duration = Duration::from_secs(15);

/// Awaits a call, and fails it at the deadline.
pub async fn call<T>(
    action: &str,
    request: impl Future<Output = Result<T, kube::Error>>,
) -> Result<T, Failure> {
    match tokio::time::timeout(DEADLINE, request).await {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(error)) => Err(failure(action, &error)),
        Err(_) => Err(Failure::Indeterminate(format!(
            "{action}: no response in {} s",
            DEADLINE.as_secs()
        ))),
    }
}

/// As [`call`], for reads: returns `None` for an object that is not found.
pub async fn find<T>(
    action: &str,
    request: impl Future<Output = Result<T, kube::Error>>,
) -> Result<Option<T>, Failure> {
    match call(action, request).await {
        Ok(value) => Ok(Some(value)),
        Err(Failure::NotFound(_)) => Ok(None),
        Err(failure) => Err(failure),
    }
}

/// Classifies a failed call for the decision that requested it.
pub fn failure(action: &str, error: &kube::Error) -> Failure {
    match error {
        kube::Error::Api(status) => api_failure(action, status),
        error => Failure::Indeterminate(format!("{action}: {}", chain(error))),
    }
}

fn api_failure(action: &str, status: &Status) -> Failure {
    let text = format!("{action}: {}", status.message);
    match (status.code, status.reason.as_str()) {
        (404, _) => Failure::NotFound(text),
        (409, "AlreadyExists") => Failure::AlreadyExists,
        (409, _) if has_cause(status, "FieldManagerConflict") => {
            Failure::FieldManagerConflict(text)
        }
        (409, _) => Failure::Conflict(text),
        (403, _) if has_cause(status, "NamespaceTerminating") => {
            Failure::NamespaceTerminating(text)
        }
        (401 | 403, _) => forbidden(text, status),
        (400 | 413 | 422, _) => Failure::Rejected(text),
        // The call fails until the webhook is repaired, so a user has to see it.
        (500.., _) if status.message.contains("failed calling webhook") => Failure::Rejected(text),
        _ => Failure::Indeterminate(text),
    }
}

/// A quota, Pod Security and a webhook also return 403: those refuse the object, not the operator.
/// Only the authorizer's message names a user who `cannot` do something.
fn forbidden(text: String, status: &Status) -> Failure {
    let refuses_operator = status.code == 401 || status.message.contains("\" cannot ");
    if refuses_operator { Failure::Forbidden(text) } else { Failure::Rejected(text) }
}

fn has_cause(status: &Status, reason: &str) -> bool {
    let mut causes = status.details.iter().flat_map(|details| &details.causes);
    causes.any(|cause| cause.reason == reason)
}

/// An error with its causes, each once.
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let message = cause.to_string();
        if !text.contains(&message) {
            text = format!("{text}: {message}");
        }
        source = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn api_error(code: u16, reason: &str, message: &str) -> kube::Error {
        kube::Error::Api(Box::new(Status {
            code,
            reason: reason.to_owned(),
            message: message.to_owned(),
            ..Status::default()
        }))
    }

    #[test]
    fn api_errors_are_classified_by_code_reason_and_message() {
        let check = |code, reason, message| failure("get x", &api_error(code, reason, message));
        let missing = "configmaps \"x\" not found";
        let text = "get x: configmaps \"x\" not found".to_owned();
        assert_eq!(check(404, "NotFound", missing), Failure::NotFound(text));
        assert_eq!(check(409, "AlreadyExists", "no"), Failure::AlreadyExists);
        assert!(matches!(check(409, "Conflict", "no"), Failure::Conflict(_)));
        assert!(matches!(
            check(403, "Forbidden", r#"User "x" cannot get resource"#),
            Failure::Forbidden(_)
        ));
        assert!(matches!(check(401, "Unauthorized", "no"), Failure::Forbidden(_)));
        let webhook = "Internal error occurred: failed calling webhook \"policy\": timeout";
        assert!(matches!(check(500, "InternalError", webhook), Failure::Rejected(_)));
        assert!(matches!(check(500, "InternalError", "etcd"), Failure::Indeterminate(_)));
        assert!(matches!(check(403, "Forbidden", "exceeded quota: q"), Failure::Rejected(_)));
        let security = "pods \"n-0\" is forbidden: violates PodSecurity \"restricted:latest\"";
        assert!(matches!(check(403, "Forbidden", security), Failure::Rejected(_)));
        assert!(matches!(check(422, "Invalid", "bad"), Failure::Rejected(_)));
        assert!(matches!(check(500, "InternalError", "oops"), Failure::Indeterminate(_)));
        assert!(matches!(check(504, "Timeout", "slow"), Failure::Indeterminate(_)));
    }

    /// The status as the API server sends it. An admission webhook may send the same message.
    #[test]
    fn a_terminating_namespace_is_recognised_by_the_cause_and_not_by_the_message() {
        let message = "configmaps \"x\" is forbidden: unable to create new content in namespace ns \
                       because it is being terminated";
        let mut status = serde_json::json!({
            "status": "Failure", "message": message, "reason": "Forbidden", "code": 403,
            "details": { "name": "x", "kind": "configmaps", "causes": [{
                "reason": "NamespaceTerminating",
                "message": "namespace ns is being terminated",
                "field": "metadata.namespace",
            }]},
        });
        let check = |status: &serde_json::Value| {
            let status = serde_json::from_value(status.clone()).unwrap();
            failure("apply x", &kube::Error::Api(Box::new(status)))
        };
        assert!(
            matches!(check(&status), Failure::NamespaceTerminating(text) if text.contains(message))
        );
        status["details"]["causes"] = serde_json::json!([]);
        assert!(matches!(check(&status), Failure::Rejected(_)));
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_without_a_response_fails_at_the_deadline() {
        let never = std::future::pending::<Result<(), kube::Error>>();
        assert_eq!(
            call("get x", never).await,
            Err(Failure::Indeterminate("get x: no response in 15 s".to_owned()))
        );
    }
}
