//! Operands that the tests on the CPU and those on a device have in common.

pub mod attention;
pub mod experts;
pub mod scan;
