//! Tests of import and export.
