//! How much one packet takes: a statement with all of its arguments is sent in one, and the server's `max_allowed_packet` says how large it
//! may be.

use leasehold_core::{Invalid, NewJob, Problem, Verdict};
use leasehold_sql::headers_json;

use crate::error::Failure;
use crate::statement::Param;

/// What is in a packet beside the arguments that are counted here.
const REST: usize = 1 << 10;
/// What an argument takes beside its bytes: its type, whether it is null, and its length.
const ARGUMENT: usize = 12;
/// What a job takes beside its texts: ten arguments, of which five are numbers or times.
const JOB: usize = 10 * ARGUMENT + 5 * ARGUMENT;
/// What a document takes beside its text as an element of an array.
const ELEMENT: usize = 1 << 8;

/// The largest packet that a session may send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Packet(usize);

impl Packet {
    /// Of the server's `max_allowed_packet`.
    pub(crate) fn new(max_allowed_packet: usize) -> Self {
        Self(max_allowed_packet)
    }

    /// The room for arguments.
    pub(crate) fn room(self) -> usize {
        self.0.saturating_sub(REST)
    }

    /// So many ids have room beside a document of so many bytes. Lists are filled up to four times their length at most.
    pub(crate) fn ids_beside(self, document: usize) -> usize {
        self.room().saturating_sub(document) / (4 * ARGUMENT)
    }

    /// Refuses arguments that have no room.
    pub(crate) fn check(self, params: &[Param<'_>]) -> Result<(), Failure> {
        let bytes = params.iter().map(|param| ARGUMENT + param.bytes()).sum();
        too_long("request", bytes, self.room())
    }

    /// Refuses jobs of which one alone has no room.
    pub(crate) fn check_jobs(self, jobs: &[NewJob]) -> Result<(), Failure> {
        jobs.iter().try_for_each(|job| {
            let (all, payload, headers) = (job_bytes(job), job.payload().as_str().len(), headers_bytes(job));
            let (field, bytes) = if payload >= headers { ("payload", payload) } else { ("headers", headers) };
            too_long(field, bytes, self.room().saturating_sub(all - bytes))
        })
    }

    /// Refuses a document for which a packet has no room.
    pub(crate) fn check_verdict(self, verdict: &Verdict) -> Result<(), Failure> {
        let room = self.room().saturating_sub(ELEMENT);
        match verdict {
            Verdict::Done(result) => too_long("result", result.as_str().len(), room),
            Verdict::Dead { error } => too_long("error", error.as_str().len(), room),
            Verdict::Discard { reason } => too_long("reason", reason.as_str().len(), room),
            // It travels inside of an array.
            Verdict::Retry { error, .. } => {
                let text = error.as_str();
                too_long("error", text.len(), room.saturating_sub(escapes(text)))
            }
            Verdict::Snooze { .. } => Ok(()),
        }
    }
}

fn too_long(field: &'static str, bytes: usize, limit: usize) -> Result<(), Failure> {
    if bytes <= limit {
        return Ok(());
    }
    Err(Failure::Told(Invalid::new(field, Problem::TooLong { bytes, limit }).into()))
}

/// What a job takes in the packet of a batch.
pub(crate) fn job_bytes(job: &NewJob) -> usize {
    let key = job.unique_key().map_or(0, |key| key.as_str().len());
    let names = job.queue().as_str().len() + job.kind().as_str().len() + key;
    JOB + names + job.payload().as_str().len() + headers_bytes(job)
}

fn headers_bytes(job: &NewJob) -> usize {
    if job.headers().is_empty() { 2 } else { headers_json(job.headers()).len() }
}

/// By how much a JSON text grows as a string of another.
fn escapes(text: &str) -> usize {
    2 + text.bytes().filter(|byte| matches!(byte, b'"' | b'\\')).count()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic, reason = "tests may")]
mod tests {
    use leasehold_core::StoreError;

    use super::*;

    fn refused(failure: Failure) -> Invalid {
        match failure.told("enqueue") {
            StoreError::Invalid(invalid) => invalid,
            error => panic!("{error:?}"),
        }
    }

    #[test]
    fn a_text_grows_by_its_quotes() {
        for text in ["1", r#""a\"b""#, r#"{"a":["\\",null]}"#] {
            let string = serde_json::Value::from(text).to_string();
            assert_eq!(text.len() + escapes(text), string.len(), "{text}");
        }
    }

    #[test]
    fn the_larger_part_of_a_job_is_named() {
        let packet = Packet::new(12_000);
        let job = || NewJob::builder("q", "k");
        packet.check_jobs(&[job().payload(&"x".repeat(9_000)).build().unwrap()]).unwrap();
        let large = job().payload(&"x".repeat(12_000)).build().unwrap();
        assert_eq!(refused(packet.check_jobs(&[large]).unwrap_err()).field, "payload");
        let headers = job().header("h", "x".repeat(12_000)).build().unwrap();
        let invalid = refused(packet.check_jobs(&[headers]).unwrap_err());
        assert_eq!(invalid.field, "headers");
        assert!(matches!(invalid.problem, Problem::TooLong { bytes, limit } if bytes > limit), "{invalid}");
    }

    #[test]
    fn a_job_takes_no_more_than_is_counted() {
        let (time, job) =
            (Param::Time(None), NewJob::builder("q", "k").unique_key("a").payload(&1).build().unwrap());
        let texts = ["q", "k", "a", "1", "{}"].map(Param::from);
        let numbers = [1_i64.into(), 1_i64.into(), time.clone(), time.clone(), time];
        let sum: usize = texts.iter().chain(&numbers).map(|param| ARGUMENT + param.bytes()).sum();
        assert!(sum <= job_bytes(&job) && job_bytes(&job) < sum + 16, "{sum} {}", job_bytes(&job));
    }
}
