//! Kinds of a pending update, as the status of a node shows them.

use sei_api::SeiNode;
use sei_api::condition::{ConditionStatus, ConditionType, Reason, find, is};

/// Whether only settings outside of the template are pending: they cause no roll.
pub(crate) fn is_settings_only(node: &SeiNode) -> bool {
    let Some(status) = &node.status else { return false };
    let pending = status.pending_update.as_ref();
    let has_only_settings = pending.is_some_and(|pending| {
        !pending.changes.is_empty()
            && pending.changes.iter().all(|change| change.path.starts_with("config."))
    });
    has_only_settings
        && is(&status.conditions, ConditionType::PodTemplateDrift, ConditionStatus::False)
}

/// Whether `spec.update.paused` holds the update, by the reason of the drift condition.
pub(crate) fn is_paused_update(node: &SeiNode) -> bool {
    let conditions = node.status.as_ref().map(|status| status.conditions.as_slice());
    find(conditions.unwrap_or_default(), ConditionType::PodTemplateDrift)
        .is_some_and(|condition| condition.reason == Reason::Paused.as_str())
}
