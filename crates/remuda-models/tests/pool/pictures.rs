//! Pictures are known by what is to be seen in them.

use std::time::Duration;

use remuda_models::request::Draw;
use remuda_models::{Call, PartAnswer, PoolError, PoolSettings, Request};

use super::herd::{Herd, KINDS, herd_with, settings, wait_until};

fn draw(herd: &Herd) -> Result<Vec<u8>, PoolError> {
    let draw = Draw {
        prompt: "a horse".to_owned(),
        negative_prompt: String::new(),
        size: None,
        steps: None,
        guidance: None,
        seed: Some(1),
    };
    let answer = herd.pool.call("draw", Request::TextToImage(draw), Call::default())?.wait()?;
    let [PartAnswer::Drawn(png)] = &answer.parts[..] else { panic!("{answer:?}") };
    Ok(png.clone())
}

/// Faults: T9. A black picture is as long as a white one, and no PNG is wrong with it.
#[test]
fn a_copy_that_has_come_to_draw_something_else_is_found_out_and_replaced() {
    for kind in KINDS {
        let herd = herd_with(PoolSettings { maintenance_every: Duration::from_millis(50), ..settings() });
        let spec = herd.spec("draw", &format!("text_to_image\n{kind}\nwrong_after = 2"));
        herd.pool.add(spec).unwrap();
        draw(&herd).unwrap();
        wait_until("found out and replaced", || {
            let model = herd.pool.snapshot().models.remove(0);
            let is_replaced =
                model.deaths.contains_key("wrong") && model.copies.iter().any(|copy| copy.id > 1);
            if is_replaced { Ok(()) } else { Err(format!("{model:#?}")) }
        });
    }
}
