//! Rendered nodes. The same node is rendered many thousand times, so results are kept.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use sei_api::SeiNode;
use sei_api::key::ObjectKey;
use sei_api::names::annotation;
use sei_plan::desired::{Desired, render_desired};
use sei_plan::fingerprint::digest_of;
use sei_plan::platform::Platform;
use sei_plan::shared::Shared;
use sei_plan::template::Template;
use serde_json::{Value, json};

use crate::pod::{Blueprint, controller};

/// The platform configurations that an operator may load, and the one in force.
#[derive(Clone, Debug)]
pub struct Platforms {
    all: Arc<Vec<Platform>>,
    pub in_force: usize,
    rendered: Arc<Mutex<BTreeMap<String, Result<Rendered, String>>>>,
    /// By namespace and name of a revision: the name depends on the template only.
    blueprints: Arc<Mutex<BTreeMap<ObjectKey, Shared<Blueprint>>>>,
}

/// A rendered node with what is compared often.
#[derive(Clone, Debug)]
pub struct Rendered {
    pub desired: Shared<Desired>,
    pub template: Shared<Template>,
    pub service: String,
    pub proxy_config: String,
}

impl Platforms {
    pub fn new(all: Vec<Platform>) -> Self {
        Self {
            all: Arc::new(all),
            in_force: 0,
            rendered: Arc::default(),
            blueprints: Arc::default(),
        }
    }

    pub fn count(&self) -> usize {
        self.all.len()
    }

    pub fn platform(&self) -> &Platform {
        &self.all[self.in_force]
    }

    /// What the pods of a revision of this StatefulSet are made from.
    pub fn blueprint(
        &self,
        revision: &ObjectKey,
        set: &str,
        template: &Template,
    ) -> Shared<Blueprint> {
        let mut blueprints = self.blueprints.lock().unwrap_or_else(PoisonError::into_inner);
        let found = blueprints.entry(revision.clone()).or_insert_with(|| {
            let template = serde_json::from_value(template.json()).unwrap_or_default();
            let owner = controller("apps/v1", "StatefulSet", set, "");
            Shared::new(Blueprint::of(&template, &revision.namespace, &owner))
        });
        found.clone()
    }

    /// The node as rendered with the platform in force.
    pub fn render(&self, node: &SeiNode) -> Result<Rendered, String> {
        let annotations = node.metadata.annotations.as_ref();
        let annotations = [annotation::DEDICATED_NODE, annotation::RESTARTED_AT]
            .map(|name| annotations.and_then(|all| all.get(name)));
        let metadata = &node.metadata;
        let key = json!([
            self.in_force,
            metadata.namespace,
            metadata.name,
            metadata.uid,
            annotations,
            node.spec
        ]);
        let mut rendered = self.rendered.lock().unwrap_or_else(PoisonError::into_inner);
        let found = rendered.entry(key.to_string());
        found.or_insert_with(|| render(node, self.platform())).clone()
    }
}

fn render(node: &SeiNode, platform: &Platform) -> Result<Rendered, String> {
    let desired = render_desired(node, platform, &[], &[]).map_err(|error| error.to_string())?;
    Ok(Rendered {
        template: Shared::new(Template::from(desired.template())),
        service: content(desired.service.json()),
        proxy_config: content(desired.proxy_config.json()),
        desired: Shared::new(desired),
    })
}

/// Digest of an object without what the server sets.
pub fn content(mut object: Value) -> String {
    if let Some(metadata) = object["metadata"].as_object_mut() {
        metadata.retain(|key, _| key != "uid" && key != "resourceVersion");
    }
    digest_of(&object)
}
