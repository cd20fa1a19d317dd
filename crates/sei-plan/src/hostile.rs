//! Whatever others may have written where we read: stored plans, files, image references,
//! revisions. Nothing of it may panic, and what is said about it stays short.

mod plans;
mod revisions;
mod texts;
