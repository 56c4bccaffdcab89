//! The golden test of image models.

use std::time::Duration;

use remuda_models::request::ImagePrompt;
use remuda_models::{CallOptions, ModelError, ModelPoolSettings, ModelRequest, PartAnswer};

use super::fixture::{KINDS, PoolFixture, fixture_with, settings, wait_until};

fn draw(fixture: &PoolFixture) -> Result<Vec<u8>, ModelError> {
    let draw = ImagePrompt {
        prompt: "a horse".to_owned(),
        negative_prompt: String::new(),
        size: None,
        steps: None,
        guidance: None,
        seed: Some(1),
    };
    let answer =
        fixture.pool.call("draw", ModelRequest::TextToImage(draw), CallOptions::default())?.wait()?;
    let [PartAnswer::Image(png)] = &answer.parts[..] else { panic!("{answer:?}") };
    Ok(png.clone())
}

/// Faults: T9. A black image is as long as a white one, and as a PNG it is valid.
#[test]
fn copy_that_generates_other_images_is_replaced() {
    for kind in KINDS {
        let fixture =
            fixture_with(ModelPoolSettings { maintenance_every: Duration::from_millis(50), ..settings() });
        let spec = fixture.spec("draw", &format!("text_to_image\n{kind}\nwrong_after = 2"));
        fixture.pool.add(spec).unwrap();
        draw(&fixture).unwrap();
        wait_until("found out and replaced", || {
            let model = fixture.pool.snapshot().models.remove(0);
            let is_replaced =
                model.deaths.contains_key("wrong") && model.copies.iter().any(|copy| copy.id > 1);
            if is_replaced { Ok(()) } else { Err(format!("{model:#?}")) }
        });
    }
}
