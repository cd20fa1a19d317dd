//! The control plane of the rig: its version, its audit log and its end.

use std::path::Path;

use anyhow::Result;
use cluster_tests::{boot, minor, test_context, wait_for};
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::api::{Api, ListParams, ObjectMeta, PostParams};
use sei_rig::{AuditEntry, User};

#[tokio::test]
async fn the_plane_runs_the_requested_minor() -> Result<()> {
    let context = test_context("minor").await?;
    let version = context.plane().version().await?;
    assert!(version.starts_with(&format!("v{}.", minor())), "{version}");
    let kubectl = std::process::Command::new(context.plane().bin_dir().join("kubectl"))
        .args(["version", "--kubeconfig"])
        .arg(context.plane().kubeconfig(User::Admin))
        .output()?;
    let output = String::from_utf8(kubectl.stdout)?;
    assert!(output.contains(&format!("Client Version: {version}")), "{output}");
    assert!(output.contains(&format!("Server Version: {version}")), "{output}");
    Ok(())
}

#[tokio::test]
async fn the_operator_has_only_its_granted_permissions_and_its_requests_are_logged() -> Result<()> {
    let context = test_context("audit").await?;
    let mut log = context.plane().audit();
    let secrets = |user| -> Result<Api<Secret>> {
        Ok(Api::namespaced(context.plane().client(user)?, &context.namespace))
    };
    secrets(User::Admin)?.list(&ListParams::default()).await?;
    let refused = secrets(User::Operator)?.list(&ListParams::default()).await.unwrap_err();
    assert!(matches!(&refused, kube::Error::Api(status) if status.code == 403), "{refused}");

    // The server writes the entry after its response.
    let is_in_namespace =
        |entry: &AuditEntry| entry.namespace.as_deref() == Some(context.namespace.as_str());
    let entries = wait_for("the request is in the log", async || {
        let mut entries = log.read_new()?;
        entries.retain(is_in_namespace);
        Ok((!entries.is_empty()).then_some(entries))
    })
    .await?;
    let [entry] = &entries[..] else { panic!("expected one request: {entries:?}") };
    assert_eq!(entry.user, User::Operator.name());
    assert_eq!(
        (entry.verb.as_str(), entry.resource.as_str(), entry.code),
        ("list", "secrets", 403)
    );
    assert_eq!((entry.name.as_deref(), entry.subresource.as_deref()), (None, None));
    Ok(())
}

fn is_running(id: u32) -> bool {
    Path::new("/proc").join(id.to_string()).exists()
}

#[tokio::test]
async fn a_dropped_plane_leaves_nothing() -> Result<()> {
    let plane = boot().await?;
    let (ids, folder) = (plane.process_ids(), plane.folder().to_owned());
    assert_eq!(ids.len(), 3);
    assert!(ids.iter().all(|id| is_running(*id)) && folder.is_dir());
    drop(plane);
    assert!(!ids.iter().any(|id| is_running(*id)) && !folder.exists());
    Ok(())
}

#[tokio::test]
async fn stored_objects_survive_restarted_processes() -> Result<()> {
    let plane = boot().await?;
    let before = plane.process_ids();
    let configs: Api<ConfigMap> = Api::namespaced(plane.client(User::Admin)?, "default");
    let metadata = ObjectMeta { name: Some("kept".to_owned()), ..ObjectMeta::default() };
    let kept = ConfigMap { metadata, ..ConfigMap::default() };
    configs.create(&PostParams::default(), &kept).await?;

    plane.restart_apiserver().await?;
    plane.stop_controller_manager();
    assert!(!is_running(before[2]));
    plane.start_controller_manager().await?;

    // The client may reuse a connection from before the restart once more.
    wait_for("the server answers again", async || Ok(configs.get("kept").await.ok())).await?;
    let after = plane.process_ids();
    assert_eq!(before[0], after[0]);
    assert!(before[1] != after[1] && before[2] != after[2]);
    Ok(())
}
