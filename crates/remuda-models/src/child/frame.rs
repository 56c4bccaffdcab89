//! What a pool and its child processes say to each other: a length, and that many bytes.

use std::io::{self, Read, Write};
use std::sync::Arc;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::failure::{InferenceError, LoadError};
use crate::request::{AnswerUpdate, PartAnswer, RequestPart};
use crate::spec::ModelSpec;

#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum ToChild {
    /// The first frame, and only the first.
    Load(ModelSpec),
    Work {
        run: u64,
        parts: Vec<Arc<RequestPart>>,
    },
    Stop {
        run: u64,
    },
    Ping {
        nonce: u64,
    },
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum FromChild {
    Loaded,
    NotLoaded(LoadError),
    AnswerUpdate { run: u64, piece: AnswerUpdate },
    Done { run: u64, outcome: Result<Vec<PartAnswer>, InferenceError> },
    Pong { nonce: u64, steps: u64 },
    Panicked(String),
}

/// A picture of the largest size a plane accepts, several times over.
const FRAME_MAX: u32 = 512 << 20;

pub(crate) fn write(to: &mut impl Write, frame: &impl Serialize) -> io::Result<()> {
    let mut bytes = postcard::to_extend(frame, vec![0; 4]).map_err(io::Error::other)?;
    let length = u32::try_from(bytes.len() - 4).ok().filter(|length| *length <= FRAME_MAX);
    let length = length.ok_or_else(|| io::Error::other(format!("a frame of {} bytes", bytes.len())))?;
    bytes[..4].copy_from_slice(&length.to_le_bytes());
    to.write_all(&bytes)
}

/// The next frame; nothing if the other side has ended.
pub(crate) fn read<F: DeserializeOwned>(from: &mut impl Read) -> io::Result<Option<F>> {
    let mut length = [0; 4];
    match from.read_exact(&mut length) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        other => other?,
    }
    let length = u32::from_le_bytes(length);
    if length > FRAME_MAX {
        return Err(io::Error::new(io::ErrorKind::InvalidData, format!("a frame of {length} bytes")));
    }
    let mut bytes = Vec::new();
    // Grows as bytes come, so that a length alone takes no memory.
    let got = from.take(u64::from(length)).read_to_end(&mut bytes)?;
    if got < length as usize {
        return Ok(None);
    }
    postcard::from_bytes(&bytes).map(Some).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_and_what_is_cut_short_is_the_end() {
        let parts = vec![Arc::new(RequestPart::Tokens(vec![1, 2, 3]))];
        let mut bytes = Vec::new();
        write(&mut bytes, &ToChild::Work { run: 7, parts: parts.clone() }).unwrap();
        let read_back = read::<ToChild>(&mut &bytes[..]).unwrap();
        assert!(matches!(read_back, Some(ToChild::Work { run: 7, parts: got }) if got == parts));
        for end in 0..bytes.len() {
            assert!(read::<ToChild>(&mut &bytes[..end]).unwrap().is_none(), "cut at {end}");
        }
    }

    #[test]
    fn nonsense_is_an_error_and_takes_no_memory() {
        assert!(read::<ToChild>(&mut &[255, 255, 255, 255, 0][..]).is_err());
        assert!(read::<ToChild>(&mut &[1, 0, 0, 0, 99][..]).is_err());
    }
}
