//! The rows, a file or more for each section.

mod checkpoint;
mod dataset;
mod faults;
mod layout;
mod logger;
mod model;
mod moe;
mod optimizer;
mod others;
mod peft;
mod ranks;
mod scheduler;
mod stragglers;
mod t5;
mod train;

use super::check::check;
use super::row::Row;
use ranks::patience;

macro_rules! sections {
    ($($name:ident),+) => {
        /// Every row.
        pub fn all() -> Vec<Row> {
            [$($name::rows()),+, super::library::rows()].concat()
        }

        mod tests {
            $(
                #[test]
                fn $name() {
                    super::check(&super::$name::rows());
                }
            )+
        }
    };
}

sections!(
    checkpoint, dataset, faults, layout, logger, model, moe, optimizer, others, patience, peft, ranks, scheduler,
    stragglers, t5, train
);
