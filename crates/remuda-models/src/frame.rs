//! How messages travel between this program and its child processes: a length, then that many bytes of postcard.

use std::io::{self, Read, Write};

use serde::Serialize;
use serde::de::DeserializeOwned;

/// Several times the largest image a plane accepts.
const FRAME_MAX: u32 = 512 << 20;

pub(crate) fn write(to: &mut impl Write, frame: &impl Serialize) -> io::Result<()> {
    let mut bytes = postcard::to_extend(frame, vec![0; 4]).map_err(io::Error::other)?;
    let length = u32::try_from(bytes.len() - 4).ok().filter(|length| *length <= FRAME_MAX);
    let length =
        length.ok_or_else(|| io::Error::other(format!("a frame of {} bytes is too large", bytes.len())))?;
    bytes[..4].copy_from_slice(&length.to_le_bytes());
    to.write_all(&bytes)
}

/// The next frame, or `None` when the other side has closed.
pub(crate) fn read<F: DeserializeOwned>(from: &mut impl Read) -> io::Result<Option<F>> {
    let mut length = [0; 4];
    match from.read_exact(&mut length) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        other => other?,
    }
    let length = u32::from_le_bytes(length);
    if length > FRAME_MAX {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            format!("a frame of {length} bytes is too large"),
        ));
    }
    let mut bytes = Vec::new();
    // Grows as bytes arrive, so a forged length alone allocates nothing.
    let got = from.take(u64::from(length)).read_to_end(&mut bytes)?;
    if got < length as usize {
        return Ok(None);
    }
    postcard::from_bytes(&bytes).map(Some).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

#[cfg(test)]
mod tests {
    use super::*;

    type Message = (u64, Vec<String>);

    #[test]
    fn frames_round_trip_and_a_truncated_frame_reads_as_the_end() {
        let message = (7_u64, vec!["a part".to_owned(), String::new()]);
        let mut bytes = Vec::new();
        write(&mut bytes, &message).unwrap();
        assert_eq!(read::<Message>(&mut &bytes[..]).unwrap(), Some(message));
        for end in 0..bytes.len() {
            assert!(read::<Message>(&mut &bytes[..end]).unwrap().is_none(), "cut at {end}");
        }
    }

    #[test]
    fn malformed_frames_are_errors_and_allocate_nothing() {
        assert!(read::<Message>(&mut &[255, 255, 255, 255, 0][..]).is_err());
        assert!(read::<Message>(&mut &[1, 0, 0, 0, 99][..]).is_err());
    }
}
