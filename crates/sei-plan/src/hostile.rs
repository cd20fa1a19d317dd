//! Text and objects that others can write where we read: stored plans, files, image references,
//! revisions. None of them may cause a panic, and messages about them stay short.

mod plans;
mod revisions;
mod texts;
