//! Masks: applied by the plane at once, whether or not there is a worker.

use reqwest::Method;
use reqwest::multipart::{Form, Part};

use super::*;
use crate::harness::{Plane, QUICK, answered};

/// An image of one colour, with a text as ComfyUI stores workflows.
fn image(size: (u32, u32), pixel: [u8; 4], text: &str) -> Vec<u8> {
    let mut file = Vec::new();
    let mut encoder = png::Encoder::new(&mut file, size.0, size.1);
    encoder.set_color(png::ColorType::Rgba);
    encoder.add_text_chunk("prompt".to_owned(), text.to_owned()).unwrap();
    let mut writer = encoder.write_header().unwrap();
    writer.write_image_data(&pixel.repeat((size.0 * size.1) as usize)).unwrap();
    writer.finish().unwrap();
    file
}

/// The first pixel, and the text of the workflow.
fn seen(file: &[u8]) -> (Vec<u8>, String) {
    let mut reader = png::Decoder::new(std::io::Cursor::new(file)).read_info().unwrap();
    let text = reader.info().uncompressed_latin1_text[0].text.clone();
    (reader.next_row().unwrap().unwrap().data()[..4].to_vec(), text)
}

async fn send(plane: &Client, path: &str, bytes: Vec<u8>, fields: &[(&str, &str)]) -> (StatusCode, Value) {
    let form = Form::new().part("image", Part::bytes(bytes).file_name("clipspace-mask-1.png"));
    let form = fields.iter().fold(form, |form, (key, value)| form.text(key.to_string(), value.to_string()));
    answered(plane.request(Method::POST, path).multipart(form)).await
}

const PLACE: [(&str, &str); 2] = [("type", "input"), ("subfolder", "clipspace")];

/// The web interface saves a mask in this way; no worker is needed for it.
#[tokio::test]
async fn mask_is_applied_at_once_without_a_worker() {
    let plane = Plane::start(QUICK).await;
    send(&plane, "/upload/image", image((8, 8), [10, 20, 30, 255], "{}"), &[("subfolder", "faces")]).await;
    let mask = image((8, 8), [0, 0, 0, 66], "not this");
    let name = "clipspace-mask-1.png";
    for (number, original) in [
        json!({ "filename": name, "subfolder": "faces", "type": "input" }),
        json!({ "filename": format!("{name} [input]"), "subfolder": "faces" }),
        json!({ "filename": format!("faces/{name}"), "type": "input" }),
    ]
    .iter()
    .enumerate()
    {
        let original = original.to_string();
        let fields = [&PLACE[..], &[("original_ref", &*original), ("overwrite", "true")]].concat();
        let (status, stored) = send(&plane, "/api/upload/mask", mask.clone(), &fields).await;
        assert_eq!(status, StatusCode::OK, "{number}: {stored}");
        assert_eq!(stored, json!({ "name": name, "subfolder": "clipspace", "type": "input" }));
        let file = json!({ "filename": name, "subfolder": "clipspace", "type": "input" });
        let shown = view(&plane, &file).await.bytes().await.unwrap();
        assert_eq!(seen(&shown), (vec![10, 20, 30, 66], "{}".to_owned()));
    }
    assert_eq!(plane.jobs().await.len(), 0, "there is no hidden job");
}

/// Faults: B7, X7.
#[tokio::test]
async fn bad_mask_is_refused_and_blocks_nobody() {
    let plane = Plane::start(QUICK).await;
    send(&plane, "/upload/image", image((8, 8), [1, 2, 3, 4], "{}"), &[]).await;
    let known = json!({ "filename": "clipspace-mask-1.png", "type": "input" }).to_string();
    let good = image((8, 8), [0, 0, 0, 66], "");
    // Thirty-six million pixels of one colour: a small file that would need 144 MB.
    let bomb = image((6000, 6000), [0; 4], "");
    assert!(bomb.len() < 1 << 20, "{} bytes", bomb.len());
    let nobody = json!({ "filename": "nobody.png", "type": "input" }).to_string();
    for (mask, original, part) in [
        (bomb, known.as_str(), "6000 x 6000 pixels"),
        (image((4, 8), [0; 4], ""), &known, "(4, 8)"),
        (b"GIF89a".to_vec(), &known, "neither a PNG nor a JPEG"),
        (good[..60].to_vec(), &known, "cannot be decoded"),
        (good.clone(), &nobody, "does not name an existing image"),
        (good.clone(), "", "original_ref"),
        (good.clone(), "[1]", "original_ref"),
    ] {
        let fields = [&PLACE[..], &[("original_ref", original)]].concat();
        let (status, answer) = send(&plane, "/upload/mask", mask, &fields).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{part}: {answer}");
        assert!(answer.to_string().contains(part), "{part}: {answer}");
    }
    let fields = [&PLACE[..], &[("original_ref", &*known)]].concat();
    assert_eq!(send(&plane, "/upload/mask", good, &fields).await.0, StatusCode::OK);
}
