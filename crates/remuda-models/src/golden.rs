//! Checks whether an answer is valid, and whether it matches the stored answer to the golden request.
//!
//! A live process can still return garbage: poisoned devices have done so for hours while every health check was green.
//! An answer that is empty, of the wrong kind or size, or contains non-finite numbers counts as a failure of the copy,
//! and copies are tested regularly with a request whose answer is known.

mod pixels;

use self::pixels::Pixels;
use crate::request::{PartAnswer, RequestPart};

/// The largest cosine distance between two vectors that count as equal. Threads and kernels round differently; wrong
/// weights are much further apart.
const DISTANCE_MAX: f32 = 1e-3;

/// Why this answer is invalid for the part, if it is.
pub(crate) fn flaw(
    part: &RequestPart,
    answer: &PartAnswer,
    reference: Option<&PartAnswer>,
) -> Option<String> {
    match (part, answer) {
        (RequestPart::Tokens(_), PartAnswer::Vector(vector)) => {
            let length = match reference {
                Some(PartAnswer::Vector(known)) => Some(known.len()),
                _ => None,
            };
            flaw_of(vector, length)
        }
        (RequestPart::EmbedImage(_), PartAnswer::ImageVector(embedded)) => {
            let length = match reference {
                Some(PartAnswer::ImageVector(known)) => Some(known.vector.len()),
                _ => None,
            };
            flaw_of(&embedded.vector, length)
        }
        (RequestPart::Prompt { sampling, .. }, PartAnswer::Text(text)) => {
            let is_empty = text.text.is_empty() && text.tokens == 0 && sampling.tokens_max != Some(0);
            is_empty.then(|| "an empty text".to_owned())
        }
        // An image without text has an empty answer.
        (RequestPart::Recognize(_), PartAnswer::Recognized(_)) => None,
        (RequestPart::GenerateImage(_), PartAnswer::Image(png)) => {
            (!png.starts_with(b"\x89PNG")).then(|| format!("{} bytes that are not a PNG", png.len()))
        }
        (_, PartAnswer::Vector(_) | PartAnswer::Text(_) | PartAnswer::Recognized(_)) => Some(KIND.to_owned()),
        (_, PartAnswer::ImageVector(_) | PartAnswer::Image(_)) => Some(KIND.to_owned()),
    }
}

const KIND: &str = "an answer of another kind";

fn flaw_of(vector: &[f32], length: Option<usize>) -> Option<String> {
    if vector.is_empty() {
        return Some("an empty vector".to_owned());
    }
    if let Some(length) = length.filter(|length| *length != vector.len()) {
        return Some(format!("a vector of {} numbers instead of {length}", vector.len()));
    }
    let broken = vector.iter().filter(|number| !number.is_finite()).count();
    (broken > 0).then(|| format!("a vector with {broken} non-finite numbers"))
}

/// How an answer differs from the stored one, if it does.
pub(crate) fn difference(known: &PartAnswer, answer: &PartAnswer) -> Option<String> {
    match (known, answer) {
        (PartAnswer::Vector(known), PartAnswer::Vector(vector)) => apart(known, vector),
        (PartAnswer::ImageVector(known), PartAnswer::ImageVector(embedded)) => {
            apart(&known.vector, &embedded.vector)
        }
        // Greedy sampling: copies may differ in the last digit of a logit and still produce the same text.
        (PartAnswer::Text(known), PartAnswer::Text(text)) => {
            (known.text != text.text).then(|| format!("{:?} instead of {:?}", text.text, known.text))
        }
        (PartAnswer::Recognized(known), PartAnswer::Recognized(seen)) => {
            (known.text != seen.text).then(|| format!("{:?} instead of {:?}", seen.text, known.text))
        }
        (PartAnswer::Image(known), PartAnswer::Image(png)) => {
            match (Pixels::read(known), Pixels::read(png)) {
                (Ok(known), Ok(drawn)) => known.difference(&drawn),
                (_, Err(error)) => Some(format!("an unreadable image: {error}")),
                // The stored image itself is unreadable, so it cannot be compared with.
                (Err(_), Ok(_)) => None,
            }
        }
        (_, PartAnswer::Vector(_) | PartAnswer::Text(_) | PartAnswer::Recognized(_)) => Some(KIND.to_owned()),
        (_, PartAnswer::ImageVector(_) | PartAnswer::Image(_)) => Some(KIND.to_owned()),
    }
}

fn apart(known: &[f32], vector: &[f32]) -> Option<String> {
    if let Some(flaw) = flaw_of(vector, Some(known.len())) {
        return Some(flaw);
    }
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f32>();
    let lengths = (dot(known, known) * dot(vector, vector)).sqrt();
    let distance = 1.0 - dot(known, vector) / lengths.max(f32::MIN_POSITIVE);
    // Not `>`, so that NaN counts as different.
    let is_near = distance <= DISTANCE_MAX;
    (!is_near).then(|| format!("a vector at a distance of {distance}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::{FinishReason, GeneratedText};

    fn vector(numbers: &[f32]) -> PartAnswer {
        PartAnswer::Vector(numbers.to_vec())
    }

    /// Faults: T12.
    #[test]
    fn empty_missized_or_non_finite_answers_are_flawed() {
        let part = RequestPart::Tokens(vec![1]);
        let reference = vector(&[0.6, 0.8]);
        let flaw = |answer| flaw(&part, &answer, Some(&reference));
        assert_eq!(flaw(vector(&[1.0, 0.0])), None);
        for broken in [vector(&[]), vector(&[1.0]), vector(&[f32::NAN, 1.0]), PartAnswer::Image(vec![])] {
            assert!(flaw(broken.clone()).is_some(), "{broken:?}");
        }
        let text = |text: &str, tokens| {
            PartAnswer::Text(GeneratedText { text: text.to_owned(), finish: FinishReason::Stop, tokens })
        };
        let prompt = RequestPart::Prompt { tokens: vec![1], sampling: crate::request::Sampling::default() };
        assert!(super::flaw(&prompt, &text("", 0), None).is_some());
        assert_eq!(super::flaw(&prompt, &text("", 3), None), None, "a stop text came first");
    }

    #[test]
    fn rounding_is_no_difference_but_other_numbers_are() {
        let known = vector(&[0.6, 0.8]);
        assert_eq!(difference(&known, &vector(&[0.60001, 0.79999])), None);
        assert!(difference(&known, &vector(&[0.8, 0.6])).is_some());
        assert!(difference(&known, &vector(&[0.0, 0.0])).is_some());
        assert!(difference(&known, &vector(&[f32::NAN, 0.8])).is_some());
    }
}
