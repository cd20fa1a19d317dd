//! `kubectl sei set image`: set the image of nodes.

use sei_api::SeiNode;
use sei_plan::inputs::check_spec;
use serde_json::json;

use crate::change::{Change, Selected, follow};
use crate::cluster::Scope;
use crate::error::Error;
use crate::flags::{DryRun, SetImageFlags};
use crate::fleet::fleet_of;
use crate::format::short_image;
use crate::{CommandContext, Out, write};

pub(crate) async fn run(
    flags: &SetImageFlags,
    scope: &Scope,
    context: &CommandContext,
    out: Out<'_>,
) -> Result<(), Error> {
    let (image, nodes) = arguments(flags)?;
    let selected = Selected::read(nodes, &flags.change, scope, context).await?;
    let changed = selected.change(|node| set_image(node, &image), context, out).await?;
    if changed.is_empty() || flags.change.dry_run != DryRun::None {
        return Ok(());
    }
    write(out, &follow(&changed, scope))
}

/// The image and the named nodes.
fn arguments(flags: &SetImageFlags) -> Result<(String, &[String]), Error> {
    let refused = |message: String| Err(Error::Image { message });
    let Some((image, nodes)) = flags.arguments.split_last() else {
        return refused("name an image".to_owned());
    };
    // kubectl's own `set image` names the container.
    let image = image.strip_prefix("seid=").unwrap_or(image);
    let filter = &flags.change.filter;
    let is_filtered = flags.change.all || filter.selector.is_some() || filter.chain.is_some();
    if is_filtered && let Some(node) = nodes.first() {
        return refused(format!("{node}: name nodes, or use -l, --chain or --all, not both"));
    }
    // A forgotten image would make the last node's name the image, and an image without a tag is
    // whatever the registry serves that day.
    let name = image.rsplit('/').next().unwrap_or(image);
    if !name.contains([':', '@']) {
        return refused(format!("`{image}` has no tag or digest; the image is the last argument"));
    }
    Ok((image.to_owned(), nodes))
}

fn set_image(node: &SeiNode, image: &str) -> Change {
    let mut desired = node.clone();
    image.clone_into(&mut desired.spec.image);
    let known = check_spec(node);
    if let Some(error) = check_spec(&desired).into_iter().find(|error| !known.contains(error)) {
        return Change::Refused(error.to_string());
    }
    if let Some(fleet) = fleet_of(node) {
        return Change::Refused(format!(
            "its fleet sets the image; change spec.template.spec.image of SeiNodeDeployment {fleet}"
        ));
    }
    if node.spec.image == image {
        return Change::NotNeeded(format!("its image is {image} already"));
    }
    let mut text = format!("image {} -> {}", short_image(&node.spec.image), short_image(image));
    if node.spec.updates_are_paused() {
        text.push_str("; updates are paused, so it rolls after kubectl sei resume");
    } else if node.spec.is_paused() {
        text.push_str("; spec.paused stops the node, so it runs once that is removed");
    }
    Change::Patch(json!({ "spec": { "image": image } }), text)
}

#[cfg(test)]
mod tests {
    use expect_test::{Expect, expect};

    use super::*;
    use crate::fixtures::node;
    use crate::flags::{ChangeFlags, FilterFlags};

    fn check(line: &str, chain: Option<&str>, expected: &Expect) {
        let filter = FilterFlags { selector: None, chain: chain.map(str::to_owned) };
        let flags = SetImageFlags {
            arguments: line.split(' ').map(str::to_owned).collect(),
            change: ChangeFlags { filter, ..ChangeFlags::default() },
        };
        let text = match arguments(&flags) {
            Ok((image, nodes)) => format!("{image} for {nodes:?}"),
            Err(error) => error.to_string(),
        };
        expected.assert_eq(&text);
    }

    #[test]
    fn the_image_is_the_last_argument() {
        check("a b seid:v2", None, &expect![[r#"seid:v2 for ["a", "b"]"#]]);
        check(
            "a seid=host:5000/seid@sha256:12",
            None,
            &expect![[r#"host:5000/seid@sha256:12 for ["a"]"#]],
        );
        check("seid:v2", Some("pacific-1"), &expect!["seid:v2 for []"]);
        check(
            "a seid:v2",
            Some("pacific-1"),
            &expect!["a: name nodes, or use -l, --chain or --all, not both"],
        );
        check("seid:v2", None, &expect!["seid:v2 for []"]);
        check(
            "rpc-0 rpc-1",
            None,
            &expect!["`rpc-1` has no tag or digest; the image is the last argument"],
        );
    }

    #[test]
    fn a_paused_node_is_reported_as_such() {
        let mut paused = node("rpc-0");
        paused.spec.update.get_or_insert_default().paused = Some(true);
        let Change::Patch(patch, text) = set_image(&paused, "seid:v7") else { panic!("no patch") };
        assert_eq!(patch, json!({ "spec": { "image": "seid:v7" } }));
        expect![
            "image seid:v6.5.1 -> seid:v7; updates are paused, so it rolls after kubectl sei resume"
        ]
        .assert_eq(&text);
        let same = node("rpc-0").spec.image;
        assert!(matches!(set_image(&node("rpc-0"), &same), Change::NotNeeded(_)));
        let Change::Refused(why) = set_image(&node("rpc-0"), "seid:v 7") else {
            panic!("accepted")
        };
        expect!["spec.image: `seid:v 7` must not contain spaces or control characters"]
            .assert_eq(&why);
    }
}
