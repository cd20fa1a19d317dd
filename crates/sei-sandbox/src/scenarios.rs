//! The scenarios that can run on the fleet.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use kube::ResourceExt as _;
use sei_api::condition::{self, ConditionStatus, ConditionType, Reason};
use sei_api::status::SeiNodePhase;
use sei_rig::{Behaviour, Rule};
use serde_json::json;

use crate::Scenario;
use crate::fleet::{Fleet, Member, NAMESPACE, NEW, OLD, SIZE};
use crate::view::View;

/// Deadline for each step of a scenario; a fleet of this size needs seconds.
const STEP_DEADLINE: Duration = Duration::from_secs(120);

/// Nodes of the `SeiNodeDeployment`.
const DEPLOYED: usize = 12;
/// An image that crashes.
const BROKEN: &str = "registry.example.org/seid:v6.6.0-rc1";

/// The measurements of a scenario.
pub(crate) struct Figures {
    title: &'static str,
    nodes: usize,
    took: Duration,
    pods_replaced: usize,
    requests: usize,
}

impl Figures {
    pub(crate) fn summary(&self, whole: Duration) -> String {
        let each = self.requests / self.pods_replaced.max(1);
        format!(
            "{}\n  nodes edited           {}\n  from edit to all done  {:.1} s\n  \
             pods replaced          {}\n  API requests           {} ({each} for each pod)\n  \
             whole run              {:.1} s",
            self.title,
            self.nodes,
            self.took.as_secs_f64(),
            self.pods_replaced,
            self.requests,
            whole.as_secs_f64(),
        )
    }
}

/// Runs a scenario.
pub(crate) async fn run(scenario: Scenario, fleet: &Fleet, view: &mut View) -> Result<Figures> {
    match scenario {
        Scenario::ChainUpgrade => chain_upgrade(fleet, view).await,
        Scenario::TemplateDrift => template_drift(fleet, view).await,
        Scenario::BadImage => bad_image(fleet, view).await,
        Scenario::Rollback => rollback(fleet, view).await,
        Scenario::Fleet => deployment(fleet, view).await,
    }
}

/// Creates the validators and the RPC nodes.
async fn create(fleet: &Fleet, view: &mut View) -> Result<()> {
    view.heading("Creating a fleet of four validators and four RPC nodes.");
    fleet.create().await?;
    until(fleet, view, "every node is running and Ready", |node| runs(node, OLD) && is_ready(node))
        .await?;
    Ok(())
}

async fn deployment(fleet: &Fleet, view: &mut View) -> Result<Figures> {
    view.heading("Creating a SeiNodeDeployment of twelve RPC nodes, one of them the canary.");
    fleet.create_deployment(DEPLOYED).await?;
    let on = |image: &'static str| move |node: &Member| runs(node, image) && is_ready(node);
    let claim = "every node is running and Ready";
    until_count(fleet, view, claim, DEPLOYED, on(OLD)).await?;
    fleet.kubelet().behave(NAMESPACE, Rule::new(Behaviour::CrashesAtOnce).of_image(BROKEN));
    view.heading("The template gets an image that crashes. Only the canary takes it.");
    until_halted(fleet, view, OLD).await?;
    view.heading("The template is corrected: the canary takes it first, then all others.");
    let before = fleet.members().await?;
    fleet.requests()?;
    let began = Instant::now();
    fleet.set_template_image(NEW).await?;
    let after =
        until_count(fleet, view, "the correction is on every node", DEPLOYED, on(NEW)).await?;
    let figures = Figures {
        title: "Fleet: the canary halted two bad rollouts, and no other node ran them.",
        nodes: after.len(),
        took: began.elapsed().saturating_sub(view.pace),
        pods_replaced: uids(&after).difference(&uids(&before)).count(),
        requests: fleet.requests()?.len(),
    };
    view.heading("The next template crashes too. Only the canary takes it.");
    until_halted(fleet, view, NEW).await?;
    view.heading("This time the template is changed back.");
    fleet.set_template_image(NEW).await?;
    let back = until_count(fleet, view, "every node runs as before", DEPLOYED, on(NEW)).await?;
    let replaced = uids(&back).difference(&uids(&after)).count();
    ensure!(replaced == 1, "{replaced} pods were replaced, not only that of the canary");
    Ok(figures)
}

/// Brings an image that crashes, and waits until the rollout is halted. All nodes but the canary must
/// be Ready on the image that they ran.
async fn until_halted(fleet: &Fleet, view: &mut View, image: &str) -> Result<()> {
    fleet.set_template_image(BROKEN).await?;
    let deadline = Instant::now() + STEP_DEADLINE;
    loop {
        let members = fleet.members().await?;
        let untouched =
            members.iter().filter(|node| node.node.spec.image == image && is_ready(node)).count();
        view.show(&members, untouched);
        if let Some(why) = fleet.halt_reason().await? {
            ensure!(untouched == DEPLOYED - 1, "{untouched} nodes are as before, not all but one");
            view.heading(&format!("The rollout is halted by {why}."));
            return linger(fleet, view, untouched).await;
        }
        ensure!(Instant::now() < deadline, "timed out waiting until the rollout is halted");
        tokio::time::sleep(Duration::from_millis(150)).await;
    }
}

async fn chain_upgrade(fleet: &Fleet, view: &mut View) -> Result<Figures> {
    create(fleet, view).await?;
    view.heading("The chain halts at its upgrade height: every pod is running, none is Ready.");
    fleet.kubelet().behave(NAMESPACE, Rule::new(Behaviour::Halted).of_image(OLD));
    until(fleet, view, "every node is unready", |node| !is_ready(node)).await?;
    view.heading("The image is updated. Plans replace every pod although none is Ready.");
    let title = "Chain upgrade: the chain has resumed on the new image.";
    roll(fleet, view, title, json!({ "image": NEW }), |node| runs(node, NEW) && is_ready(node))
        .await
}

async fn template_drift(fleet: &Fleet, view: &mut View) -> Result<Figures> {
    create(fleet, view).await?;
    view.heading("A label is added to every pod. Validators roll in turn, RPC nodes at once.");
    let labels = json!({ "podLabels": { "team": "core" } });
    let title = "Template drift: every pod has the label.";
    roll(fleet, view, title, labels, |node| {
        let updated = node.node.status.as_ref().is_some_and(|status| status.last_update.is_some());
        updated && runs(node, OLD) && is_ready(node)
    })
    .await
}

async fn bad_image(fleet: &Fleet, view: &mut View) -> Result<Figures> {
    create(fleet, view).await?;
    view.heading("The image is changed to one that cannot be pulled. Every old pod runs on.");
    let bad = "registry.example.org/seid:v6.6.O";
    fleet.kubelet().behave(NAMESPACE, Rule::new(Behaviour::ImageUnpullable).of_image(bad));
    hold_all(fleet, view, bad).await?;
    view.heading("The image is corrected. No pod has to be deleted by hand.");
    let title = "Bad image: corrected by an edit.";
    roll(fleet, view, title, json!({ "image": NEW }), |node| runs(node, NEW) && is_ready(node))
        .await
}

async fn rollback(fleet: &Fleet, view: &mut View) -> Result<Figures> {
    create(fleet, view).await?;
    view.heading("The image is changed to one that crashes. One node takes it first.");
    fleet.kubelet().behave(NAMESPACE, Rule::new(Behaviour::Crashes).of_image(NEW));
    break_one(fleet, view, NEW).await?;
    view.heading("The image is changed back. The other nodes never left the old one.");
    let title = "Rollback: the fleet runs the old image again.";
    roll(fleet, view, title, json!({ "image": OLD }), |node| runs(node, OLD) && is_ready(node))
        .await
}

/// Gives every node an image that cannot be pulled, and waits until the first one reports that. The
/// image is pulled before a pod is replaced, so all nodes must be Ready.
async fn hold_all(fleet: &Fleet, view: &mut View, image: &str) -> Result<()> {
    let names = names(&fleet.members().await?);
    fleet.edit(&names, json!({ "image": image })).await?;
    let holds = |node: &Member| {
        let blocked = node.node.status.as_ref().and_then(|status| status.blocked.as_ref());
        blocked.is_some_and(|blocked| blocked.reason == Reason::ImageNotPullable.as_str())
    };
    let members = until_count(fleet, view, "one update is held", 1, holds).await?;
    let ready = members.iter().filter(|node| is_ready(node)).count();
    ensure!(ready == SIZE, "{ready} of {SIZE} nodes are Ready, not all");
    Ok(())
}

/// Gives every node an image that cannot run, and waits until one pod fails with it. The nodes of a
/// healthy chain take an image in turn, so all others must be Ready.
async fn break_one(fleet: &Fleet, view: &mut View, image: &str) -> Result<()> {
    let names = names(&fleet.members().await?);
    fleet.edit(&names, json!({ "image": image })).await?;
    let fails = |node: &Member| node.pod.as_ref().is_some_and(|pod| !pod.troubles.is_empty());
    let members = until_count(fleet, view, "one pod fails", 1, fails).await?;
    let ready = members.iter().filter(|node| is_ready(node)).count();
    ensure!(ready == SIZE - 1, "{ready} of {SIZE} nodes are Ready, not all but one");
    Ok(())
}

/// Edits every node and waits until all are updated.
async fn roll(
    fleet: &Fleet,
    view: &mut View,
    title: &'static str,
    spec: serde_json::Value,
    is_updated: impl Fn(&Member) -> bool,
) -> Result<Figures> {
    let before = fleet.members().await?;
    fleet.requests()?;
    let began = Instant::now();
    fleet.edit(&names(&before), spec).await?;
    let after = until(fleet, view, "every node is updated", is_updated).await?;
    let took = began.elapsed().saturating_sub(view.pace);
    let old = uids(&before);
    Ok(Figures {
        title,
        nodes: after.len(),
        took,
        pods_replaced: uids(&after).difference(&old).count(),
        requests: fleet.requests()?.len(),
    })
}

/// Shows the fleet until the condition holds for every node.
async fn until(
    fleet: &Fleet,
    view: &mut View,
    claim: &str,
    holds: impl Fn(&Member) -> bool,
) -> Result<Vec<Member>> {
    until_count(fleet, view, claim, SIZE, holds).await
}

/// Shows the fleet until the condition holds for this many nodes.
async fn until_count(
    fleet: &Fleet,
    view: &mut View,
    claim: &str,
    count: usize,
    holds: impl Fn(&Member) -> bool,
) -> Result<Vec<Member>> {
    let deadline = Instant::now() + STEP_DEADLINE;
    loop {
        let members = fleet.members().await?;
        let done = members.iter().filter(|member| holds(member)).count();
        view.show(&members, done);
        if done >= count {
            linger(fleet, view, done).await?;
            return Ok(members);
        }
        if Instant::now() > deadline {
            bail!("timed out after {} s waiting until {claim}", STEP_DEADLINE.as_secs());
        }
        tokio::time::sleep(Duration::from_millis(150)).await;
    }
}

/// Keeps showing the fleet for the time that each step is shown.
async fn linger(fleet: &Fleet, view: &mut View, done: usize) -> Result<()> {
    let until = Instant::now() + view.pace;
    while Instant::now() < until {
        view.show(&fleet.members().await?, done);
        tokio::time::sleep(Duration::from_millis(150)).await;
    }
    Ok(())
}

fn names(members: &[Member]) -> Vec<String> {
    members.iter().map(|member| member.node.name_any()).collect()
}

fn uids(members: &[Member]) -> BTreeSet<String> {
    members.iter().filter_map(|member| Some(member.pod.as_ref()?.uid.clone())).collect()
}

/// Whether the node runs this image and has no plan and no drift.
fn runs(member: &Member, image: &str) -> bool {
    let Some(status) = &member.node.status else { return false };
    status.phase == Some(SeiNodePhase::Running)
        && status.plan.is_none()
        && status.current_image.as_deref() == Some(image)
        && condition::is(
            &status.conditions,
            ConditionType::PodTemplateDrift,
            ConditionStatus::False,
        )
}

fn is_ready(member: &Member) -> bool {
    member.pod.as_ref().is_some_and(|pod| pod.ready)
}
