//! Commands in documents: the content of ```` ```sh ```` blocks, by heading.

use std::fs;

use anyhow::{Context as _, Result, ensure};

use crate::install::repository;

/// The command blocks under a heading, verbatim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Section {
    pub heading: String,
    pub blocks: Vec<String>,
}

/// The sections of a document that contain commands.
pub fn sections(document: &str) -> Result<Vec<Section>> {
    let text = fs::read_to_string(repository().join(document));
    Ok(parse(&text.with_context(|| format!("failed to read {document}"))?))
}

/// The commands under one heading, as one script.
pub fn commands(document: &str, heading: &str) -> Result<String> {
    let found = sections(document)?.into_iter().find(|section| section.heading == heading);
    let section = found.with_context(|| format!("{document} has no commands under {heading}"))?;
    ensure!(!section.blocks.is_empty(), "{document} has no commands under {heading}");
    Ok(section.blocks.concat())
}

fn parse(text: &str) -> Vec<Section> {
    let mut sections = vec![Section { heading: String::new(), blocks: Vec::new() }];
    let mut fence = None;
    for line in text.lines() {
        let section = sections.last_mut();
        match (fence, line.strip_prefix("```")) {
            (None, Some(language)) => {
                fence = Some(language == "sh");
                if let (Some(section), "sh") = (section, language) {
                    section.blocks.push(String::new());
                }
            }
            (Some(_), Some(_)) => fence = None,
            (Some(true), None) => {
                if let Some(block) = section.and_then(|section| section.blocks.last_mut()) {
                    block.push_str(line);
                    block.push('\n');
                }
            }
            (Some(false), None) => {}
            (None, None) => {
                if let Some(heading) = line.strip_prefix('#') {
                    let heading = heading.trim_start_matches('#').trim().to_owned();
                    sections.push(Section { heading, blocks: Vec::new() });
                }
            }
        }
    }
    sections.retain(|section| !section.blocks.is_empty());
    sections
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_found_by_their_heading() {
        let text = "# A\n```sh\na # one\n```\n## B\ntext\n```yaml\n# C\nno: command\n```\n\
                    ```sh\nb\n```\nmore\n```sh\nc\n```\n";
        let section = |heading: &str, blocks: &[&str]| Section {
            heading: heading.to_owned(),
            blocks: blocks.iter().map(|block| (*block).to_owned()).collect(),
        };
        assert_eq!(parse(text), [section("A", &["a # one\n"]), section("B", &["b\n", "c\n"])]);
    }
}
