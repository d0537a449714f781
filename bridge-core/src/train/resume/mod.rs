//! Checkpoints of a run: saving, finding, restoring, and comparing a run with the run that it
//! resumes, or with its teacher.

pub(in crate::train) mod checkpointing;
pub(in crate::train) mod error;
pub(in crate::train) mod lineage;
pub(in crate::train) mod lock;
pub(in crate::train) mod progress;
pub(in crate::train) mod teacher;
pub(in crate::train) mod vocabulary;
