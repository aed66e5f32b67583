//! Snapshots: one file `snapshots/<area>/<name>.snap` for each text that a person should see
//! change.

/// Compares a text with its snapshot. `INSTA_UPDATE=always` accepts it.
#[track_caller]
pub fn assert(area: &str, name: &str, text: &str) {
    let mut settings = insta::Settings::new();
    settings.set_snapshot_path(crate::root("snapshots").join(area));
    settings.set_prepend_module_to_snapshot(false);
    settings.set_omit_expression(true);
    settings.bind(|| insta::assert_snapshot!(name, text));
}
