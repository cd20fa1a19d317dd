//! The commands of the operational documents, run as written.

use anyhow::{Context as _, Result, ensure};
use cluster_tests::docs::{commands, sections};
use cluster_tests::install::Shell;
use cluster_tests::operator::{PLATFORM, Setup};
use cluster_tests::scenario::{Scenario, rpc};
use sei_rig::Behaviour;

use crate::plugin;

/// A command with its placeholders in capitals replaced.
fn filled(block: &str, namespace: &str) -> String {
    // The longer placeholder first: it contains the shorter one.
    block.replace("NAMESPACE", namespace).replace("IMAGE", "seid:v2").replace("NAME", "rpc")
}

/// Runs a block. A watch is stopped after two seconds. A request for logs must fail in the server,
/// because no container runs here, and not in kubectl, which would mean a malformed command.
fn run(shell: &Shell, block: &str) -> Result<()> {
    if block.contains(" logs ") {
        let refused = shell.run(block).err().context("the server returned logs")?;
        ensure!(format!("{refused:#}").contains("Error from server"), "{refused:#}");
        return Ok(());
    }
    let block = block.trim_end();
    if block.ends_with(" -w") {
        return shell.run(&format!("timeout 2 {block} || test $? = 124")).map(drop);
    }
    shell.run(block).map(drop)
}

/// Runs every command of a document in order.
fn follow_all(shell: &Shell, document: &str, namespace: &str) -> Result<()> {
    for section in sections(document)? {
        for block in section.blocks {
            run(shell, &filled(&block, namespace))?;
        }
    }
    Ok(())
}

#[tokio::test]
async fn the_chain_upgrade_commands_work_as_written() -> Result<()> {
    let scenario = Scenario::open("doc-upgrade").await?;
    scenario.run("rpc", rpc("seid:v1")).await?;
    scenario.set_image_behaviour("seid:v1", Behaviour::Halted);
    scenario.until_pod("rpc", "it is halted at the upgrade height", |pod| !pod.ready).await?;
    let shell = Shell::on(scenario.plane())?;
    follow_all(&shell, "docs/chain-upgrade.md", scenario.namespace())?;
    scenario.settled("rpc").await?;
    let pod = scenario.until_pod("rpc", "it is ready", |pod| pod.ready).await?;
    assert_eq!(pod.seid.image, "seid:v2");
    scenario.close().await
}

#[tokio::test]
async fn the_troubleshooting_commands_work_as_written() -> Result<()> {
    let scenario = Scenario::open("doc-trouble").await?;
    scenario.run("rpc", rpc("seid:v1")).await?;
    let shell = Shell::on(scenario.plane())?;
    follow_all(&shell, "docs/troubleshooting.md", scenario.namespace())?;
    let annotations = scenario.node("rpc").await?.metadata.annotations.unwrap_or_default();
    assert!(annotations.contains_key("sei.io/retry"), "{annotations:?}");
    scenario.close().await
}

#[tokio::test]
async fn the_gitops_commands_work_as_written() -> Result<()> {
    let scenario = Scenario::open("doc-gitops").await?;
    scenario.run("rpc", rpc("seid:v1")).await?;
    let shell = Shell::on(scenario.plane())?;
    follow_all(&shell, "docs/gitops.md", scenario.namespace())?;
    scenario.close().await
}

#[tokio::test]
async fn the_fleet_of_the_readme_works_as_written() -> Result<()> {
    let mut scenario = Scenario::open_without_operator("readme-fleet").await?;
    // The sandbox has witnesses for the chain of the samples too.
    let platform = PLATFORM.replace("demo-1", "pacific-1");
    scenario.start_with(Setup { platform, ..Setup::default() }).await?;
    let shell = Shell::on(scenario.plane())?;
    let plugin = plugin::program()?;
    let folder = plugin.parent().context("the plugin has no folder")?;
    // As in the sandbox: a kubeconfig with the namespace, and the plugin on the PATH.
    let set_up = format!(
        "cp \"$KUBECONFIG\" \"$HOME/kubeconfig\"; export KUBECONFIG=\"$HOME/kubeconfig\"
         kubectl config set-context --current --namespace={}
         export PATH={}:$PATH\n",
        scenario.namespace(),
        folder.display(),
    );
    let output = shell.run(&(set_up + &commands("README.md", "A fleet of your own")?))?;
    assert!(output.contains("complete, 3 of 3 nodes run the template"), "{output}");
    for node in ["edge-0", "edge-1", "edge-2"] {
        let image = scenario.status(node).await?.current_image;
        assert_eq!(image.as_deref(), Some("registry.example.org/seid:v6.6.0"), "{node}");
    }
    scenario.close().await
}
