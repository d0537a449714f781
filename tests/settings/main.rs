//! Every accepted setting moves something that can be seen from outside a run. The rows have the
//! checks; the tables of the configuration have the list of settings.
//!
//! A row names a setting, values and a run, and the facets of the run (losses, norms, tensors of
//! the checkpoint, names of metrics, lines, files, exit code ...) that the value moves. All other
//! facets must stay. A setting that nothing reads any more moves nothing, and its row fails.

mod check;
mod contexts;
mod facets;
mod files;
mod library;
mod row;
mod rows;
mod run;
mod tables;
mod tracked;
