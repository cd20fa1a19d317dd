//! Series of real runs, and what promtool makes of them.
//!
//! A scrape is real; how long it stands is not: nobody waits a day to see an alert about a day. So a
//! recording is a list of scrapes, each of which is held for some minutes.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use jiff::Timestamp;
use serde::Deserialize;
use serde_json::{Value, json};

pub(crate) const ALERTS: &str = "charts/sei-operator/files/rules.yaml";
pub(crate) const OVERRIDE: &str = "charts/sei-operator/files/statefulset-override.yaml";

/// A file of this repository.
pub(crate) fn file(path: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}

/// A series with its labels in its own braces, as promtool takes it, and a value.
pub(crate) type Scrape = BTreeMap<String, f64>;

/// The series of a text that was scraped from this target.
pub(crate) fn scrape(text: &str, job: &str, instance: &str) -> Result<Scrape> {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let series = lines.map(|line| {
        let (series, value) = line.rsplit_once(' ').with_context(|| line.to_owned())?;
        let (name, labels) = series.split_once('{').unwrap_or((series, "}"));
        let target = format!("job=\"{job}\",instance=\"{instance}\"");
        let comma = if labels == "}" { "" } else { "," };
        let value = value.parse().with_context(|| line.to_owned())?;
        Ok((format!("{name}{{{target}{comma}{labels}"), value))
    });
    series.collect()
}

/// Scrapes, each with the minutes that it stood.
#[derive(Clone, Default)]
pub(crate) struct Recording {
    scrapes: Vec<(Scrape, usize)>,
    began: Option<Timestamp>,
}

/// An alert that fires.
#[derive(Clone, Debug)]
pub(crate) struct Fires {
    pub(crate) alert: &'static str,
    pub(crate) labels: Vec<(&'static str, String)>,
    /// Of the expression, as a template shows it.
    pub(crate) value: String,
}

impl Recording {
    /// The time of its first scrape.
    pub(crate) fn begin(&mut self, at: Timestamp) {
        self.began = Some(at);
    }

    /// From now on this was scraped, for so many minutes. Returns the last of them.
    pub(crate) fn hold(&mut self, scrape: Scrape, minutes: usize) -> usize {
        self.scrapes.push((scrape, minutes));
        self.scrapes.iter().map(|(_, minutes)| minutes).sum::<usize>() - 1
    }

    fn input_series(&self) -> Vec<Value> {
        let names: BTreeSet<&String> =
            self.scrapes.iter().flat_map(|(scrape, _)| scrape.keys()).collect();
        let values = |name: &String| {
            let held = self.scrapes.iter().map(|(scrape, minutes)| match scrape.get(name) {
                // So many more samples of the same value.
                Some(value) => format!("{value}x{}", minutes - 1),
                None => format!("_x{minutes}"),
            });
            held.collect::<Vec<_>>().join(" ")
        };
        names.into_iter().map(|name| json!({ "series": name, "values": values(name) })).collect()
    }

    /// Whether exactly these alerts of the rules fire at these minutes.
    pub(crate) fn check_alerts(&self, rules: &[PathBuf], at: &[(usize, Vec<Fires>)]) -> Result<()> {
        let mut tests = Vec::new();
        for rule in alerts(rules)? {
            for (minute, fires) in at {
                let expected = fires.iter().filter(|fires| fires.alert == rule.alert);
                let expected: Vec<Value> = expected.map(|fires| rule.firing(fires)).collect();
                let name = &rule.alert;
                tests.push(json!({ "eval_time": format!("{minute}m"), "alertname": name,
                    "exp_alerts": expected }));
            }
        }
        self.promtool(rules, &json!({ "alert_rule_test": tests }))
    }

    /// Whether each of these queries finds something at this minute.
    pub(crate) fn check_queries(&self, minute: usize, queries: &[String]) -> Result<()> {
        let test = |query: &String| {
            json!({ "expr": format!("count({query}) > bool 0"), "eval_time": format!("{minute}m"),
                "exp_samples": [{ "labels": "{}", "value": 1 }] })
        };
        let tests: Vec<Value> = queries.iter().map(test).collect();
        self.promtool(&[], &json!({ "promql_expr_test": tests }))
    }

    fn promtool(&self, rules: &[PathBuf], tests: &Value) -> Result<()> {
        let mut group = tests.clone();
        group["interval"] = json!("1m");
        group["input_series"] = json!(self.input_series());
        if let Some(began) = self.began {
            group["start_timestamp"] = json!(began.to_string());
        }
        let text = json!({ "rule_files": rules, "evaluation_interval": "1m", "tests": [group] });
        let folder = tempfile::tempdir()?;
        let path = folder.path().join("test.yaml");
        std::fs::write(&path, serde_json::to_string_pretty(&text)?)?;
        let output = Command::new(sei_rig::tool("promtool")?)
            .args(["test", "rules"])
            .arg(&path)
            .output()
            .context("failed to start promtool")?;
        let told =
            [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
        ensure!(output.status.success(), "{}\n{text:#}", told.join("\n"));
        Ok(())
    }
}

#[derive(Deserialize)]
struct Rules {
    groups: Vec<Group>,
}

#[derive(Deserialize)]
struct Group {
    rules: Vec<Rule>,
}

/// An alert as its file has it.
#[derive(Deserialize)]
pub(crate) struct Rule {
    pub(crate) alert: String,
    pub(crate) labels: BTreeMap<String, String>,
    annotations: BTreeMap<String, String>,
}

/// Every alert of these files.
pub(crate) fn alerts(rules: &[PathBuf]) -> Result<Vec<Rule>> {
    let mut alerts = Vec::new();
    for path in rules {
        let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
        let rules: Rules = serde_saphyr::from_str(&text)?;
        alerts.extend(rules.groups.into_iter().flat_map(|group| group.rules));
    }
    Ok(alerts)
}

impl Rule {
    /// What promtool is to expect of it.
    fn firing(&self, fires: &Fires) -> Value {
        let mut labels = self.labels.clone();
        labels.extend(fires.labels.iter().map(|(name, value)| ((*name).to_owned(), value.clone())));
        let annotations: BTreeMap<&String, String> =
            self.annotations.iter().map(|(name, text)| (name, expanded(text, fires))).collect();
        json!({ "exp_labels": labels, "exp_annotations": annotations })
    }
}

/// An annotation with its templates filled in.
fn expanded(template: &str, fires: &Fires) -> String {
    let mut text = template
        .replace("{{ $value }}", &fires.value)
        .replace("{{ $value | humanizeDuration }}", &fires.value);
    for (name, value) in &fires.labels {
        text = text.replace(&format!("{{{{ $labels.{name} }}}}"), value);
    }
    text
}

/// One alert of a node.
pub(crate) fn of_node(alert: &'static str, namespace: &str, name: &str, value: &str) -> Fires {
    let labels = vec![("namespace", namespace.to_owned()), ("name", name.to_owned())];
    Fires { alert, labels, value: value.to_owned() }
}
