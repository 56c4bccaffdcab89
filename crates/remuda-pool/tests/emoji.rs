//! The model that lies in this repository, `models/emoji`: it draws what it is asked for.

#![cfg(feature = "candle")]
#![expect(clippy::unwrap_used, reason = "what a test does not expect may end it")]

use std::path::Path;

use remuda_pool::request::Draw;
use remuda_pool::{Call, ModelSpec, PartAnswer, Pool, PoolSettings, Request, engines};

/// The colour of each corner.
fn corners(pool: &Pool, prompt: &str) -> Vec<[u8; 3]> {
    let draw = Draw {
        prompt: prompt.to_owned(),
        negative_prompt: String::new(),
        size: None,
        steps: Some(8),
        guidance: Some(4.0),
        seed: Some(1),
    };
    let answer = pool.call("draw", Request::TextToImage(draw), Call::default()).unwrap().wait().unwrap();
    let [PartAnswer::Drawn(file)] = &answer.parts[..] else { panic!("{answer:?}") };
    let picture = image::load_from_memory(file).unwrap().to_rgb8();
    assert_eq!(picture.dimensions(), (64, 64));
    [(0, 0), (63, 0), (0, 63), (63, 63)].map(|(x, y)| picture.get_pixel(x, y).0).to_vec()
}

#[test]
fn it_draws_on_the_ground_it_was_asked_for() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/emoji/weights");
    let pool = Pool::start(PoolSettings::default(), engines());
    let mut spec = ModelSpec::new("draw", folder);
    spec.isolation = remuda_pool::Isolation::Thread;
    pool.add(spec).unwrap();
    let blue = corners(&pool, "a cat face on a blue background");
    assert!(blue.iter().all(|[r, _, b]| *b > r.saturating_add(60)), "{blue:?}");
    let yellow = corners(&pool, "a dolphin on a yellow background");
    assert!(yellow.iter().all(|[r, _, b]| *r > b.saturating_add(60)), "{yellow:?}");
}
