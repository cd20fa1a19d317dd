//! The rendered objects of each mode, as the JSON that would be sent.

use k8s_openapi::api::core::v1::PodSpec;
use serde_json::Value;

use super::*;
use crate::testing::{node, platform};

mod bootstrap;
mod config;
mod guards;
mod objects;
mod placement;
mod pods;
mod properties;
mod scripts;

fn inputs(name: &str) -> TemplateInputs {
    TemplateInputs::of(&node(name)).unwrap()
}

fn owner(name: &str) -> Owner {
    Owner::of(&node(name)).unwrap()
}

/// The pod template of a manifest under the example platform.
fn template(name: &str) -> Value {
    template_on(name, "example")
}

fn template_on(name: &str, on: &str) -> Value {
    serde_json::to_value(render_template(&inputs(name), &platform(on)).unwrap()).unwrap()
}

fn pod(name: &str) -> PodSpec {
    render_template(&inputs(name), &platform("example")).unwrap().spec.unwrap()
}

/// A container of a pod or template, by name, from either list.
fn find<'a>(pod: &'a Value, name: &str) -> &'a Value {
    let pod = pod.get("spec").filter(|spec| spec.get("containers").is_some()).unwrap_or(pod);
    let lists = ["initContainers", "containers"].map(|list| pod[list].as_array());
    let mut all = lists.into_iter().flatten().flatten();
    all.find(|container| container["name"] == name).unwrap_or_else(|| panic!("no container {name}"))
}

/// Names of the elements of a list, in order.
fn named(list: &Value) -> Vec<&str> {
    list.as_array().into_iter().flatten().map(|element| element["name"].as_str().unwrap()).collect()
}
