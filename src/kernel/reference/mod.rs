//! The naive oracle.
