//! `/upload/mask`, and pictures that are loaded with their masks.

use reqwest::Method;
use reqwest::multipart::{Form, Part};
use serde_json::{Value, json};

use super::observe::Side;
use super::{Sides, wait_until};
use crate::harness::answered;

/// A picture in which every pixel is another colour.
fn picture(color: png::ColorType, size: (u32, u32), texts: &[(&str, &str)]) -> Vec<u8> {
    let mut file = Vec::new();
    let mut encoder = png::Encoder::new(&mut file, size.0, size.1);
    encoder.set_color(color);
    encoder.set_depth(png::BitDepth::Eight);
    for (key, text) in texts {
        encoder.add_itxt_chunk((*key).to_owned(), (*text).to_owned()).unwrap();
    }
    let bytes = size.0 as usize * size.1 as usize * color.samples();
    let mut writer = encoder.write_header().unwrap();
    writer.write_image_data(&(0..bytes).map(|at| (at * 7 % 251) as u8).collect::<Vec<u8>>()).unwrap();
    writer.finish().unwrap();
    file
}

impl Side {
    async fn upload(&self, path: &str, name: &str, bytes: &[u8], fields: &[(&str, &str)]) -> Value {
        let form = Form::new().part("image", Part::bytes(bytes.to_vec()).file_name(name.to_owned()));
        let form =
            fields.iter().fold(form, |form, (key, value)| form.text(key.to_string(), value.to_string()));
        let (status, answer) = answered(self.client.request(Method::POST, path).multipart(form)).await;
        json!([status.as_u16(), answer])
    }

    /// Uploads a mask, and looks at what is there then.
    async fn mask(&self, name: &str, mask: &[u8], original: &Value, overwrite: bool) -> Value {
        let overwrite = if overwrite { "true" } else { "" };
        let fields =
            [("original_ref", &*original.to_string()), ("subfolder", "clipspace"), ("overwrite", overwrite)];
        let answer = self.upload("/upload/mask", name, mask, &fields).await;
        let file = json!({ "filename": answer[1]["name"], "subfolder": "clipspace", "type": "input" });
        json!({ "answer": answer, "file": self.view(&file).await })
    }
}

impl Sides {
    pub(super) async fn observe_masks(&self, side: &Side) -> Value {
        use png::ColorType::{Grayscale, Rgb, Rgba};
        let (photo, masked) = (format!("{}-photo.png", self.tag), format!("{}-masked.png", self.tag));
        let texts = [("prompt", "{\"1\": {}}"), ("note", "höhe ✓")];
        let mask = picture(Rgba, (6, 4), &[("prompt", "of the mask")]);
        let mut seen = json!({});
        for (kind, color) in [("grey", Grayscale), ("rgb", Rgb), ("rgba", Rgba)] {
            let folder = [("subfolder", kind)];
            seen[kind] = side.upload("/upload/image", &photo, &picture(color, (6, 4), &texts), &folder).await;
        }
        let input = |folder: &str| json!({ "filename": photo, "subfolder": folder, "type": "input" });
        let annotated = json!({ "filename": format!("{photo} [input]"), "subfolder": "rgb" });
        let in_name = json!({ "filename": format!("rgb/{photo}"), "type": "input" });
        let opaque = picture(Rgb, (6, 4), &[]);
        for (case, bytes, original, overwrite) in [
            ("of a grey picture", &mask, input("grey"), true),
            ("of a picture with alpha", &mask, input("rgba"), true),
            ("named with its type", &mask, annotated, true),
            ("named with its folder", &mask, in_name, true),
            ("without alpha", &opaque, input("rgba"), true),
            ("of a picture", &mask, input("rgb"), true),
            ("the same again", &mask, input("rgb"), false),
            ("and again", &mask, input("rgb"), false),
            ("composed before", &picture(Rgba, (6, 4), &texts), input("rgb"), false),
        ] {
            seen[case] = side.mask(&masked, bytes, &original, overwrite).await;
        }
        // A picture is loaded with the mask that was put over it.
        let load = json!({ "class_type": "LoadImage", "inputs": { "image": format!("clipspace/{masked}") } });
        let save = json!({ "class_type": "SaveImage", "inputs": { "images": ["1", 0], "filename_prefix": format!("{}m", self.tag) } });
        let (status, answer) =
            side.client.post("/prompt", &json!({ "prompt": { "1": load, "2": save } })).await;
        assert!(status.is_success(), "{answer}");
        let id = answer["prompt_id"].as_str().unwrap();
        let entry = wait_until("it has run", async || {
            let mut history = side.client.get(&format!("/history/{id}")).await;
            history[id].is_object().then(|| history[id].take())
        })
        .await;
        seen["loaded"] = side.view(&entry["outputs"]["2"]["images"][0]).await;
        seen["graph"] = entry["prompt"][2].clone();
        seen["outputs"] = entry["outputs"].clone();
        seen["outcome"] = entry["status"]["status_str"].clone();
        seen
    }
}
