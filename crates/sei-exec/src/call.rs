//! One call to the API server: with a deadline, and with its failure told apart.

use std::future::Future;
use std::time::Duration;

use kube::core::Status;
use sei_plan::request::Failure;

/// How long the API server may take. It answers in milliseconds or it is in trouble; a node waits
/// for its next look rather than for an answer that may never come.
pub const DEADLINE: Duration = Duration::from_secs(15);

/// Makes a call, and gives up at the deadline.
pub async fn call<T>(
    what: &str,
    request: impl Future<Output = Result<T, kube::Error>>,
) -> Result<T, Failure> {
    match tokio::time::timeout(DEADLINE, request).await {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(error)) => Err(failure(what, &error)),
        Err(_) => {
            Err(Failure::Indeterminate(format!("{what}: no answer in {} s", DEADLINE.as_secs())))
        }
    }
}

/// As [`call`], for reads: an object that is not there is an answer.
pub async fn find<T>(
    what: &str,
    request: impl Future<Output = Result<T, kube::Error>>,
) -> Result<Option<T>, Failure> {
    match call(what, request).await {
        Ok(value) => Ok(Some(value)),
        Err(Failure::NotFound) => Ok(None),
        Err(failure) => Err(failure),
    }
}

/// What a failed call means for the decision that asked for it.
pub fn failure(what: &str, error: &kube::Error) -> Failure {
    match error {
        kube::Error::Api(status) => api_failure(what, status),
        other => Failure::Indeterminate(format!("{what}: {}", chain(other))),
    }
}

fn api_failure(what: &str, status: &Status) -> Failure {
    let text = format!("{what}: {}", status.message);
    match (status.code, status.reason.as_str()) {
        (404, _) => Failure::NotFound,
        (409, "AlreadyExists") => Failure::AlreadyExists,
        (409, _) if is_field_conflict(status) => Failure::FieldManagerConflict(text),
        (409, _) => Failure::Conflict(text),
        (401 | 403, _) => forbidden(text, status),
        (400 | 413 | 422, _) => Failure::Rejected(text),
        // It stays so until somebody mends the webhook, so it has to be told.
        (500.., _) if status.message.contains("failed calling webhook") => Failure::Rejected(text),
        _ => Failure::Indeterminate(text),
    }
}

/// A quota, Pod Security, a terminating namespace and a webhook's no also answer 403: those refuse
/// the object, not the operator. Only authorization says who `cannot` do what.
fn forbidden(text: String, status: &Status) -> Failure {
    let refuses_operator = status.code == 401 || status.message.contains("\" cannot ");
    if refuses_operator { Failure::Forbidden(text) } else { Failure::Rejected(text) }
}

fn is_field_conflict(status: &Status) -> bool {
    let causes = status.details.iter().flat_map(|details| &details.causes);
    causes.into_iter().any(|cause| cause.reason == "FieldManagerConflict")
}

/// An error with its causes, each once.
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let words = cause.to_string();
        if !text.contains(&words) {
            text = format!("{text}: {words}");
        }
        source = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(code: u16, reason: &str, message: &str) -> kube::Error {
        kube::Error::Api(Box::new(Status {
            code,
            reason: reason.to_owned(),
            message: message.to_owned(),
            ..Status::default()
        }))
    }

    #[test]
    fn answers_are_told_apart_by_what_they_mean() {
        let check = |code, reason, message| failure("get x", &answer(code, reason, message));
        assert_eq!(check(404, "NotFound", "no"), Failure::NotFound);
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

    #[tokio::test(start_paused = true)]
    async fn a_call_that_never_answers_is_given_up() {
        let never = std::future::pending::<Result<(), kube::Error>>();
        assert_eq!(
            call("get x", never).await,
            Err(Failure::Indeterminate("get x: no answer in 15 s".to_owned()))
        );
    }
}
