//! Files that are generated from the Rust types and from the files of the chart. They are never
//! edited by hand.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result, bail};
use kube::CustomResourceExt;
use sei_api::rbac::{
    CLUSTER_SCOPED, EDIT_RULES, LEADER_RULES, METRICS_RULES, RULES, Rule, SIDECAR_CALLER_RULES,
    SIDECAR_TOKEN_RULES, VIEW_RULES,
};
use sei_api::{SeiNode, SeiNodeDeployment};
use serde::Serialize;
use serde_json::{Value, json};

use crate::docs::{self, Rules};
use crate::suite::{cargo_command, run_to_end};

/// A generated file: its path and content.
struct Output {
    path: &'static str,
    text: String,
}

/// Every generated file. A new one is a new entry.
fn outputs() -> Result<Vec<Output>> {
    let crd = yaml(&guarded::<SeiNode>())?;
    let fleet = yaml(&guarded::<SeiNodeDeployment>())?;
    let role = yaml(&role("ClusterRole", "sei-operator", RULES))?;
    let (volumes, namespaced): (Vec<Rule>, Vec<Rule>) =
        RULES.iter().partition(|rule| CLUSTER_SCOPED.contains(&rule.resource));
    let namespaced = yaml(&self::role("Role", "sei-operator", &namespaced))?;
    let volumes = yaml(&self::role("ClusterRole", "sei-operator-volumes", &volumes))?;
    let leader = yaml(&self::role("Role", "sei-operator-leader-election", LEADER_RULES))?;
    let token = yaml(&self::role("Role", "sei-operator-sidecar-token", SIDECAR_TOKEN_RULES))?;
    let caller =
        yaml(&self::role("ClusterRole", "sei-operator-sidecar-caller", SIDECAR_CALLER_RULES))?;
    let reviews = yaml(&self::role("ClusterRole", "sei-operator-metrics-reviews", METRICS_RULES))?;
    let policy = |name: &str, spec: &str| {
        wrapped("admissionregistration.k8s.io/v1", "ValidatingAdmissionPolicy", name, spec)
    };
    let alerting =
        |name: &str, spec: &str| wrapped("monitoring.coreos.com/v1", "PrometheusRule", name, spec);
    let output = |path, text: &String| Output { path, text: text.clone() };
    let mut outputs = vec![
        output("config/crd/bases/seinodes.sei.io.yaml", &crd),
        output("config/crd/bases/seinodedeployments.sei.io.yaml", &fleet),
        output("config/rbac/cluster-role.yaml", &role),
        output("config/watched-namespace/role.yaml", &namespaced),
        output("config/components/watch-namespaces/volume-role.yaml", &volumes),
        output("config/components/metrics-secure/role.yaml", &reviews),
        output("config/rbac/leader-election-role.yaml", &leader),
        output("config/rbac/sidecar-token-role.yaml", &token),
        output("config/rbac/sidecar-caller-role.yaml", &caller),
        // A packed chart contains only files of its own folder.
        output("charts/sei-operator/files/crds/seinodes.sei.io.yaml", &crd),
        output("charts/sei-operator/files/crds/seinodedeployments.sei.io.yaml", &fleet),
        output("charts/sei-operator/files/rbac/cluster-role.yaml", &role),
        output("charts/sei-operator/files/rbac/metrics-reviews-role.yaml", &reviews),
        output("charts/sei-operator/files/rbac/leader-election-role.yaml", &leader),
        output("charts/sei-operator/files/rbac/sidecar-token-role.yaml", &token),
        output("charts/sei-operator/files/rbac/sidecar-caller-role.yaml", &caller),
        output(
            "config/components/admission-policy/policy.yaml",
            &policy("sei-operator-one-replica", ADMISSION_POLICY)?,
        ),
        output(
            "config/components/pod-label-policy/policy.yaml",
            &policy("sei-operator-pod-labels", POD_LABEL_POLICY)?,
        ),
        output("config/components/prometheus/rules.yaml", &alerting("sei-operator", RULES_FILE)?),
        output(
            "config/components/statefulset-override/rule.yaml",
            &alerting("sei-operator-statefulset-override", OVERRIDE_FILE)?,
        ),
        output(
            "docs/alerts.md",
            &docs::alerts(&read_rules(RULES_FILE)?, &read_rules(OVERRIDE_FILE)?),
        ),
        output("docs/metrics.md", &docs::metrics()),
        output("docs/status.md", &docs::status(&serde_json::to_value(SeiNode::crd())?)?),
        output("docs/spec.md", &docs::spec(&serde_json::to_value(SeiNode::crd())?)?),
        output("docs/troubleshooting.md", &docs::troubleshooting()),
    ];
    outputs.extend(optional_parts()?);
    Ok(outputs)
}

/// Parts that an installation may add, for helm and for kustomize.
fn optional_parts() -> Result<Vec<Output>> {
    let view = yaml(&aggregated("sei-operator-view", &["view"], VIEW_RULES))?;
    let edit = yaml(&aggregated("sei-operator-edit", &["edit", "admin"], EDIT_RULES))?;
    let dashboard = fs::read_to_string(crate::repository().join(DASHBOARD))
        .with_context(|| format!("failed to read {DASHBOARD}"))?;
    let monitor = wrapped(
        "monitoring.coreos.com/v1",
        "PodMonitor",
        "sei-operator-nodes",
        "charts/sei-operator/files/node-pod-monitor.yaml",
    )?;
    let policy = wrapped(
        "networking.k8s.io/v1",
        "NetworkPolicy",
        "sei-operator-nodes",
        "charts/sei-operator/files/node-network-policy.yaml",
    )?;
    let output = |path, text: &String| Output { path, text: text.clone() };
    Ok(vec![
        output("charts/sei-operator/files/rbac/aggregated-view.yaml", &view),
        output("charts/sei-operator/files/rbac/aggregated-edit.yaml", &edit),
        output("charts/sei-operator/files/dashboard.json", &dashboard),
        output("config/components/aggregated-roles/view.yaml", &view),
        output("config/components/aggregated-roles/edit.yaml", &edit),
        output("config/components/node-pod-monitor/pod-monitor.yaml", &monitor),
        output("config/samples/node-network-policy/policy.yaml", &policy),
    ])
}

const DASHBOARD: &str = "dashboards/sei-operator.json";

/// A role whose rules these roles of Kubernetes get.
fn aggregated(name: &str, to: &[&str], rules: &[Rule]) -> Value {
    let mut role = role("ClusterRole", name, rules);
    let mut labels = json!({
        "app.kubernetes.io/name": "sei-operator",
        "app.kubernetes.io/instance": "sei-operator",
    });
    for role in to {
        labels[format!("rbac.authorization.k8s.io/aggregate-to-{role}")] = json!("true");
    }
    role["metadata"]["labels"] = labels;
    role
}

/// The sources of objects that exist for helm and for kustomize: the chart adds names and labels to
/// these specs, and [`wrapped`] writes them as objects for kustomize.
const ADMISSION_POLICY: &str = "charts/sei-operator/files/admission-policy.yaml";
const POD_LABEL_POLICY: &str = "charts/sei-operator/files/pod-label-policy.yaml";
pub(crate) const RULES_FILE: &str = "charts/sei-operator/files/rules.yaml";
pub(crate) const OVERRIDE_FILE: &str = "charts/sei-operator/files/statefulset-override.yaml";

fn read_rules(path: &str) -> Result<Rules> {
    let text = fs::read_to_string(crate::repository().join(path));
    Rules::parse(&text.with_context(|| format!("failed to read {path}"))?)
}

/// A spec of the chart as an object for kustomize.
fn wrapped(version: &str, kind: &str, name: &str, spec: &str) -> Result<String> {
    let text = fs::read_to_string(crate::repository().join(spec))
        .with_context(|| format!("failed to read {spec}"))?;
    let indented: Vec<String> = text
        .lines()
        .map(|line| if line.is_empty() { String::new() } else { format!("  {line}") })
        .collect();
    Ok(format!(
        "# Generated by `cargo xtask codegen` from {spec}. Do not edit.\n\
         apiVersion: {version}\nkind: {kind}\nmetadata:\n  name: {name}\n  labels:\n    \
         app.kubernetes.io/name: sei-operator\n    app.kubernetes.io/instance: sei-operator\n\
         spec:\n{}\n",
        indented.join("\n")
    ))
}

/// The deletion of the CRD deletes every node and its volume. These annotations keep `GitOps` tools from
/// deleting the CRD when it is removed from a repository.
const GUARDS: &[(&str, &str)] = &[
    ("argocd.argoproj.io/sync-options", "Prune=false,Delete=false"),
    ("kustomize.toolkit.fluxcd.io/prune", "disabled"),
];

fn guarded<K: CustomResourceExt>() -> impl Serialize {
    let mut crd = K::crd();
    let guards = GUARDS.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    crd.metadata.annotations.get_or_insert_default().extend(guards);
    crd
}

/// A role with one rule for each permission, in the order of the table.
fn role(kind: &str, name: &str, rules: &[Rule]) -> Value {
    let rules = rules.iter().map(|rule| {
        let mut object = json!({
            "apiGroups": [rule.group],
            "resources": [rule.resource],
            "verbs": rule.verbs,
        });
        if !rule.names.is_empty() {
            object["resourceNames"] = json!(rule.names);
        }
        object
    });
    json!({
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": kind,
        "metadata": { "name": name },
        "rules": rules.collect::<Vec<_>>(),
    })
}

fn yaml(object: &impl Serialize) -> Result<String> {
    let body = serde_saphyr::to_string(object).context("failed to write YAML")?;
    Ok(format!("# Generated by `cargo xtask codegen` from the Rust types. Do not edit.\n{body}"))
}

/// Writes the files that differ, and prints each path.
pub(crate) fn write(root: &Path) -> Result<()> {
    for output in outputs()? {
        let path = root.join(output.path);
        if fs::read_to_string(&path).is_ok_and(|present| present == output.text) {
            println!("unchanged  {}", output.path);
            continue;
        }
        let folder = path.parent().expect("every output has a parent folder");
        let failure = || format!("failed to write {}", output.path);
        fs::create_dir_all(folder).with_context(failure)?;
        fs::write(&path, &output.text).with_context(failure)?;
        println!("written    {}", output.path);
    }
    golden(root, &[])
}

/// The folder with the pinned pod templates.
const GOLDEN: &str = "crates/sei-plan/testdata/golden";

/// Golden templates are written by an example of `sei-plan`, a crate that this one may not use. Their
/// test is in that crate too, so they are not part of [`stale`].
fn golden(root: &Path, extra: &[&str]) -> Result<()> {
    let arguments =
        ["run", "--quiet", "--package", "sei-plan", "--example", "golden", "--", GOLDEN];
    let arguments = [&arguments[..], extra].concat();
    let mut command = cargo_command();
    command.current_dir(root).args(&arguments);
    run_to_end(&mut command, &format!("cargo {}", arguments.join(" ")))
}

/// Compares without writing.
pub(crate) fn check(root: &Path) -> Result<()> {
    let stale = stale(root)?;
    if !stale.is_empty() {
        bail!(
            "generated files are not current, run `cargo xtask codegen`:\n  {}",
            stale.join("\n  ")
        );
    }
    golden(root, &["--check"])?;
    println!("generated files are current");
    Ok(())
}

/// A line for each file that is missing or differs, with its first different line.
fn stale(root: &Path) -> Result<Vec<String>> {
    let mut lines = Vec::new();
    for Output { path, text } in outputs()? {
        match fs::read_to_string(root.join(path)) {
            Ok(present) => lines.extend(difference(path, &present, &text)),
            Err(error) => lines.push(format!("{path}: {error}")),
        }
    }
    Ok(lines)
}

fn difference(path: &str, present: &str, desired: &str) -> Option<String> {
    if present == desired {
        return None;
    }
    let same = present.lines().zip(desired.lines()).take_while(|(left, right)| left == right);
    let line = same.count();
    let at = |text: &str| text.lines().nth(line).unwrap_or("<end of file>").trim().to_owned();
    Some(format!("{path}:{}: is `{}`, generated `{}`", line + 1, at(present), at(desired)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crds_are_current() {
        let stale = stale(&crate::repository()).unwrap();
        assert!(stale.is_empty(), "run `cargo xtask codegen`: {stale:#?}");
    }

    #[test]
    fn a_stale_file_is_reported_with_its_first_different_line() {
        assert_eq!(difference("a.yaml", "x: 1\n", "x: 1\n"), None);
        assert_eq!(
            difference("a.yaml", "x: 1\ny: 2\n", "x: 1\ny: 3\n").as_deref(),
            Some("a.yaml:2: is `y: 2`, generated `y: 3`")
        );
        assert_eq!(
            difference("a.yaml", "x: 1\n", "x: 1\ny: 3\n").as_deref(),
            Some("a.yaml:2: is `<end of file>`, generated `y: 3`")
        );
        let nowhere = std::env::temp_dir().join("sei-operator-has-no-such-folder");
        assert_eq!(super::stale(&nowhere).unwrap().len(), outputs().unwrap().len());
    }

    #[test]
    fn generation_is_deterministic() {
        let texts = || outputs().unwrap().into_iter().map(|output| output.text).collect::<Vec<_>>();
        assert_eq!(texts(), texts());
    }

    /// Otherwise only a server would detect a quoting mistake in the YAML.
    #[test]
    fn the_crd_survives_a_round_trip_through_yaml() {
        let text = yaml(&SeiNode::crd()).unwrap();
        let back: serde_json::Value = serde_saphyr::from_str(&text).unwrap();
        assert_eq!(back, serde_json::to_value(SeiNode::crd()).unwrap());
    }

    #[test]
    fn no_installed_crd_is_pruned() {
        let outputs = outputs().unwrap();
        let crds = outputs.iter().filter(|output| output.path.ends_with(".sei.io.yaml"));
        let mut seen = 0;
        for Output { path, text } in crds {
            let crd: Value = serde_saphyr::from_str(text).unwrap();
            for (name, value) in GUARDS {
                assert_eq!(crd["metadata"]["annotations"][name], *value, "{path}");
            }
            seen += 1;
        }
        assert_eq!(seen, 4, "two kinds, for kustomize and helm");
    }
}
