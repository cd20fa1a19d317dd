//! Nodes that only their user changes.

use super::*;

impl Model {
    /// Sets or removes the annotation that keeps everybody from changing a node.
    fn hands_off(&mut self, name: &str, is_set: bool) {
        let node = &mut self.nodes.get_mut(name).unwrap().node;
        let annotations = node.metadata.annotations.get_or_insert_default();
        annotations.remove(annotation::HANDS_OFF);
        if is_set {
            annotations.insert(annotation::HANDS_OFF.to_owned(), "true".to_owned());
        }
    }
}

#[test]
fn a_fleet_leaves_a_hands_off_node_as_it_is() {
    let mut model = running(3, Some(limited(1)));
    model.hands_off("edge-0", true);
    let before = model.nodes["edge-0"].node.clone();
    let unchanged = |model: &Model| assert_eq!(model.nodes["edge-0"].node.spec, before.spec);
    model.settle();
    let note = "; hands-off until annotation sei.io/hands-off is removed: edge-0";
    let ready = model.condition(condition_type::READY);
    assert_eq!(ready, format!("True/AllNodesReady 3 nodes{note}"));
    assert_eq!(model.status().nodes[0].message.as_deref(), Some("hands-off"));
    // A rollout continues around it, and is not complete before it has the template too.
    model.set_image("seid:2");
    model.settle();
    unchanged(&model);
    assert_eq!(model.images(), ["seid:1", "seid:2", "seid:2"]);
    assert_eq!(
        model.condition(condition_type::ROLLOUT_IN_PROGRESS),
        format!("True/TemplateChanged 2 of 3 nodes are updated, 2 healthy{note}")
    );
    // Neither a pause nor scaling down reaches it.
    model.edit(|spec| spec.paused = Some(true));
    model.pass(1000);
    unchanged(&model);
    assert_eq!(model.nodes["edge-1"].node.spec.paused, Some(true));
    model.edit(|spec| {
        spec.paused = None;
        spec.replicas = 0;
    });
    model.settle();
    unchanged(&model);
    assert_eq!(model.nodes.len(), 1);
    // Nor does the deletion of the fleet, whatever happens to its nodes then.
    for policy in [DeletionPolicy::Retain, DeletionPolicy::Delete] {
        let mut model = model.clone();
        model.edit(|spec| spec.deletion_policy = policy);
        model.fleet.metadata.deletion_timestamp = Some(Time(model.now));
        model.pass(1000);
        assert_eq!(model.nodes["edge-0"].node, before);
        assert_eq!(model.fleet.metadata.finalizers.as_ref().map(Vec::len), Some(1));
        assert!(model.condition(condition_type::READY).ends_with(note));
        model.hands_off("edge-0", false);
        model.pass(1000);
        assert_eq!(model.fleet.metadata.finalizers.as_deref(), Some(&[][..]));
    }
    model.hands_off("edge-0", false);
    model.edit(|spec| spec.replicas = 3);
    model.settle();
    assert_eq!(model.images(), ["seid:2"; 3]);
    assert_eq!(model.condition(condition_type::READY), "True/AllNodesReady 3 nodes");
}

#[test]
fn the_next_node_takes_the_place_of_a_hands_off_canary() {
    let canary = Canary { replicas: 1, ..Canary::default() };
    let mut model = running(4, Some(InPlace { canary: Some(canary), ..limited(2) }));
    model.hands_off("edge-0", true);
    model.set_image("seid:2");
    assert_eq!(model.pass(1000), ["edge-1"], "one node proves the template");
    model.settle();
    assert_eq!(model.images(), ["seid:1", "seid:2", "seid:2", "seid:2"]);
    let updates = forecast(model.snapshot()).updates;
    assert_eq!(updates, []);
}

#[test]
fn a_node_that_was_released_before_it_was_hands_off_takes_from_the_limit() {
    let mut model = running(3, Some(limited(1)));
    model.set_image("seid:2");
    assert_eq!(model.pass(1000), ["edge-0"]);
    model.hands_off("edge-0", true);
    // It rolls as soon as the annotation is removed.
    assert_eq!(model.pass(1000), Vec::<String>::new());
    assert_eq!(
        model.status().nodes[0].message.as_deref(),
        Some("hands-off: does not run the template yet")
    );
}
