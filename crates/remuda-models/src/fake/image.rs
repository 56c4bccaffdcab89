//! A PNG of one white pixel, or a black one from a copy that has become wrong. The prompt is appended after the image,
//! so that other prompts and seeds give other files.

use super::Echo;
use super::fault::{self, InjectedFault};
use crate::beacon::Beacon;
use crate::failure::InferenceError;
use crate::model::TextToImage;
use crate::request::{AnswerUpdate, ImagePrompt};

const STEPS: u32 = 4;

const WHITE: &[u8] =
    b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\0\x01\0\0\0\x01\x08\0\0\0\0:~\x9bU\0\0\0\nIDATx\xdac\xf8\x0f\0\x01\
\x01\x01\0\x1c\xb0\x8c\x99\0\0\0\0IEND\xaeB`\x82";

const BLACK: &[u8] =
    b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\0\x01\0\0\0\x01\x08\0\0\0\0:~\x9bU\0\0\0\nIDATx\xdac`\0\0\0\x02\0\
\x01\xe5'\xde\xfc\0\0\0\0IEND\xaeB`\x82";

impl TextToImage for Echo {
    fn draw(
        &mut self,
        draw: &ImagePrompt,
        beacon: &Beacon,
        emit: &mut dyn FnMut(AnswerUpdate),
    ) -> Result<Vec<u8>, InferenceError> {
        fault::is_usable(&self.path)?;
        self.answered += 1;
        let steps = draw.steps.unwrap_or(STEPS).max(1);
        for step in 1..=steps {
            beacon.step()?;
            emit(AnswerUpdate::Progress(step as f32 / steps as f32));
        }
        if let Some((_, fault, _)) = InjectedFault::find(&draw.prompt) {
            fault.happen(&self.path, beacon)?;
        }
        let note = format!("{} {:?} {:?}", draw.prompt, draw.size, draw.seed);
        let point = if self.is_wrong() { BLACK } else { WHITE };
        Ok([point, note.as_bytes()].concat())
    }
}

pub(super) fn golden(prompt: String) -> ImagePrompt {
    ImagePrompt {
        prompt,
        negative_prompt: String::new(),
        size: None,
        steps: None,
        guidance: None,
        seed: Some(7),
    }
}
