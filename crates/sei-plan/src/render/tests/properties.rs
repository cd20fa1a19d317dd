//! What changes a template and what never does, for nodes of every mode.

use proptest::prelude::*;
use proptest::sample::select;

use super::*;
use crate::testing::changes::{ONE_PER_MODE, PLATFORM, TEMPLATE_CHANGED, TEMPLATE_UNCHANGED};
use crate::testing::{NODES, PLATFORMS, node_from, shuffled};

fn render_text(node: &SeiNode, on: &Platform) -> String {
    let inputs = TemplateInputs::of(node).unwrap();
    serde_json::to_string(&render_template(&inputs, on).unwrap()).unwrap()
}

proptest! {
    #[test]
    fn inputs_of_the_template_change_it(
        name in select(NODES), on in select(&PLATFORMS[..]), text in "[a-z]{1,9}",
    ) {
        let (before, on) = (node(name), platform(on));
        for (what, change) in TEMPLATE_CHANGED {
            let mut after = before.clone();
            change(&mut after, &text);
            if after == before {
                continue;
            }
            prop_assert_ne!(render_text(&before, &on), render_text(&after, &on), "{}", what);
            prop_assert_ne!(TemplateInputs::of(&before), TemplateInputs::of(&after), "{}", what);
        }
    }

    #[test]
    fn what_is_not_an_input_never_changes_it(
        name in select(NODES), on in select(&PLATFORMS[..]), text in "[a-z]{1,9}",
    ) {
        let (before, on) = (node(name), platform(on));
        for (what, change) in TEMPLATE_UNCHANGED {
            let mut after = before.clone();
            change(&mut after, &text);
            prop_assert_eq!(render_text(&before, &on), render_text(&after, &on), "{}", what);
            prop_assert_eq!(TemplateInputs::of(&before), TemplateInputs::of(&after), "{}", what);
        }
    }

    #[test]
    fn the_order_of_maps_never_matters(name in select(NODES), seed in any::<u64>()) {
        let before = node(name);
        // JSON text with the same keys in another order.
        let text = shuffled(&serde_json::to_value(&before).unwrap(), seed);
        let after: SeiNode = serde_json::from_str(&text).unwrap();
        let on = platform("tuned");
        prop_assert_eq!(render_text(&before, &on), render_text(&after, &on));
    }
}

/// Every change applies to some manifest: a change that is always skipped would test nothing.
#[test]
fn every_change_applies_to_a_manifest() {
    for (what, change) in TEMPLATE_CHANGED.iter().chain(TEMPLATE_UNCHANGED) {
        let applies = NODES.iter().any(|name| {
            let mut after = node(name);
            change(&mut after, "text");
            after != node(name)
        });
        assert!(applies, "{what}");
    }
}

#[test]
fn the_platform_reaches_the_template_only_through_the_documented_fields() {
    for (what, change, moved) in PLATFORM {
        let before = platform("example");
        let mut after = before.clone();
        change(&mut after);
        assert_ne!(before, after, "{what}");
        for name in ONE_PER_MODE {
            let differs = render_text(&node(name), &before) != render_text(&node(name), &after);
            assert_eq!(differs, moved.contains(name), "{what} on {name}");
        }
    }
}

#[test]
fn a_manifest_survives_a_json_round_trip() {
    for name in NODES {
        assert_eq!(node_from(serde_json::to_value(node(name)).unwrap()), node(name));
    }
}
