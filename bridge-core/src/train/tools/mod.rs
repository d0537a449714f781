//! Tools that start runs of their own: measuring, dry runs, the sweep of learning rates, and checks
//! before a run.

pub(in crate::train) mod dry_run;
pub(in crate::train) mod inputs_check;
pub(in crate::train) mod lr_sweep;
pub(in crate::train) mod measure;
pub(in crate::train) mod preview;
