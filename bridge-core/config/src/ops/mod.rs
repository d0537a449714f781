//! Operations on a configuration besides running it: write, compare, summarise, describe.

mod diff;
mod schema;
mod summary;
mod write;

pub use diff::{Difference, diff, diff_from_defaults};
pub use schema::json_schema;
pub use write::Detail;
