//! Later.
/// Later.
#[derive(Debug)]
pub enum Operation {}
