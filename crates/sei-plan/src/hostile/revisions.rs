//! Revisions: labels of pods and bodies of `ControllerRevision`s, which anyone may have edited.

use proptest::prelude::*;
use proptest::sample::{Index, select};
use serde_json::{Value, json};

use crate::adoption::{Comparison, compare, template_of_revision};
use crate::desired::render_desired;
use crate::fixtures::{any_json, pointers, without};
use crate::testing::{NODES, node, platform};
use crate::view::{Controller, Freshness, PodView, Revisions, StatefulSetView, freshness};

fn rendered(name: &str) -> Value {
    let desired = render_desired(&node(name), &platform("example"), &[], &[]).unwrap();
    desired.template()
}

/// The body of a revision as the StatefulSet controller stores it.
fn body_of(template: &Value) -> Value {
    let mut template = template.clone();
    template["$patch"] = json!("replace");
    json!({ "spec": { "template": template } })
}

fn edits() -> impl Strategy<Value = Vec<(Index, Option<Value>)>> {
    prop::collection::vec((any::<Index>(), prop::option::of(any_json())), 0..6)
}

fn edited(mut json: Value, edits: Vec<(Index, Option<Value>)>) -> Value {
    for (index, value) in edits {
        let pointers = pointers(&json);
        if pointers.is_empty() {
            break;
        }
        let pointer = index.get(&pointers);
        match value {
            Some(value) => *json.pointer_mut(pointer).unwrap() = value,
            None => json = without(json, pointer),
        }
    }
    json
}

proptest! {
    #[test]
    fn any_revision_label_makes_a_pod_fresh_or_stale_and_never_panics(
        own in prop::option::of(any::<String>()),
        newest in any::<String>(),
        is_owned in any::<bool>(),
    ) {
        let uid = if is_owned { "u" } else { "other" };
        let pod = PodView {
            name: "-0".to_owned(),
            controller: Some(Controller::statefulset("", uid)),
            revision: own.clone(),
            ..PodView::default()
        };
        let statefulset = StatefulSetView { uid: "u".to_owned(), ..StatefulSetView::default() };
        let expected = match own.as_deref() {
            _ if !is_owned => Freshness::NotOwned,
            None | Some("") => Freshness::Unlabelled,
            Some(own) if own == newest => Freshness::Fresh,
            Some(_) => Freshness::Stale,
        };
        prop_assert_eq!(freshness(&pod, &statefulset, Revisions { newest: &newest, known: None, replaces: None }), expected);
        let same = PodView { revision: Some(newest.clone()), ..pod };
        let is_fresh = freshness(&same, &statefulset, Revisions { newest: &newest, known: None, replaces: None }) == Freshness::Fresh;
        prop_assert_eq!(is_fresh, is_owned && !newest.is_empty());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn a_damaged_revision_body_is_read_or_refused_on_one_line(
        name in select(NODES), edits in edits(),
    ) {
        let body = edited(body_of(&rendered(name)), edits);
        match template_of_revision(&body) {
            Ok(template) => {
                prop_assert!(template.get("$patch").is_none());
                prop_assert!(template["spec"]["containers"].is_array());
            }
            Err(error) => {
                let text = error.to_string();
                prop_assert!(text.len() < 400 && !text.contains('\n'), "{:?}", text);
            }
        }
    }

    #[test]
    fn damaged_templates_are_compared_without_a_panic(
        name in select(NODES), dry_run_edits in edits(), body_edits in edits(),
    ) {
        let rendered = rendered(name);
        let dry_run = edited(rendered.clone(), dry_run_edits);
        let body = edited(body_of(&rendered), body_edits);
        if let Comparison::Different(changes) = compare(&rendered, &dry_run, &body) {
            prop_assert!(!changes.is_empty());
            for change in changes {
                prop_assert!(!change.path.is_empty() && !change.path.contains('\n'));
            }
        }
        let view = StatefulSetView { template: body.into(), ..StatefulSetView::default() };
        view.identity();
    }
}

#[test]
fn an_untouched_body_is_equal_to_its_render() {
    for name in NODES {
        let rendered = rendered(name);
        let body = body_of(&rendered);
        assert_eq!(template_of_revision(&body).unwrap(), rendered, "{name}");
        assert_eq!(compare(&rendered, &rendered, &body), Comparison::Equal, "{name}");
    }
}
